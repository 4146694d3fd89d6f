package realhost

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/engine"
)

// book records the events of hosts.
type book struct {
	mu     sync.Mutex
	events []Event
}

func (b *book) write(e Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, e)
}

// kinds returns the kinds of one host's events so far, in order.
func (b *book) kinds(h *Host) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var kinds []string
	for _, e := range b.events {
		if e.Host == h.Name() {
			kinds = append(kinds, string(e.Kind))
		}
	}
	return strings.Join(kinds, " ")
}

// TestHosts plays the life of two hosts step by step, to boot as few hosts as possible.
func TestHosts(t *testing.T) {
	events, bound := &book{}, t.TempDir()
	must(t, os.WriteFile(filepath.Join(bound, "file"), []byte("seen"), 0o644))
	hosts := start(t, "node-", 2, func(o *Options) {
		o.Events, o.Labels = events.write, map[string]string{"test": "hosts"}
		o.Files = map[string][]byte{"/usr/lib/systemd/system/extra.service": []byte("[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n")}
		o.Enable = []string{"extra.service"}
		o.Binds = map[string]string{"/opt/from:outside": bound}
	})
	a, b := hosts[0], hosts[1]
	for _, step := range []struct {
		name string
		do   func(*testing.T, *Host, *Host)
	}{
		{"booted", testBooted},
		{"apart", testApart},
		{"files", testFiles},
		{"pods", testPods},
		{"engine", testEngine},
		{"policy", testBusPolicy},
		{"network", testNetwork},
		{"reboot", func(t *testing.T, a, _ *Host) { testReboot(t, a, events) }},
		{"crash", func(t *testing.T, _, b *Host) { testCrash(t, b, events) }},
		{"rollback and broken", testBrokenRollback},
		{"down", testDown},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(t, a, b) }) {
			break // the next step depends on the end of this one
		}
	}
}

func nodeOf(t *testing.T, h *Host) *corev1.Node {
	t.Helper()
	n, err := cp.Client().CoreV1().Nodes().Get(soon(t), h.Name(), metav1.GetOptions{})
	must(t, err)
	return n
}

func onHost(t *testing.T, h *Host, args ...string) string {
	t.Helper()
	out, err := h.Exec(soon(t), args...)
	must(t, err)
	return strings.TrimSpace(out)
}

func testBooted(t *testing.T, a, b *Host) {
	for _, h := range []*Host{a, b} {
		n := nodeOf(t, h)
		if own := onHost(t, h, "cat", "/proc/sys/kernel/random/boot_id"); own == "" || n.Status.NodeInfo.BootID != own || h.BootID() != own {
			t.Errorf("boot id of %s: kubelet %q, host %q, owner %q", h.Name(), n.Status.NodeInfo.BootID, own, h.BootID())
		}
		if n.Labels["test"] != "hosts" || n.Status.NodeInfo.OSImage != "Testbed OS 4.1.0" || n.Status.NodeInfo.MachineID != onHost(t, h, "cat", "/etc/machine-id") {
			t.Errorf("the Node of %s: labels %v, %+v", h.Name(), n.Labels, n.Status.NodeInfo)
		}
		if !slices.ContainsFunc(n.Status.Addresses, func(addr corev1.NodeAddress) bool { return addr.Address == h.Address().String() }) {
			t.Errorf("addresses of %s: %v, want %v", h.Name(), n.Status.Addresses, h.Address())
		}
		if got := onHost(t, h, "cat", "/opt/from:outside/file"); got != "seen" {
			t.Errorf("the bound file contains %q", got)
		}
		if _, err := h.Exec(soon(t), "touch", "/opt/from:outside/file"); err == nil {
			t.Error("the bound file is writable")
		}
		wantKubeletInhibitor(t, h)
		eventually(t, "the host to be up without a failed unit", func() bool {
			state, _ := h.Exec(soon(t), "systemctl", "is-system-running") // the output contains the same as the exit status
			return strings.TrimSpace(state) == "running"
		})
		onHost(t, h, "systemctl", "is-active", "extra.service")
	}
	if nodeOf(t, a).Status.NodeInfo.BootID == nodeOf(t, b).Status.NodeInfo.BootID {
		t.Error("two hosts have one boot id")
	}
}

