package drain

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// start is the time at which the schedules of these tests begin.
var start = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// scheduleOf returns a schedule whose watch shows the pods, and whose random numbers are those given, one after the other, then 0.
func scheduleOf(concurrency int, random []float64, pods ...facts) *schedule {
	s := newSchedule(concurrency, func() float64 {
		if len(random) == 0 {
			return 0
		}
		r := random[0]
		random = random[1:]
		return r
	})
	s.observe(start, snapshot{pods: pods, synced: true})
	return s
}

// named returns the facts of a pod that a drain evicts.
func named(name string) facts {
	return facts{Pod: Pod{Namespace: "default", Name: name, UID: types.UID(name)}, verdict: Verdict{Evict, Managed}, controller: "c"}
}

// started fails the test unless next starts the eviction of the pod, or of none if name is "".
func (s *schedule) started(t *testing.T, after time.Duration, name string) {
	t.Helper()
	if p, ok := s.next(start.Add(after)); p.Name != name || ok != (name != "") {
		t.Fatalf("after %v: the eviction of %q starts, expected %q", after, p.Name, name)
	}
}

// TestInFlight: evictions start at once, but no more of them are in flight than allowed.
func TestInFlight(t *testing.T) {
	s := scheduleOf(2, nil, named("a"), named("b"), named("c"))
	s.started(t, 0, "a")
	s.started(t, 0, "b")
	s.started(t, time.Second, "")
	if got := s.wake(start); !got.IsZero() {
		t.Errorf("wakes at %v while as many evictions as allowed are in flight", got)
	}
	s.answered(start.Add(time.Second), "a", "c", answer{kind: accepted})
	s.started(t, time.Second, "c")
	s.answered(start.Add(time.Second), "b", "c", answer{kind: accepted})
	s.started(t, 2*time.Second, "") // all were accepted, and are looked at again 30 s later
	s.started(t, time.Second+recheck-1, "")
	s.started(t, time.Second+recheck, "a")
	if e := s.pods["a"]; e.blocker == nil || e.blocker.Reason != NotDeleted || e.attempts != 2 || s.evicted != 2 {
		t.Errorf("an eviction that did nothing: %+v, %d evicted", e.blocker, s.evicted)
	}
	s.answered(start.Add(time.Minute), "a", "c", answer{kind: accepted})
	if e := s.pods["a"]; e.blocker == nil || s.evicted != 2 {
		t.Errorf("accepted once more: %+v, %d evicted, expected the blocker to stay, and 2", e.blocker, s.evicted)
	}
}

// TestWidth has how many evictions may be in flight after some answers in a row.
func TestWidth(t *testing.T) {
	yes, busy, away := answer{kind: accepted}, answer{kind: later, reason: TooManyRequests}, answer{kind: later, reason: Unreachable}
	for name, c := range map[string]struct {
		answers []answer
		want    int
	}{
		"at first":                {nil, 8},
		"accepted":                {[]answer{yes, yes, yes}, 8},
		"busy":                    {[]answer{busy}, 4},
		"away, then busy":         {[]answer{away, busy}, 2},
		"away for long":           {slices.Repeat([]answer{away}, 20), 1},
		"a full budget":           {[]answer{{kind: later, reason: PodDisruptionBudget}}, 8},
		"two budgets":             {[]answer{{kind: refused, reason: ServerError}}, 8},
		"gone":                    {[]answer{{kind: gone, reason: Refused}}, 8},
		"better":                  {[]answer{away, away, yes, yes}, 2},
		"better after a round":    {[]answer{away, away, yes, yes, yes}, 3},
		"better after many":       {append([]answer{away}, slices.Repeat([]answer{yes}, 40)...), 8},
		"budgets answer again":    {append([]answer{away, away, away}, slices.Repeat([]answer{{kind: later, reason: PodDisruptionBudget}}, 40)...), 8},
		"from one to two at once": {[]answer{away, away, away, yes}, 2},
	} {
		s := scheduleOf(8, nil, named("a"))
		for _, a := range c.answers {
			s.inFlight++
			s.answered(start, "another", "", a)
		}
		n := 0
		for ; !s.full(); n++ {
			s.inFlight++
		}
		if n != c.want {
			t.Errorf("%s: %d, expected %d", name, n, c.want)
		}
	}
}

