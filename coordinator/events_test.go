package coordinator

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// recording returns events that write to a queue for the test.
func recording() *events {
	e := eventsTo("leader", slog.New(slog.DiscardHandler))
	e.queue = make(chan *eventsv1.Event, maxEvents)
	return e
}

// next returns the next Event.
func (e *events) next(t *testing.T) *eventsv1.Event {
	t.Helper()
	select {
	case event := <-e.queue:
		return event
	default:
		t.Fatal("no Event was written")
		return nil
	}
}

// all returns the Events so far, each as "Reason object: note".
func (e *events) all() (all []string) {
	for len(e.queue) > 0 {
		event := <-e.queue
		all = append(all, event.Reason+" "+event.Regarding.Name+": "+event.Note)
	}
	return all
}

// TestEvents checks the content of an Event, and that each Event is a separate object.
func TestEvents(t *testing.T) {
	e := recording()
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "a", UID: "uid-a"}
	names := map[string]bool{}
	for _, note := range []string{"turn 1 begins", "turn 2 begins", strings.Repeat("x", maxNote+100), "turn 1 begins"} {
		e.write(about, v1alpha1.EventGranted, note)
		event := e.next(t)
		if len(note) <= maxNote && event.Note != note || len(event.Note) > 1024 || event.Regarding != *about || event.Namespace != "default" ||
			event.Reason != "Granted" || event.Action != "Grant" || event.Type != "Normal" || event.ReportingController != eventController ||
			event.ReportingInstance != "leader" || time.Since(event.EventTime.Time) > time.Minute || names[event.Name] {
			t.Errorf("%q: the Event is %v", note, event)
		}
		names[event.Name] = true
	}
	// More Events than the queue can hold are dropped, and no caller waits.
	for range 2 * maxEvents {
		e.write(about, v1alpha1.EventGranted, "x")
	}
	if n := len(e.all()); n != maxEvents || !e.losing {
		t.Errorf("%d of %d Events are in the queue", n, 2*maxEvents)
	}
}

// TestEventsAreWritten checks that an Event that is refused or exists already is not retried, and that an Event without
// an answer is.
func TestEventsAreWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var tried []string
		failing := map[string]error{"Failed": apierrors.NewForbidden(eventsv1.Resource("events"), "x", nil), "Paused": errors.New("no answer"), "Granted": apierrors.NewAlreadyExists(eventsv1.Resource("events"), "x")}
		client.PrependReactor("create", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
			event := a.(clienttesting.CreateAction).GetObject().(*eventsv1.Event)
			tried = append(tried, event.Reason)
			err := failing[event.Reason]
			delete(failing, event.Reason)
			return err != nil, nil, err
		})
		e := recording()
		ctx, cancel := context.WithCancel(t.Context())
		go e.run(ctx, client)
		for _, reason := range []string{"Failed", "Paused", "Granted", "Stopped"} {
			e.write(&corev1.ObjectReference{Name: "a"}, reason, "x")
		}
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		if want := []string{"Failed", "Paused", "Paused", "Granted", "Stopped"}; !slices.Equal(tried, want) {
			t.Errorf("written: %q, want %q", tried, want)
		}
	})
}

// mute never answers its first request, and has an Event as the answer to the others.
type mute struct{ asked []time.Time }

func (m *mute) RoundTrip(r *http.Request) (*http.Response, error) {
	if m.asked = append(m.asked, time.Now()); len(m.asked) == 1 {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		Body: io.NopCloser(strings.NewReader(`{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"name":"x"}}`))}, nil
}

// TestEventWithoutAnAnswer checks that an Event that a proxy never answers is tried again, and does not hold up all later ones.
func TestEventWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &mute{}
		client, err := kube.ConnectConfig(&rest.Config{Host: "http://api", Transport: api}, "coordinator", "test", 100, 100)
		if err != nil {
			t.Fatal(err)
		}
		e := recording()
		ctx, cancel := context.WithCancel(t.Context())
		go e.run(ctx, client)
		began := time.Now()
		for range 2 {
			e.write(&corev1.ObjectReference{Name: "a"}, "Stopped", "x")
		}
		time.Sleep(time.Hour)
		cancel()
		synctest.Wait()
		again := began.Add(kube.Timeout + eventAgain)
		if want := []time.Time{began, again, again}; !slices.EqualFunc(api.asked, want, time.Time.Equal) {
			t.Errorf("requests at %v, expected the first Event, and then both, at %v", api.asked, want)
		}
	})
}

