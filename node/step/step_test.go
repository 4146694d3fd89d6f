package step

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// TestStep runs testdata/step-*.txt: one observation and what the host does
// next on each line, written by hand. See testdata/README.md for the words.
func TestStep(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "step-*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		for nr := 1; lines.Scan(); nr++ {
			line, _, _ := strings.Cut(lines.Text(), "#")
			if strings.TrimSpace(line) == "" {
				continue
			}
			facts, want, ok := strings.Cut(line, "=>")
			if !ok {
				t.Fatalf("%s:%d: no => in %q", file, nr, line)
			}
			o := observe(t, strings.Fields(facts))
			first := Step(o)
			if got, want := describe(t, &o, first), strings.Join(strings.Fields(want), " "); got != want {
				t.Errorf("%s:%d: %s\n\tgot:      %s\n\texpected: %s", file, nr, strings.Join(strings.Fields(facts), " "), got, want)
			}
			if again := Step(o); !reflect.DeepEqual(first, again) {
				t.Errorf("%s:%d: the same facts, another step: %+v", file, nr, again)
			}
		}
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	aTurn  = "t1"
	aUID   = "u1"
	aBoot  = "b1"
	aEpoch = "e1"
)

var anUpdate = v1alpha1.Change{Source: v1alpha1.SourceOSUpdate, Version: "4.2"}

// observe builds an observation from the words of a line. Unless they say
// otherwise the host is in boot b1, Ready, has read its sources, wants a
// reboot with a drain, and has published that; in a turn the grant is t1 of
// epoch e1, for boot b1.
func observe(t *testing.T, facts []string) Observation {
	t.Helper()
	o := Observation{
		Node:             turn.Node{Name: "n1", UID: aUID, BootID: aBoot, Ready: true},
		Self:             v1alpha1.Host{Version: "v1", BootID: aBoot, OSVersion: "4.1"},
		ManagedByDefault: true,
		Sources:          Sources{Complete: true, Wants: v1alpha1.WantsReboot, Drains: true, Changes: []v1alpha1.Change{anUpdate}},
		Shutdown:         ShutdownNone,
		Health:           Health{Healthy: true},
	}
	n := &o.Node
	if facts[0] != "absent" {
		n.State = v1alpha1.State(facts[0])
	}
	if n.State.InTurn() {
		n.Turn = aTurn
		n.Grant = &v1alpha1.Grant{
			Turn: aTurn, Epoch: aEpoch, NodeUID: aUID, BootID: aBoot, Wants: v1alpha1.WantsReboot, Drains: true,
			Changes: []v1alpha1.Change{anUpdate}, OSVersion: "4.1",
		}
	}
	published, plan, granted := true, "", ""
	for _, word := range facts[1:] {
		switch key, value, _ := strings.Cut(word, "="); key {
		case "unpublished":
			published = false
		case "plan":
			plan = value
		case "grant.steps":
			granted = value
		default:
			o.set(t, word)
		}
	}
	o.Sources.Steps = steps(o.Sources.Wants, o.Sources.Drains)
	if n.Grant != nil {
		n.Grant.Steps = v1alpha1.StepsDigest(append(steps(o.Sources.Wants, o.Sources.Drains), actions(granted)...))
	}
	if published {
		host := o.hostRecord(v1alpha1.Ack{})
		n.Wants = o.Sources.Wants
		if plan != "" {
			n.Wants = v1alpha1.Wants(plan)
			host.Drains = n.Wants == v1alpha1.WantsDrain
			host.Steps, host.Changes = steps(n.Wants, host.Drains), n.Grant.Changes
			n.Grant.Steps = v1alpha1.StepsDigest(append(slices.Clone(host.Steps), actions(granted)...))
		}
		n.RawHost = v1alpha1.FormatRecord(host)
		if n.Host == nil {
			n.Host = &host
		}
	}
	return o
}

// steps returns the steps of a plan.
func steps(wants v1alpha1.Wants, drains bool) []v1alpha1.Action {
	switch {
	case wants == v1alpha1.WantsReboot && drains:
		return actions("Drain", "Reboot")
	case wants == v1alpha1.WantsReboot:
		return actions("Reboot")
	case drains:
		return actions("Drain", "Restart a.service")
	case wants == v1alpha1.WantsApply:
		return actions("Restart a.service")
	}
	return nil
}