// TestClockOfTheAPIServer: that the clocks of host and API server differ changes neither when a terminating pod is blocked nor
// when critical pods leave. A pod that is terminating when the drain begins may have any part of its grace period left.
func TestClockOfTheAPIServer(t *testing.T) {
	const grace = 30 * time.Second
	for _, ahead := range []time.Duration{-time.Hour, -time.Minute, 0, time.Minute, time.Hour} { // the API server's clock
		for _, before := range []bool{false, true} { // the pod is terminating when the drain begins
			web, dns := named("web"), named("dns")
			web.grace, dns.priority = grace, systemCritical
			gone := web
			gone.verdict, gone.deadline, gone.deletionGrace = Verdict{Wait, Terminating}, start.Add(ahead+grace), new(grace)
			s := scheduleOf(8, nil, web, dns)
			if before {
				s = scheduleOf(8, nil, gone, dns)
			} else {
				s.started(t, 0, "web")
				s.answered(start, "web", "c", answer{kind: accepted})
				s.observe(start, snapshot{pods: []facts{gone, dns}, synced: true})
			}
			late := grace + overdue
			if before && ahead < 0 { // as if it had been terminating for longer
				late = max(late+ahead, 0)
			}
			for at := time.Duration(0); at <= 2*late; at += time.Second {
				_, leaves := s.next(start.Add(at))
				if blocked := s.progress(start.Add(at)).Blocked == 1; blocked != (at >= late) || leaves != (at == late) {
					t.Errorf("%v ahead, terminating before %t, after %v: blocked %t, the critical pod leaves %t", ahead, before, at, blocked, leaves)
					break
				}
			}
		}
	}
}

// TestDeletedAgain: a pod whose deletion was lost, because the API server's store was set back, has its whole grace period when
// it is deleted again.
func TestDeletedAgain(t *testing.T) {
	const grace = 30 * time.Second
	web, dns := named("web"), named("dns")
	web.grace, dns.priority = grace, systemCritical
	s := scheduleOf(8, nil, web, dns)
	for _, at := range []time.Time{start, start.Add(10 * time.Minute)} {
		gone := web
		gone.verdict, gone.deadline, gone.deletionGrace = Verdict{Wait, Terminating}, at.Add(grace), new(grace)
		s.observe(at, snapshot{pods: []facts{gone, dns}, synced: true})
		if _, leaves := s.next(at.Add(grace)); leaves || s.progress(at.Add(grace)).Blocked != 0 {
			t.Errorf("deleted at %v: blocked within its grace period", at.Sub(start))
		}
		s.observe(at.Add(time.Second), snapshot{pods: []facts{web, dns}, synced: true})
	}
}

// TestCriticalPodsLeaveLast: a critical pod is evicted once all others are gone, or have been blocked for 30 s by more
// than an API server that does not answer.
func TestCriticalPodsLeaveLast(t *testing.T) {
	dns, web := named("dns"), named("web")
	dns.priority, web.priority = systemCritical, systemCritical-1
	web.grace, dns.grace = time.Minute, 30*time.Second
	leaving, stuck, kept := web, web, web
	leaving.verdict, leaving.deadline = Verdict{Wait, Terminating}, start.Add(time.Minute)
	stuck.verdict, stuck.deadline = Verdict{Wait, Terminating}, start.Add(-overdue)
	kept.verdict = Verdict{Block, BlockedByPolicy}
	for name, c := range map[string]struct {
		web    facts
		answer *answer       // to the eviction of web
		leaves time.Duration // when the critical pod is evicted; negative: not within a minute
		end    time.Duration // 0: none
	}{
		"not answered":     {web, nil, -1, 90 * time.Second},
		"accepted":         {web, &answer{kind: accepted}, recheck, 90 * time.Second},
		"terminating":      {leaving, nil, -1, 90 * time.Second},
		"stuck":            {stuck, nil, 0, 0},
		"kept":             {kept, nil, 0, 0},
		"budget":           {web, &answer{kind: later, reason: PodDisruptionBudget}, 30 * time.Second, 0},
		"webhook":          {web, &answer{kind: refused, reason: Refused}, 30 * time.Second, 0},
		"server away":      {web, &answer{kind: later, reason: Unreachable}, -1, 0},
		"another one gone": {dns, nil, 0, 30 * time.Second},
	} {
		s := scheduleOf(8, nil, c.web, dns)
		if c.web.verdict.Class == Evict && c.web.Name == "web" {
			s.started(t, 0, "web")
		}
		if c.answer != nil {
			s.answered(start, "web", "c", *c.answer)
		}
		end, want := s.progress(start).End, start.Add(c.end)
		if c.end == 0 {
			want = time.Time{}
		}
		if !end.Equal(want) {
			t.Errorf("%s: the end is expected at %v, not at %v", name, end, want)
		}
		leaves := time.Duration(-1)
		for at := time.Duration(0); at <= time.Minute && leaves < 0; at += 500 * time.Millisecond {
			for {
				p, ok := s.next(start.Add(at))
				if !ok {
					break
				}
				if p.Name == "dns" {
					leaves = at
				} else if c.answer != nil {
					s.answered(start.Add(at), p.UID, "c", *c.answer)
				}
			}
			if due := s.wake(start.Add(at)); leaves < 0 && c.leaves > at && (due.IsZero() || due.After(start.Add(c.leaves))) {
				t.Errorf("%s: after %v it wakes at %v, too late", name, at, due)
			}
		}
		if leaves != c.leaves {
			t.Errorf("%s: the critical pod leaves after %v, expected %v", name, leaves, c.leaves)
		}
	}
	// It waits for the moment at which a terminating pod is overdue.
	s := scheduleOf(8, nil, leaving, dns)
	at := s.wake(start)
	if !at.Equal(start.Add(time.Minute + overdue)) {
		t.Errorf("wakes at %v", at)
	}
	if p, _ := s.next(at); p.Name != "dns" {
		t.Errorf("then the eviction of %q starts", p.Name)
	}
}

