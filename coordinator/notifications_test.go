package coordinator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/notify"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// notifying returns events whose notifications a test can read.
func notifying() (*events, *[]notify.Message) {
	e := recording()
	sent := new([]notify.Message)
	e.send = func(m notify.Message) { *sent = append(*sent, m) }
	return e, sent
}

// shown returns a message in one line.
func shown(m notify.Message) string {
	return fmt.Sprintf("%s nodes=%v policy=%s turn=%s result=%s reason=%s: %s", m.Occasion, m.Nodes, m.Policy, m.Turn, m.Result, m.Reason, m.Text)
}

// TestOccasions checks that each occasion leads to one notification with its object, and that other reports lead to
// none.
func TestOccasions(t *testing.T) {
	e, sent := notifying()
	n := turn.Node{Name: "a"}
	n.State, n.Turn = v1alpha1.StateRebooting, "t1"
	idle := turn.Node{Name: "a"}
	idle.State = v1alpha1.StateIdle
	ends := func(result v1alpha1.Result, reason v1alpha1.Reason) *rollout.Verdict {
		return &rollout.Verdict{Node: "a", Policy: "web", Move: &rollout.Move{
			From: v1alpha1.StateUncordoning, To: v1alpha1.StateIdle, On: turn.Progressed, Last: &v1alpha1.Last{Turn: "t1", Result: result, Reason: reason},
		}}
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "lockkeeper", Name: "lockkeeper"}}
	policy := &v1alpha1.DisruptionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	get := func(string) *v1alpha1.DisruptionPolicy { return policy }
	for _, c := range []struct {
		name string
		do   func()
		want string // "" means no notification
	}{
		{"granted", func() {
			e.reportWrite(&idle, &rollout.Verdict{Node: "a", Move: &rollout.Move{From: v1alpha1.StateIdle, To: v1alpha1.StateDraining, On: turn.Granted}}, "t1")
		}, ""},
		{"done", func() { e.reportWrite(&n, ends(v1alpha1.ResultDone, ""), "") }, "turn-ended nodes=[a] policy=web turn=t1 result=Done reason=: Node a: Done: turn t1 ended Done"},
		{"backed out", func() { e.reportWrite(&n, ends(v1alpha1.ResultBackedOut, v1alpha1.ReasonOverdue), "") },
			"turn-ended nodes=[a] policy=web turn=t1 result=BackedOut reason=Overdue: Node a: BackedOut: turn t1 ended BackedOut (Overdue: "},
		{"failed", func() { e.reportWrite(&n, ends(v1alpha1.ResultFailed, v1alpha1.ReasonNotUpdated), "") },
			"failed nodes=[a] policy=web turn=t1 result=Failed reason=NotUpdated: Node a: Failed: turn t1 ended Failed (NotUpdated: "},
		{"stays because it failed", func() {
			e.reportWrite(&n, &rollout.Verdict{Node: "a", Policy: "web", Held: v1alpha1.ReasonFailed, Detail: "Unhealthy"}, "")
		},
			"failed nodes=[a] policy=web turn=t1 result= reason=Failed: Node a: Failed: Unhealthy; what to do: "},
		{"overdue", func() {
			e.reportWrite(&n, &rollout.Verdict{Node: "a", Policy: "web", Held: v1alpha1.ReasonOverdue}, "")
		},
			"failed nodes=[a] policy=web turn=t1 result= reason=Overdue: Node a: Overdue: "},
		{"its last turn failed", func() {
			e.reportWrite(&idle, &rollout.Verdict{Node: "a", Policy: "web", Held: v1alpha1.ReasonFailed}, "")
		}, ""},
		{"halted", func() { e.reportPolicies([]rollout.PolicyFigures{{Name: "web", Halted: true, Failed: 1}}, get) },
			"halted nodes=[] policy=web turn= result= reason=Halted: DisruptionPolicy web: Halted: 1 failed, 0 allowed; what to do: "},
		{"still halted", func() { e.reportPolicies([]rollout.PolicyFigures{{Name: "web", Halted: true, Failed: 2}}, get) }, ""},
		{"released", func() { e.reportPolicies([]rollout.PolicyFigures{{Name: "web"}}, get) },
			"halted nodes=[] policy=web turn= result= reason=Released: DisruptionPolicy web: Released: 0 failed, 0 allowed"},
		{"stopped", func() { e.reportIntents(&rollout.Snapshot{Stopped: true, StopText: "fire"}, lease) },
			"stop nodes=[] policy= turn= result= reason=Stopped: Lease lockkeeper: Stopped: the emergency stop is set: fire"},
		{"still stopped", func() { e.reportIntents(&rollout.Snapshot{Stopped: true, StopText: "fire"}, lease) }, ""},
		{"held by the stop", func() { e.reportWrite(&n, &rollout.Verdict{Node: "a", Held: v1alpha1.ReasonStopped}, "") }, ""},
		{"lifted", func() { e.reportIntents(&rollout.Snapshot{}, lease) },
			"stop nodes=[] policy= turn= result= reason=StopLifted: Lease lockkeeper: StopLifted: the emergency stop is over"},
	} {
		*sent = nil
		c.do()
		switch {
		case c.want == "" && len(*sent) > 0:
			t.Errorf("%s: sent %v", c.name, *sent)
		case c.want != "" && (len(*sent) != 1 || !strings.HasPrefix(shown((*sent)[0]), c.want)):
			t.Errorf("%s: sent\n%v, want\n%s", c.name, *sent, c.want)
		}
	}
}

