package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// written is what an API server was asked for.
type written struct {
	event *eventsv1.Event
	patch string // "" for a new Event
}

// fakeSink keeps what it is given.
type fakeSink chan written

func (s fakeSink) Create(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	s <- written{e.DeepCopy(), ""}
	return e, nil
}

func (s fakeSink) Update(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	s <- written{e.DeepCopy(), "update"}
	return e, nil
}

func (s fakeSink) Patch(_ context.Context, e *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	s <- written{e.DeepCopy(), string(data)}
	return e, nil
}

func (s fakeSink) next(t *testing.T) written {
	t.Helper()
	select {
	case w := <-s:
		return w
	case <-time.After(time.Minute):
		t.Fatal("no Event was written")
		return written{}
	}
}

// recorder keeps each Event as "Reason object: note", in order.
type recorder []string

func (r *recorder) Eventf(about, _ runtime.Object, _, reason, _, note string, args ...any) {
	*r = append(*r, reason+" "+about.(*corev1.ObjectReference).Name+": "+fmt.Sprintf(note, args...))
}

// recording are events that a test can read.
func recording(t *testing.T) (*events, *recorder) {
	e, r := eventsTo(t.Context(), nil, slog.New(slog.DiscardHandler)), new(recorder)
	e.recorder = r
	return e, r
}

// Another turn's Event, or another cause's, is one of its own; the same note again is counted.
func TestSeriesAreOfOneNote(t *testing.T) {
	sink := make(fakeSink, 10)
	e := eventsTo(t.Context(), sink, slog.New(slog.DiscardHandler))
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "a", UID: "uid-a"}
	for _, note := range []string{"turn 1 begins", "turn 2 begins", strings.Repeat("x", maxNote+100)} {
		e.tell(about, v1alpha1.EventGranted, note)
		w := sink.next(t)
		if w.patch != "" || len(note) <= maxNote && w.event.Note != note || len(w.event.Note) > 1024 {
			t.Errorf("%q is told as %q, patch %q", note, w.event.Note, w.patch)
		}
		if w.event.Related != nil || w.event.Regarding != *about || w.event.Namespace != "default" || w.event.Reason != "Granted" || w.event.Action != "Grant" {
			t.Errorf("the Event is %v", w.event)
		}
	}
	e.tell(about, v1alpha1.EventGranted, "turn 1 begins")
	if w := sink.next(t); w.event.Note != "turn 1 begins" || !strings.HasPrefix(w.patch, `{"series":{"count":2,`) {
		t.Errorf("the repetition is told as %q, patch %q", w.event.Note, w.patch)
	}
}

// What was told of a node is kept while the node is there, and no longer.
func TestEventsOfGoneNodesAreForgotten(t *testing.T) {
	e, told := recording(t)
	raw := func(name string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.AnnotationPaused: `{"until": "tomorrow"}`}}}
	}
	a, b := turn.Node{Name: "a"}, turn.Node{Name: "b"}
	a.Paused, a.State = &v1alpha1.Intent{}, v1alpha1.StateIdle
	both := &rollout.Snapshot{Nodes: []turn.Node{a, b}}
	e.looked(both, nil, raw)
	e.refuses(&b, "no")
	if got := strings.Join(*told, "\n"); !strings.HasPrefix(got, "Paused a: paused: (no reason given)\nInvalidIntent a: annotation lockkeeper.dev/paused") || !strings.HasSuffix(got, "\nForbidden b: no") {
		t.Errorf("Events:\n%s", got)
	}
	e.looked(both, nil, raw)
	e.refuses(&b, "no")
	if len(e.intents) != 1 || len(e.refused) != 1 {
		t.Errorf("of nodes that are there: %v, %v", e.intents, e.refused)
	}
	e.looked(&rollout.Snapshot{Nodes: []turn.Node{a}}, nil, raw)
	if len(e.intents) != 1 || len(e.refused) != 0 {
		t.Errorf("without b: %v, %v", e.intents, e.refused)
	}
	e.looked(&rollout.Snapshot{}, nil, raw)
	if len(e.intents) != 0 {
		t.Errorf("without any node: %v", e.intents)
	}
}