func actions(all ...string) (out []v1alpha1.Action) {
	for _, a := range all {
		if kind, unit, _ := strings.Cut(a, " "); kind != "" {
			out = append(out, v1alpha1.Action{Type: v1alpha1.ActionType(kind), Unit: unit})
		}
	}
	return out
}

// set applies one word to the observation.
func (o *Observation) set(t *testing.T, word string) {
	t.Helper()
	key, value, _ := strings.Cut(word, "=")
	n := &o.Node
	look := func(commit bool) {
		o.Fresh = &FreshRead{Commit: commit, Lease: Lease{Exists: true, Holder: aEpoch}}
	}
	switch key {
	case "ack", "ack@b0", "ack@b2", "ack-of-t0":
		turn, boot := aTurn, aBoot
		if _, b, ok := strings.Cut(key, "@"); ok {
			boot = b
		}
		if key == "ack-of-t0" {
			turn = "t0"
		}
		a, err := v1alpha1.ParseAck(turn + "/" + boot + "/" + value)
		if err != nil {
			t.Fatalf("%s: %v", word, err)
		}
		n.Ack = a
	case "unsettled":
		a, err := v1alpha1.ParseAck(aTurn + "/" + aBoot + "/" + value)
		if err != nil {
			t.Fatalf("%s: %v", word, err)
		}
		o.UnsettledRefusal = a
	case "cordoned":
		n.Unschedulable = true
	case "marked":
		n.Mark = true
		if value != "" {
			n.Cordon = v1alpha1.Cordon{Turn: aTurn, Set: strings.Split(value, ",")}
		}
	case "has":
		name, is, _ := strings.Cut(value, "=")
		if n.Excluded == nil {
			n.Excluded = map[string]string{}
		}
		n.Excluded[name] = is
	case "excludes":
		n.Grant.Terms.Exclusions = excludes(value)
	case "own.excludes":
		o.Own = &v1alpha1.Terms{Exclusions: excludes(value)}
	case "delayed":
		o.EvictFrom = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	case "boot":
		n.BootID, o.Self.BootID = value, value
	case "self":
		o.Self.BootID = value
	case "notready":
		n.Ready = false
	case "unseen":
		n.UID = ""
	case "look":
		look(true)
	case "lease":
		look(false)
	case "stopped":
		o.Fresh.Lease.Stopped = true
	case "nolease":
		o.Fresh.Lease = Lease{}
	case "holder":
		o.Fresh.Lease.Holder = value
	case "evictable":
		o.Fresh.Evictable = number(t, value)
	case "pods-block":
		o.Fresh.Blocked = "default/job"
	case "nosources":
		o.Sources = Sources{Missing: "update_engine"}
	case "unconfirmed":
		o.Sources.Unconfirmed = "update_engine: it does not answer"
	case "wants":
		o.Sources.Wants = v1alpha1.Wants(value)
		if o.Sources.Wants == v1alpha1.WantsNothing {
			o.Sources.Changes, o.Sources.Drains = nil, false
		}
	case "nodrain":
		o.Sources.Drains = false
	case "os":
		o.Self.OSVersion = value
	case "info":
		o.Info = map[string]string{v1alpha1.LabelOS: value}
	case "label":
		n.Info = map[string]string{v1alpha1.LabelOS: value}
	case "changes":
		o.Sources.Changes = changes(value)
	case "draining":
		o.Drain = Drain{Running: true}
	case "term":
		o.Term = value
	case "drained":
		o.Drain = Drain{Running: true, Complete: true}
	case "paused":
		n.Paused = &v1alpha1.Intent{Reason: "disk"}
	case "detached":
		n.Detached = &v1alpha1.Intent{Reason: "theirs"}
	case "forced":
		n.Detached = &v1alpha1.Intent{Reason: "theirs", Force: true}
	case "managed":
		n.Managed = new(value == "true")
	case "allowlist":
		o.ManagedByDefault = false
	case "leaving":
		o.Leaving = true
	case "veto":
		o.Veto = v1alpha1.Reason(value)
	case "blocked":
		o.Blocked = v1alpha1.Reason(value)
	case "shutdown":
		o.Shutdown = map[string]Shutdown{"unknown": ShutdownUnknown, "none": ShutdownNone, "underway": ShutdownUnderway}[value]
	case "reboot-error":
		o.RebootError = "not today"
	case "unhealthy":
		o.Health = Health{Detail: "a unit failed"}
	case "unhealthy-overdue":
		o.Health = Health{Detail: "a unit failed", Overdue: true}
	case "units":
		o.Self.HookStages = []v1alpha1.State{v1alpha1.State(value)}
	case "hooks":
		o.Hooks = work(value)
	case "apply":
		o.Apply = work(value)
	case "grant.wants":
		n.Grant.Wants = v1alpha1.Wants(value)
	case "grant.changes":
		n.Grant.Changes = changes(value)
	case "grant.nodrain":
		n.Grant.Drains = false
	case "grant.onlynode":
		n.Grant.Drains, n.Grant.OnlyNode = false, true
	case "grant.boot":
		n.Grant.BootID = value
	case "grant.uid":
		n.Grant.NodeUID = value
	case "takes-part", "took-part-in":
		n.Host = &v1alpha1.Host{NodeUID: aUID, BootID: aBoot, TakesPart: cmp.Or(value, aTurn)}
	case "asked", "open":
		o.Permission = Permission{Asked: true, Open: key == "open"}
	case "image":
		o.ImageVersion = true
	case "permits":
		n.Host = &v1alpha1.Host{NodeUID: aUID, BootID: o.Self.BootID, TakesPart: aTurn, Permits: cmp.Or(value, aTurn)}
	case "part-of-uid":
		n.Host = &v1alpha1.Host{NodeUID: value, BootID: aBoot, TakesPart: aTurn}
	case "nogrant":
		n.Grant = nil
	case "held":
		n.Held = v1alpha1.Reason(value)
	case "old-wants":
		n.Wants, n.RawHost = v1alpha1.Wants(value), "{}"
	default:
		t.Fatalf("unknown word %q", word)
	}
}

