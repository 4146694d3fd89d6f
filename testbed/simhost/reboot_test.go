package simhost

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/engine"
)

func TestKubeletRegistersTheNode(t *testing.T) {
	h, r := startHost(t, "reg", func(o *Options) {
		o.Zone, o.ControlPlane, o.Labels = "z1", true, map[string]string{"lockkeeper.dev/managed": "false"}
	})
	n := ready(t, h)
	for key, want := range map[string]string{
		"topology.kubernetes.io/zone": "z1", "node-role.kubernetes.io/control-plane": "", "lockkeeper.dev/managed": "false",
		"kubernetes.io/hostname": "reg", controlplane.PodsLabel: controlplane.PodsPlayed,
	} {
		if got, there := n.Labels[key]; got != want || !there {
			t.Errorf("label %s is %q (there: %t), want %q", key, got, there, want)
		}
	}
	if file, err := os.ReadFile(h.rootPath("proc/sys/kernel/random/boot_id")); err != nil || strings.TrimSpace(string(file)) != n.Status.NodeInfo.BootID {
		t.Errorf("boot_id is %q, %v; the Node's is %q", file, err, n.Status.NodeInfo.BootID)
	}
	must(t, h.WaitReady(soon(t)))
	if got := h.Notify().Status; got != fmt.Sprintf("pid %d", h.PID()) {
		t.Errorf("status %q", got)
	}
	want := fmt.Sprintf("%q", []string{"run", "--config", h.ConfigPath(), "--root", h.Root()})
	eventually(t, "the log to contain a call with "+want, func() bool { return strings.Contains(h.Logs(), want) })
	r.waitFor(t, NodeReady, 1)
	equal(t, "events", r.kinds(), []Kind{Booted, NodeReady})
}

// step is what an observer of the Node saw: its boot, by number, and Ready.
type step struct {
	boot  int
	ready corev1.ConditionStatus
}

// watchSteps records each change of (boot ID, Ready) of a Node. The returned function waits for the last step and returns all steps.
func watchSteps(t *testing.T, n *corev1.Node) (steps func(last step) []step) {
	t.Helper()
	w, err := cp.Client().CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=" + n.Name, ResourceVersion: n.ResourceVersion,
	})
	must(t, err)
	t.Cleanup(w.Stop)
	return func(last step) []step {
		t.Helper()
		boots := []string{n.Status.NodeInfo.BootID}
		seen := []step{{0, readyOf(n)}}
		for ctx := soon(t); seen[len(seen)-1] != last; {
			select {
			case e := <-w.ResultChan():
				n, ok := e.Object.(*corev1.Node)
				if !ok {
					t.Fatalf("the watch failed: %v", e.Object)
				}
				if !slices.Contains(boots, n.Status.NodeInfo.BootID) {
					boots = append(boots, n.Status.NodeInfo.BootID)
				}
				if s := (step{slices.Index(boots, n.Status.NodeInfo.BootID), readyOf(n)}); s != seen[len(seen)-1] {
					seen = append(seen, s)
				}
			case <-ctx.Done():
				t.Fatalf("the Node went through %v, but never %v", seen, last)
			}
		}
		return seen
	}
}

func TestRebootThroughLogind(t *testing.T) {
	h, r := startHost(t, "reboot")
	must(t, h.WaitReady(soon(t)))
	n := ready(t, h)
	r.waitFor(t, NodeReady, 1)
	steps := watchSteps(t, n)
	must(t, h.StageUpdate("4.2.0"))
	old := h.BootID()
	var atCall atomic.Value
	r.before(func(e Event) {
		if e.Kind == RebootCalled {
			// The host must not have acted on the call yet.
			atCall.Store(fmt.Sprintf("%t %t %s", h.BootID() == old, h.PID() != 0, h.Version()))
		}
	})
	must(t, login(connect(t, h)).Call(loginIface+".RebootWithFlags", 0, uint64(0)).Err)
	must(t, h.WaitBoots(soon(t), 2))
	ready(t, h)
	if h.BootID() == old || h.Version() != "4.2.0" || h.Reboots() != 1 || h.Boots() != 2 || h.Staged() != "" {
		t.Errorf("boot %s after %s, version %s, %d reboots, %d boots, staged %q", h.BootID(), old, h.Version(), h.Reboots(), h.Boots(), h.Staged())
	}
	if atCall.Load() != "true true 4.1.0" {
		t.Errorf("at RebootCalled the host was (up, running lockkeeper, version) %v", atCall.Load())
	}
	if s, running := h.Engine().Status(); !running || s.Operation != OpIdle || h.exists(engine.Marker) {
		t.Errorf("the engine of the new boot reports %+v, running %t; marker exists: %t", s, running, h.exists(engine.Marker))
	}
	// The old boot's kubelet reports not ready. The new boot ID and Ready arrive in one write.
	r.waitFor(t, NodeReady, 2)
	want := []step{{0, corev1.ConditionTrue}, {0, corev1.ConditionFalse}, {1, corev1.ConditionTrue}}
	if got := steps(want[2]); !slices.Equal(got, want) {
		t.Errorf("the Node went through %v, expected %v", got, want)
	}
	equal(t, "events", r.kinds(), []Kind{Booted, NodeReady, RebootCalled, ShutdownDone, Booted, NodeReady})
	if e, _ := r.last(RebootCalled); e.BootID != old || !strings.HasPrefix(e.Detail, fmt.Sprintf("RebootWithFlags from pid %d", os.Getpid())) {
		t.Errorf("RebootCalled: %+v", e)
	}
	eventually(t, "the second start to be logged", func() bool { return strings.Count(h.Logs(), "called with") >= 2 })
	if log := h.Logs(); strings.Count(log, "called with") != 2 || strings.Count(log, "terminated") != 1 || strings.Contains(log, "killed") {
		t.Errorf("lockkeeper's log does not show two starts with a clean exit in between:\n%s", log)
	}
}

