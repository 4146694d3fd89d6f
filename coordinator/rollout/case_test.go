package rollout_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// TestCases runs testdata/decide/*.txt: one node on each line and what becomes
// of it, written by hand. See testdata/decide/README.md for the words.
func TestCases(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "decide", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for nr, line := range strings.Split(string(text), "\n") {
			line, _, _ = strings.Cut(line, "#")
			if strings.TrimSpace(line) == "" {
				continue
			}
			facts, want, ok := strings.Cut(line, "=>")
			if !ok {
				t.Fatalf("%s:%d: no => in %q", file, nr+1, line)
			}
			s := situation(t, strings.Fields(facts))
			for _, v := range rollout.Decide(s).Verdicts {
				if got, want := describe(v), strings.Join(strings.Fields(want), " "); v.Node == "n1" && got != want {
					t.Errorf("%s:%d: %s\n\tgot:      %s\n\texpected: %s", file, nr+1, strings.Join(strings.Fields(facts), " "), got, want)
				}
			}
			checkOutcome(t, s)
			compare(t, s)
		}
	}
}

// situation builds a snapshot from the words of a line, about n1; n2 is idle
// and wants nothing.
func situation(t *testing.T, facts []string) rollout.Snapshot {
	t.Helper()
	node := func(name string) turn.Node {
		return turn.Node{
			Name: name, UID: name + "-uid", ResourceVersion: "1", Created: atNoon.Add(-24 * time.Hour), BootID: "b1", Ready: true,
			Keys: v1alpha1.Keys{State: v1alpha1.StateIdle, Wants: v1alpha1.WantsNothing, Host: &v1alpha1.Host{
				Protocol: v1alpha1.Protocol, NodeUID: name + "-uid", BootID: "b1", BootTime: atNoon.Add(-24 * time.Hour), Managed: true, OSVersion: "4.1"}},
		}
	}
	s := rollout.Snapshot{Now: atNoon, Epoch: "e1", Policies: policy.Set{policy.Default()}, Nodes: []turn.Node{node("n1"), node("n2")}, Gates: map[string]rollout.Gate{}, Uncertain: map[string]bool{}, Refused: map[string]string{}}
	n := &s.Nodes[0]
	n.Wants, n.Host.Drains, n.Host.Changes = v1alpha1.WantsReboot, true, anUpdate
	if n.State = v1alpha1.State(facts[0]); facts[0] == "absent" {
		n.State = v1alpha1.StateAbsent
	}
	if inSomeTurn(n) {
		n.Turn = "t1"
		n.Grant = &v1alpha1.Grant{
			Turn: "t1", Epoch: "e1", NodeUID: n.UID, BootID: "b1", Wants: v1alpha1.WantsReboot, Drains: true, Changes: anUpdate, OSVersion: "4.1",
			Policy: s.Policies[0].Name, Terms: s.Policies[0].Terms, StartedAt: atNoon.Add(-time.Minute), StageAt: atNoon.Add(-time.Minute),
		}
	}
	for _, word := range facts[1:] {
		if err := set(&s, word); err != nil {
			t.Fatalf("%s: %v", word, err)
		}
	}
	return s
}