func wantKubeletInhibitor(t *testing.T, h *Host) {
	t.Helper()
	eventually(t, "the kubelet's inhibitor on "+h.Name(), func() bool {
		ins, err := h.Inhibitors(soon(t))
		must(t, err)
		return slices.ContainsFunc(ins, func(i Inhibitor) bool { return i.Who == "kubelet" && i.What == "shutdown" && i.Mode == "delay" })
	})
}

// testApart checks that a host cannot change the disk, the units or the processes of another one.
func testApart(t *testing.T, a, b *Host) {
	onHost(t, a, "touch", "/etc/only-here")
	if _, err := b.Exec(soon(t), "test", "-e", "/etc/only-here"); err == nil {
		t.Error("a file of one host is on the other")
	}
	before := onHost(t, b, "systemctl", "show", "--value", "-p", "MainPID", "systemd-logind.service")
	onHost(t, a, "systemctl", "restart", "systemd-logind.service")
	if after := onHost(t, b, "systemctl", "show", "--value", "-p", "MainPID", "systemd-logind.service"); after != before || after == "0" {
		t.Errorf("a restart of one host's logind changed the other's from %s to %s", before, after)
	}
	if _, err := os.Stat(filepath.Join(a.tree, "etc/only-here")); err == nil {
		t.Error("a host has changed the shared tree")
	}
}

func testFiles(t *testing.T, a, _ *Host) {
	from := filepath.Join(t.TempDir(), "program")
	must(t, os.WriteFile(from, []byte("#!/bin/sh\necho out; echo err >&2; exit 3\n"), 0o755))
	must(t, a.CopyIn(soon(t), from, "/opt/new/program"))
	out, err := a.Exec(soon(t), "/opt/new/program")
	if e, ok := errors.AsType[*ExecError](err); !ok || e.Status != 3 || out != "out\nerr\n" {
		t.Errorf("output %q, error %v; expected exit status 3", out, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := a.Exec(ctx, "sh", "-c", "exec sleep 4711"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a command that was canceled: %v", err)
	}
	eventually(t, "the command to be gone", func() bool {
		_, err := a.Exec(soon(t), "sh", "-c", "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done 2>/dev/null | grep -q '^sleep 4711'")
		return err != nil
	})
	journal, err := a.Journal(soon(t), "kubelet.service")
	must(t, err)
	if !strings.Contains(journal, "Started kubelet.service") {
		t.Errorf("the kubelet's journal: %s", controlplane.LastLines(journal, 5))
	}
}

func podOn(h *Host, name string, annotations map[string]string) *corev1.Pod {
	grace := int64(10)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"test": "pods"}, Annotations: annotations},
		Spec: corev1.PodSpec{NodeName: h.Name(), TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "c", Image: "example.invalid/c:1"}}},
	}
}

func runPod(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	_, err := cp.Client().CoreV1().Pods("default").Create(soon(t), pod, metav1.CreateOptions{})
	must(t, err)
	_, err = cp.WaitPods(soon(t), "default", "test=pods", pod.Name+" to run and be ready", func(ps []*corev1.Pod) bool {
		return slices.ContainsFunc(ps, func(p *corev1.Pod) bool {
			return p.Name == pod.Name && p.Status.Phase == corev1.PodRunning && controlplane.PodReady(p)
		})
	})
	must(t, err)
}

// testPods checks that pods run on the fake runtime, and that an evicted pod ends after its stop time.
func testPods(t *testing.T, a, _ *Host) {
	runPod(t, podOn(a, "slow", map[string]string{controlplane.StopsAfterAnnotation: "2s"}))
	begin := time.Now()
	must(t, cp.Client().PolicyV1().Evictions("default").Evict(soon(t), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "slow", Namespace: "default"}}))
	_, err := cp.WaitPods(soon(t), "default", "test=pods", "to be gone", func(ps []*corev1.Pod) bool { return len(ps) == 0 })
	must(t, err)
	if took := time.Since(begin); took < 2*time.Second {
		t.Errorf("the pod was gone after %s, expected at least 2s", took)
	}
}

