package simhost

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ours returns the processes that have the host's directory in their command line or environment, except zombies.
func ours(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	paths, err := filepath.Glob("/proc/[0-9]*")
	must(t, err)
	for _, path := range paths {
		if path == fmt.Sprintf("/proc/%d", os.Getpid()) {
			continue
		}
		cmdline, _ := os.ReadFile(path + "/cmdline") // empty if the process has ended
		environ, _ := os.ReadFile(path + "/environ")
		if bytes.Contains(cmdline, []byte(dir)) || bytes.Contains(environ, []byte(dir)) {
			found = append(found, path+" "+string(bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '})))
		}
	}
	return found
}

func TestNothingIsLeftAfterClose(t *testing.T) {
	for name, end := range map[string]func(*Host, context.CancelFunc){
		"closed":           func(h *Host, _ context.CancelFunc) {},
		"context-over":     func(_ *Host, cancel context.CancelFunc) { cancel() },
		"paused":           func(h *Host, _ context.CancelFunc) { must(t, h.Pause()) },
		"in-a-shutdown":    func(h *Host, _ context.CancelFunc) { must(t, reboot(soon(t), connect(t, h))) },
		"down":             func(h *Host, _ context.CancelFunc) { must(t, h.Crash(CrashOptions{StayDown: true})) },
		"waits-to-restart": func(h *Host, _ context.CancelFunc) { h.Kill() },
		"hanging-engine":   func(h *Host, _ context.CancelFunc) { h.Engine().Hang(true) },
	} {
		t.Run(name, func(t *testing.T) {
			self, err := os.Executable()
			must(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			h, err := Start(ctx, cp, Options{
				Name: "left-" + name, Binary: self, Env: []string{fakeEnv + "=polite"},
				InhibitDelayMax: time.Hour, RestartDelay: time.Hour,
			})
			must(t, err)
			must(t, h.WaitReady(soon(t)))
			ready(t, h)
			// Expect two: the bus and lockkeeper. Otherwise the search itself is broken.
			if found := ours(t, h.Dir()); len(found) != 2 {
				t.Errorf("processes while the host runs: %v", found)
			}
			h.Logind().Hold(Inhibitor{What: "shutdown", Who: "test", Mode: "delay"})
			end(h, cancel)
			began := time.Now()
			must(t, h.Close())
			if d := time.Since(began); d > time.Minute { // the inhibitor would delay it for an hour
				t.Errorf("Close took %v", d)
			}
			if found := ours(t, h.Dir()); len(found) > 0 {
				t.Errorf("left: %v", found)
			}
			if _, err := os.Stat(h.Dir()); !os.IsNotExist(err) {
				t.Errorf("its directory: %v", err)
			}
			if _, err := cp.Client().CoreV1().Nodes().Get(soon(t), h.Name(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("its Node: %v", err)
			}
			if log := h.LogTail(3); !strings.Contains(log, "ended") {
				t.Errorf("log after Close: %s", log)
			}
			if err := h.Crash(CrashOptions{}); err == nil {
				t.Error("a closed host crashed")
			}
			if err := h.PowerOn(); err == nil {
				t.Error("a closed host booted")
			}
		})
	}
}

func TestKilledLockkeeperComesBack(t *testing.T) {
	h, r := startHost(t, "killed", func(o *Options) { o.RestartDelay = 10 * time.Millisecond })
	must(t, h.WaitReady(soon(t)))
	first := h.PID()
	h.Kill()
	must(t, h.WaitNotify(soon(t), "ready again", func(n Notify) bool {
		return n.Ready && n.Status != fmt.Sprintf("pid %d", first)
	}))
	if h.PID() == first || h.Boots() != 1 {
		t.Errorf("pid %d after %d, %d boots", h.PID(), first, h.Boots())
	}
	h.StopLockkeeper()
	if e, n := r.last(LockkeeperExited); n != 2 || e.Detail != "exit status 0, as requested" || h.PID() != 0 {
		t.Errorf("%d exits, the last %+v; pid %d", n, e, h.PID())
	}
	must(t, h.StartLockkeeper())
	must(t, h.WaitReady(soon(t)))
	must(t, h.Pause())
	eventually(t, "the process to be stopped", func() bool { return processState(h.PID()) == "T" })
	must(t, h.Continue())
	eventually(t, "the process to continue", func() bool { return processState(h.PID()) != "T" })
	if err := h.Signal(syscall.Signal(0)); err != nil {
		t.Error(err)
	}
}

// processState returns the state letter in /proc/PID/stat.
func processState(pid int) string {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(stat), ") ")
	state, _, _ := strings.Cut(after, " ")
	return state
}

func TestBadConfigurationIsNotTriedAgain(t *testing.T) {
	h, r := startHost(t, "broken", func(o *Options) {
		o.Env, o.RestartDelay = []string{fakeEnv + "=broken"}, time.Millisecond
	})
	eventually(t, "it ended", func() bool { _, n := r.last(LockkeeperExited); return n > 0 })
	h.StopLockkeeper() // after this, lockkeeper does not start again
	if e, n := r.last(LockkeeperStarted); n != 1 {
		t.Errorf("%d starts, the last %+v", n, e)
	}
}

func TestKubeletStopsAndComesBack(t *testing.T) {
	h, _ := startHost(t, "kubelet", func(o *Options) { o.Kubelet.Heartbeat = 500 * time.Millisecond })
	ready(t, h)
	h.StopKubelet()
	_, err := cp.WaitNode(soon(t), "kubelet", "to have Ready Unknown", func(n *corev1.Node) bool { return readyOf(n) == corev1.ConditionUnknown })
	must(t, err)
	// A starting kubelet recreates a Node that was deleted in the meantime.
	must(t, cp.Client().CoreV1().Nodes().Delete(soon(t), "kubelet", metav1.DeleteOptions{}))
	must(t, h.StartKubelet())
	n := ready(t, h)
	// A running kubelet does not recreate it.
	must(t, cp.Client().CoreV1().Nodes().Delete(soon(t), "kubelet", metav1.DeleteOptions{}))
	if pause(t.Context(), 1500*time.Millisecond) {
		if _, err := cp.Client().CoreV1().Nodes().Get(soon(t), "kubelet", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("three heartbeats after Node %s was deleted: %v", n.UID, err)
		}
	}
}

// TestSilentKubelet checks that a silent kubelet's Node stays Ready until the host is up again.
func TestSilentKubelet(t *testing.T) {
	h, _ := startHost(t, "silent", func(o *Options) {
		o.Kubelet.Silent, o.Kubelet.NotReadyFor = true, 200*time.Millisecond
	})
	steps := watchSteps(t, ready(t, h))
	must(t, reboot(soon(t), connect(t, h)))
	must(t, h.WaitBoots(soon(t), 2))
	ready(t, h)
	want := []step{{0, corev1.ConditionTrue}, {1, corev1.ConditionFalse}, {1, corev1.ConditionTrue}}
	if got := steps(want[2]); !slices.Equal(got, want) {
		t.Errorf("the Node went through %v, expected %v", got, want)
	}
}

func TestConfig(t *testing.T) {
	c := Config{}
	c.Set("", "mode", "a \"b\"\\\n")
	c.Set("sources", "sentinels", []string{"/run/x", "y"})
	c.Set("sources", "poll_interval", 5*time.Second)
	c.Set("x", "n", 3)
	c.Set("x", "on", true)
	got, err := c.toml()
	must(t, err)
	want := "mode = \"a \\\"b\\\"\\\\\\u000A\"\n[sources]\npoll_interval = \"5s\"\nsentinels = [\"/run/x\", \"y\"]\n[x]\nn = 3\non = true\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	c.Set("x", "f", 1.5)
	if _, err := c.toml(); err == nil {
		t.Error("a float was accepted")
	}
}