// The words of the stop that were told outlive the snapshot they came in, and do not keep it.
func TestStopIsCopied(t *testing.T) {
	sink := make(fakeSink, 10)
	e := eventsTo(t.Context(), sink, slog.New(slog.DiscardHandler))
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "lockkeeper", Name: "lockkeeper"}}
	s := &rollout.Snapshot{Stopped: true, StopText: "drill"}
	for _, words := range []string{"drill", "fire"} {
		s.StopText = words // in the same place, to see who still looks there
		e.looked(s, lease, nil)
		if w := sink.next(t); w.event.Reason != string(v1alpha1.ReasonStopped) || w.event.Note != "the emergency stop is set: "+words {
			t.Errorf("told is %v", w.event)
		}
	}
}

// A node in no turn that takes a slot for which others wait is told of once it has lasted ten minutes, and again if it comes back.
func TestSlotsAreToldOf(t *testing.T) {
	sink := make(fakeSink, 10)
	e := eventsTo(t.Context(), sink, slog.New(slog.DiscardHandler))
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	nodes := map[string]*turn.Node{"a": {Name: "a"}}
	taken := &rollout.Outcome{
		Verdicts: []rollout.Verdict{{Node: "b", Policy: "p", Held: v1alpha1.ReasonBudget}},
		Slots:    []rollout.Slot{{Node: "a", Use: v1alpha1.SlotCordoned, Policies: []string{"p"}}},
		Figures:  rollout.Figures{Unavailable: 1, Budget: 1, Policies: []rollout.PolicyFigures{{Name: "p"}}},
	}
	for _, step := range []struct {
		after time.Duration
		out   *rollout.Outcome
		told  bool
	}{
		{0, taken, false}, {10*time.Minute - time.Second, taken, false}, {10 * time.Minute, taken, true}, {time.Hour, taken, true},
		{2 * time.Hour, &rollout.Outcome{}, false}, {3 * time.Hour, taken, false}, {3*time.Hour + 10*time.Minute, taken, true},
	} {
		e.decided(now.Add(step.after), nodes, step.out)
		if told := e.blocking["a"].told; told != step.told {
			t.Errorf("after %v: told: %t, expected %t", step.after, told, step.told)
		}
	}
	if w := sink.next(t); w.event.Reason != v1alpha1.EventTakesSlot || w.event.Regarding.Name != "a" || w.event.Note != "others wait for a slot: a is cordoned by another owner" {
		t.Errorf("%v", w.event)
	}
	if w := sink.next(t); !strings.HasPrefix(w.patch, `{"series":{"count":2,`) {
		t.Errorf("the second time: %v %s", w.event, w.patch)
	}
}

