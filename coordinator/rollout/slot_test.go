package rollout_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
)

// TestSlots has why n1 counts as unavailable, and n2, which is an ordinary node unless the words say otherwise.
func TestSlots(t *testing.T) {
	for words, want := range map[string]string{
		"idle":                      "",
		"idle wants=nothing":        "",
		"idle cordoned":             "n1 Cordoned",
		"idle wants=nothing marked": "n1 InTurn",
		"idle notready":             "n1 NotReady",
		"idle notready cordoned":    "n1 NotReady", // it would not come back by an uncordon
		"idle stopped cordoned":     "n1 Cordoned",
		"idle failed":               "", // its turn is over, and it is there
		"idle failed cordoned":      "n1 Cordoned",
		"draining":                  "n1 InTurn since 11:59",
		"draining notready":         "n1 InTurn since 11:59",
		"draining nogrant":          "n1 InTurn",
		"rebooting marked ack=rebooting/failed:Unhealthy": "n1 Failed since 11:59",
		// A reboot may take 30 minutes, without the time in which no leader led.
		"rebooting marked ack=rebooting/committed grant.epoch=e0 since=40m ledago=20m": "n1 InTurn since 11:20",
		"rebooting marked ack=rebooting/committed grant.epoch=e0 since=55m ledago=20m": "n1 Failed since 11:05",
		"idle uncertain=n1":                       "n1 Unsettled",
		"draining uncertain=n1":                   "n1 Unsettled since 11:59",
		"idle managed=false cordoned":             "",
		"absent wants=nothing unmanaged cordoned": "",
		"absent detached cordoned":                "",
		"idle detached cordoned":                  "n1 Cordoned", // until it is released
		"idle n2.cordoned":                        "n2 Cordoned",
		"draining n2.cordoned":                    "n1 InTurn since 11:59, n2 Cordoned",
	} {
		var got []string
		for _, s := range rollout.Decide(situation(t, strings.Fields(words))).Slots {
			text := s.Node + " " + string(s.Use)
			if !s.Since.IsZero() {
				text += " since " + s.Since.UTC().Format("15:04")
			}
			got = append(got, text)
		}
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("%s: %q, want %q", words, text, want)
		}
	}
}

func TestSlotsOfPolicies(t *testing.T) {
	s := situation(t, strings.Fields("draining policy=web;select=pool:web n2.cordoned n2.label=pool:web"))
	s.Nodes[1].Ready, s.Nodes[1].ReadySince = false, atNoon.Add(-time.Hour)
	slots := rollout.Decide(s).Slots
	if len(slots) != 2 || !slices.Equal(slots[0].Policies, []string{"built-in"}) || !slices.Equal(slots[1].Policies, []string{"web"}) || !slots[1].Since.Equal(atNoon.Add(-time.Hour)) {
		t.Errorf("%+v", slots)
	}
}

func TestTaken(t *testing.T) {
	slots := []rollout.Slot{
		{Node: "a", Use: v1alpha1.SlotInTurn}, {Node: "b", Use: v1alpha1.SlotUnsettled}, {Node: "d", Use: v1alpha1.SlotNotReady, Since: atNoon},
		{Node: "c", Use: v1alpha1.SlotFailed}, {Node: "e", Use: v1alpha1.SlotCordoned},
		{Node: "f", Use: v1alpha1.SlotDeleted, Owner: "Karpenter", Since: atNoon},
	}
	for n, want := range []string{
		"", ": a is in its turn", ": b has a write whose outcome is not known, a is in its turn",
		": d is not Ready since 2026-01-01 12:00:00 UTC, b has a write whose outcome is not known, a is in its turn",
		": c failed in its turn, d is not Ready since 2026-01-01 12:00:00 UTC, b has a write whose outcome is not known, and 1 more",
		": e is cordoned by another owner, c failed in its turn, d is not Ready since 2026-01-01 12:00:00 UTC, and 2 more",
		": e is cordoned by another owner, c failed in its turn, f is being deleted by Karpenter since 2026-01-01 12:00:00 UTC, and 3 more",
	} {
		if got := rollout.Taken(slots[:n]); got != want {
			t.Errorf("of %d: %q, want %q", n, got, want)
		}
	}
}

// TestBlocking has which nodes others wait for that are in no turn.
func TestBlocking(t *testing.T) {
	for words, want := range map[string]string{
		"idle n2.cordoned":               "n2",
		"idle n2.cordoned wants=nothing": "", // no one waits
		"idle n2.notready":               "n2",
		"idle n2.deleted=Karpenter":      "n2",
		"idle n2.owner=Karpenter":        "", // a mark alone takes no slot
		"idle n2.draining":               "", // it is in its turn
		"idle cordoned":                  "", // it waits for no other
		"idle":                           "",
		"idle paused n2.cordoned":        "", // its pause holds it
		"idle n2.cordoned n2.ended=30s":  "", // its policy's nodes settle
		"idle n2.cordoned policy=db;select=pool:db n2.label=pool:db":         "",
		"idle n2.cordoned policy=db;select=pool:db;total=1 n2.label=pool:db": "n2",
	} {
		out := rollout.Decide(situation(t, strings.Fields(words)))
		var got []string
		for _, s := range out.Blocking() {
			got = append(got, s.Node)
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: %q, want %q", words, text, want)
		}
	}
}

// TestTakersOfAPolicy: a node is held by the nodes that take the slots of its own policy. A turn takes a slot of the policy that
// granted it, too.
func TestTakersOfAPolicy(t *testing.T) {
	for words, want := range map[string]string{
		"idle n2.deleted=Karpenter policy=web;select=pool:web":                             "policy built-in: 1 unavailable, 1 allowed: n2 is being deleted by Karpenter since 2026-01-01 12:00:00 UTC",
		"idle n2.cordoned policy=web;select=pool:web":                                      "policy built-in: 1 unavailable, 1 allowed: n2 is cordoned by another owner",
		"idle n2.draining n2.policy=built-in policy=web;select=pool:web n2.label=pool:web": "policy built-in: 1 unavailable, 1 allowed: n2 is in its turn",
		"idle n2.cordoned policy=web;select=pool:web policy=budget=3;total=2":              "2 unavailable in all, 2 allowed in all by policy built-in: n2 is cordoned by another owner, n3 is cordoned by another owner",
	} {
		s := situation(t, strings.Fields(words))
		n3 := s.Nodes[1]
		host := *n3.Host
		n3.Name, n3.UID, host.NodeUID = "n3", "n3-uid", "n3-uid"
		n3.State, n3.Grant, n3.Turn, n3.Host, n3.Wants = v1alpha1.StateIdle, nil, "", &host, v1alpha1.WantsNothing
		n3.Unschedulable, n3.Labels = true, map[string]string{"pool": "web"}
		s.Nodes = append(s.Nodes, n3)
		for _, v := range rollout.Decide(s).Verdicts {
			if v.Node == "n1" && (v.Held != v1alpha1.ReasonBudget || v.Detail != want) {
				t.Errorf("%s: %s: %q, expected %q", words, v.Held, v.Detail, want)
			}
		}
	}
}
