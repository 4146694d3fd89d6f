package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestLowestPriorityFirstThenByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(aPod("d", priority(2000)), aPod("b"), aPod("c", priority(100)), aPod("a"),
			aPod("e", priority(-5)), aPod("f", priority(100)))
		if err := s.loop(1, nil).run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, want := s.order(), []string{"e", "a", "b", "c", "f", "d"}; !slices.Equal(got, want) {
			t.Errorf("order %v, want %v", got, want)
		}
	})
}

func TestOnlyWhatIsToBeEvictedIsEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		elsewhere := aPod("elsewhere")
		elsewhere.Spec.NodeName = "n2"
		leaving := aPod("leaving", terminating)
		s := newSim(aPod("daemon", owned("apps/v1", "DaemonSet", "u", true)), aPod("mirror", mirror),
			aPod("done", phase(corev1.PodSucceeded)), leaving, elsewhere, aPod("web"))
		time.AfterFunc(7*time.Second, func() { s.remove("leaving") })
		if err := s.loop(8, nil).run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := s.order(); !slices.Equal(got, []string{"web"}) {
			t.Errorf("evicted %v", got)
		}
		if took := time.Since(s.start); took != 7*time.Second {
			t.Errorf("drained after %v, expected 7s because the drain waits for the terminating pod", took)
		}
	})
}

func TestNothingToDoIsDoneAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(aPod("mirror", mirror))
		var said []Progress
		if err := s.loop(8, func(p Progress) { said = append(said, p) }).run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if time.Since(s.start) != 0 || len(said) != 1 || said[0].Evictable != 0 {
			t.Errorf("after %v, said %+v", time.Since(s.start), said)
		}
	})
}

func TestAnUnknownViewIsNotAnEmptyOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim()
		s.synced, s.err = false, errors.New("connection refused")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var said []Progress
		err := s.loop(8, func(p Progress) { said = append(said, p) }).run(ctx)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if len(said) != 1 || said[0].Err == nil {
			t.Errorf("said %+v", said)
		}
	})
}

func TestABlockedPodDelaysNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := []*corev1.Pod{aPod("zz", priority(1000))}
		for i := range 40 {
			pods = append(pods, aPod(fmt.Sprintf("db-%02d", i)))
		}
		s := newSim(pods...)
		s.say = func(pod string, n int) answer {
			if pod == "zz" || time.Since(s.start) > 10*time.Minute {
				return answer{}
			}
			return full(pod, n)
		}
		var last Progress
		if err := s.loop(2, func(p Progress) { last = p }).run(t.Context()); err != nil {
			t.Fatal(err)
		}
		// The drain tries each of the 41 pods once, two at a time, before it tries any again.
		if at := s.times("zz"); len(at) != 1 || at[0] != 20*s.latency {
			t.Errorf("the free pod was evicted at %v", at)
		}
		if took := time.Since(s.start); took < 10*time.Minute || took > 10*time.Minute+35*time.Second {
			t.Errorf("drained after %v, expected soon after the budget's release at 10m", took)
		}
		// Then it asks the budget for one pod at a time: 41 times in ten minutes, as for a single pod. At the end, each pod leaves.
		if n := len(s.sent); n > 41+41+40 {
			t.Errorf("%d evictions were sent, expected 122 at most", n)
		}
		if last.Evicted != 41 || last.Evictable != 0 || last.Blocked != 0 {
			t.Errorf("last progress %+v", last)
		}
	})
}