// TestFailedTurnIsOneEvent checks that a failed turn is one Event, without another Event because its node is held
// afterwards.
func TestFailedTurnIsOneEvent(t *testing.T) {
	e := recording()
	inTurn, idle := turn.Node{Name: "a"}, turn.Node{Name: "a"}
	inTurn.State, idle.State = v1alpha1.StateUncordoning, v1alpha1.StateIdle
	e.reportWrite(&inTurn, &rollout.Verdict{Node: "a", Move: &rollout.Move{
		From: v1alpha1.StateUncordoning, To: v1alpha1.StateIdle, On: turn.Progressed, Last: &v1alpha1.Last{Turn: "t1", Result: v1alpha1.ResultFailed, Reason: v1alpha1.ReasonNotUpdated},
	}}, "")
	e.reportWrite(&idle, &rollout.Verdict{Node: "a", Held: v1alpha1.ReasonFailed, Detail: "NotUpdated"}, "")
	if told := e.all(); len(told) != 1 || !strings.HasPrefix(told[0], "Failed a: turn t1 ended Failed (NotUpdated: ") {
		t.Errorf("Events %q", told)
	}
}

// TestNextLeaderSendsNothingAgain checks that the next leader repeats nothing that was reported before it.
func TestNextLeaderSendsNothingAgain(t *testing.T) {
	e, sent := notifying()
	n := turn.Node{Name: "a"}
	n.State, n.Turn, n.Held = v1alpha1.StateRebooting, "t1", v1alpha1.ReasonOverdue
	e.reportIntents(&rollout.Snapshot{Stopped: true, StopText: "fire", Nodes: []turn.Node{{Name: "b", Keys: v1alpha1.Keys{Held: v1alpha1.ReasonStopped}}}}, &coordinationv1.Lease{})
	e.reportWrite(&n, &rollout.Verdict{Node: "a", Held: v1alpha1.ReasonOverdue}, "")
	policy := &v1alpha1.DisruptionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	policy.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionHalted, Status: metav1.ConditionTrue}}
	e.reportPolicies([]rollout.PolicyFigures{{Name: "web", Halted: true}}, func(string) *v1alpha1.DisruptionPolicy { return policy })
	if len(*sent) > 0 {
		t.Errorf("sent %v", *sent)
	}
}

