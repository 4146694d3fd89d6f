package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestProgressTellsOnlyNewsAndSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pods []*corev1.Pod
		for i := range 50 {
			pods = append(pods, aPod(fmt.Sprintf("p-%02d", i)))
		}
		s := newSim(pods...)
		s.say = func(pod string, n int) answer {
			if pod == "p-00" && n < 10 {
				return full(pod, n)
			}
			return answer{}
		}
		type told struct {
			at time.Duration
			p  Progress
		}
		var said []told
		if err := s.loop(8, func(p Progress) { said = append(said, told{time.Since(s.start), p}) }).run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := 1; i < len(said); i++ {
			if said[i].p.equal(said[i-1].p) {
				t.Errorf("said twice: %+v", said[i].p)
			}
			if d := said[i].at - said[i-1].at; d < time.Second && i != len(said)-1 {
				t.Errorf("reports %d and %d are %v apart", i-1, i, d)
			}
		}
		if first := said[0]; first.at != 0 || first.p.Evictable != 50 {
			t.Errorf("first report %+v", first)
		}
		if last := said[len(said)-1].p; last.Evictable != 0 || last.Evicted != 50 || last.Blocked != 0 {
			t.Errorf("last report %+v", last)
		}
		// Between the end of the other pods and the tenth attempt there is nothing new to report.
		if len(said) > 12 {
			t.Errorf("%d reports", len(said))
		}
		i := slices.IndexFunc(said, func(w told) bool { return w.p.Blocked == 1 })
		if i < 0 {
			t.Fatal("the blocked pod was never reported")
		}
		b := said[i].p.Blockers[0]
		if b.Name != "p-00" || b.Reason != PodDisruptionBudget || !strings.Contains(b.Message, "budget db") {
			t.Errorf("blocker %+v", b)
		}
		if !b.Since.Equal(s.start.Add(s.latency)) {
			t.Errorf("since %v, expected the time of the first refusal", b.Since)
		}
	})
}

func TestSinceSurvivesAChangeOfObstacle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(aPod("a"))
		s.say = func(pod string, n int) answer {
			if n%2 == 0 {
				return answer{kind: later, reason: Unreachable, message: "connection refused"}
			}
			return full(pod, n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		seen := map[Reason]bool{}
		err := s.loop(8, func(p Progress) {
			for _, b := range p.Blockers {
				seen[b.Reason] = true
				if !b.Since.Equal(s.start.Add(s.latency)) {
					t.Errorf("since %v", b.Since)
				}
			}
		}).run(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !seen[PodDisruptionBudget] || !seen[Unreachable] {
			t.Errorf("%v, %v", err, seen)
		}
	})
}

func TestTerminatingBecomesABlocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := metav1.NewTime(time.Now().Add(20 * time.Second))
		s := newSim(aPod("a", func(p *corev1.Pod) {
			p.DeletionTimestamp = &end
			p.Finalizers = []string{"example.com/volume"}
		}))
		time.AfterFunc(time.Hour, func() { s.remove("a") })
		var at []time.Duration
		var said []Progress
		if err := s.loop(8, func(p Progress) {
			at, said = append(at, time.Since(s.start)), append(said, p)
		}).run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want := []time.Duration{0, 30 * time.Second, time.Hour}; !slices.Equal(at, want) {
			t.Fatalf("reported at %v, expected %v", at, want)
		}
		if said[0].Terminating != 1 || said[0].Blocked != 0 {
			t.Errorf("first %+v", said[0])
		}
		b := said[1].Blockers
		if len(b) != 1 || b[0].Reason != Finalizer || !b[0].Since.Equal(end.Time) || !strings.Contains(b[0].Message, "example.com/volume") {
			t.Errorf("blockers %+v", b)
		}
	})
}

func TestAPolicyBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(aPod("web"), aPod("precious"))
		s.drainer.Policy = func(p *corev1.Pod, v Verdict) Verdict {
			if p.Name == "precious" {
				return Verdict{Block, "Precious"}
			}
			return v
		}
		time.AfterFunc(time.Minute, func() { s.remove("precious") })
		blocked := false
		if err := s.loop(8, func(p Progress) {
			blocked = blocked || (len(p.Blockers) == 1 && p.Blockers[0].Reason == "Precious")
		}).run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !blocked || !slices.Equal(s.order(), []string{"web"}) || time.Since(s.start) != time.Minute {
			t.Errorf("blocked %v, evicted %v, drained after %v", blocked, s.order(), time.Since(s.start))
		}
	})
}

func TestBlockersAreBounded(t *testing.T) {
	s := newSchedule(8, func() float64 { return 0 })
	now := time.Now()
	v := snapshot{synced: true}
	for i := range 3 * MaxBlockers {
		v.pods = append(v.pods, factsOf(aPod(fmt.Sprintf("p-%03d", i)), Verdict{Block, "Precious"}))
	}
	s.observe(now, v)
	p := s.progress(now)
	if p.Blocked != 3*MaxBlockers || len(p.Blockers) != MaxBlockers {
		t.Errorf("%d blocked, %d named", p.Blocked, len(p.Blockers))
	}
	if p.Blockers[0].Name != "p-000" || p.Blockers[MaxBlockers-1].Name != fmt.Sprintf("p-%03d", MaxBlockers-1) {
		t.Errorf("named from %v to %v", p.Blockers[0].Pod, p.Blockers[MaxBlockers-1].Pod)
	}
}

// TestAChangeOfVerdictChangesTheBlocker checks that a policy's verdict may change with the labels of a pod.
func TestAChangeOfVerdictChangesTheBlocker(t *testing.T) {
	s := newSchedule(8, func() float64 { return 0 })
	now := time.Now()
	show := func(v Verdict) { s.observe(now, snapshot{synced: true, pods: []facts{factsOf(aPod("a"), v)}}) }
	reasons := func() []Reason {
		var rs []Reason
		for _, b := range s.progress(now).Blockers {
			rs = append(rs, b.Reason)
		}
		return rs
	}
	show(Verdict{Block, "Precious"})
	if got := reasons(); !slices.Equal(got, []Reason{"Precious"}) {
		t.Errorf("blocked by the policy: %v", got)
	}
	show(Verdict{Evict, Managed})
	if got := reasons(); len(got) != 0 {
		t.Errorf("no longer blocked by the policy: %v", got)
	}
	p, ok := s.next(now)
	if !ok {
		t.Fatal("nothing to evict")
	}
	s.answered(now, p.UID, "", full("a", 1))
	show(Verdict{Block, "Precious"})
	if got := reasons(); !slices.Equal(got, []Reason{"Precious"}) {
		t.Errorf("blocked by the policy after a budget: %v", got)
	}
	if p, ok := s.next(now.Add(time.Hour)); ok {
		t.Errorf("evicts %v, which the policy blocks", p)
	}
	if at := s.wake(now); !at.IsZero() {
		t.Errorf("wakes at %v without a reason", at)
	}
}