func TestStubbornLockkeeperIsKilledInAShutdown(t *testing.T) {
	h, _ := startHost(t, "stubborn", stubborn, func(o *Options) { o.StopTimeout = 200 * time.Millisecond })
	must(t, h.WaitReady(soon(t)))
	must(t, login(connect(t, h)).Call(loginIface+".Reboot", 0, false).Err)
	must(t, h.WaitBoots(soon(t), 2))
	if log := h.Logs(); !strings.Contains(log, "terminated") || !strings.Contains(log, "signal: killed") {
		t.Errorf("not asked to exit and then killed:\n%s", log)
	}
}

func TestRollbackAndStayDown(t *testing.T) {
	h, r := startHost(t, "rollback")
	ready(t, h)
	r.waitFor(t, NodeReady, 1)
	must(t, h.StageUpdate("4.2.0"))
	h.SetNextBoot(NextBoot{Rollback: true, StayDown: true})
	must(t, login(connect(t, h)).Call(loginIface+".RebootWithFlags", 0, uint64(0)).Err)
	must(t, h.WaitDown(soon(t)))
	if h.BootID() != "" || h.PID() != 0 || h.Boots() != 1 {
		t.Errorf("a host that is down has boot %q, pid %d, %d boots", h.BootID(), h.PID(), h.Boots())
	}
	must(t, h.PowerOn())
	ready(t, h)
	if h.Version() != "4.1.0" || h.Boots() != 2 {
		t.Errorf("version %s after %d boots", h.Version(), h.Boots())
	}
	equal(t, "events", r.kinds()[:5], []Kind{Booted, NodeReady, RebootCalled, ShutdownDone, Booted})
	// The staged version is lost, so the next boot has the same version again.
	must(t, login(connect(t, h)).Call(loginIface+".RebootWithFlags", 0, uint64(0)).Err)
	must(t, h.WaitBoots(soon(t), 3))
	if h.Version() != "4.1.0" {
		t.Errorf("version %s", h.Version())
	}
}

func TestCrash(t *testing.T) {
	h, r := startHost(t, "crash", stubborn)
	must(t, h.WaitReady(soon(t)))
	n := ready(t, h)
	r.waitFor(t, NodeReady, 1)
	must(t, h.StageUpdate("4.2.0"))
	steps := watchSteps(t, n)
	must(t, h.Crash(CrashOptions{ComesUpUpdated: true}))
	ready(t, h)
	if h.Version() != "4.2.0" || h.Reboots() != 0 || h.Boots() != 2 {
		t.Errorf("version %s, %d reboots, %d boots", h.Version(), h.Reboots(), h.Boots())
	}
	if strings.Contains(h.Logs(), "terminated") {
		t.Error("lockkeeper was asked to exit in a crash")
	}
	// The Node never becomes not ready, because the crash is over before the grace period ends.
	want := []step{{0, corev1.ConditionTrue}, {1, corev1.ConditionTrue}}
	if got := steps(want[1]); !slices.Equal(got, want) {
		t.Errorf("the Node went through %v, expected %v", got, want)
	}
	if got := r.kinds()[2:5]; !slices.Equal(got, []Kind{Crashed, ShutdownDone, Booted}) {
		t.Errorf("events %v", got)
	}

	must(t, h.StageUpdate("4.3.0"))
	must(t, h.Crash(CrashOptions{StayDown: true}))
	_, err := cp.WaitNode(soon(t), "crash", "to have Ready Unknown", func(n *corev1.Node) bool { return readyOf(n) == corev1.ConditionUnknown })
	must(t, err)
	must(t, h.PowerOn())
	ready(t, h)
	if s, _ := h.Engine().Status(); h.Version() != "4.2.0" || s.Operation != OpIdle {
		t.Errorf("version %s, engine %s; expected the staged update to be lost", h.Version(), s.Operation)
	}
}