// TestEventThatAWebhookRefuses checks that a webhook that fails, or that denies an Event, does not hold up the Events after it.
func TestEventThatAWebhookRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var tried []string
		client.PrependReactor("create", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
			reason := a.(clienttesting.CreateAction).GetObject().(*eventsv1.Event).Reason
			tried = append(tried, reason)
			switch reason {
			case "Failed":
				return true, nil, apierrors.NewInternalError(errors.New("failed calling webhook"))
			case "Overdue":
				return true, nil, apierrors.NewBadRequest(`admission webhook "w.example.com" denied the request: no`)
			}
			return false, nil, nil
		})
		e := recording()
		ctx, cancel := context.WithCancel(t.Context())
		go e.run(ctx, client)
		for _, reason := range []string{"Failed", "Overdue", "Stopped"} {
			e.write(&corev1.ObjectReference{Name: "a"}, reason, "x")
		}
		time.Sleep(time.Hour)
		cancel()
		synctest.Wait()
		if want := []string{"Failed", "Failed", "Failed", "Overdue", "Stopped"}; !slices.Equal(tried, want) {
			t.Errorf("written: %q, want %q", tried, want)
		}
	})
}

// TestEventThatIsGivenUp checks that an Event that is lost after the last try is logged once, with the error.
func TestEventThatIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		tried := 0
		client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
			tried++
			return true, nil, apierrors.NewServiceUnavailable("no etcd for Events")
		})
		var journal strings.Builder
		e := recording()
		e.log = slog.New(slog.NewTextHandler(&journal, nil))
		ctx, cancel := context.WithCancel(t.Context())
		go e.run(ctx, client)
		e.write(&corev1.ObjectReference{Name: "a"}, "Failed", "x")
		time.Sleep(time.Hour)
		cancel()
		synctest.Wait()
		if text := journal.String(); tried != eventTries || strings.Count(text, "\n") != 1 || !strings.Contains(text, "no etcd for Events") {
			t.Errorf("%d tries, and the journal has %q", tried, text)
		}
	})
}

// TestEventsOfGoneNodesAreForgotten checks that the reports about a node are kept as long as the node exists.
func TestEventsOfGoneNodesAreForgotten(t *testing.T) {
	e := recording()
	a, b := turn.Node{Name: "a"}, turn.Node{Name: "b"}
	a.Keys = v1alpha1.ReadKeys(map[string]string{v1alpha1.LabelState: "idle"}, map[string]string{v1alpha1.AnnotationPaused: `{"until": "tomorrow"}`})
	both := &rollout.Snapshot{Nodes: []turn.Node{a, b}}
	e.reportIntents(both, nil)
	e.reportRefused(&b, "no")
	if got := strings.Join(e.all(), "\n"); !strings.HasPrefix(got, "Paused a: paused: {\"until\": \"tomorrow\"}\nInvalidIntent a: annotation lockkeeper.dev/paused") || !strings.HasSuffix(got, "\nForbidden b: no") {
		t.Errorf("Events:\n%s", got)
	}
	e.reportIntents(both, nil)
	e.reportRefused(&b, "no")
	if len(e.intents) != 1 || len(e.refused) != 1 {
		t.Errorf("of existing nodes: %v, %v", e.intents, e.refused)
	}
	e.reportIntents(&rollout.Snapshot{Nodes: []turn.Node{a}}, nil)
	if len(e.intents) != 1 || len(e.refused) != 0 {
		t.Errorf("without b: %v, %v", e.intents, e.refused)
	}
	e.reportIntents(&rollout.Snapshot{}, nil)
	if len(e.intents) != 0 {
		t.Errorf("without any node: %v", e.intents)
	}
}

// TestFalsePauseEvent checks that the Event about a pause with the value false has the command that ends the pause.
func TestFalsePauseEvent(t *testing.T) {
	e := recording()
	n := turn.Node{Name: "a", Keys: v1alpha1.ReadKeys(map[string]string{v1alpha1.LabelState: "paused"}, map[string]string{v1alpha1.AnnotationPaused: "false"})}
	e.reportNodeIntents(&n, false)
	want := `InvalidIntent a: annotation lockkeeper.dev/paused: the value "false" does not end it; remove the annotation; ` +
		"to end it: kubectl annotate node a lockkeeper.dev/paused-"
	if got := e.all(); !slices.Contains(got, want) {
		t.Errorf("Events %q, want %q", got, want)
	}
}

