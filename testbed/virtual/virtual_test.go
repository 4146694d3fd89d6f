package virtual

import (
	"flag"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube/dirwatch"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/membus"
	"lockkeeper.dev/lockkeeper/testbed/memhost"
)

func TestMain(m *testing.M) {
	flag.Parse()
	debug.SetGCPercent(400) // a run allocates much and keeps little
	const memory = "/dev/shm"
	if info, err := os.Stat(memory); err == nil && info.IsDir() && os.Getenv("TMPDIR") == "" {
		_ = os.Setenv("TMPDIR", memory) // hosts write many small files; on a disk a run takes half as long again
	}
	dirwatch.Off.Store(true)
	// client-go's handler of errors remembers the time of the last one, and would wait for that time in the next bubble.
	utilruntime.ErrorHandlers = nil
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

// inBubble runs a test with a fleet, which has no fault unless the test makes one. What the run did is logged if it fails.
func inBubble(t *testing.T, o Options, test func(t *testing.T, f *Fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		also := o.Log
		o.Log = func(text string) {
			lines = append(lines, text)
			if also != nil {
				also(text)
			}
		}
		f := New(t.TempDir(), o)
		defer func() {
			f.Close()
			if why := f.Verdict(); why != "" {
				t.Error(why)
			}
			if t.Failed() || testing.Verbose() {
				for _, l := range lines {
					t.Log(l)
				}
			}
		}()
		test(t, f)
	})
}

// TestRollout checks that a fleet without faults rolls an update, one node at a time.
func TestRollout(t *testing.T) {
	inBubble(t, Options{Hosts: 3, Workloads: 2}, func(t *testing.T, f *Fleet) {
		for _, host := range f.Hosts() {
			f.Stage(host, "2.0.0")
		}
		if why := f.Arrive(2 * time.Hour); why != "" {
			t.Errorf("after two hours: %s", why)
		}
		if r, _ := f.Judge.End(); r.Reboots != 3 || r.MaxDisturbed != 1 {
			t.Errorf("%d reboots with at most %d nodes disturbed, expected 3 and 1", r.Reboots, r.MaxDisturbed)
		}
	})
}

// TestTwoProcesses checks that two processes on one host, each of which finds the other's record in its Node, do not write all the time
// (the rule Quiet), say what is wrong, and that the host takes its turn after one of them has gone.
func TestTwoProcesses(t *testing.T) {
	var said atomic.Bool
	inBubble(t, Options{Hosts: 2, Workloads: 1, Log: func(line string) {
		if strings.Contains(line, "another host with the same identity") {
			said.Store(true)
		}
	}}, func(t *testing.T, f *Fleet) {
		host := f.Hosts()[0]
		f.BlockDrains(host)
		time.Sleep(time.Minute) // until the pod runs
		f.Stage(host, "2.0.0")
		for end := time.Now().Add(time.Hour); turn.FromNode(f.Node(host)).State != v1alpha1.StateDraining; time.Sleep(time.Second) {
			if time.Now().After(end) {
				t.Fatal("it does not drain within an hour")
			}
		}
		f.StartSecond(host)
		time.Sleep(10 * time.Minute)
		if !said.Load() {
			t.Error("neither process says that another one writes to its Node")
		}
		f.StopSecond(host)
		f.AllowDrains(host)
		if why := f.Arrive(2 * time.Hour); why != "" {
			t.Errorf("after two hours: %s", why)
		}
	})
}

// TestStopTwoProcesses checks that two processes on one host are told to stop at the same time: while the first one, which is frozen, does not
// end, the second one does not bring about a turn by saying that its host's uptime now suffices.
func TestStopTwoProcesses(t *testing.T) {
	inBubble(t, Options{Hosts: 2, Candidates: 1, Clients: []int{1}}, func(t *testing.T, f *Fleet) {
		f.AddSentinel("n2")
		time.Sleep(time.Minute)
		f.Freeze("n2")
		f.StartSecond("n2")
		time.Sleep(45 * time.Second)
		if n := turn.FromNode(f.Node("n2")); n.State != v1alpha1.StateIdle || n.Held != v1alpha1.ReasonMinUptime {
			t.Errorf("it is in %s and held %q, expected idle and MinUptime", n.State, n.Held)
		}
		began := time.Now()
		f.Restart("n2")
		if took := time.Since(began); took < agentStop {
			t.Errorf("the first process has ended in %v, expected that it does not", took)
		}
		if n := turn.FromNode(f.Node("n2")); n.State != v1alpha1.StateIdle {
			t.Errorf("it is in %s with the ack %q, expected idle, because both processes were told to stop", n.State, n.Ack)
		}
		if why := f.Arrive(time.Hour); why != "" {
			t.Error(why)
		}
	})
}

