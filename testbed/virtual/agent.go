package virtual

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/agent"
	"lockkeeper.dev/lockkeeper/node"
	"lockkeeper.dev/lockkeeper/node/config"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/systemd"
)

// agentRun is one process of lockkeeper on a host, from its start to its end. Its root directory is a link of its own to the
// host's: when the process is killed, the link goes, and what is left of the process reaches no file any more.
type agentRun struct {
	m      *Machine
	root   string
	began  time.Time
	ctx    context.Context // ends when the process is told to stop
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	dead   bool
	told   time.Time // when it was told to stop; zero: it was not
	conns  []net.Conn
	links  []*Transport // to the API server, and bus
	serves http.Handler // answers the FleetLock client; nil: it does not listen
	bus    *Transport   // carries no requests; the connections to the bus are frozen and severed with it
}

// startAgent starts lockkeeper, unless it runs.
func (m *Machine) startAgent() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.up && len(m.agents) == 0 {
		m.startLocked()
	}
}

// startAnother starts a second process next to the one that runs, as an admin's mistake would: in another mount namespace, so that the
// lock in /run does not prevent it.
func (m *Machine) startAnother() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.up && len(m.agents) == 1 {
		m.startLocked()
	}
}

// stopSecond kills the process that was started last, if there are two.
func (m *Machine) stopSecond() {
	m.mu.Lock()
	var second *agentRun
	if n := len(m.agents); n > 1 {
		second, m.agents = m.agents[n-1], m.agents[:n-1]
	}
	m.mu.Unlock()
	if second != nil {
		second.kill()
	}
}

// eachTransport calls f for each way of the host's processes to the API server.
func (m *Machine) eachTransport(f func(*Transport)) {
	m.mu.Lock()
	agents := m.agents
	m.mu.Unlock()
	for _, a := range agents {
		a.mu.Lock()
		links := a.links
		a.mu.Unlock()
		for _, l := range links {
			f(l)
		}
	}
}

func (m *Machine) startLocked() {
	if m.f.ctx.Err() != nil {
		return
	}
	m.runs++
	a := &agentRun{m: m, began: time.Now(), root: filepath.Join(m.f.dir, fmt.Sprintf("%s.%d", m.name, m.runs)), done: make(chan struct{})}
	a.bus = m.f.exec.Transport(m.name, roleHost, nil)
	a.links = []*Transport{a.bus}
	m.f.must(os.Symlink(m.root, a.root))
	for _, dir := range []string{local.Dir, node.StateDir} { // the unit's RuntimeDirectory= and StateDirectory=
		m.f.must(os.MkdirAll(filepath.Join(a.root, dir), 0o755))
	}
	toml := "log_level = \"" + m.f.logLevel() + "\"\n[metrics]\nlisten = \"\"\n" + m.fleetLockConfig() +
		fmt.Sprintf("[coordinator]\nkubeconfig = %q\n", filepath.Join(a.root, "etc/lockkeeper/coordinator.kubeconfig")) + m.f.opts.Config
	m.f.must(m.mem.WriteFile("etc/lockkeeper/lockkeeper.toml", toml))
	m.f.must(m.mem.WriteUptime())
	load := func() (*config.Config, []config.Warning, error) {
		return config.Load(config.Options{File: filepath.Join(a.root, "etc/lockkeeper/lockkeeper.toml"), Testbed: true})
	}
	cfg, _, err := load()
	m.f.must(err)
	level, leads := new(slog.LevelVar), 0
	a.ctx, a.cancel = context.WithCancel(context.Background())
	m.agents = append(m.agents, a)
	o := agent.Options{
		Version: "v1", Load: load, Root: a.root, StateDir: filepath.Join(a.root, local.Dir),
		Log: systemd.NewLogger(&lines{a: a, m: m}, level), Level: level,
		Bus:       &systemd.Bus{Dial: a.dial},
		Transport: a.transport,
		FleetLock: a.serve,
		Leads: func(nodes int) {
			if leads = nodes; leads > 0 {
				m.f.led.Store(true)
			}
		},
	}
	go func() {
		defer close(a.done)
		err := agent.Run(a.ctx, cfg, o)
		switch {
		case a.killed():
		case err != nil:
			m.f.problem("%s: lockkeeper exited: %v", m.name, err)
		case leads > 0:
			m.f.problem("%s: lockkeeper exited, and Leads was last called with %d Nodes", m.name, leads)
		}
	}()
}

