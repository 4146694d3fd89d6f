package virtual

import (
	"net/http"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/testbed/apiserver"
	"lockkeeper.dev/lockkeeper/testbed/memhost"
)

var _ target = (*Fleet)(nil)

// Hosts returns the names of the hosts.
func (f *Fleet) Hosts() (names []string) {
	for _, m := range f.hosts {
		names = append(names, m.name)
	}
	return names
}

func (f *Fleet) machine(name string) *Machine {
	for _, m := range f.hosts {
		if m.name == name {
			return m
		}
	}
	return nil
}

// Client returns a way to the API server that no fault affects.
func (f *Fleet) Client(user string) http.RoundTripper { return f.Server.Client(user) }

// Kill kills lockkeeper on the host, and the host's systemd starts it again.
func (f *Fleet) Kill(host string) { f.machine(host).killAgents() }

// Restart stops lockkeeper on the host, and starts it again.
func (f *Fleet) Restart(host string) {
	f.machine(host).stopAgents(agentStop)
	f.machine(host).startAgent()
}

// Freeze stops all that goes in or out of the host's processes.
func (f *Fleet) Freeze(host string) { f.machine(host).eachTransport((*Transport).Freeze) }

// Thaw ends Freeze.
func (f *Fleet) Thaw(host string) {
	m := f.machine(host)
	m.mu.Lock()
	m.reads.thawed = time.Now()
	m.mu.Unlock()
	m.eachTransport((*Transport).Thaw)
}

// StartSecond starts a second process on the host.
func (f *Fleet) StartSecond(host string) { f.machine(host).startAnother() }

// StopSecond kills it.
func (f *Fleet) StopSecond(host string) { f.machine(host).stopSecond() }

// Crash cuts the host's power.
func (f *Fleet) Crash(host string) { f.machine(host).crash() }

// PowerOn boots the host after a crash.
func (f *Fleet) PowerOn(host string) { f.machine(host).bootAfterCrash() }

// StopBus ends the host's message bus.
func (f *Fleet) StopBus(host string) {
	_ = f.machine(host).mem.StopBus() // it fails if the host is down
}

// StartBus starts it again, and all services on it.
func (f *Fleet) StartBus(host string) {
	_ = f.machine(host).mem.StartBus() // it fails if the host is down
}

// DelayBus delays each D-Bus call of lockkeeper on the host.
func (f *Fleet) DelayBus(host string, d time.Duration) { f.machine(host).busDelay.Store(int64(d)) }

// SetLogind makes the host's logind misbehave.
func (f *Fleet) SetLogind(host string, mode logindMode) {
	l := f.machine(host).mem.Logind()
	switch mode {
	case logindStalls:
		l.Stall()
		return
	case logindWorks:
		_ = l.Start() // it fails if the host is down
	}
	l.OnReboot(map[logindMode]memhost.RebootMode{
		logindWorks: memhost.Obey, logindRefuses: memhost.Deny, logindLoses: memhost.Lose, logindIgnores: memhost.Ignore,
	}[mode])
}

// RestartLogind restarts the host's logind.
func (f *Fleet) RestartLogind(host string) {
	l := f.machine(host).mem.Logind()
	l.Stop()
	_ = l.Start() // it fails if the host is down
}

// Inhibit has a program on the host inhibit shutdowns.
func (f *Fleet) Inhibit(host string) {
	f.EndInhibit(host) // two faults may overlap
	m := f.machine(host)
	release := m.mem.Logind().Hold(memhost.Inhibitor{What: "shutdown", Who: "backup", Why: "it runs", Mode: "block"})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.uninhibit = release
}

// EndInhibit ends it.
func (f *Fleet) EndInhibit(host string) {
	m := f.machine(host)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.uninhibit != nil {
		m.uninhibit()
	}
}

// LogIn logs a user in.
func (f *Fleet) LogIn(host string) {
	f.machine(host).mem.Logind().SetSessions(memhost.Session{ID: "1", User: "core", TTY: "pts/0", Since: time.Now()})
}

// LogOut logs the user out.
func (f *Fleet) LogOut(host string) { f.machine(host).mem.Logind().SetSessions() }

// RestartKubelet restarts the host's kubelet.
func (f *Fleet) RestartKubelet(host string) {
	m := f.machine(host)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.up {
		m.kubelet.stop()
		m.kubelet = f.startKubelet(m, false)
	}
}

// Stage has the host's update engine stage the version.
func (f *Fleet) Stage(host, version string) { f.machine(host).stage(version) }

// Withdraw has the host's update engine drop what is staged.
func (f *Fleet) Withdraw(host string) { f.machine(host).withdraw() }