// TestDelays has when a pod is tried again, and what is shown as its blocker, after some answers in a row.
func TestDelays(t *testing.T) {
	budget := answer{kind: later, reason: PodDisruptionBudget, budget: "b", message: "no"}
	for name, c := range map[string]struct {
		answers []answer
		random  []float64
		want    time.Duration
		blocker string
	}{
		"not now":                      {[]answer{budget}, nil, time.Second, "PodDisruptionBudget default/b no"},
		"not now, in the upper half":   {[]answer{budget}, []float64{0.5}, 1500 * time.Millisecond, "PodDisruptionBudget default/b no"},
		"a second time":                {[]answer{budget, budget}, nil, 2 * time.Second, "PodDisruptionBudget default/b no"},
		"a fifth time":                 {slices.Repeat([]answer{budget}, 5), nil, 2500 * time.Millisecond, "PodDisruptionBudget default/b no"},
		"many times":                   {slices.Repeat([]answer{budget}, 100), nil, 15 * time.Second, "PodDisruptionBudget default/b no"},
		"a fifth time, not a budget":   {slices.Repeat([]answer{{kind: later, reason: Unreachable}}, 5), nil, 15 * time.Second, "Unreachable  "},
		"a refusal":                    {[]answer{{kind: refused, reason: Refused, message: "no"}}, nil, time.Second, "Refused  no"},
		"a fifth refusal":              {slices.Repeat([]answer{{kind: refused, reason: Refused}}, 5), nil, 2500 * time.Millisecond, "Refused  "},
		"many refusals":                {slices.Repeat([]answer{{kind: refused, reason: Refused}}, 100), nil, 15 * time.Second, "Refused  "},
		"an error after many not now":  {append(slices.Repeat([]answer{budget}, 100), answer{kind: refused, reason: ServerError}), nil, 15 * time.Second, "ServerError  "},
		"a fifth time, busy":           {slices.Repeat([]answer{{kind: later, reason: TooManyRequests}}, 5), nil, 2500 * time.Millisecond, "TooManyRequests  "},
		"away after many not now":      {append(slices.Repeat([]answer{budget}, 5), answer{kind: later, reason: Unreachable}), nil, 2500 * time.Millisecond, "Unreachable  "},
		"Retry-After":                  {[]answer{{kind: later, reason: TooManyRequests, retryAfter: 20 * time.Second}}, []float64{0, 0.5}, 22500 * time.Millisecond, "TooManyRequests  "},
		"a short Retry-After":          {[]answer{{kind: later, reason: TooManyRequests, retryAfter: 1}}, []float64{0, 0.5}, 1125 * time.Millisecond, "TooManyRequests  "},
		"a long Retry-After":           {[]answer{{kind: later, reason: TooManyRequests, retryAfter: time.Hour}}, nil, maxDelay, "TooManyRequests  "},
		"no Retry-After":               {[]answer{budget}, []float64{0, 0.9}, time.Second, "PodDisruptionBudget default/b no"},
		"Retry-After before the delay": {[]answer{budget, budget, budget, {kind: later, reason: TooManyRequests, retryAfter: 2 * time.Second}}, nil, 2500 * time.Millisecond, "TooManyRequests  "},
		"there is no such pod":         {[]answer{{kind: gone, reason: Refused}}, nil, time.Second, ""},
		"no such pod, twice":           {[]answer{{kind: gone, reason: Refused}, {kind: gone, reason: Refused}}, nil, 2 * time.Second, ""},
		"no such pod, three times":     {[]answer{{kind: gone, reason: Refused}, {kind: gone, reason: Refused}, {kind: gone, reason: Refused}}, nil, 2500 * time.Millisecond, "Refused  "},
		"accepted":                     {[]answer{{kind: accepted}}, nil, recheck, ""},
		"accepted after not now":       {[]answer{budget, {kind: accepted}}, nil, recheck, ""},
		"accepted, then not now":       {[]answer{budget, {kind: accepted}, budget}, nil, time.Second, "PodDisruptionBudget default/b no"},
	} {
		s := scheduleOf(1, c.random, named("a"))
		at := start
		var wait time.Duration
		for _, a := range c.answers {
			if _, ok := s.next(at); !ok {
				t.Fatalf("%s: no eviction starts", name)
			}
			s.answered(at, "a", "c", a)
			due, _ := s.pods["a"].due(true)
			wait = due.Sub(at)
			if got := s.wake(at); !got.Equal(due) {
				t.Errorf("%s: wakes at %v, expected %v", name, got, due)
			}
			at = due
		}
		blocker := ""
		if b := s.pods["a"].blocker; b != nil {
			blocker = fmt.Sprintf("%s %s %s", b.Reason, b.Budget, b.Message)
		}
		if wait != c.want || blocker != c.blocker {
			t.Errorf("%s: again after %v, blocker %q, expected %v, %q", name, wait, blocker, c.want, c.blocker)
		}
	}
}

