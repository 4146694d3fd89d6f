package rollout_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// moved returns the move of n1 in the situation that the facts describe, with the node as change leaves it.
func moved(t *testing.T, facts string, change func(*turn.Node)) *rollout.Move {
	t.Helper()
	s := situation(t, strings.Fields(facts))
	if change != nil {
		change(&s.Nodes[0])
	}
	for _, v := range rollout.Decide(s).Verdicts {
		if v.Node == "n1" && v.Move != nil {
			return v.Move
		}
	}
	t.Fatalf("%s: no move", facts)
	return nil
}

// TestResultOfRefusal: a turn that the host refuses because it is no longer wanted is cancelled, and others are tried again.
func TestResultOfRefusal(t *testing.T) {
	for reason, want := range map[v1alpha1.Reason]v1alpha1.Result{
		v1alpha1.ReasonWantGone: "Cancelled", v1alpha1.ReasonUnmanaged: "Cancelled", v1alpha1.ReasonDetached: "Cancelled", v1alpha1.ReasonHeldBack: "Cancelled",
		v1alpha1.ReasonUncordoned: "BackedOut", v1alpha1.ReasonPlanChanged: "BackedOut", v1alpha1.ReasonRebootRefused: "BackedOut",
	} {
		g := moved(t, "draining ack=draining/refused:"+string(reason)+" marked", nil).Grant
		if g.Result != want || g.Reason != reason {
			t.Errorf("%s: %s (%s), expected %s", reason, g.Result, g.Reason, want)
		}
		// What was recorded first stays.
		if g := moved(t, "rebooting ack=rebooting/refused:"+string(reason)+" marked result=Failed reason=Overdue", nil).Grant; g.Result != "Failed" || g.Reason != v1alpha1.ReasonOverdue {
			t.Errorf("%s after a failure: %s (%s)", reason, g.Result, g.Reason)
		}
	}
}

// TestStoppedClock: the clock of a turn whose leader is gone is stopped since that leader last led. That of a turn whose
// leader could not write its Node is stopped since the leader saw the emergency stop.
func TestStoppedClock(t *testing.T) {
	for facts, want := range map[string]time.Duration{
		"draining marked stopped":                                                          0,
		"draining marked since=1h stopped-since=10m":                                       10 * time.Minute, // the Node could not be written before
		"draining marked since=10m stopped-since=1h":                                       10 * time.Minute,
		"draining marked since=1h stop-missed=10m":                                         10 * time.Minute, // nor before the end of the stop
		"draining marked since=10m stop-missed=1h":                                         10 * time.Minute,
		"draining marked since=1h stop-missed=10m paused":                                  10 * time.Minute,
		"draining marked since=1h stopped-since=10m grant.epoch=e0":                        time.Hour,
		"draining marked stopped since=1h grant.epoch=e0":                                  time.Hour,
		"draining marked stopped since=1h grant.epoch=e0 ledago=10m":                       10 * time.Minute,
		"draining marked since=1h stop-missed=20m stop-missed-until=5m":                    15 * time.Minute,
		"draining marked since=1h stop-missed=20m stop-missed-until=15m stopped-since=10m": 15 * time.Minute, // two stops, and not the time between them
		"draining marked since=1h stop-missed=50m stop-missed-until=5m paused":             45 * time.Minute,
		"draining marked paused":                                                           0,
	} {
		if g := moved(t, facts, nil).Grant; g.PausedSince == nil || !g.PausedSince.Equal(atNoon.Add(-want)) {
			t.Errorf("%s: stopped since %v, expected %v before noon", facts, g.PausedSince, want)
		}
	}
}

// TestGrantAtPromotion: the grant of a turn that goes on to its disruption has the boot to end, and the OS version that is left.
func TestGrantAtPromotion(t *testing.T) {
	const inBoot2 = "draining ack@b2=draining/done marked boot=b2 hostboot=b2 "
	for facts, want := range map[string]string{
		"draining ack=draining/done marked": "rebooting b1 4.15",
		inBoot2:                             "rebooting b2 4.15",
		inBoot2 + "grant.wants=drain wants=drain":              "applying b2 4.15",
		inBoot2 + "hooks=before-reboot:Wait":                   "before-reboot b1 4.1",
		"draining ack=draining/committed marked wants=nothing": "uncordoning b1 4.1",
	} {
		m := moved(t, facts, func(n *turn.Node) { n.Host.OSVersion = "4.15" })
		if got := string(m.To) + " " + m.Grant.BootID + " " + m.Grant.OSVersion; got != want {
			t.Errorf("%s: %s, expected %s", facts, got, want)
		}
	}
}

// TestChangesOfFailures: a turn whose changes are still there records them. Any other failure records what the turn was for.
func TestChangesOfFailures(t *testing.T) {
	const rebooted = "rebooting boot=b2 hostboot=b2 marked ack@b2=rebooting/failed:"
	file := v1alpha1.Change{Source: v1alpha1.SourceFile, Name: "/a", Version: "2"}
	for facts, want := range map[string]string{
		rebooted + "StillWanted": "OSUpdate@4.2 File /a@2",
		rebooted + "NotUpdated":  "OSUpdate@4.2",
		"applying marked grant.wants=drain ack=applying/failed:ApplyFailed":             "OSUpdate@4.2 File /a@2",
		"applying marked grant.wants=drain ack=applying/failed:ApplyFailed hostboot=b0": "OSUpdate@4.2",
	} {
		m := moved(t, facts, func(n *turn.Node) {
			n.Host.Changes = []v1alpha1.Change{{Source: v1alpha1.SourceSentinel, Name: "/run/x"}, anUpdate[0], file}
		})
		var got []string
		for _, c := range m.Grant.Changes {
			got = append(got, c.String())
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: %s, expected %s", facts, text, want)
		}
	}
}