func wantEngine(t *testing.T, h *Host, operation, version string) {
	t.Helper()
	s, err := h.EngineStatus(soon(t))
	must(t, err)
	if s.Operation != operation || s.NewVersion != version {
		t.Errorf("the engine reports %+v, expected %s %s", s, operation, version)
	}
	_, err = h.Exec(soon(t), "test", "-e", "/run/update_engine_autoupdate_completed")
	if there := err == nil; there != (operation == engine.OpNeedReboot) {
		t.Errorf("engine at %s: marker exists %t", operation, there)
	}
}

// testEngine leaves a staged update on a, and a withdrawn one on b.
func testEngine(t *testing.T, a, b *Host) {
	wantEngine(t, a, engine.OpIdle, "0.0.0")
	must(t, a.StageUpdate(soon(t), "4.2.0"))
	wantEngine(t, a, engine.OpNeedReboot, "4.2.0")
	if err := a.StageUpdate(soon(t), "4.3.0"); err == nil {
		t.Error("a second update was staged")
	}
	must(t, a.StopEngine(soon(t)))
	if _, err := a.EngineStatus(soon(t)); err == nil {
		t.Error("a stopped engine answers")
	}
	must(t, a.StartEngine(soon(t)))
	wantEngine(t, a, engine.OpNeedReboot, "0.0.0")

	must(t, b.StageUpdate(soon(t), "4.2.0"))
	must(t, b.ResetStatus(soon(t)))
	wantEngine(t, b, engine.OpIdle, "4.2.0")
}

// testBusPolicy checks the policy of Flatcar: root may call every method, the user core only some, other users none.
func testBusPolicy(t *testing.T, a, _ *Host) {
	get := []string{"busctl", "call", engine.BusName, string(engine.Path), engine.Interface, "GetStatus"}
	for user, may := range map[string]bool{"root": true, "core": true, "nobody": false} {
		out, err := a.Exec(soon(t), append([]string{"setpriv", "--reuid=" + user, "--clear-groups"}, get...)...)
		if (err == nil) != may {
			t.Errorf("GetStatus as %s: %s %v; expected allowed: %t", user, out, err, may)
		}
	}
}

func testNetwork(t *testing.T, a, b *Host) {
	reach := func(h *Host) bool {
		_, err := h.Exec(soon(t), "timeout", "2", "bash", "-c", "exec 3<>/dev/tcp/"+lab.Gateway().String()+"/"+apiPort())
		return err == nil
	}
	eventually(t, "both hosts to reach the API server", func() bool { return reach(a) && reach(b) })
	must(t, a.CutNetwork(soon(t)))
	if reach(a) {
		t.Error("a host that is cut off reaches the API server")
	}
	eventually(t, "the other host to reach the API server", func() bool { return reach(b) })
	_, err := cp.WaitNode(soon(t), a.Name(), "to be not Ready", func(n *corev1.Node) bool { return n != nil && !nodeReady(n) })
	must(t, err)
	must(t, a.RestoreNetwork(soon(t)))
	must(t, a.WaitReady(soon(t)))
}

func apiPort() string { return cp.URL()[strings.LastIndex(cp.URL(), ":")+1:] }

// testReboot checks that a reboot boots the staged update, and that the kubelet ends a pod before the host goes down.
func testReboot(t *testing.T, a *Host, events *book) {
	runPod(t, podOn(a, "left", nil))
	old := a.BootID()
	must(t, a.Reboot(soon(t)))
	must(t, a.WaitBoots(soon(t), 2))
	must(t, a.WaitReady(soon(t)))
	n := nodeOf(t, a)
	if a.BootID() == old || n.Status.NodeInfo.BootID != a.BootID() {
		t.Errorf("boot id %s, before %s; the Node has %s", a.BootID(), old, n.Status.NodeInfo.BootID)
	}
	if got := onHost(t, a, "sh", "-c", ". /etc/os-release; echo $VERSION_ID"); got != "4.2.0" || a.Version() != "4.2.0" || n.Status.NodeInfo.OSImage != "Testbed OS 4.2.0" {
		t.Errorf("after the reboot VERSION_ID is %s, Version %s, OSImage %s", got, a.Version(), n.Status.NodeInfo.OSImage)
	}
	wantEngine(t, a, engine.OpIdle, "0.0.0")
	wantKubeletInhibitor(t, a)
	if got := events.kinds(a); got != "Booted RebootCalled ShutdownDone Booted" || a.Reboots() != 1 {
		t.Errorf("events %s, reboots %d", got, a.Reboots())
	}
	journal, err := a.Journal(soon(t), "kubelet.service")
	must(t, err)
	if !strings.Contains(journal, "Shutdown manager detected new shutdown event") {
		t.Error("the kubelet has not noticed the shutdown")
	}
	pod, err := cp.Client().CoreV1().Pods("default").Get(soon(t), "left", metav1.GetOptions{})
	must(t, err)
	// The containers of the fake runtime exit with status 0.
	if pod.Status.Phase != corev1.PodSucceeded || !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Reason == "TerminationByKubelet"
	}) {
		t.Errorf("the remaining pod is %s, %+v; expected the kubelet's graceful shutdown to end it", pod.Status.Phase, pod.Status.Conditions)
	}
	now := int64(0)
	must(t, cp.Client().CoreV1().Pods("default").Delete(soon(t), "left", metav1.DeleteOptions{GracePeriodSeconds: &now}))
}