// TestPodsOfABudget: the drain asks a budget for one of its pods at a time, each time for another one, and for the next
// one at once when it allows an eviction.
func TestPodsOfABudget(t *testing.T) {
	no, yes := answer{kind: later, reason: PodDisruptionBudget, budget: "db"}, answer{kind: accepted}
	sick := named("sick")
	sick.unready = "CrashLoopBackOff"
	s := scheduleOf(8, nil, named("a"), named("b"), named("c"), named("free"), sick)
	for _, pod := range []string{"a", "b", "c", "free", "sick"} {
		s.started(t, 0, pod)
	}
	for _, pod := range []types.UID{"a", "b", "c", "sick"} {
		s.answered(start, pod, "c", no)
	}
	s.answered(start, "free", "c", answer{kind: later, reason: ServerError})
	wakes := func(after, want time.Duration) {
		t.Helper()
		if got := s.wake(start.Add(after)); !got.Equal(start.Add(want)) {
			t.Errorf("after %v it wakes %v after the start, expected %v", after, got.Sub(start), want)
		}
	}
	wakes(0, time.Second)
	s.started(t, time.Second-1, "")
	// A pod that is not Ready, and one that no budget refused, are tried for themselves.
	for _, pod := range []string{"a", "free", "sick", ""} {
		s.started(t, time.Second, pod)
	}
	s.answered(start.Add(time.Second), "free", "c", answer{kind: later, reason: ServerError})
	s.answered(start.Add(time.Second), "sick", "c", no)
	s.answered(start.Add(time.Second), "a", "c", no)
	wakes(time.Second, 3*time.Second)
	s.started(t, 3*time.Second, "b")
	// What the watch no longer shows when the answer comes was tried nevertheless.
	s.observe(start.Add(3*time.Second), snapshot{synced: true, pods: []facts{named("a"), named("c"), sick}})
	s.answered(start.Add(3*time.Second), "b", "c", yes)
	s.started(t, 3*time.Second, "c")
	s.started(t, 3*time.Second, "sick")
	s.answered(start.Add(3*time.Second), "sick", "c", yes)
	s.started(t, 3*time.Second, "")
	s.answered(start.Add(3*time.Second), "c", "c", yes)
	s.started(t, 3*time.Second, "a")
	// The delays begin again, and a Retry-After is for all of the budget's pods.
	s.answered(start.Add(3*time.Second), "a", "c", answer{kind: later, reason: PodDisruptionBudget, budget: "db", retryAfter: 10 * time.Second})
	wakes(3*time.Second, 13*time.Second)
	s.started(t, 13*time.Second, "a")
	// Another budget now refuses it.
	s.answered(start.Add(13*time.Second), "a", "c", answer{kind: later, reason: PodDisruptionBudget, budget: "other"})
	wakes(13*time.Second, 15500*time.Millisecond) // half of 5 s: the pod has been blocked for a while
}