// TestInvalidRequestEvent checks that a request whose payload does not parse has an Event, once.
// A fixed one has none.
func TestInvalidRequestEvent(t *testing.T) {
	e := recording()
	for _, annotations := range []map[string]string{
		{v1alpha1.AnnotationRequest: "reboot"},
		{v1alpha1.AnnotationRequest: "please"},
		{v1alpha1.AnnotationRequest: "please"},
		{v1alpha1.AnnotationRequestNow: "{"},
		{v1alpha1.AnnotationRequestNow: "reboot"},
	} {
		n := turn.Node{Name: "a", Keys: v1alpha1.ReadKeys(map[string]string{v1alpha1.LabelState: "idle"}, annotations)}
		e.reportIntents(&rollout.Snapshot{Nodes: []turn.Node{n}}, nil)
	}
	want := []string{
		`InvalidIntent a: annotation lockkeeper.dev/request: "please", expected "reboot" or JSON {"action": "reboot", "reason": …, "by": …}; no reboot is requested`,
		`InvalidIntent a: annotation lockkeeper.dev/request-now: expected "reboot" or JSON {action, reason, by}: unexpected EOF; no reboot is requested`,
	}
	if got := e.all(); !slices.Equal(got, want) {
		t.Errorf("Events %q, want %q", got, want)
	}
	if len(e.intents) != 0 {
		t.Errorf("remembered: %v", e.intents)
	}
}

// TestStopIsCopied checks that the text of the reported stop does not depend on its snapshot, and does not keep the
// snapshot in memory.
func TestStopIsCopied(t *testing.T) {
	e := recording()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "lockkeeper", Name: "lockkeeper"}}
	s := &rollout.Snapshot{Stopped: true, StopText: "drill"}
	for _, words := range []string{"drill", "fire"} {
		s.StopText = words // replaces the text, to detect a reference to it
		e.reportIntents(s, lease)
		if w := e.next(t); w.Reason != string(v1alpha1.ReasonStopped) || w.Note != "the emergency stop is set: "+words {
			t.Errorf("the Event is %v", w)
		}
	}
}

// TestSlotsAreToldOf checks the Event about a node without a turn that takes a slot that others wait for: after ten
// minutes, and again if the situation comes back.
func TestSlotsAreToldOf(t *testing.T) {
	e := recording()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var nodes facts
	nodes.of([]*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}})
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
		e.reportWaiting(now.Add(step.after), &nodes, step.out)
		if told := e.blocking["a"].reported; told != step.told {
			t.Errorf("after %v: reported %t, expected %t", step.after, told, step.told)
		}
	}
	if w := e.next(t); w.Reason != v1alpha1.EventTakesSlot || w.Regarding.Name != "a" || w.Note != "others wait for a slot: a is cordoned by another owner" {
		t.Errorf("%v", w)
	}
	if w := e.next(t); w.Reason != v1alpha1.EventTakesSlot {
		t.Errorf("the second Event: %v", w)
	}
}

// TestPoliciesAreToldOf checks that there is one Event, from one leader, when a policy halts, continues, becomes
// invalid or becomes valid.
func TestPoliciesAreToldOf(t *testing.T) {
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
	e := recording()
	next := func(reason, note string) {
		t.Helper()
		if w := e.next(t); w.Reason != reason || !strings.HasPrefix(w.Note, note) || w.Regarding.Kind != "DisruptionPolicy" || w.Regarding.Name != "web" || w.Regarding.UID != "u" {
			t.Errorf("%v, want %s: %s", w, reason, note)
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
		if e.reportPolicies([]rollout.PolicyFigures{step.figures}, get); step.reason != "" {
			next(step.reason, step.note)
		}
	}
	// The next leader reads from the status what was reported.
	obj.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionHalted, Status: metav1.ConditionTrue}, {Type: v1alpha1.ConditionValid, Status: metav1.ConditionTrue}}
	e = recording()
	e.reportPolicies([]rollout.PolicyFigures{halted}, get)
	e.reportPolicies([]rollout.PolicyFigures{fine}, get)
	next("Released", "0 failed")
}

// TestEndOfTheStopIsToldOf checks that the end of a stop is reported by the leader that saw the stop, or by the first
// leader after it.
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
		e := recording()
		for _, s := range c.looks {
			e.reportIntents(s, lease)
		}
		e.write(aboutLease(lease), v1alpha1.EventStoreRewound, "the end of the test")
		var told []string
		for range len(c.told) + 1 {
			told = append(told, e.next(t).Reason)
		}
		slices.Sort(told)
		want := append(slices.Clone(c.told), v1alpha1.EventStoreRewound)
		slices.Sort(want)
		if !slices.Equal(told, want) {
			t.Errorf("%s: Events %v, expected %v", name, told, want)
		}
	}
}

