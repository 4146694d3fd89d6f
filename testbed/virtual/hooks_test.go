package virtual

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/memhost"
	"lockkeeper.dev/lockkeeper/testbed/referee"
)

// TestHookUnits checks that a host runs its hook units in a turn, that a fault can happen while one runs, and that they run again after it.
func TestHookUnits(t *testing.T) {
	o := Options{Hosts: 2, Hooks: map[v1alpha1.State]time.Duration{}, Plan: Plan{Length: time.Hour, Faults: []Fault{
		{At: Trigger{Process: "n1", Class: "hook,before-reboot", N: 1}, Kind: kindCrash, For: time.Minute},
	}}}
	for _, stage := range hookStages {
		o.Hooks[stage] = 20 * time.Second
	}
	inBubble(t, o, func(t *testing.T, f *Fleet) {
		calm := f.Start()
		f.Stage("n1", "2.0.0")
		<-calm
		if why := f.Arrive(time.Hour); why != "" {
			t.Error(why)
		}
		var ran []string
		for _, r := range f.Host(0).mem.Units().Runs() {
			ran = append(ran, strings.TrimSuffix(r.Unit, ".service")+" "+r.Result)
		}
		// The crash was the reboot that the turn needed.
		want := []string{"hook-before-drain success", "hook-before-reboot power-loss", "hook-before-uncordon success"}
		if !slices.Equal(ran, want) || f.exec.Fired()[kindCrash] != 1 {
			t.Errorf("the units ran %q, expected %q; faults: %v", ran, want, f.exec.Fired())
		}
	})
}

// TestHookUnitsThroughARestartOfTheBus checks that hook units continue while the bus restarts, and that the turn waits for them.
func TestHookUnitsThroughARestartOfTheBus(t *testing.T) {
	o := Options{Hosts: 2, Hooks: map[v1alpha1.State]time.Duration{v1alpha1.StateBeforeDrain: 5 * time.Minute}, Plan: Plan{Length: time.Hour, Faults: []Fault{
		{At: Trigger{Process: "n1", Class: "hook,before-drain", N: 1, After: time.Minute}, Kind: kindBusDown, For: 100 * time.Millisecond},
	}}}
	inBubble(t, o, func(t *testing.T, f *Fleet) {
		calm := f.Start()
		f.Stage("n1", "2.0.0")
		<-calm
		if why := f.Arrive(time.Hour); why != "" {
			t.Error(why)
		}
		runs := f.Host(0).mem.Units().Runs()
		if len(runs) != 1 || runs[0].Result != "success" || f.exec.Fired()[kindBusDown] != 1 {
			t.Errorf("the units ran %+v; faults: %v", runs, f.exec.Fired())
		}
	})
}

// TestHookUnitsStop checks that hook units which run when the turn ends have stopped before the node is idle again, also those that an earlier
// process has begun.
func TestHookUnitsStop(t *testing.T) {
	for name, end := range map[string]func(*Fleet){
		"the host wants nothing any more": func(f *Fleet) { f.Withdraw("n1") },
		"a process that refuses the turn": func(f *Fleet) {
			f.AddJob("n1", jobSelected)
			f.Kill("n1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			hooks := map[v1alpha1.State]time.Duration{v1alpha1.StateBeforeDrain: 10 * time.Minute}
			inBubble(t, Options{Hosts: 2, Workloads: 1, Blocks: blockRules{selected: true}, Hooks: hooks}, func(t *testing.T, f *Fleet) {
				reaches := func(state v1alpha1.State) {
					t.Helper()
					for limit := time.Now().Add(10 * time.Minute); turn.FromNode(f.Node("n1")).State != state; time.Sleep(time.Second) {
						if time.Now().After(limit) {
							t.Fatalf("n1 is in %s, expected %s", turn.FromNode(f.Node("n1")).State, state)
						}
					}
				}
				f.Stage("n1", "2.0.0")
				reaches(v1alpha1.StateBeforeDrain)
				time.Sleep(5 * time.Second)
				if f.Host(0).hooksLeft() == "" {
					t.Fatal("no unit runs")
				}
				end(f)
				reaches(v1alpha1.StateIdle)
				f.EndJob("n1", jobSelected)
			}) // and the rule about hooks holds
		})
	}
}