// TestBudgetOfABusyServer: an answer that says nothing about the budget delays all of its pods, and the drain forgets
// neither the budget nor for how long it has refused.
func TestBudgetOfABusyServer(t *testing.T) {
	no := answer{kind: later, reason: PodDisruptionBudget, budget: "db"}
	for name, a := range map[string]answer{
		"away": {kind: later, reason: Unreachable}, "busy": {kind: later, reason: TooManyRequests}, "an error": {kind: later, reason: ServerError},
	} {
		s := scheduleOf(8, nil, named("a"), named("b"), named("c"))
		for _, pod := range []types.UID{"a", "b", "c"} {
			s.started(t, 0, string(pod))
			s.answered(start, pod, "c", no)
		}
		s.started(t, time.Second, "a")
		s.answered(start.Add(time.Second), "a", "c", a)
		s.started(t, 3*time.Second-1, "") // not the next pod of the budget
		if p, ok := s.next(start.Add(3 * time.Second)); !ok || p.Name == "c" {
			t.Errorf("%s: then %v is tried", name, p)
		}
	}
	// A pod that was blocked for an hour, also if it is the budget's only one, is still tried seldom.
	s := scheduleOf(8, nil, named("a"))
	at := start
	for range 300 {
		if _, ok := s.next(at); !ok {
			t.Fatal("nothing is tried")
		}
		s.answered(at, "a", "c", no)
		at = s.wake(at)
	}
	for _, a := range []answer{{kind: later, reason: Unreachable}, {kind: later, reason: ServerError}, no} {
		s.next(at)
		s.answered(at, "a", "c", a)
		if wait := s.wake(at).Sub(at); wait != 15*time.Second { // half of 30 s
			t.Errorf("after an hour and %s it is tried again after %v", a.reason, wait)
		}
		at = s.wake(at)
	}
}

// TestAnswersAboutABudget checks what the answer for one pod says about the others.
func TestAnswersAboutABudget(t *testing.T) {
	no := answer{kind: later, reason: PodDisruptionBudget, budget: "db"}
	// The budget has refused a. Nothing is known of the others yet.
	refused := func() *schedule {
		s := scheduleOf(8, nil, named("a"), named("b"), named("other"))
		for _, pod := range []string{"a", "b", "other"} {
			s.started(t, 0, pod)
		}
		s.answered(start, "a", "c", no)
		return s
	}
	for reason, keeps := range map[Reason]bool{Unreachable: true, TooManyRequests: true, ServerError: false, Refused: false} {
		s := refused()
		s.started(t, time.Second, "a")
		s.answered(start.Add(time.Second), "a", "c", answer{kind: later, reason: reason})
		if (s.pods["a"].budget != nil) != keeps {
			t.Errorf("after %s the budget is known: %t", reason, !keeps)
		}
	}

	s := refused()
	s.answered(start, "b", "c", answer{kind: later, reason: PodDisruptionBudget, budget: "db", retryAfter: 10 * time.Second})
	if at := s.pods["a"].budget.notBefore; !at.Equal(start.Add(10 * time.Second)) {
		t.Errorf("the server wants to be left alone for 10 s: the budget is asked again after %v", at.Sub(start))
	}
	if b := s.pods["other"].blocker; b != nil {
		t.Errorf("a pod about which the server has not been asked has the blocker %+v", b)
	}

	s = refused()
	s.answered(start, "b", "c", no)
	s.started(t, time.Second, "a")
	s.answered(start.Add(time.Second), "a", "c", answer{kind: accepted})
	s.answered(start.Add(time.Second), "other", "c", no) // it was asked before that
	if at := s.pods["b"].budget.notBefore; !at.Equal(start.Add(time.Second)) {
		t.Errorf("the budget has just allowed an eviction, and is asked again after %v", at.Sub(start))
	}
}