// TestOverlappingStops checks that a process that was told to stop is judged (the rule Told to stop) until it ends, also after a second stop of
// its host, which begins later and ends earlier. The process that starts after the second stop is not judged.
func TestOverlappingStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(t.TempDir(), Options{Hosts: 1})
		defer f.Close()
		time.Sleep(time.Minute)
		m := f.Host(0)
		f.Freeze("n1") // so that the process does not end before it is killed
		first := m.agents[0]
		f.tasks.Go(func() { m.stopAgents(agentStop) })
		time.Sleep(time.Second)
		f.Restart("n1")
		m.mu.Lock()
		second := m.agents[0]
		m.reads.lease = time.Now() // the rule Fresh holds
		m.mu.Unlock()
		second.acts("it acts")
		if why := f.Verdict(); why != "" {
			t.Errorf("the second process: %q", why)
		}
		first.acts("it acts")
		if why := f.Verdict(); !strings.HasPrefix(why, "Told to stop: n1: it acts") {
			t.Errorf("the first process: %q, expected that it breaks the rule", why)
		}
	})
}

// TestOtherManager checks that a host next to a pod of kured waits, and arrives once the pod is gone.
func TestOtherManager(t *testing.T) {
	inBubble(t, Options{Hosts: 1}, func(t *testing.T, f *Fleet) {
		f.AddManager("n1")
		f.Stage("n1", "2.0.0")
		time.Sleep(20 * time.Minute)
		if n := turn.FromNode(f.Node("n1")); n.State != v1alpha1.StateIdle || n.Held != v1alpha1.ReasonOtherManager {
			t.Errorf("it is in %s and held %q, expected idle and OtherManager", n.State, n.Held)
		}
		f.RemoveManager("n1")
		if why := f.Arrive(time.Hour); why != "" {
			t.Error(why)
		}
	})
}

// TestManagerFromTheStart checks that the first thing that a host publishes says that another reboot manager is active on it: a leader must not
// see for a moment that nothing keeps the host from a turn.
func TestManagerFromTheStart(t *testing.T) {
	before := func(f *Fleet) {
		f.Host(0).mem.Units().Set("locksmithd.service", memhost.Unit{})
		f.Host(0).mem.Units().SetState("locksmithd.service", "active", "running")
		bus := f.Host(0).mem.Bus()
		others := bus.Fault
		bus.Fault = func(m membus.Transit) membus.Verdict {
			v := others(m)
			if m.Method == systemdManager+"ListUnitsByNames" { // so that all else is known before
				v.Delay += 300 * time.Millisecond
			}
			return v
		}
	}
	inBubble(t, Options{Hosts: 1, Before: before}, func(t *testing.T, f *Fleet) {
		f.Stage("n1", "2.0.0")
		for range 60_000 {
			time.Sleep(time.Millisecond)
			if n := f.Node("n1"); n != nil && turn.FromNode(n).Host != nil {
				if veto := turn.FromNode(n).Host.Veto; veto != v1alpha1.ReasonOtherManager {
					t.Errorf("at first it publishes the veto %q, expected OtherManager", veto)
				}
				return
			}
		}
		t.Error("it published nothing in a minute")
	})
}

// TestSentinel checks that a host reboots for a sentinel, and not for one that is gone before its turn.
func TestSentinel(t *testing.T) {
	inBubble(t, Options{Hosts: 1}, func(t *testing.T, f *Fleet) {
		f.AddSentinel("n1")
		f.RemoveSentinel("n1")
		time.Sleep(10 * time.Minute)
		if boots := f.Host(0).mem.Boots(); boots != 1 {
			t.Errorf("%d boots for a sentinel that is gone, expected 1", boots)
		}
		f.AddSentinel("n1")
		time.Sleep(10 * time.Minute)
		if why := f.Arrive(time.Hour); why != "" || f.Host(0).mem.Boots() != 2 {
			t.Errorf("%d boots, expected 2; %s", f.Host(0).mem.Boots(), why)
		}
	})
}