// excludes returns the named exclusions.
func excludes(names string) v1alpha1.Exclusions {
	has := func(name string) bool { return slices.Contains(strings.Split(names, ","), name) }
	return v1alpha1.Exclusions{
		ExcludeFromLoadBalancers: has("LoadBalancers"), DisableScaleDown: has("ScaleDown"), ExcludeFromRemediation: has("Remediation"),
	}
}

func number(t *testing.T, s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func work(s string) Work {
	failed, due := strings.CutSuffix(s, "-due")
	return Work{Running: s == "running" || s == "late", Late: s == "late", Done: s == "done" || s == "outlived", ChangedAgain: map[string]string{"outlived": "File /etc/a@2"}[s], Failed: map[string]string{"failed": "a.service"}[failed], Due: due}
}

// changes reads Source or Source@version, separated by commas.
func changes(s string) []v1alpha1.Change {
	var out []v1alpha1.Change
	for part := range strings.SplitSeq(s, ",") {
		source, version, _ := strings.Cut(part, "@")
		if source != "" {
			out = append(out, v1alpha1.Change{Source: v1alpha1.Source(source), Version: version})
		}
	}
	return out
}

// describe returns the decision as the scripts write it.
func describe(t *testing.T, o *Observation, d Decision) string {
	t.Helper()
	var parts []string
	if d.Read != ReadNothing {
		parts = append(parts, "read "+map[Read]string{ReadEviction: "eviction", ReadCommit: "commit", ReadShutdown: "shutdown"}[d.Read])
	}
	if d.Write != nil {
		parts = append(parts, "write "+strings.Join(describeWrite(t, o, d.Write), " "))
	}
	if d.Do != DoNothing {
		parts = append(parts, "do "+string(d.Do))
	}
	if d.Waits != "" {
		parts = append(parts, "waits "+string(d.Waits))
	}
	if d.Again {
		parts = append(parts, "again")
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, "; ")
}

func describeWrite(t *testing.T, o *Observation, w *Write) []string {
	t.Helper()
	var out []string
	if w.Unschedulable != nil {
		out = append(out, map[bool]string{true: "cordon", false: "uncordon"}[*w.Unschedulable])
	}
	take := func(from map[string]*string, key, name string, value func(string) string) {
		v, ok := from[key]
		switch {
		case ok && v == nil:
			out = append(out, "-"+name)
		case ok:
			out = append(out, name+value(*v))
		}
	}
	plain := func(s string) string { return "=" + s }
	take(w.Annotations, v1alpha1.AnnotationCordon, "mark", func(s string) string {
		if c := v1alpha1.ParseCordon(s); c.Turn != o.Node.Turn || c.String() != s {
			t.Errorf("the mark says %q", s)
		} else if !slices.Equal(c.Set, []string{v1alpha1.CordonOurs}) {
			return "=" + strings.Join(c.Set, ",")
		}
		return ""
	})
	for _, x := range v1alpha1.AllExclusions() {
		if value, changed := w.Changes(&x); changed {
			take(map[string]*string{"": value}, "", x.Name, func(string) string { return "" })
		}
	}
	take(w.Annotations, v1alpha1.AnnotationAck, "ack", func(s string) string {
		a, err := v1alpha1.ParseAck(s)
		if err != nil || a != w.Ack || a.Turn != o.Node.Turn || a.BootID != o.Self.BootID {
			t.Errorf("ack %q of %+v: %v", s, w.Ack, err)
		}
		_, rest, _ := strings.Cut(s, "/"+a.BootID+"/")
		return "=" + rest
	})
	take(w.Labels, v1alpha1.LabelWants, "wants", plain)
	take(w.Annotations, v1alpha1.AnnotationHost, "host", func(s string) string {
		h, err := v1alpha1.ParseHost(s)
		if err != nil || h.NodeUID != o.Node.UID || h.BootID != o.Self.BootID || !slices.Equal(h.Changes, o.Sources.Changes) ||
			h.Drains != o.Sources.Drains || h.HookFailed != o.Hooks.Failed || h.Veto != o.Veto || h.Protocol != v1alpha1.Protocol || h.Managed != o.managed() {
			t.Errorf("host %s: %v", s, err)
		}
		var text strings.Builder
		for _, part := range []struct{ turn, name string }{{h.TakesPart, "takes-part"}, {h.Permits, "permits"}} {
			switch part.turn {
			case "":
			case o.Node.Turn:
				text.WriteString(" " + part.name)
			default:
				text.WriteString(" " + part.name + " in " + part.turn)
			}
		}
		return text.String()
	})
	take(w.Labels, v1alpha1.LabelOS, "os", plain)
	if known := len(out); known != len(w.Labels)+len(w.Annotations)+len([]*bool{w.Unschedulable})-map[bool]int{true: 1}[w.Unschedulable == nil] {
		t.Errorf("a write of other keys too: %v %v", w.Labels, w.Annotations)
	}
	return out
}

// TestWaitsForItsTurn has what a host waits for that is in no turn, with the detail that people read.
func TestWaitsForItsTurn(t *testing.T) {
	for _, c := range []struct {
		facts  string
		change func(*Observation)
		want   string
	}{
		{"idle wants=nothing", nil, ": "},
		{"idle wants=nothing veto=OtherManager", nil, "OtherManager: kured is active"},
		{"idle wants=nothing veto=Window", nil, ": "},
		{"idle wants=nothing", func(o *Observation) { o.Sources.Unreadable = "File /x cannot be read" }, "SourceUnreadable: File /x cannot be read"},
		{"idle", func(o *Observation) { o.Sources.Unreadable = "File /x cannot be read" }, ": waits for its turn"},
		{"idle", nil, ": waits for its turn"},
		{"idle held=Budget", nil, "Budget: waits for its turn"},
		{"idle held=Window veto=Window", nil, "Window: kured is active"},
		{"idle held=Budget veto=Window", nil, "Budget: waits for its turn"},
		{"idle held=Window veto=Window", func(o *Observation) { o.VetoDetail = "" }, "Window: waits for its turn"},
		{"idle held=OtherManager", func(o *Observation) { o.Node.Owner = "Karpenter" }, "OtherManager: Karpenter"},
		{"idle held=OtherManager", nil, "OtherManager: waits for its turn"},
		{"idle held=Budget", func(o *Observation) { o.Node.Owner = "Karpenter" }, "Budget: waits for its turn"},
		{"idle", func(o *Observation) { o.NoLeader, o.NoLeaderDetail = v1alpha1.ReasonForbidden, "no" }, "Forbidden: no"},
		{"absent", nil, "NoCoordinator: no coordinator has taken this node in"},
		{"absent veto=Window", nil, "NoCoordinator: no coordinator has taken this node in"},
		{"absent veto=OtherManager", nil, "NoCoordinator: no coordinator has taken this node in; kured is active"},
	} {
		o := observe(t, strings.Fields(c.facts))
		if o.Veto != "" {
			o.VetoDetail = "kured is active"
		}
		if c.change != nil {
			c.change(&o)
		}
		if d := o.notInTurn(); string(d.Waits)+": "+d.Detail != c.want {
			t.Errorf("%s: %s: %s, expected %s", c.facts, d.Waits, d.Detail, c.want)
		}
	}
}

// TestApplyFailedStands: which unit failed stays in the host's record as long as
// the turn that it failed in is what a person is to look at.
func TestApplyFailedStands(t *testing.T) {
	const words = "restart of x.service failed"
	last := func(id string, result v1alpha1.Result, reason v1alpha1.Reason) func(*turn.Node) {
		return func(n *turn.Node) { n.Last = &v1alpha1.Last{Turn: id, Result: result, Reason: reason} }
	}
	for _, tc := range []struct {
		facts  string
		change func(*turn.Node)
		want   string
	}{
		{"applying ack=applying/committed apply=failed", func(n *turn.Node) { n.Host.ApplyFailed = "" }, "a.service"},
		{"applying ack=applying/failed:ApplyFailed", nil, words}, // lockkeeper was restarted
		{"uncordoning ack=applying/failed:ApplyFailed", nil, words},
		{"before-uncordon ack=before-uncordon/done", func(n *turn.Node) { n.Grant.Result, n.Grant.Reason = v1alpha1.ResultFailed, v1alpha1.ReasonApplyFailed }, words},
		{"before-uncordon ack=before-uncordon/done", nil, ""},
		{"applying ack=applying/failed:StillWanted", nil, words},
		{"applying ack-of-t0=applying/failed:ApplyFailed", nil, ""},
		{"idle ack-of-t0=applying/failed:ApplyFailed", last("t0", v1alpha1.ResultFailed, v1alpha1.ReasonApplyFailed), words},
		{"idle boot=b2", last("t0", v1alpha1.ResultFailed, v1alpha1.ReasonApplyFailed), words},
		{"paused", last("t0", v1alpha1.ResultFailed, v1alpha1.ReasonApplyFailed), words},
		{"idle", func(n *turn.Node) {
			last("t0", v1alpha1.ResultFailed, v1alpha1.ReasonApplyFailed)(n)
			n.Retry = "t0"
		}, ""},
		{"idle", func(n *turn.Node) {
			last("t0", v1alpha1.ResultFailed, v1alpha1.ReasonApplyFailed)(n)
			n.Host.NodeUID = "another Node's"
		}, ""},
		{"idle", last("t0", v1alpha1.ResultFailed, v1alpha1.ReasonStillWanted), words},
		{"idle", last("t0", v1alpha1.ResultBackedOut, v1alpha1.ReasonOverdue), ""},
		{"idle", last("t0", v1alpha1.ResultDone, ""), ""},
		{"idle", nil, ""},
	} {
		o := observe(t, strings.Fields(tc.facts))
		o.Node.Host = &v1alpha1.Host{NodeUID: aUID, BootID: aBoot, ApplyFailed: words}
		if tc.change != nil {
			tc.change(&o.Node)
		}
		if got := o.hostRecord(v1alpha1.Ack{}).ApplyFailed; got != tc.want {
			t.Errorf("%s, %+v: %q, expected %q", tc.facts, o.Node.Last, got, tc.want)
		}
	}
}

// world is a Node under a host's writes, for tests that go on for more than
// one step.
type world struct {
	labels, annotations map[string]string
	node                turn.Node
}

// worldOf spells the Node of an observation out as labels and annotations.
func worldOf(o *Observation) *world {
	n := o.Node
	w := &world{labels: map[string]string{}, annotations: map[string]string{}, node: n}
	put := func(m map[string]string, key, value string) {
		if value != "" {
			m[key] = value
		}
	}
	put(w.labels, v1alpha1.LabelState, string(n.State))
	put(w.labels, v1alpha1.LabelWants, string(n.Wants))
	if n.Managed != nil {
		put(w.labels, v1alpha1.LabelManaged, strconv.FormatBool(*n.Managed))
	}
	for k, v := range n.Info {
		put(w.labels, k, v)
	}
	put(w.annotations, v1alpha1.AnnotationTurn, n.Turn)
	put(w.annotations, v1alpha1.AnnotationAck, n.Ack.String())
	put(w.annotations, v1alpha1.AnnotationHost, n.RawHost)
	for key, record := range map[string]any{
		v1alpha1.AnnotationGrant: n.Grant, v1alpha1.AnnotationPaused: n.Paused, v1alpha1.AnnotationDetached: n.Detached,
	} {
		if !reflect.ValueOf(record).IsNil() {
			put(w.annotations, key, v1alpha1.FormatRecord(record))
		}
	}
	if n.Mark {
		w.annotations[v1alpha1.AnnotationCordon] = "t"
	}
	return w
}

// apply carries the write out and reads the Node again.
func (w *world) apply(write *Write) turn.Node {
	for key, value := range write.Labels {
		if delete(w.labels, key); value != nil {
			w.labels[key] = *value
		}
	}
	for key, value := range write.Annotations {
		if delete(w.annotations, key); value != nil {
			w.annotations[key] = *value
		}
	}
	if write.Unschedulable != nil {
		w.node.Unschedulable = *write.Unschedulable
	}
	w.node.Keys = v1alpha1.ReadKeys(w.labels, w.annotations)
	return w.node
}

// TestFromNothing walks a host through a whole turn, the coordinator's part
// played by hand, and holds what it wrote on the way against the DESIGN.
func TestFromNothing(t *testing.T) {
	o := observe(t, []string{"absent", "unpublished"})
	w := worldOf(&o)
	var log []string
	// run steps until the host waits for somebody else.
	run := func() {
		for range 20 {
			d := Step(o)
			switch {
			case d.Read == ReadCommit:
				log = append(log, "look")
				o.Fresh = &FreshRead{Commit: true, Lease: Lease{Exists: true, Holder: aEpoch}}
			case d.Read != ReadNothing:
				t.Fatalf("reads %v", d.Read)
			case d.Write != nil:
				log = append(log, strings.Join(describeWrite(t, &o, d.Write), " "))
				o.Node = w.apply(d.Write)
			case d.Do == DoDrain && !o.Drain.Complete:
				log = append(log, "drain")
				o.Drain = Drain{Running: true, Complete: true}
			case d.Do != DoNothing:
				log = append(log, "do "+string(d.Do))
				return
			default:
				o.Fresh = nil
				return
			}
		}
		t.Fatalf("no end: %s", strings.Join(log, "\n"))
	}
	to := func(s v1alpha1.State) {
		log = append(log, "- "+s.String())
		w.labels[v1alpha1.LabelState] = string(s)
		if s.InTurn() {
			w.annotations[v1alpha1.AnnotationTurn] = aTurn
			w.annotations[v1alpha1.AnnotationGrant] = v1alpha1.FormatRecord(v1alpha1.Grant{
				Turn: aTurn, Epoch: aEpoch, NodeUID: aUID, BootID: aBoot, Wants: v1alpha1.WantsReboot, Drains: true,
				Changes: []v1alpha1.Change{anUpdate}, OSVersion: "4.1", StartedAt: time.Unix(0, 0),
			})
		}
		o.Node = w.apply(&Write{})
	}
	run()
	to(v1alpha1.StateIdle)
	run()
	to(v1alpha1.StateDraining)
	run()
	o.Drain = Drain{}
	to(v1alpha1.StateRebooting)
	run()
	// The reboot: another boot, another version, nothing wanted.
	o = Observation{Node: o.Node, Self: o.Self, ManagedByDefault: true, Shutdown: ShutdownNone}
	o.Self.BootID, o.Self.OSVersion = "b2", "4.2"
	run()
	o.Sources = Sources{Complete: true, Wants: v1alpha1.WantsNothing}
	run()
	w.node.BootID = "b2"
	o.Node, o.Health = w.apply(&Write{}), Health{Healthy: true}
	run()
	to(v1alpha1.StateUncordoning)
	run()
	want := `
wants=reboot host
- idle
- draining
ack=draining/seen wants=reboot host takes-part
look
cordon mark ack=draining/committed
drain
ack=draining/done
- rebooting
look
ack=rebooting/committed
do reboot
ack=rebooting/done wants=nothing host takes-part
- uncordoning
uncordon -mark ack=uncordoning/done wants=nothing host`
	if got := strings.Join(log, "\n"); got != strings.TrimSpace(want) {
		t.Errorf("got:\n%s\nexpected:%s", got, want)
	}
	if o.Node.Unschedulable || o.Node.Mark || fmt.Sprint(o.Node.Problems) != "[]" {
		t.Errorf("left behind: %+v", o.Node)
	}
}

// TestWaitsForOthers: what a host says in a hook stage in which it has no hook units itself.
func TestWaitsForOthers(t *testing.T) {
	for name, c := range map[string]struct {
		state string
		set   func(n *turn.Node)
		want  string
	}{
		"hooks alone":                    {"before-reboot", func(n *turn.Node) { n.Grant.Terms.WaitForVolumeDetach, n.Volumes = false, []string{"v"} }, "hooks"},
		"no volume":                      {"before-reboot", func(n *turn.Node) { n.Volumes = nil }, "hooks"},
		"a volume that nothing evicts":   {"before-reboot", func(n *turn.Node) { n.Grant.Drains = false }, "hooks"},
		"a volume in another hook stage": {"before-drain", func(*turn.Node) {}, "hooks"},
		"a volume, and a hook":           {"before-reboot", func(*turn.Node) {}, "hooks and volumes to detach"},
		"a hook of an earlier turn":      {"before-reboot", func(n *turn.Node) { n.Hooks = map[string]string{"h": "t0"} }, "hooks and volumes to detach"},
		"a volume, after the hook":       {"before-reboot", func(n *turn.Node) { n.Hooks = map[string]string{"h": aTurn} }, "volumes to detach"},
	} {
		o := observe(t, []string{c.state, "ack=" + c.state + "/seen"})
		o.Node.Grant.Terms.WaitForVolumeDetach, o.Node.Volumes = true, []string{"v"}
		o.Node.Grant.Terms.BeforeReboot = []v1alpha1.Hook{{Name: "h"}}
		if c.set(&o.Node); Step(o).Detail != c.want {
			t.Errorf("%s: %q, expected %q", name, Step(o).Detail, c.want)
		}
	}
}

// TestSaysWhyItTakesNoPart: a host in no turn that is not to get one says who decided that.
func TestSaysWhyItTakesNoPart(t *testing.T) {
	for want, set := range map[string]func(*Observation){
		"managed=false": func(o *Observation) { o.Node.Managed = new(false) },
		"managed_by_default is false in this host's file": func(o *Observation) { o.ManagedByDefault = false },
		"disk": func(o *Observation) { o.Node.Detached = &v1alpha1.Intent{Reason: "disk"} },
		"this host leaves; its package is being removed, or a user ran `lockkeeper leave --this-host`": func(o *Observation) { o.Leaving = true },
	} {
		o := observe(t, []string{"absent"})
		if set(&o); Step(o).Detail != want {
			t.Errorf("%q, expected %q", Step(o).Detail, want)
		}
	}
}

// TestPermittedRebootIsSaid checks that the reason why a host no longer answers its FleetLock client also says that the
// client may still reboot the host.
func TestPermittedRebootIsSaid(t *testing.T) {
	const committed = "rebooting ack=rebooting/committed cordoned marked permits "
	for facts, want := range map[string]string{
		committed + "open look stopped":   "the emergency stop is set, or the Lease is missing" + mayReboot,
		committed + "open look holder=e2": "the turn is another leader's" + mayReboot,
		committed + "open look paused":    "disk" + mayReboot,
		committed + "open look":           "the FleetLock client to reboot this host",
		committed:                         "the FleetLock client to reboot this host",
	} {
		if d := Step(observe(t, strings.Fields(facts))); d.Detail != want {
			t.Errorf("%s: %q, expected %q", facts, d.Detail, want)
		}
	}
}