// A policy that halts, goes on, becomes invalid or valid is told of once, and by one leader.
func TestPoliciesAreToldOf(t *testing.T) {
	sink := make(fakeSink, 20)
	obj := &v1alpha1.DisruptionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "u"}}
	get := func(name string) *v1alpha1.DisruptionPolicy {
		if name != "web" {
			return nil
		}
		return obj
	}
	fine := rollout.PolicyFigures{Name: "web"}
	halted := rollout.PolicyFigures{Name: "web", Halted: true, Failed: 1}
	invalid := rollout.PolicyFigures{Name: "web", Problems: []policy.Problem{{Field: "spec.x", Text: "no"}}}
	e := eventsTo(t.Context(), sink, slog.New(slog.DiscardHandler))
	next := func(reason, note string) {
		t.Helper()
		if w := sink.next(t); w.event.Reason != reason || !strings.HasPrefix(w.event.Note, note) || w.event.Regarding.Kind != "DisruptionPolicy" || w.event.Regarding.Name != "web" {
			t.Errorf("%v, want %s: %s", w.event, reason, note)
		}
	}
	for _, step := range []struct {
		figures      rollout.PolicyFigures
		reason, note string
	}{
		{fine, "", ""}, {rollout.PolicyFigures{Name: "unknown", Halted: true}, "", ""}, {fine, "", ""},
		{halted, "Halted", "1 failed, 0 allowed; what to do: "}, {halted, "", ""}, {fine, "Released", "0 failed, 0 allowed"},
		{invalid, "InvalidPolicy", "spec.x: no"}, {invalid, "", ""}, {fine, "PolicyValid", "nodes that it selects"},
	} {
		if e.judged([]rollout.PolicyFigures{step.figures}, get); step.reason != "" {
			next(step.reason, step.note)
		}
	}
	// The next leader reads from the status what was told.
	obj.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionHalted, Status: metav1.ConditionTrue}, {Type: v1alpha1.ConditionValid, Status: metav1.ConditionTrue}}
	e = eventsTo(t.Context(), sink, slog.New(slog.DiscardHandler))
	e.judged([]rollout.PolicyFigures{halted}, get)
	e.judged([]rollout.PolicyFigures{fine}, get)
	next("Released", "0 failed")
}

// The end of a stop is told of by the leader that saw the stop, or by the first one after it.
func TestEndOfTheStopIsToldOf(t *testing.T) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "lockkeeper", Name: "lockkeeper"}}
	held := turn.Node{Name: "a"}
	held.Held = v1alpha1.ReasonStopped
	for name, c := range map[string]struct {
		looks []*rollout.Snapshot
		told  []string
	}{
		"no stop":           {[]*rollout.Snapshot{{}, {}}, nil},
		"set and lifted":    {[]*rollout.Snapshot{{Stopped: true, StopText: "x"}, {Stopped: true, StopText: "x"}, {}, {}}, []string{"Stopped", "StopLifted"}},
		"lifted in between": {[]*rollout.Snapshot{{Nodes: []turn.Node{held}}, {Nodes: []turn.Node{held}}}, []string{"StopLifted"}},
	} {
		sink := make(fakeSink, 20)
		e := eventsTo(t.Context(), sink, slog.New(slog.DiscardHandler))
		for _, s := range c.looks {
			e.looked(s, lease, nil)
		}
		e.tell(aboutLease(lease), v1alpha1.EventStoreRewound, "the end of the test")
		var told []string
		for range len(c.told) + 1 {
			told = append(told, sink.next(t).event.Reason)
		}
		slices.Sort(told)
		want := append(slices.Clone(c.told), v1alpha1.EventStoreRewound)
		slices.Sort(want)
		if !slices.Equal(told, want) {
			t.Errorf("%s: told %v, want %v", name, told, want)
		}
	}
}