// TestHeldForLong checks that nodes that are held for a long time are reported once each, and at most every ten
// minutes, with a limited number of names.
func TestHeldForLong(t *testing.T) {
	const after = 4 * time.Hour
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	held := func(reason v1alpha1.Reason, names ...string) (all []rollout.Verdict) {
		for _, name := range names {
			all = append(all, rollout.Verdict{Node: name, Policy: "web", Held: reason})
		}
		return all
	}
	var many []string
	for i := range 5000 {
		many = append(many, fmt.Sprintf("n%04d", i))
	}
	budget, window := v1alpha1.ReasonBudget, v1alpha1.ReasonWindow
	type round struct {
		at       time.Duration
		verdicts []rollout.Verdict
	}
	for name, c := range map[string]struct {
		rounds []round
		want   []string
	}{
		"not long enough": {[]round{{0, held(budget, "a")}, {after - 1, held(budget, "a")}}, nil},
		"once": {[]round{{0, held(budget, "a")}, {after, held(budget, "a")}, {after + time.Hour, held(budget, "a")}},
			[]string{"held nodes=[a] policy=web turn= result= reason=Budget: Node a: held for longer than 4h0m0s: "}},
		"whatever the reasons": {[]round{{0, held(budget, "a")}, {time.Hour, held(window, "a")}, {after, held(window, "a")}},
			[]string{"held nodes=[a] policy=web turn= result= reason=Window: "}},
		"not held in between": {[]round{{0, held(budget, "a")}, {time.Hour, held("", "a")}, {after, held(budget, "a")}, {time.Hour + after, held(budget, "a")}}, nil},
		"again after a break": {[]round{{0, held(budget, "a")}, {after, held(budget, "a")}, {after + 1, nil}, {2 * after, held(budget, "a")}, {3 * after, held(budget, "a")}},
			[]string{"held nodes=[a] ", "held nodes=[a] "}},
		"one after the other": {[]round{{0, held(budget, "a")}, {time.Minute, held(budget, "a", "b")}, {2 * time.Minute, append(held(budget, "a", "b"), held(window, "c")...)},
			{after, append(held(budget, "a", "b"), held(window, "c")...)}, {after + 90*time.Second, append(held(budget, "a", "b"), held(window, "c")...)}, {after + 9*time.Minute, append(held(budget, "a", "b"), held(window, "c")...)}, {after + 10*time.Minute, append(held(budget, "a", "b"), held(window, "c")...)}},
			[]string{"held nodes=[a] ", "held nodes=[b c] policy=web turn= result= reason=: 2 nodes held for longer than 4h0m0s: b (Budget), c (Window); `lockkeeper status NODE` says"}},
		"not ours, not now": {[]round{{0, append(held(v1alpha1.ReasonDetached, "a"), held(v1alpha1.ReasonWouldGrant, "b")...)}, {after, append(held(v1alpha1.ReasonDetached, "a"), held(v1alpha1.ReasonWouldGrant, "b")...)}}, nil},
		"many": {[]round{{0, held(budget, many...)}, {after, held(budget, many...)}},
			[]string{fmt.Sprintf("held nodes=%v policy=web turn= result= reason=Budget: 5000 nodes held for longer than 4h0m0s: n0000 (Budget), n0001 (Budget), ", many)}},
	} {
		e, sent := notifying()
		e.heldAfter = after
		for _, r := range c.rounds {
			e.reportWaiting(began.Add(r.at), &facts{}, &rollout.Outcome{Verdicts: r.verdicts})
		}
		if !slices.EqualFunc(*sent, c.want, func(m notify.Message, want string) bool { return strings.HasPrefix(shown(m), want) }) {
			t.Errorf("%s: sent\n%.500v, want\n%.500v", name, *sent, c.want)
		}
		if name == "many" && len(*sent) == 1 && (!strings.Contains((*sent)[0].Text, "n0009 (Budget) and 4990 more;") || strings.Contains((*sent)[0].Text, "n0010")) {
			t.Errorf("%s", (*sent)[0].Text)
		}
	}

	e, sent := notifying() // held is not a configured occasion
	e.reportWaiting(began, &facts{}, &rollout.Outcome{Verdicts: held(budget, "a")})
	e.reportWaiting(began.Add(1000*time.Hour), &facts{}, &rollout.Outcome{Verdicts: held(budget, "a")})
	if len(*sent) > 0 || e.held != nil {
		t.Errorf("sent %v", *sent)
	}
}

// TestHeldAgainAfterARefusedGrant checks that a node that the API server keeps from its turn is reported, although the
// leader tries to grant the turn every 30 seconds.
func TestHeldAgainAfterARefusedGrant(t *testing.T) {
	e, sent := notifying()
	e.heldAfter = time.Hour
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	tries, refused := []rollout.Verdict{grants("a")}, []rollout.Verdict{{Node: "a", Held: v1alpha1.ReasonForbidden}}
	for at := time.Duration(0); at <= 2*time.Hour; at += refusedFor {
		e.reportWaiting(began.Add(at), &facts{}, &rollout.Outcome{Verdicts: tries})
		e.reportWaiting(began.Add(at+time.Second), &facts{}, &rollout.Outcome{Verdicts: refused})
	}
	if len(*sent) != 1 || !strings.HasPrefix(shown((*sent)[0]), "held nodes=[a] policy= turn= result= reason=Forbidden: ") {
		t.Errorf("sent %v", *sent)
	}
}