// TestHostDigest: the record of a turn that was taken back because the host was silent shows whether the host has written since.
func TestHostDigest(t *testing.T) {
	for facts, want := range map[string]string{
		"draining since=2m": "cbf29ce484222325", // of no text, by FNV-1a
		"uncordoning ack=uncordoning/done result=BackedOut": "",
	} {
		if got := moved(t, facts, nil).Last.HostDigest; got != want {
			t.Errorf("%s: the digest %q, expected %q", facts, got, want)
		}
	}
}

// TestCarriedOut: which annotations of requests are removed at the end of a turn that carried out the request in its grant.
func TestCarriedOut(t *testing.T) {
	const request, now = v1alpha1.AnnotationRequest, v1alpha1.AnnotationRequestNow
	type values [2]string // of the annotation: when the turn ends, and in its grant
	for name, c := range map[string]struct {
		request, now values
		want         []string
	}{
		"the same":                    {request: values{"disk", "disk"}, want: []string{request}},
		"the same, now":               {now: values{"disk", "disk"}, want: []string{now}},
		"both":                        {values{"disk", "disk"}, values{"memory", "memory"}, []string{request, now}},
		"withdrawn":                   {request: values{"", "disk"}},
		"set after the commit":        {request: values{"disk", ""}},
		"changed":                     {request: values{"memory", "disk"}},
		"now too, with the same text": {values{"disk", "disk"}, values{"disk", ""}, []string{request}},
		"one that waits, after now":   {values{"disk", ""}, values{"disk", "disk"}, []string{now}},
		"now instead":                 {request: values{"", "disk"}, now: values{"disk", ""}},
		"one of both changed":         {values{"disk", "disk"}, values{"fan", "memory"}, []string{request}},
		"one of both withdrawn":       {values{"disk", "disk"}, values{"", "memory"}, []string{request}},
	} {
		m := moved(t, "uncordoning ack=uncordoning/done grant.changes=Request", func(n *turn.Node) {
			n.Request, n.Grant.Request = &v1alpha1.Request{Action: "reboot"}, &v1alpha1.Request{Action: "reboot"}
			n.Requests, n.Grant.Requests = v1alpha1.Requests{Waits: c.request[0], Now: c.now[0]}, v1alpha1.Requests{Waits: c.request[1], Now: c.now[1]}
		})
		if !slices.Equal(m.Remove, c.want) {
			t.Errorf("%s: removes %q, expected %q", name, m.Remove, cmp.Or(strings.Join(c.want, " "), "none"))
		}
	}
}

// TestLongestHook: a stage of several hooks is overdue when the longest of their timeouts is over, and one without any when that of
// the host's own units is.
func TestLongestHook(t *testing.T) {
	hook := func(name string, d time.Duration) v1alpha1.Hook {
		return v1alpha1.Hook{Name: name, Timeout: metav1.Duration{Duration: d}, OnTimeout: v1alpha1.OnTimeoutWait}
	}
	short, long := hook("short", 10*time.Minute), hook("long", 20*time.Minute)
	for _, c := range []struct {
		hooks []v1alpha1.Hook
		limit time.Duration
	}{{[]v1alpha1.Hook{short}, 10 * time.Minute}, {[]v1alpha1.Hook{short, long}, 20 * time.Minute}, {[]v1alpha1.Hook{long, short}, 20 * time.Minute}, {nil, 30 * time.Minute}} {
		for since, want := range map[time.Duration]v1alpha1.Reason{c.limit - 1: "", c.limit: v1alpha1.ReasonOverdue} {
			s := situation(t, strings.Fields("before-uncordon ack=draining/done marked units=before-uncordon"))
			g := s.Nodes[0].Grant
			g.Terms.BeforeUncordon, g.StageAt = c.hooks, atNoon.Add(-since)
			for _, v := range rollout.Decide(s).Verdicts {
				if v.Node == "n1" && v.Held != want {
					t.Errorf("%d hooks, after %v: held %q, expected %q", len(c.hooks), since, v.Held, want)
				}
			}
		}
	}
}

// TestSeveralHooks: a stage waits for each of its hooks.
func TestSeveralHooks(t *testing.T) {
	hook := func(name string, d time.Duration, on v1alpha1.OnTimeout) v1alpha1.Hook {
		return v1alpha1.Hook{Name: name, Timeout: metav1.Duration{Duration: d}, OnTimeout: on}
	}
	for name, c := range map[string]struct {
		first     v1alpha1.OnTimeout
		confirmed string
		want      string
	}{
		"none has confirmed":      {v1alpha1.OnTimeoutWait, "", "waits for hook a, hook b"},
		"the first has confirmed": {v1alpha1.OnTimeoutWait, "a", "waits for hook b"},
		"the last has confirmed":  {v1alpha1.OnTimeoutWait, "b", "waits for hook a"},
		"the first is overdue":    {v1alpha1.OnTimeoutContinue, "", "waits for hook b"},
	} {
		s := situation(t, strings.Fields("before-uncordon ack=draining/done marked since=15m"))
		n := &s.Nodes[0]
		n.Grant.Terms.BeforeUncordon = []v1alpha1.Hook{hook("a", 10*time.Minute, c.first), hook("b", time.Hour, v1alpha1.OnTimeoutWait)}
		n.Hooks = map[string]string{c.confirmed: "t1"}
		if v := rollout.Decide(s).Verdicts[0]; v.Detail != c.want {
			t.Errorf("%s: %q, expected %q", name, v.Detail, c.want)
		}
	}
}