// TestPodOfABudgetChanges: a pod that is no longer Ready is tried for itself at once, because its budget may allow that,
// and all pods of a budget show its newest figures.
func TestPodOfABudgetChanges(t *testing.T) {
	refuses := func(has int) answer {
		return answer{kind: later, reason: PodDisruptionBudget, budget: "db", message: fmt.Sprintf("needs 3 healthy pods and has %d currently", has)}
	}
	s := scheduleOf(8, nil, named("a"), named("b"))
	for _, pod := range []types.UID{"a", "b"} {
		s.started(t, 0, string(pod))
		s.answered(start, pod, "c", refuses(3))
	}
	s.started(t, time.Second, "a")
	s.answered(start.Add(time.Second), "a", "c", refuses(2))
	for _, b := range s.progress(start.Add(time.Second)).Blockers {
		if !strings.Contains(b.Message, "has 2 currently") || !b.Since.Equal(start) {
			t.Errorf("%s shows %q since %v", b.Name, b.Message, b.Since)
		}
	}
	sick := named("b")
	sick.unready = "CrashLoopBackOff"
	s.observe(start.Add(time.Second), snapshot{synced: true, pods: []facts{named("a"), sick}})
	s.started(t, time.Second, "b")
}

// TestAnswersOfPodsThatLeft: an answer about a pod that the watch no longer shows counts as evicted, and delays nothing.
func TestAnswersOfPodsThatLeft(t *testing.T) {
	s := scheduleOf(1, nil, named("a"))
	s.started(t, 0, "a")
	s.observe(start, snapshot{synced: true})
	s.answered(start, "a", "c", answer{kind: accepted})
	if s.evicted != 1 || !s.cleared["c"] || s.inFlight != 0 || !s.done() {
		t.Errorf("%d evicted, cleared %v, %d in flight, done %t", s.evicted, s.cleared, s.inFlight, s.done())
	}
	// A pod that is being deleted meanwhile is no longer blocked.
	s = scheduleOf(1, nil, named("a"))
	s.started(t, 0, "a")
	leaving := named("a")
	leaving.verdict = Verdict{Wait, Terminating}
	s.observe(start, snapshot{synced: true, pods: []facts{leaving}})
	s.answered(start, "a", "", answer{kind: refused, reason: Refused})
	if s.pods["a"].blocker != nil || s.cleared[""] {
		t.Errorf("a terminating pod has the blocker %+v", s.pods["a"].blocker)
	}
	s = scheduleOf(1, nil, named("a"))
	s.started(t, 0, "a")
	s.answered(start, "a", "", answer{kind: accepted})
	if s.cleared[""] {
		t.Error("a pod without a controller counts as one of a controller's")
	}
}

// TestReturningPods: the second pod that a controller brings back waits, and each further one longer.
func TestReturningPods(t *testing.T) {
	s := scheduleOf(8, nil, named("a"))
	s.started(t, 0, "a")
	s.answered(start, "a", "c", answer{kind: accepted})
	var pods []facts
	for i, want := range []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second} {
		pods = append(pods, named(fmt.Sprint("b", i)))
		s.observe(start, snapshot{synced: true, pods: pods})
		e := s.pods[pods[i].UID]
		wait := time.Duration(0)
		if !e.notBefore.IsZero() {
			wait = e.notBefore.Sub(start)
		}
		if wait != want || (e.blocker != nil) != (want > 0) {
			t.Errorf("pod %d after the eviction waits %v with the blocker %+v, expected %v", i+1, wait, e.blocker, want)
		}
	}
	other, leaving := named("other"), named("leaving")
	other.controller, leaving.verdict = "d", Verdict{Wait, Terminating}
	s.observe(start, snapshot{synced: true, pods: []facts{other, leaving}})
	if o, l := s.pods["other"], s.pods["leaving"]; !o.notBefore.IsZero() || o.blocker != nil || l.blocker != nil || s.returns["c"] != 4 || s.returns["d"] != 0 {
		t.Errorf("another controller's pod, or one that leaves, counts as returning: %+v, %+v, %v", o, l, s.returns)
	}
}