// markedAfterFailure returns a snapshot of an idle node that failed in its last turn and has our mark.
func markedAfterFailure(now time.Time) rollout.Snapshot {
	n := turn.Node{Name: "a", UID: "u", ResourceVersion: "1", BootID: "b1", Ready: true, Unschedulable: true, Created: now.Add(-24 * time.Hour)}
	n.State, n.Mark, n.Wants = v1alpha1.StateIdle, true, v1alpha1.WantsNothing
	n.Host = &v1alpha1.Host{Protocol: v1alpha1.Protocol, NodeUID: "u", BootID: "b1", Managed: true}
	n.Last = &v1alpha1.Last{Turn: "old", Result: v1alpha1.ResultFailed, Reason: v1alpha1.ReasonNotUpdated, End: now.Add(-48 * time.Hour)}
	return rollout.Snapshot{Now: now, Epoch: "me_1", Policies: policy.Set{policy.Default()}, Nodes: []turn.Node{n}}
}

// TestEndOfATurnThatOnlyUncordons checks that the end of a turn that only removed a cordon is reported as such, although the
// record of the turn before it stays on the Node.
func TestEndOfATurnThatOnlyUncordons(t *testing.T) {
	e, sent := notifying()
	s := markedAfterFailure(time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC))
	n := &s.Nodes[0]
	for n.State != v1alpha1.StateIdle || n.Mark {
		v := rollout.Decide(s).Verdicts[0]
		if v.Move == nil || v.Move.From == v.Move.To {
			t.Fatalf("stays: %+v", v)
		}
		if v.Move.NewTurn {
			v.Move.Grant.Turn = "new"
		}
		e.reportWrite(n, &v, "")
		n.State, n.Grant, n.Turn = v.Move.To, v.Move.Grant, ""
		if n.Grant != nil {
			n.Turn = n.Grant.Turn
			n.Ack = v1alpha1.Ack{Turn: n.Turn, BootID: "b1", State: n.State, Report: v1alpha1.ReportDone}
			n.Mark, n.Unschedulable = false, false // the host uncordons
		}
	}
	told := e.all()
	if len(told) == 0 || !strings.HasPrefix(told[len(told)-1], "Cancelled a: turn new ended Cancelled (OwnCordonLeft: ") {
		t.Errorf("Events %q", told)
	}
	if len(*sent) != 1 || !strings.HasPrefix(shown((*sent)[0]), "turn-ended nodes=[a] policy=built-in turn=new result=Cancelled reason=OwnCordonLeft: ") {
		t.Errorf("sent %v", *sent)
	}
}

// TestUnmanagedNodesAreNotReported checks that a node that was taken out is not reported as held for long.
func TestUnmanagedNodesAreNotReported(t *testing.T) {
	e, sent := notifying()
	e.heldAfter = time.Hour
	for at := range 3 {
		e.reportWaiting(time.Date(2026, 1, 1, at, 0, 0, 0, time.UTC), &facts{}, &rollout.Outcome{Verdicts: []rollout.Verdict{{Node: "a", Held: v1alpha1.ReasonUnmanaged}}})
	}
	if len(*sent) != 0 {
		t.Errorf("sent %v", *sent)
	}
}

// TestNotificationsOfATerm checks that a leader sends notifications to its host's receiver, and knows how long a node is held
// before that is an occasion.
func TestNotificationsOfATerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newWriter(t)
		var counted []string
		l.sender = notify.New(notify.Options{URL: "http://127.0.0.1:1", On: []v1alpha1.Occasion{v1alpha1.OccasionHeld}, HeldLongerThan: 4 * time.Hour,
			Count: func(result string) { counted = append(counted, result) }})
		ctx, stop := context.WithCancel(t.Context())
		e := l.newEvents(ctx, "n1")
		if e.heldAfter != 4*time.Hour || e.self != "n1" || e.queue == nil {
			t.Errorf("held after %v, by %q, writes Events: %t", e.heldAfter, e.self, e.queue != nil)
		}
		e.send(notify.Message{Occasion: v1alpha1.OccasionHeld})
		stop()
		l.sender.Run(ctx) // which drops what it has not sent
		if !slices.Equal(counted, []string{v1alpha1.NotificationDropped}) {
			t.Errorf("the receiver was to get one message: %q", counted)
		}
	})
}