// set applies one word to the snapshot.
func set(s *rollout.Snapshot, word string) error {
	key, value, _ := strings.Cut(word, "=")
	n, other, g := &s.Nodes[0], &s.Nodes[min(1, len(s.Nodes)-1)], s.Nodes[0].Grant
	d, _ := time.ParseDuration(value)
	ago := func() time.Time { return atNoon.Add(-d) }
	last := func(r v1alpha1.Result) {
		n.Last = &v1alpha1.Last{Turn: "t0", Result: r, Reason: v1alpha1.ReasonOverdue, Changes: anUpdate, End: atNoon.Add(-time.Hour)}
		if r == v1alpha1.ResultBackedOut {
			n.Last.NotBefore, n.Last.Attempts = new(atNoon.Add(time.Minute)), 1
		}
	}
	switch key {
	case "ack", "ack@b0", "ack@b2":
		boot := "b1"
		if _, b, ok := strings.Cut(key, "@"); ok {
			boot = b
		}
		a, err := v1alpha1.ParseAck("t1/" + boot + "/" + value)
		n.Ack = a
		return err
	case "wants":
		n.Wants = v1alpha1.Wants(value)
		if n.Wants == v1alpha1.WantsNothing {
			n.Host.Changes, n.Host.Drains = nil, false
		}
	case "nodrain":
		n.Host.Drains = false
	case "changes":
		n.Host.Changes = []v1alpha1.Change{{Source: v1alpha1.Source(value)}}
	case "boot": // what the kubelet speaks from
		n.BootID = value
	case "hostboot":
		n.Host.BootID = value
	case "hostuid":
		n.Host.NodeUID = value
	case "held":
		n.Held = v1alpha1.Reason(value)
	case "nohost":
		n.Host, n.Wants = nil, ""
	case "unmanaged": // by the host's file
		n.Host.Managed = false
	case "protocol":
		n.Host.Protocol = len(value)
	case "veto":
		n.Host.Veto = v1alpha1.Reason(value)
	case "blockoff": // the host says that Block is off; pods have blocked for that long, or no longer do
		if n.Host.BlockOff = true; value != "" {
			n.Host.BlockedSince = ago()
		}
	case "block": // the policy's time for pods that block, and what follows
		limit, on, _ := strings.Cut(value, ",")
		s.Policies[0].Terms.BlockTimeout.Duration, _ = time.ParseDuration(limit)
		s.Policies[0].Terms.OnBlockTimeout = v1alpha1.OnBlockTimeout(on)
	case "owner": // another program's mark
		n.Owner = value
	case "request", "request-now":
		setRequest(&n.Request, &n.Requests, value, key == "request-now")
		n.Host.Changes = []v1alpha1.Change{requested}
	case "grant.request", "grant.request-now":
		setRequest(&g.Request, &g.Requests, value, key == "grant.request-now")
	case "units":
		n.Host.HookStages = []v1alpha1.State{v1alpha1.State(value)}
	case "notready":
		n.Ready = false
	case "cordoned":
		n.Unschedulable = true
	case "marked":
		n.Mark, n.Unschedulable = true, true
	case "paused":
		n.Paused = &v1alpha1.Intent{Reason: "disk"}
	case "detached", "forced":
		n.Detached = &v1alpha1.Intent{Force: key == "forced"}
	case "paused-until", "detached-until":
		i := &v1alpha1.Intent{Until: new(atNoon.Add(d))}
		if key == "paused-until" {
			n.Paused = i
		} else {
			n.Detached = i
		}
	case "managed":
		n.Managed = new(value == "true")
	case "retry":
		n.Retry = value
	case "hook":
		name, id, _ := strings.Cut(value, ":")
		n.Hooks = map[string]string{name: id}
	case "control-plane":
		n.ControlPlane = true
	case "created":
		n.Created = ago()
	case "failed":
		last(v1alpha1.ResultFailed)
	case "backedout":
		last(v1alpha1.ResultBackedOut)
	case "ended":
		last(v1alpha1.ResultDone)
		n.Last.End = ago()
	case "turns": // of the last day: when they were granted, as hours:minutes ago
		for at := range strings.SplitSeq(value, ",") {
			d, err := time.ParseDuration(at)
			if err != nil {
				return err
			}
			n.Last.Turns = append(n.Last.Turns, atNoon.Add(-d))
		}
	case "limit":
		s.Policies[0].MaxTurnsPerDay = len(value)
	case "badrecord":
		n.Host, n.Wants = nil, ""
		n.Problems = []v1alpha1.Problem{{Key: v1alpha1.AnnotationHost, Err: errors.New("17000 bytes, expected at most 16384")}}
	case "newrecord": // one of protocol 2 that cannot be read
		n.Host, n.Wants, n.RawHost = nil, "", `{"protocol":2,"managed":"yes"}`
		n.Problems = []v1alpha1.Problem{{Key: v1alpha1.AnnotationHost, Err: errors.New("not the JSON expected")}}
	case "longchange": // of that many KiB, each byte of which takes six in JSON
		kib, err := strconv.Atoi(value)
		n.Host.Changes = []v1alpha1.Change{{Source: v1alpha1.SourceFile, Name: "/" + strings.Repeat("<", kib<<10/6)}}
		return err
	case "longos", "longboot": // the same of the OS version that the host publishes, and of the boot that its kubelet reports
		kib, err := strconv.Atoi(value)
		if text := strings.Repeat("<", kib<<10/6); key == "longos" {
			n.Host.OSVersion = text
		} else {
			n.BootID = text
		}
		return err
	case "ledago": // until when the term e0 led
		s.LedUntil, s.LedBy = ago(), "e0"
	case "rewound":
		s.Rewound = ago()
	case "attempts":
		n.Last.Attempts = len(value)
	case "notbefore":
		n.Last.NotBefore = new(atNoon.Add(d))
	case "silentback":
		last(v1alpha1.ResultBackedOut)
		n.Last.Reason, n.Last.HostDigest = v1alpha1.ReasonHostSilent, value
	case "grant.boot":
		g.BootID = value
	case "grant.wants":
		g.Wants = v1alpha1.Wants(value)
	case "grant.nodrain":
		g.Drains = false
	case "grant.onlynode":
		g.Drains, g.OnlyNode = false, true
	case "grant.epoch":
		g.Epoch = value
	case "grant.uid":
		g.NodeUID = value
	case "grant.changes":
		g.Changes = []v1alpha1.Change{{Source: v1alpha1.Source(value)}}
	case "nogrant":
		n.Grant = nil
	case "turn":
		n.Turn = value
	case "since":
		g.StageAt, g.StartedAt = ago(), ago()
	case "frozen-since":
		g.PausedSince = new(ago())
	case "frozen-for":
		g.PausedFor = metav1.Duration{Duration: d}
	case "result":
		g.Result = v1alpha1.Result(value)
	case "reason":
		g.Reason = v1alpha1.Reason(value)
	case "hooks": // STAGE:onTimeout, with 10m
		stage, on, _ := strings.Cut(value, ":")
		hooks := []v1alpha1.Hook{{Name: "lb", Timeout: metav1.Duration{Duration: 10 * time.Minute}, OnTimeout: v1alpha1.OnTimeout(on)}}
		terms := &s.Policies[0].Terms
		if g != nil {
			terms = &g.Terms
		}
		*map[string]*[]v1alpha1.Hook{"before-drain": &terms.BeforeDrain, "before-reboot": &terms.BeforeReboot, "before-uncordon": &terms.BeforeUncordon}[stage] = hooks
	case "drain":
		g.Terms.DrainTimeout = v1alpha1.OnTimeout(value)
	case "policy": // as in the scripts, with ; between the words
		c := newCluster()
		clear(c.policies)
		for _, p := range s.Policies {
			c.policies[p.Name] = p
		}
		err := c.setPolicy(strings.Split(value, ";"))
		s.Policies = c.set()
		return err
	case "gate": // web/replicas:open
		name, word, _ := strings.Cut(value, ":")
		s.Gates[name] = rollout.Gate{Open: word == "open", Detail: "3 replicas are missing"}
	case "label":
		key, v, _ := strings.Cut(value, ":")
		n.Labels = map[string]string{key: v}
	case "volumes":
		n.Volumes = strings.Split(value, ",")
	case "grant.policy":
		g.Policy = value
	case "grant.close":
		g.Terms.OnClose = v1alpha1.OnClose(value)
	case "grant.detach":
		g.Terms.WaitForVolumeDetach = true
	case "grant.force":
		g.Force = true
	case "n2.label":
		key, v, _ := strings.Cut(value, ":")
		other.Labels = map[string]string{key: v}
	case "n2.policy":
		other.Grant.Policy = value
	case "budget":
		s.Policies[0].MaxUnavailable.Number = len(value)
	case "nosettle":
		s.Policies[0].Settle = 0
	case "policy-paused":
		s.Policies[0].Paused = true
	case "maxfailed":
		s.Policies[0].MaxFailed = len(value)
	case "only":
		s.Nodes = s.Nodes[:1]
	case "stopped":
		s.Stopped = true
	case "stopped-since":
		s.Stopped, s.StoppedSince = true, ago()
	case "stop-missed": // since when n1 was under a stop that is over now
		s.StopMissed = map[string]rollout.Stop{"n1": {Since: ago(), Until: atNoon}}
	case "stop-missed-until": // when it ended
		s.StopMissed["n1"] = rollout.Stop{Since: s.StopMissed["n1"].Since, Until: ago()}
	case "policies-unread":
		s.Unread = "forbidden"
	case "uncertain":
		s.Uncertain[value] = true
	case "unsettled": // uncertain for a minute
		s.Uncertain[value], s.Unsettled = true, map[string]string{value: "since 11:58: timeout"}
	case "refused":
		s.Refused[value] = "a webhook says no"
	case "looking":
		s.Epoch = ""
	case "n2.owner":
		other.Owner = value
	case "n2.deleted": // by another program, since noon
		other.Owned = turn.Owned{Owner: value + ": a taint", OwnerName: value, OwnerSince: atNoon, Deleted: true}
	case "n2.state":
		other.State = v1alpha1.State(value)
	case "n2.paused":
		other.Paused = &v1alpha1.Intent{Reason: "disk"}
	case "n2.notready":
		other.Ready = false
	case "n2.cordoned":
		other.Unschedulable = true
	case "n2.marked":
		other.Mark = true
	case "n2.unmanaged":
		other.Managed = new(false)
	case "n2.control-plane":
		other.ControlPlane = true
	case "n2.absent":
		other.State, other.Host = v1alpha1.StateAbsent, nil
	case "n2.failed":
		other.Last = &v1alpha1.Last{Turn: "t9", Result: v1alpha1.ResultFailed, End: atNoon.Add(-time.Hour)}
	case "n2.retry":
		other.Retry = value
	case "n2.created":
		other.Created = ago()
	case "n2.ended":
		other.Last = &v1alpha1.Last{Turn: "t9", Result: v1alpha1.ResultDone, End: ago()}
	case "n2.draining", "n2.foreign":
		other.State, other.Turn = v1alpha1.StateDraining, "t2"
		other.Grant = &v1alpha1.Grant{Turn: "t2", Epoch: map[string]string{"n2.draining": "e1", "n2.foreign": "e0"}[key], NodeUID: other.UID, BootID: "b1",
			Wants: v1alpha1.WantsReboot, Drains: true, Terms: s.Policies[0].Terms, StartedAt: atNoon, StageAt: atNoon}
		other.Wants, other.Host.Drains, other.Host.Changes = v1alpha1.WantsReboot, true, anUpdate
	default:
		return fmt.Errorf("unknown word")
	}
	return nil
}

