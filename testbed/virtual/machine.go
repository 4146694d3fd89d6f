package virtual

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/memhost"
)

// Machine is one host: its services, its kubelet, its disk and the agents that run on it.
type Machine struct {
	f    *Fleet
	name string
	root string // the directory with its files
	mem  *memhost.Host

	candidate, controlPlane bool
	pool                    string
	oneshot                 bool // the type of its service

	busDelay atomic.Int64 // of each D-Bus call; a time.Duration
	clock    atomic.Int64 // by how much its coordinator sees its clock ahead; a time.Duration
	sick     atomic.Bool  // its kubelet is not Ready

	mu       sync.Mutex
	up       bool
	crashed  bool        // by crash, and not booted yet
	rolls    bool        // the next boot is of the version that runs now
	agents   []*agentRun // one, except while a test runs two
	runs     int         // agents that were started so far
	kubelet  *kubelet
	expected string // the version that the host has to arrive at
	hooks    hooks
	reads    reads
	service  served
	tried    time.Time // when a leader last tried to write to its Node
	waits    time.Time // since when its Node waits for a turn and does not say why; zero: it does not
	// uninhibit releases the inhibitor that [Fleet.Inhibit] holds.
	uninhibit func()
	client    *client // nil: update_engine updates the host
}

const (
	shutdownTakes = 20 * time.Second
	bootTakes     = 40 * time.Second
	agentStop     = 10 * time.Second // how long systemd waits for the agent to stop
	agentEnds     = 2 * time.Minute  // in which an agent has to end that reaches nothing any more
)

func (f *Fleet) newMachine(i int) *Machine {
	m := &Machine{f: f, name: fmt.Sprintf("n%d", i+1), pool: f.opts.pool(i), oneshot: i%2 == 1}
	m.candidate, m.controlPlane = i < f.opts.Candidates, i < f.opts.ControlPlane
	m.root = filepath.Join(f.dir, m.name)
	m.reads.calls = map[string]time.Time{}
	m.mem = memhost.New(memhost.Options{
		Name: m.name, Root: m.root, ShutdownTakes: shutdownTakes, Event: m.happened, Fault: m.delayed,
		CoreOS:   slices.Contains(f.opts.Clients, i),
		Stopping: func() { f.tasks.Go(func() { m.stopAgents(agentStop) }); f.tasks.Go(m.stopClient) },
		Rebooted: func(string) { f.tasks.Go(m.reboot) },
	})
	const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://api.invalid"}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`
	if slices.Contains(f.opts.Clients, i) {
		m.addClient()
	}
	m.defineHooks()
	m.defineService()
	f.must(m.mem.WriteFile("etc/kubernetes/kubelet.conf", fmt.Sprintf(kubeconfig, "host")))
	if m.candidate {
		f.must(m.mem.WriteFile("etc/lockkeeper/coordinator.kubeconfig", fmt.Sprintf(kubeconfig, "coordinator")))
	}
	return m
}

// powerOn boots the host, and starts its kubelet and, with agent, its agent.
func (m *Machine) powerOn(agent bool) {
	m.mu.Lock()
	if m.rolls {
		m.rolls, m.expected = false, ""
		m.mem.StageNext("")
	}
	m.mu.Unlock()
	m.f.must(m.mem.Boot())
	m.f.ahead.booted(m)
	m.mu.Lock()
	m.up = true
	m.service.started(m.files())
	m.kubelet = m.f.startKubelet(m, m.runs > 0)
	m.mu.Unlock()
	m.startClient()
	if agent {
		m.startAgent()
	}
}

// reboot ends the boot as systemd does, and boots again.
func (m *Machine) reboot() {
	m.applyStaged()
	m.powerOff()
	if pause(m.f.ctx, bootTakes) == nil {
		m.powerOn(true)
	}
}

// powerOff ends everything on the host at once.
func (m *Machine) powerOff() {
	m.mu.Lock()
	agents, k := m.agents, m.kubelet
	m.agents, m.kubelet, m.up = nil, nil, false
	m.mu.Unlock()
	for _, a := range agents {
		a.kill()
	}
	if k != nil {
		k.stop()
	}
	m.endClient()
	m.mem.Crash()
}

// crash cuts the host's power.
func (m *Machine) crash() {
	m.mu.Lock()
	up := m.up
	m.crashed = m.crashed || up
	m.mu.Unlock()
	if up { // otherwise it is booting anyway
		m.f.logf("%s loses power", m.name)
		m.powerOff()
	}
}

// bootAfterCrash boots the host if crash has cut its power.
func (m *Machine) bootAfterCrash() {
	m.mu.Lock()
	crashed := m.crashed
	m.crashed = false
	m.mu.Unlock()
	if crashed && pause(m.f.ctx, bootTakes) == nil {
		m.powerOn(true)
	}
}

// stage has the update engine, or the host's client, stage a version, unless one is staged.
func (m *Machine) stage(version string) {
	if m.client != nil {
		m.offer(version)
		return
	}
	if err := m.mem.Engine().Stage(version); err == nil {
		m.mu.Lock()
		m.expected = version
		m.mu.Unlock()
	}
}

// withdraw has the update engine drop what is staged. The next boot still boots it, except on a host with a client.
func (m *Machine) withdraw() {
	if m.client != nil {
		m.cleanUp()
		return
	}
	m.noteWant()
	if err := m.mem.Engine().Reset(); err == nil {
		m.mu.Lock()
		m.expected = ""
		m.mu.Unlock()
	}
}

// setSick has the host's kubelet report that it is not Ready, or that it is again.
func (m *Machine) setSick(sick bool) {
	m.sick.Store(sick)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kubelet != nil {
		m.kubelet.changed()
	}
}

// rollBack has the next boot run the version that the host runs now, except on a host with a client, whose version it does not know.
func (m *Machine) rollBack() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rolls = m.client == nil
}

// stagedVersion returns the version that the host has to arrive at; "" for any.
func (m *Machine) stagedVersion() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.expected
}