// TestCrashInAShutdown checks that a power loss ends a shutdown that waits for an inhibitor.
func TestCrashInAShutdown(t *testing.T) {
	h, r := startHost(t, "crash-down", func(o *Options) { o.InhibitDelayMax = time.Hour })
	ready(t, h)
	r.waitFor(t, NodeReady, 1)
	h.Logind().Hold(Inhibitor{What: "shutdown", Who: "test", Why: "to wait", Mode: "delay"})
	must(t, login(connect(t, h)).Call(loginIface+".RebootWithFlags", 0, uint64(0)).Err)
	must(t, h.Crash(CrashOptions{}))
	if h.Boots() != 2 || h.Reboots() != 1 {
		t.Errorf("%d boots, %d reboots", h.Boots(), h.Reboots())
	}
	equal(t, "events", r.kinds()[2:6], []Kind{RebootCalled, Crashed, ShutdownDone, Booted})
}

// TestCrashWhileServicesEnd checks that a power loss ends a shutdown that waits for a service.
func TestCrashWhileServicesEnd(t *testing.T) {
	h, r := startHost(t, "crash-end", stubborn, func(o *Options) { o.StopTimeout = time.Hour })
	must(t, h.WaitReady(soon(t)))
	must(t, h.StageUpdate("4.2.0"))
	must(t, reboot(soon(t), connect(t, h)))
	eventually(t, "lockkeeper to be asked to exit", func() bool { return strings.Contains(h.Logs(), "terminated") })
	must(t, h.Crash(CrashOptions{ComesUpUpdated: true}))
	if h.Boots() != 2 || h.Version() != "4.2.0" {
		t.Errorf("%d boots, version %s", h.Boots(), h.Version())
	}
	if _, n := r.last(ShutdownDone); n != 1 {
		t.Errorf("%d shutdowns", n)
	}
	h.Kill() // otherwise it would run for an hour
}

func TestDelayInhibitors(t *testing.T) {
	h, _ := startHost(t, "inhibit", func(o *Options) { o.InhibitDelayMax = time.Hour })
	ready(t, h)
	conn := connect(t, h)
	signals := make(chan *dbus.Signal, 4)
	conn.Signal(signals)
	must(t, conn.AddMatchSignal(dbus.WithMatchInterface(loginIface), dbus.WithMatchMember("PrepareForShutdown")))
	var fd dbus.UnixFD
	must(t, login(conn).Call(loginIface+".Inhibit", 0, "shutdown:sleep", "tester", "not yet", "delay").Store(&fd))
	lock := os.NewFile(uintptr(fd), "lock")
	var listed []Inhibitor
	must(t, login(conn).Call(loginIface+".ListInhibitors", 0).Store(&listed))
	want := Inhibitor{"shutdown:sleep", "tester", "not yet", "delay", uint32(os.Getuid()), uint32(os.Getpid())}
	if len(listed) != 2 || listed[0].Who != "kubelet" || listed[1] != want {
		t.Errorf("inhibitors %+v", listed)
	}
	must(t, login(conn).Call(loginIface+".RebootWithFlags", 0, uint64(0)).Err)
	eventually(t, "PrepareForShutdown(true) is sent", func() bool {
		s := <-signals
		return s.Name == loginIface+".PrepareForShutdown" && len(s.Body) == 1 && s.Body[0] == true
	})
	var preparing bool
	must(t, login(conn).StoreProperty(loginIface+".PreparingForShutdown", &preparing))
	if !preparing {
		t.Error("PreparingForShutdown is false")
	}
	// The kubelet has finished and released its inhibitor, so only the test's inhibitor remains.
	eventually(t, "the kubelet to release its inhibitor", func() bool { return len(h.Logind().Inhibitors()) == 1 })
	if err := login(conn).Call(loginIface+".RebootWithFlags", 0, uint64(0)).Err; err == nil || !strings.Contains(err.Error(), "in progress") {
		t.Errorf("a second call to reboot: %v", err)
	}
	if h.Boots() != 1 || h.PID() == 0 {
		t.Errorf("the shutdown did not wait: %d boots, pid %d", h.Boots(), h.PID())
	}
	lock.Close()
	must(t, h.WaitBoots(soon(t), 2))
	if h.Reboots() != 1 {
		t.Errorf("%d reboots", h.Reboots())
	}
}

func TestDelayInhibitorsHaveALimit(t *testing.T) {
	h, _ := startHost(t, "limit", func(o *Options) { o.InhibitDelayMax = 300 * time.Millisecond })
	h.Logind().Hold(Inhibitor{What: "shutdown", Who: "test", Why: "indefinitely", Mode: "delay"})
	began := time.Now()
	must(t, login(connect(t, h)).Call(loginIface+".RebootWithFlags", 0, uint64(0)).Err)
	must(t, h.WaitBoots(soon(t), 2))
	if d := time.Since(began); d < 300*time.Millisecond {
		t.Errorf("the shutdown took %v", d)
	}
}