// TestVerdictsChange: a pod that the policy blocks has a blocker as long as it does.
func TestVerdictsChange(t *testing.T) {
	s := scheduleOf(1, nil, named("a"))
	set := func(after time.Duration, v Verdict) *Blocker {
		f := named("a")
		f.verdict = v
		s.observe(start.Add(after), snapshot{synced: true, pods: []facts{f}})
		return s.pods["a"].blocker
	}
	if b := set(0, Verdict{Block, BlockedByPolicy}); b == nil || b.Reason != BlockedByPolicy || !b.Since.Equal(start) {
		t.Errorf("the policy blocks it: %+v", b)
	}
	if b := set(time.Minute, Verdict{Block, BlockedByPolicy}); b == nil || !b.Since.Equal(start) {
		t.Errorf("a minute later: %+v", b)
	}
	if b := set(90*time.Second, Verdict{Block, Unmanaged}); b == nil || b.Reason != Unmanaged || !b.Since.Equal(start.Add(90*time.Second)) {
		t.Errorf("the policy blocks it for another reason: %+v", b)
	}
	if !s.wake(start).IsZero() {
		t.Error("a blocked pod wakes the schedule")
	}
	s.started(t, 90*time.Second, "")
	if b := set(2*time.Minute, Verdict{Evict, Managed}); b != nil {
		t.Errorf("the policy no longer blocks it: %+v", b)
	}
	s.started(t, 2*time.Minute, "a")
	s.answered(start.Add(2*time.Minute), "a", "c", answer{kind: later, reason: Unreachable})
	if b := set(3*time.Minute, Verdict{Evict, Managed}); b == nil || b.Reason != Unreachable {
		t.Errorf("nothing has changed: %+v", b)
	}
	if b := set(4*time.Minute, Verdict{Evict, Unmanaged}); b == nil || b.Reason != Unreachable {
		t.Errorf("it is evicted for another reason: %+v", b)
	}
}

// TestWakeOfTerminatingPods: the schedule wakes when a terminating pod becomes overdue, not later, and for the first one.
func TestWakeOfTerminatingPods(t *testing.T) {
	first, second := named("a"), named("b")
	first.verdict, second.verdict = Verdict{Wait, Terminating}, Verdict{Wait, Terminating}
	first.deadline, second.deadline = start.Add(time.Minute), start.Add(time.Hour)
	s := scheduleOf(1, nil, second, first)
	for now, want := range map[time.Duration]time.Duration{
		0: 70 * time.Second, 70*time.Second - 1: 70 * time.Second, 70 * time.Second: time.Hour + 10*time.Second, 2 * time.Hour: 0,
	} {
		got := s.wake(start.Add(now))
		if want == 0 && !got.IsZero() || want != 0 && !got.Equal(start.Add(want)) {
			t.Errorf("after %v: wakes at %v, expected %v after the start", now, got, want)
		}
	}
}

// TestOrder: pods without an attempt come first, then those of the lowest priority, then by name.
func TestOrder(t *testing.T) {
	low, high, tried, often := entry{facts: named("b")}, entry{facts: named("a")}, entry{facts: named("0"), attempts: 1}, entry{facts: named("1"), attempts: 2}
	high.priority = 1
	for _, c := range []struct {
		a, b *entry
		want int
	}{{&low, &high, -1}, {&high, &low, 1}, {&high, &tried, -1}, {&tried, &often, -1}, {&low, &low, 0}} {
		if got := before(c.a, c.b); got != c.want {
			t.Errorf("%s and %s: %d, expected %d", c.a.Name, c.b.Name, got, c.want)
		}
	}
}

// TestNotSynced: a watch that has not listed the pods changes nothing except the error.
func TestNotSynced(t *testing.T) {
	s := newSchedule(1, nil)
	if s.observe(start, snapshot{err: fmt.Errorf("no"), pods: []facts{named("a")}}); s.done() || s.err == nil || len(s.pods) != 0 {
		t.Errorf("done %t, error %v, pods %v", s.done(), s.err, s.pods)
	}
	if s.observe(start, snapshot{synced: true}); !s.done() || s.err != nil {
		t.Errorf("done %t, error %v", s.done(), s.err)
	}
}