// describe returns the verdict as the cases write it.
func describe(v rollout.Verdict) string {
	var parts []string
	if m := v.Move; m != nil {
		switch {
		case m.From != m.To:
			parts = append(parts, fmt.Sprintf("to %s on %s", m.To, m.On))
		case m.Keep:
			parts = append(parts, "keeps its turn")
		case m.Grant == nil:
			parts = append(parts, "lets go")
		case m.Grant.Force && m.Reason == v1alpha1.ReasonOverdue:
			parts = append(parts, "forces")
		case m.Grant.PausedSince != nil && m.Reason != v1alpha1.ReasonHandover:
			parts = append(parts, "freezes")
		case m.Reason == v1alpha1.ReasonHandover:
			parts = append(parts, "takes over")
			if m.Grant.PausedSince != nil {
				parts[0] += fmt.Sprintf(" frozen since %v", atNoon.Sub(*m.Grant.PausedSince))
			}
			if m.Grant.PausedFor.Duration != time.Minute && m.Grant.PausedFor.Duration != 0 { // a minute is when the turn began
				parts[0] += fmt.Sprintf(" after %v", m.Grant.PausedFor.Duration)
			}
		case m.Reason == v1alpha1.ReasonInvalidGrant:
			parts = append(parts, "mends")
		default:
			parts = append(parts, fmt.Sprintf("thaws after %v", m.Grant.PausedFor.Duration))
		}
		if m.Reason != "" && m.From != m.To {
			parts[0] += " (" + string(m.Reason) + ")"
		}
		if m.Grant != nil && m.From != m.To && m.To == v1alpha1.StateRebooting {
			parts = append(parts, "boot="+m.Grant.BootID)
		}
		if m.Grant != nil && m.On == turn.Granted {
			parts = append(parts, fmt.Sprintf("wants=%s drains=%t", m.Grant.Wants, m.Grant.Drains))
			if m.Grant.Policy != builtIn {
				parts = append(parts, "policy="+m.Grant.Policy)
			}
			if m.Grant.BlockOff {
				parts = append(parts, "block=off")
			}
		}
		if m.NewTurn && m.On != turn.Granted && m.Grant.Policy != builtIn {
			parts = append(parts, fmt.Sprintf("policy=%q", m.Grant.Policy))
		}
		if m.Grant != nil && m.On == turn.Progressed && len(m.Grant.Changes) > 0 {
			parts = append(parts, "changes="+string(m.Grant.Changes[0].Source))
		}
		if m.Last != nil {
			last := "last=" + string(m.Last.Result)
			if m.Last.Reason != "" {
				last += "," + string(m.Last.Reason)
			}
			if m.Last.NotBefore != nil {
				last += fmt.Sprintf(" in %v", m.Last.NotBefore.Sub(atNoon))
			}
			parts = append(parts, last)
			if m.Last.Attempts > 0 && m.Last.Result != v1alpha1.ResultBackedOut {
				parts = append(parts, fmt.Sprintf("attempts=%d", m.Last.Attempts))
			}
			if m.Last.Turn == "t0" && m.Last.End.Equal(atNoon) {
				parts = append(parts, "ended now")
			}
		}
		for _, key := range m.Remove {
			parts = append(parts, "-"+strings.TrimPrefix(key, v1alpha1.Prefix))
		}
	}
	if v.Move != nil && describeRequest(v.Move) != "" {
		parts = append(parts, describeRequest(v.Move))
	}
	if v.Held != "" {
		parts = append(parts, "held "+string(v.Held))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, "; ")
}