// stopAgents stops lockkeeper as systemd does: it kills what has not stopped in time. It tells every process before it waits for one.
func (m *Machine) stopAgents(within time.Duration) {
	m.mu.Lock()
	agents := m.agents
	m.agents = nil
	m.mu.Unlock()
	for _, a := range agents {
		a.tell()
	}
	end := time.Now().Add(within)
	for _, a := range agents {
		select {
		case <-a.done:
		case <-time.After(time.Until(end)):
		}
		a.kill()
	}
}

// tell tells the process to stop. From now on it is judged as one that was told (the rule Told to stop).
func (a *agentRun) tell() {
	a.mu.Lock()
	a.told = time.Now()
	a.mu.Unlock()
	a.cancel()
}

// killAgents kills lockkeeper, and systemd starts it again.
func (m *Machine) killAgents() {
	m.mu.Lock()
	agents := m.agents
	m.agents = nil
	m.mu.Unlock()
	for _, a := range agents {
		a.kill()
	}
	m.f.tasks.Go(func() {
		if pause(m.f.ctx, time.Second) == nil {
			m.startAgent()
		}
	})
}

func (a *agentRun) killed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.dead
}

// kill ends the process at once: nothing that it does from now on has an effect.
func (a *agentRun) kill() {
	a.mu.Lock()
	a.dead = true
	conns, links := a.conns, a.links
	a.conns = nil
	a.mu.Unlock()
	_ = os.Remove(a.root)
	for _, l := range links {
		l.Sever()
	}
	for _, c := range conns {
		c.Close()
	}
	a.cancel()
	select {
	case <-a.done:
	case <-time.After(agentEnds):
		a.m.f.problem("%s: lockkeeper has not ended %v after its context", a.m.name, agentEnds)
	}
}

// dial connects the process to its host's bus.
func (a *agentRun) dial(ctx context.Context) (net.Conn, error) {
	bus := a.m.mem.Bus()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dead || bus == nil {
		return nil, fmt.Errorf("dial: %w", os.ErrNotExist)
	}
	conn, err := bus.DialFor(ctx, a)
	if err != nil {
		return nil, err
	}
	a.conns = append(a.conns, conn)
	return &busConn{Conn: conn, process: a.bus}, nil
}

// busConn is a connection of a process to its host's bus. While the process is frozen, nothing goes out and nothing comes in.
type busConn struct {
	net.Conn
	process *Transport

	mu   sync.Mutex
	held [][]byte // what waits to go out
}

// Read reads.
func (c *busConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if frozen := c.process.thawed(); frozen != nil {
		return 0, frozen
	}
	return n, err
}

// Write writes, and never waits: its caller holds mutexes, and the clock of a bubble stops while one is waited for.
func (c *busConn) Write(p []byte) (int, error) {
	c.process.mu.Lock()
	frozen := c.process.frozen != nil
	c.process.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !frozen && len(c.held) == 0 {
		return c.Conn.Write(p)
	}
	c.held = append(c.held, bytes.Clone(p))
	if len(c.held) == 1 {
		c.process.start(c.flush)
	}
	return len(p), nil
}

// flush sends what waits when the process continues.
func (c *busConn) flush() {
	if c.process.thawed() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.held {
		_, _ = c.Conn.Write(p) // an error shows at the next read
	}
	c.held = nil
}

// transport returns the way of an identity's requests to the API server.
func (a *agentRun) transport(identity string, _ http.RoundTripper) http.RoundTripper {
	user, by := "system:node:"+a.m.name, roleHost
	if identity == v1alpha1.IdentityCoordinator {
		user, by = userCoordinator, roleCoordinator
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.m.f.exec.Transport(a.m.name, by, conditional{a.m.f, a.m.name, a.m.f.Server.Client(user)})
	if a.dead {
		l.Sever()
	}
	a.links = append(a.links, l)
	if by == roleCoordinator {
		check := &told{f: a.m.f, host: a.m.name, next: tries{a.m.f, l}}
		l.arrives = check.arrives
		return &clocked{m: a.m, next: check}
	}
	return &paced{f: a.m.f, host: a.m.name, next: &informed{f: a.m.f, host: a.m.name, next: fresh{a, evictions{a, l}}}}
}

// lines passes the lines of a process's log on, until it is killed.
type lines struct {
	a *agentRun
	m *Machine
}

// Write takes one line.
func (l *lines) Write(p []byte) (int, error) {
	if !l.a.killed() && l.m.f.opts.Log != nil {
		l.m.f.logf("%s: %s", l.m.name, bytes.TrimSpace(p))
	}
	return len(p), nil
}