// BreakKubelet has the host's kubelet report that it is not Ready.
func (f *Fleet) BreakKubelet(host string) { f.machine(host).setSick(true) }

// FixKubelet ends BreakKubelet.
func (f *Fleet) FixKubelet(host string) { f.machine(host).setSick(false) }

// RollBack has the host's next boot run the version that it runs now.
func (f *Fleet) RollBack(host string) { f.machine(host).rollBack() }

// RestartClient restarts the host's FleetLock client.
func (f *Fleet) RestartClient(host string) { f.machine(host).restartClient() }

// HangUp breaks the connections of the host's FleetLock client.
func (f *Fleet) HangUp(host string) { f.machine(host).hangUp() }

// StopClient stops the host's FleetLock client.
func (f *Fleet) StopClient(host string, mode clientMode) { f.machine(host).silenceClient(mode) }

// StartClient ends StopClient.
func (f *Fleet) StartClient(host string, mode clientMode) { f.machine(host).resumeClient(mode) }

// ChangeFile changes a file of the host's service.
func (f *Fleet) ChangeFile(host, name string, to content) { f.machine(host).changeFile(name, to) }

// AddSentinel creates a file that requests a reboot.
func (f *Fleet) AddSentinel(host string) {
	m := f.machine(host)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.up {
		f.must(m.mem.WriteFile(sentinel, ""))
	}
}

// RemoveSentinel removes it.
func (f *Fleet) RemoveSentinel(host string) {
	m := f.machine(host)
	m.noteWant()
	f.must(m.mem.RemoveFile(sentinel))
}

// sentinel is a file that requests a reboot.
const sentinel = "run/reboot-required"

// SetUnit makes the starts of a unit misbehave, if the host has it.
func (f *Fleet) SetUnit(host, unit string, mode unitMode) {
	f.machine(host).mem.Units().Change(unit, func(u *memhost.Unit) {
		if u.Result = ""; mode == unitFails {
			u.Result = "exit-code"
		}
		u.Hangs = mode == unitHangs
	})
}

// ShiftClock sets by how much the API server's clock is ahead.
func (f *Fleet) ShiftClock(d time.Duration) { f.Server.SetClockOffset(d) }

// ShiftHostClock sets by how much the host's clock seems to be ahead to its coordinator.
func (f *Fleet) ShiftHostClock(host string, d time.Duration) { f.machine(host).clock.Store(int64(d)) }

// CutWatches ends watches.
func (f *Fleet) CutWatches(resource string) { f.Server.CutWatches(resource) }

// Compact drops the history.
func (f *Fleet) Compact() { f.Server.Compact() }

// Snapshot returns the state of the store.
func (f *Fleet) Snapshot() any { return f.Server.Snapshot() }

// BlockDrains lets no pod of the host be evicted.
func (f *Fleet) BlockDrains(host string) {
	none := intstr.FromInt32(0)
	b := &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: &none, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "blocked-" + host}},
	}}
	b.Name, b.Namespace = "block-"+host, namespace
	_, err := f.Admin.PolicyV1().PodDisruptionBudgets(namespace).Create(f.ctx, b, metav1.CreateOptions{})
	f.mustOr(err, apierrors.IsAlreadyExists) // a store that was rewound has it again
	f.createPod("blocked-"+host, host)
}

// AllowDrains ends BlockDrains.
func (f *Fleet) AllowDrains(host string) {
	f.mustOr(f.Admin.PolicyV1().PodDisruptionBudgets(namespace).Delete(f.ctx, "block-"+host, metav1.DeleteOptions{}), gone)
}

// AddPod binds another pod to the Node.
func (f *Fleet) AddPod(host string) { f.createPod("late-"+host, host) }

// AddManager runs a pod of kured on the Node.
func (f *Fleet) AddManager(host string) {
	p := newPod("kured", "kured-"+host, host, "DaemonSet")
	p.Namespace, p.Spec.Containers[0].Command = metav1.NamespaceSystem, []string{"/usr/bin/kured"}
	_, err := f.Admin.CoreV1().Pods(p.Namespace).Create(f.ctx, p, metav1.CreateOptions{})
	f.mustOr(err, apierrors.IsAlreadyExists) // a store that was rewound has it again
}

// RemoveManager removes it.
func (f *Fleet) RemoveManager(host string) {
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	f.mustOr(f.Admin.CoreV1().Pods(metav1.NamespaceSystem).Delete(f.ctx, "kured-"+host, now), gone)
}

// Restore sets the store back.
func (f *Fleet) Restore(s any) { f.rewind(s.(*apiserver.Snapshot)) }