// TestHookViolations checks that each rule about hook units and evictions has a run that breaks it, and what none forbids.
func TestHookViolations(t *testing.T) {
	idle := func(f *Fleet) *corev1.Node {
		obj := f.Node("n1").DeepCopy()
		obj.Labels[v1alpha1.LabelState] = string(v1alpha1.StateIdle)
		return obj
	}
	for name, x := range map[string]struct {
		do   func(f *Fleet, m *Machine)
		want string
	}{
		"not undone": {func(f *Fleet, m *Machine) {
			m.hookBegan(v1alpha1.StateBeforeDrain, memhost.Run{Unit: "u"})
			m.hookEnded(v1alpha1.StateBeforeDrain, memhost.Run{Unit: "u", Result: "success"})
			m.hooks.state = v1alpha1.StateUncordoning
			m.judge(idle(f))
		}, "before-uncordon has not undone"},
		"still runs": {func(f *Fleet, m *Machine) {
			m.hookBegan(v1alpha1.StateBeforeUncordon, memhost.Run{Unit: "u"})
			m.hooks.state = v1alpha1.StateUncordoning
			m.judge(idle(f))
		}, "still runs"},
		"still runs, begun by one of two processes": {func(f *Fleet, m *Machine) {
			f.StartSecond("n1")
			m.hookBegan(v1alpha1.StateBeforeUncordon, memhost.Run{Unit: "u"})
			m.hooks.state = v1alpha1.StateUncordoning
			m.judge(idle(f))
		}, ""},
		"not succeeded": {func(f *Fleet, m *Machine) {
			obj := f.Node("n1").DeepCopy()
			for _, state := range []v1alpha1.State{v1alpha1.StateBeforeDrain, v1alpha1.StateDraining} {
				obj.Labels[v1alpha1.LabelState], obj.Annotations[v1alpha1.AnnotationTurn] = string(state), "t1"
				m.judge(obj)
			}
		}, "n1 continues from before-drain to draining, and hook-before-drain.service has not succeeded"},
		"wants nothing": {func(f *Fleet, m *Machine) {
			f.setAttack(referee.Attack{Thief: true})
			m.hookBegan(v1alpha1.StateBeforeUncordon, memhost.Run{Unit: "u"})
		}, "wants nothing in the turn"},
		"evicted again": {func(f *Fleet, m *Machine) {
			f.createPod("w", "n1")
			uid := f.Server.List("pods")[0].(*corev1.Pod).UID
			for range 2 {
				f.mu.Lock()
				f.evicted[string(uid)] = accepted{&agentRun{dead: true}, time.Time{}}
				f.mu.Unlock()
			}
			r, _ := http.NewRequest(http.MethodPost, "https://api.invalid/api/v1/namespaces/default/pods/w-1/eviction", strings.NewReader(
				`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"w-1"},"deleteOptions":{"preconditions":{"uid":"`+string(uid)+`"}}}`))
			if resp, err := (evictions{m.agents[0], f.Server.Client("x")}).RoundTrip(r); err == nil {
				resp.Body.Close()
			}
		}, "was told"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := New(t.TempDir(), Options{Hosts: 1, Hooks: map[v1alpha1.State]time.Duration{
					v1alpha1.StateBeforeDrain: time.Second, v1alpha1.StateBeforeUncordon: time.Second,
				}})
				defer f.Close()
				time.Sleep(time.Minute)
				x.do(f, f.Host(0))
				if why := f.Verdict(); !strings.Contains(why, x.want) || x.want == "" && why != "" {
					t.Errorf("%q, expected %q", why, x.want)
				}
			})
		})
	}
}

// TestEvictionsOfAFrozenProcess checks that a process is not blamed for what it could not read while it was frozen, and later is.
func TestEvictionsOfAFrozenProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(t.TempDir(), Options{Hosts: 1})
		defer f.Close()
		m := f.machine("n1")
		a := m.agents[0]
		f.Freeze("n1")
		time.Sleep(evictsWithin + time.Second)
		a.evicts()
		f.Thaw("n1")
		a.evicts()
		if why := f.Verdict(); why != "" {
			t.Error(why)
		}
		m.mu.Lock()
		m.reads.thawed, m.reads.lease = time.Now().Add(-time.Minute), time.Now().Add(-evictsWithin-time.Second)
		m.mu.Unlock()
		a.evicts()
		if why := f.Verdict(); !strings.Contains(why, "Fresh: n1: it evicts") {
			t.Errorf("the verdict is %q", why)
		}
	})
}