// testCrash checks that a crash boots a staged update even after ResetStatus, which does not switch the partitions
// back.
func testCrash(t *testing.T, b *Host, events *book) {
	old := b.BootID()
	onHost(t, b, "touch", "/run/volatile", "/var/lasting")
	must(t, b.Crash(soon(t), NextBoot{}))
	must(t, b.WaitBoots(soon(t), 2))
	must(t, b.WaitReady(soon(t)))
	if b.BootID() == old || b.Version() != "4.2.0" || b.Reboots() != 0 {
		t.Errorf("boot id %s, before %s; version %s, reboots %d", b.BootID(), old, b.Version(), b.Reboots())
	}
	if out := onHost(t, b, "sh", "-c", "ls -d /run/volatile /var/lasting 2>/dev/null; true"); out != "/var/lasting" {
		t.Errorf("left after the crash: %q", out)
	}
	if got := events.kinds(b); got != "Booted Crashed ShutdownDone Booted" {
		t.Errorf("events %s", got)
	}
}

// testBrokenRollback checks a host that comes back with the old version and without a kubelet, until an admin repairs
// it.
func testBrokenRollback(t *testing.T, a, _ *Host) {
	must(t, a.StageUpdate(soon(t), "4.3.0"))
	prepared := false
	a.Next(NextBoot{OldVersion: true, Mask: []string{"kubelet.service"}, Prepare: func() error {
		prepared = true
		return a.WriteFile(t.Context(), "/etc/while-down", []byte("x"), 0o600)
	}})
	must(t, a.Reboot(soon(t)))
	must(t, a.WaitBoots(soon(t), 3))
	eventually(t, "systemd to be up", func() bool {
		_, err := a.Exec(soon(t), "systemctl", "is-active", "--quiet", "multi-user.target")
		return err == nil
	})
	if got := onHost(t, a, "sh", "-c", ". /etc/os-release; echo $VERSION_ID; cat /etc/while-down"); got != "4.2.0\nx" || !prepared {
		t.Errorf("after the rollback: %q", got)
	}
	if out, err := a.Exec(soon(t), "systemctl", "is-active", "kubelet.service"); err == nil {
		t.Errorf("the kubelet is %s", out)
	}
	if got := nodeOf(t, a).Status.NodeInfo.BootID; got == a.BootID() {
		t.Error("the Node shows the boot id of a boot without a kubelet")
	}
	onHost(t, a, "systemctl", "unmask", "kubelet.service")
	onHost(t, a, "systemctl", "start", "kubelet.service")
	must(t, a.WaitReady(soon(t)))
}

func testDown(t *testing.T, a, _ *Host) {
	must(t, a.PowerOff(soon(t)))
	must(t, a.WaitDown(soon(t)))
	if _, err := a.Exec(soon(t), "true"); !errors.Is(err, errDown) || a.BootID() != "" {
		t.Errorf("a host that is down: %v, boot id %q", err, a.BootID())
	}
	a.Next(NextBoot{})
	a.PowerOn()
	must(t, a.WaitBoots(soon(t), 4))
	must(t, a.WaitReady(soon(t)))
}