// TestIntentEvents checks that each pause, resume, detach and attach is one Event with the user and the reason, and
// that the next leader repeats none of them.
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
		e := recording()
		for _, n := range c.rounds {
			e.reportIntents(&rollout.Snapshot{Nodes: []turn.Node{n}}, nil)
		}
		if told := e.all(); !slices.Equal(told, c.want) {
			t.Errorf("%s: Events %q, want %q", name, told, c.want)
		}
	}

	// Another leader left a stop: its nodes stay idle, and their intents were reported.
	e := recording()
	for range 2 {
		e.reportIntents(&rollout.Snapshot{Nodes: []turn.Node{node(idle, disk, nil)}, Stopped: true}, nil)
	}
	if told := e.all(); len(told) > 0 {
		t.Errorf("during a stop: %q", told)
	}

	e = recording()
	e.reportIntents(&rollout.Snapshot{Nodes: []turn.Node{node(idle, evil, nil)}}, nil)
	if told := e.all(); len(told) != 1 || strings.ContainsAny(told[0], "\x1b\x07\n\u202e") || !strings.Contains(told[0], "]0;x") || len(told[0]) > maxNote+len("Paused a: ") {
		t.Errorf("hostile texts: %q", told)
	}
}

// TestIntentIsOneEvent checks that a node that is held because of an intent gets the Event about the intent and no
// other, and that the emergency stop has an Event for a node only if that is in a turn.
func TestIntentIsOneEvent(t *testing.T) {
	e := recording()
	idle, inTurn := turn.Node{Name: "a"}, turn.Node{Name: "b"}
	inTurn.Keys = v1alpha1.ReadKeys(map[string]string{v1alpha1.LabelState: string(v1alpha1.StateDraining)}, nil)
	for _, held := range []v1alpha1.Reason{v1alpha1.ReasonPaused, v1alpha1.ReasonDetached, v1alpha1.ReasonStopped, v1alpha1.ReasonHostSilent} {
		e.reportWrite(&idle, &rollout.Verdict{Node: "a", Held: held, Detail: "x"}, "")
	}
	e.reportWrite(&inTurn, &rollout.Verdict{Node: "b", Held: v1alpha1.ReasonStopped, Detail: "x"}, "")
	if told := e.all(); len(told) != 2 || !strings.HasPrefix(told[0], "HostSilent a: x") || !strings.HasPrefix(told[1], "Stopped b: x") {
		t.Errorf("Events %q", told)
	}
}

// TestRewindIsReportedOnce checks that a leader does not report a rewind of long ago.
func TestRewindIsReportedOnce(t *testing.T) {
	lease := &coordinationv1.Lease{}
	seen := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for after, want := range map[time.Duration]int{time.Minute: 1, 90 * 24 * time.Hour: 0} {
		e := recording() // of another term
		e.reportIntents(&rollout.Snapshot{Now: seen.Add(after), Rewound: seen}, lease)
		if told := e.all(); len(told) != want {
			t.Errorf("%v after the rewind: %q", after, told)
		}
	}
}

// TestSlotThatOthersWaitForBetweenTurns checks the Event about a node that takes one of two slots for a long time, while turns
// follow one another in the other slot.
func TestSlotThatOthersWaitForBetweenTurns(t *testing.T) {
	e := recording()
	began := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var nodes facts
	nodes.of([]*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}})
	outcome := func(at time.Duration) *rollout.Outcome {
		out := &rollout.Outcome{
			Verdicts: []rollout.Verdict{{Node: "c", Policy: "p", Held: v1alpha1.ReasonBudget}},
			Slots:    []rollout.Slot{{Node: "a", Use: v1alpha1.SlotCordoned, Policies: []string{"p"}}, {Node: "b", Use: v1alpha1.SlotInTurn, Policies: []string{"p"}}},
			Figures:  rollout.Figures{Unavailable: 2, Budget: 2, Policies: []rollout.PolicyFigures{{Name: "p"}}},
		}
		if at%(9*time.Minute) >= 8*time.Minute { // a turn takes eight minutes, and then the nodes settle for one
			out.Slots, out.Unavailable, out.Policies[0].Settling = out.Slots[:1], 1, began.Add(at+time.Minute)
		}
		return out
	}
	for at := time.Duration(0); at < 3*time.Hour; at += 30 * time.Second {
		e.reportWaiting(began.Add(at), &nodes, outcome(at))
	}
	if told := e.all(); len(told) != 1 {
		t.Errorf("Events %q, expected one", told)
	}
}