// Each pause, resume, detach and attach is one Event with who and why; the next leader repeats none of them.
func TestIntentEvents(t *testing.T) {
	end := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	disk, theirs := &v1alpha1.Intent{Reason: "disk"}, &v1alpha1.Intent{Reason: "theirs", By: "ann", Until: &end, Force: true}
	evil := &v1alpha1.Intent{Reason: strings.Repeat("\x1b]0;x\x07\n", 100000), By: strings.Repeat("\u202e", 100000)}
	node := func(state v1alpha1.State, paused, detached *v1alpha1.Intent) turn.Node {
		n := turn.Node{Name: "a", UID: "1"}
		n.State, n.Paused, n.Detached = state, paused, detached
		return n
	}
	other := node(v1alpha1.StateIdle, nil, nil)
	other.UID = "2"
	idle, paused, inTurn, absent := v1alpha1.StateIdle, v1alpha1.StatePaused, v1alpha1.StateDraining, v1alpha1.StateAbsent
	const by = "detached with force by ann until 2026-01-02T02:04:05Z: theirs"
	for name, c := range map[string]struct {
		rounds []turn.Node
		want   []string
	}{
		"nothing set":             {[]turn.Node{node(idle, nil, nil), node(idle, nil, nil)}, nil},
		"paused and resumed":      {[]turn.Node{node(idle, nil, nil), node(idle, disk, nil), node(paused, disk, nil), node(idle, nil, nil), node(idle, nil, nil)}, []string{"Paused a: paused: disk", "Resumed a: it was paused: disk"}},
		"paused during the turn":  {[]turn.Node{node(inTurn, nil, nil), node(inTurn, disk, nil), node(inTurn, disk, nil), node(inTurn, nil, nil)}, []string{"Paused a: paused: disk", "Resumed a: it was paused: disk"}},
		"detached and attached":   {[]turn.Node{node(idle, nil, nil), node(idle, nil, theirs), node(absent, nil, theirs), node(absent, nil, nil), node(idle, nil, nil)}, []string{"Detached a: " + by, "Attached a: it was " + by}},
		"both":                    {[]turn.Node{node(idle, nil, nil), node(idle, disk, theirs), node(paused, disk, theirs)}, []string{"Paused a: paused: disk", "Detached a: " + by}},
		"another reason":          {[]turn.Node{node(idle, nil, nil), node(idle, disk, nil), node(paused, &v1alpha1.Intent{}, nil)}, []string{"Paused a: paused: disk", "Paused a: paused: (no reason given)"}},
		"set between two leaders": {[]turn.Node{node(idle, disk, nil), node(paused, disk, nil)}, []string{"Paused a: paused: disk"}},
		"paused before":           {[]turn.Node{node(paused, disk, nil), node(paused, disk, nil)}, nil},
		"paused before, resumed":  {[]turn.Node{node(paused, disk, nil), node(paused, nil, nil)}, []string{"Resumed a: it was paused: disk"}},
		"detached before":         {[]turn.Node{node(absent, nil, theirs), node(absent, nil, theirs)}, nil},
		"in a turn before":        {[]turn.Node{node(inTurn, nil, theirs), node(v1alpha1.StateBeforeUncordon, nil, theirs)}, nil},
		"another Node object":     {[]turn.Node{node(paused, disk, nil), other}, nil},
	} {
		e, told := recording(t)
		for _, n := range c.rounds {
			e.looked(&rollout.Snapshot{Nodes: []turn.Node{n}}, nil, func(string) *corev1.Node { return &corev1.Node{} })
		}
		if !slices.Equal(*told, c.want) {
			t.Errorf("%s: Events %q, want %q", name, *told, c.want)
		}
	}

	// Another leader left a stop: its nodes stay idle, and their intents were reported.
	e, told := recording(t)
	for range 2 {
		e.looked(&rollout.Snapshot{Nodes: []turn.Node{node(idle, disk, nil)}, Stopped: true}, nil, func(string) *corev1.Node { return &corev1.Node{} })
	}
	if len(*told) > 0 {
		t.Errorf("under a stop: %q", *told)
	}

	e, told = recording(t)
	e.looked(&rollout.Snapshot{Nodes: []turn.Node{node(idle, evil, nil)}}, nil, func(string) *corev1.Node { return &corev1.Node{} })
	if len(*told) != 1 || strings.ContainsAny((*told)[0], "\x1b\x07\n\u202e") || !strings.Contains((*told)[0], "]0;x") || len((*told)[0]) > maxNote+len("Paused a: ") {
		t.Errorf("hostile texts: %q", *told)
	}
}

// A node that is held because of an intent has the Event about the intent and no other.
func TestIntentIsOneEvent(t *testing.T) {
	e, told := recording(t)
	n := turn.Node{Name: "a"}
	for _, held := range []v1alpha1.Reason{v1alpha1.ReasonPaused, v1alpha1.ReasonDetached, v1alpha1.ReasonHostSilent} {
		e.wrote(&n, &rollout.Verdict{Node: "a", Held: held, Detail: "x"}, "")
	}
	if len(*told) != 1 || !strings.HasPrefix((*told)[0], "HostSilent a: x") {
		t.Errorf("Events %q", *told)
	}
}