func TestDelayGrowsWithinBounds(t *testing.T) {
	for name, c := range map[string]struct {
		answer         answer
		low, high      time.Duration
		first, highest time.Duration // of the gaps, at random = 0.5
	}{
		"budget":      {full("", 0), time.Second, 30 * time.Second, 1500 * time.Millisecond, 22500 * time.Millisecond},
		"unreachable": {answer{kind: later, reason: Unreachable}, time.Second, 30 * time.Second, 1500 * time.Millisecond, 22500 * time.Millisecond},
		"refused":     {answer{kind: refused, reason: ServerError}, time.Second, 30 * time.Second, 1500 * time.Millisecond, 22500 * time.Millisecond},
		"asked to wait 10 s": {answer{kind: later, reason: PodDisruptionBudget, retryAfter: 10 * time.Second},
			10 * time.Second, 30 * time.Second, 11250 * time.Millisecond, 22500 * time.Millisecond},
		"asked to wait an hour": {answer{kind: later, reason: TooManyRequests, retryAfter: time.Hour},
			30 * time.Second, 38 * time.Second, 33750 * time.Millisecond, 33750 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(aPod("a"))
				s.latency = 0
				s.say = func(string, int) answer { return c.answer }
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				if err := s.loop(8, nil).run(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				g := gaps(s.times("a"))
				if !slices.IsSorted(g) || g[0] != c.first || g[len(g)-1] != c.highest {
					t.Errorf("gaps %v, expected growth from %v to %v", g, c.first, c.highest)
				}
				if slices.Min(g) < c.low || slices.Max(g) > c.high {
					t.Errorf("gaps %v, expected %v to %v", g, c.low, c.high)
				}
			})
		})
	}
}

// TestABudgetsPodIsTriedInTime checks that the drain notices within 5 s, or within a fifth of the time for which the pod
// was blocked, that a budget allows the eviction, and that it sends few requests meanwhile.
func TestABudgetsPodIsTriedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(aPod("a"))
		s.latency, s.say = 0, full
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := s.loop(8, nil).run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		at, minute := s.times("a"), 0
		for i, gap := range gaps(at) {
			if limit := max(5*time.Second, at[i]/5); gap > limit {
				t.Errorf("tried after %v and not again for %v, expected at most %v", at[i], gap, limit)
			}
			if at[i] < time.Minute {
				minute++
			}
		}
		if minute > 14 || len(at) > 175 {
			t.Errorf("%d evictions in a minute, %d in an hour; expected 14 and 175 at most", minute, len(at))
		}
	})
}

func TestJitterSpreads(t *testing.T) {
	low := newSchedule(1, func() float64 { return 0 })
	high := newSchedule(1, func() float64 { return 0.999999 })
	for failures := 1; failures < 100; failures++ {
		l, h := low.delay(failures, maxDelay), high.delay(failures, maxDelay)
		if l < minDelay || h > maxDelay || h < l*19/10 {
			t.Errorf("after %d failures %v to %v", failures, l, h)
		}
	}
}

func TestConcurrencyIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pods []*corev1.Pod
		for i := range 100 {
			pods = append(pods, aPod(fmt.Sprintf("p-%03d", i)))
		}
		s := newSim(pods...)
		s.latency = time.Second
		if err := s.loop(3, nil).run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.most != 3 || len(s.sent) != 100 {
			t.Errorf("%d at once, %d in total; expected 3 and 100", s.most, len(s.sent))
		}
		if took := time.Since(s.start); took != 34*s.latency+s.grace {
			t.Errorf("drained after %v, expected 34 rounds of a second and the grace of 2 s", took)
		}
	})
}

func TestALaterPodIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(aPod("a"))
		s.grace = 30 * time.Second
		time.AfterFunc(20*time.Second, func() { s.add(aPod("late")) })
		if err := s.loop(8, nil).run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if at := s.times("late"); len(at) != 1 || at[0] != 20*time.Second {
			t.Errorf("the later pod was evicted at %v", at)
		}
		if took := time.Since(s.start); took != 50*time.Second+s.latency {
			t.Errorf("drained after %v", took)
		}
	})
}

// TestReturningPodsAreSlowedDown uses a controller whose pods tolerate the cordon: it puts a new pod on the node as
// soon as one is evicted.
func TestReturningPodsAreSlowedDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := owned("apps.example.com/v1", "Stubborn", "stubborn-uid", true)
		s := newSim(aPod("s-0", of))
		s.grace = 0
		n := 0
		s.say = func(string, int) answer {
			n++
			next := aPod(fmt.Sprintf("s-%d", n), of)
			time.AfterFunc(time.Millisecond, func() { s.add(next) })
			return answer{}
		}
		// Another user's pod prevents the end of the drain.
		s.add(aPod("keep", terminating))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		var last Progress
		if err := s.loop(8, func(p Progress) { last = p }).run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if len(s.sent) < 10 || len(s.sent) > 40 {
			t.Errorf("%d evictions in 10 minutes, expected about thirty", len(s.sent))
		}
		if !slices.ContainsFunc(last.Blockers, func(b Blocker) bool { return b.Reason == Returning }) {
			t.Errorf("blockers %+v", last.Blockers)
		}
	})
}

func TestCancelSendsNothingMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pods []*corev1.Pod
		for i := range 60 {
			pods = append(pods, aPod(fmt.Sprintf("p-%02d", i)))
		}
		s := newSim(pods...)
		s.latency = 10 * time.Second
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(15*time.Second, cancel)
		err := s.loop(4, nil).run(ctx)
		if !errors.Is(err, context.Canceled) || time.Since(s.start) != 15*time.Second+answerGrace {
			t.Errorf("returned %v after %v", err, time.Since(s.start))
		}
		if len(s.sent) != 8 { // two rounds of four
			t.Errorf("%d evictions before the cancel", len(s.sent))
		}
		time.Sleep(time.Hour)
		if len(s.sent) != 8 || s.inFlight != 0 {
			t.Errorf("%d evictions after the cancel, %d in flight", len(s.sent)-8, s.inFlight)
		}
	})
}

// TestCancelLetsEvictionsBeAnswered checks that a cancel waits for answers, because an eviction that is cut off between
// the write of the budget and the write of the pod reduces the budget for two minutes.
func TestCancelLetsEvictionsBeAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(aPod("a"), aPod("b"), aPod("c"))
		s.latency = time.Second
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(300*time.Millisecond, cancel)
		if err := s.loop(2, nil).run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("returned %v", err)
		}
		if took := time.Since(s.start); took != s.latency {
			t.Errorf("returned after %v", took)
		}
		time.Sleep(s.grace + time.Second)
		s.mu.Lock()
		defer s.mu.Unlock()
		if left := len(s.pods); left != 1 || len(s.sent) != 2 {
			t.Errorf("%d sent, %d pods left; expected the two evictions in flight to succeed", len(s.sent), left)
		}
	})
}

func TestCancelledBeforeItBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(aPod("a"))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.loop(8, nil).run(ctx); !errors.Is(err, context.Canceled) || len(s.sent) != 0 {
			t.Errorf("returned %v, sent %v", err, s.sent)
		}
	})
}

// TestStartedAgain checks that a new run continues from the current state, without another eviction of terminating pods.
func TestStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(aPod("a"), aPod("b"), aPod("c"))
		s.grace = time.Minute
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			if err := s.loop(8, nil).run(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			cancel()
			s.wake() // a new run lists again
		}
		if err := s.loop(8, nil).run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := s.order(); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"a", "b", "c"}) {
			t.Errorf("evicted %v", got)
		}
	})
}

func TestAcceptedButNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(aPod("a"))
		s.ignore = true
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute-time.Second)
		defer cancel()
		var last Progress
		if err := s.loop(8, func(p Progress) { last = p }).run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if len(s.sent) != 4 || slices.Min(gaps(s.times("a"))) < recheck {
			t.Errorf("sent at %v, expected every 30 s", s.times("a"))
		}
		if last.Evicted != 1 || len(last.Blockers) != 1 || last.Blockers[0].Reason != NotDeleted {
			t.Errorf("last progress %+v", last)
		}
	})
}

func TestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(aPod("a"))
		s.say = func(string, int) answer { return answer{kind: gone, reason: Refused, message: `pods "a" not found`} }
		var said []Progress
		var named time.Duration // when the pod was first reported as a blocker
		time.AfterFunc(time.Minute, func() { s.remove("a") })
		if err := s.loop(8, func(p Progress) {
			said = append(said, p)
			if p.Blocked > 0 && named == 0 {
				named = time.Since(s.start)
			}
		}).run(t.Context()); err != nil {
			t.Fatal(err)
		}
		// The drain tries at 0 s, 1.5 s and 4.5 s, and believes the answer twice.
		if named < 4*time.Second || named > 6*time.Second {
			t.Errorf("a pod that is gone was reported as a blocker after %v", named)
		}
		// The drain must report a watch that continues to show the pod.
		if b := said[len(said)-2].Blockers; len(b) != 1 || b[0].Reason != Refused {
			t.Errorf("blockers %+v", b)
		}
		if last := said[len(said)-1]; last.Evicted != 0 {
			t.Errorf("last progress %+v: nothing was evicted", last)
		}
	})
}
