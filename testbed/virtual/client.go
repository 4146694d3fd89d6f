package virtual

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/memhost"
	"lockkeeper.dev/lockkeeper/testbed/zincati"
)

const (
	clientStarts = 15 * time.Second // after the boot, or a restart
	clientCalls  = 25 * time.Second // how long systemctl waits for logind
	clientsURL   = "http://127.0.0.1:9478/"
)

// client is the FleetLock client of a host without update_engine. It is Zincati, and the staged update that it asks to reboot for: only the
// client knows of that, and what is staged is gone with the boot, unless the client has finalized it. The machine's mutex guards it.
type client struct {
	*rand.Rand // of the run's goroutine

	run       *clientRun // nil: the service does not run
	stopped   bool       // the service is not to run
	staged    string     // in this boot; "" if nothing is
	finalized bool       // the shutdown applies what is staged
	caller    string     // its connection to the bus, while it calls for the reboot
	permission
}

// clientRun is one run of the client's service.
type clientRun struct {
	m    *Machine
	ctx  context.Context
	end  context.CancelFunc
	done chan struct{}

	// The machine's mutex guards these.
	over   bool                 // it has called for the reboot, and does nothing more
	frozen chan struct{}        // not nil while it is suspended; closed at the end
	open   map[*connection]bool // its requests
}

// addClient gives the host a client.
func (m *Machine) addClient() {
	h := fnv.New64a()
	h.Write([]byte(m.name))
	m.client = &client{Rand: rand.New(rand.NewPCG(m.f.opts.Plan.Seed, h.Sum64()))}
	m.f.must(m.mem.WriteFile("etc/machine-id", m.machineID()+"\n"))
}

// machineID is the content of the host's /etc/machine-id.
func (m *Machine) machineID() string {
	sum := sha256.Sum256([]byte(m.name))
	return fmt.Sprintf("%x", sum[:16])
}

// fleetLockConfig is the part of lockkeeper's configuration that names the address for the client.
func (m *Machine) fleetLockConfig() string {
	if m.client == nil {
		return ""
	}
	return "[fleetlock]\nlisten = \"127.0.0.1:9478\"\n"
}

// startClient starts the client's service, unless it runs or is not to.
func (m *Machine) startClient() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.client; c == nil || !m.up || c.run != nil || c.stopped || m.f.ctx.Err() != nil {
		return
	}
	r := &clientRun{m: m, done: make(chan struct{}), open: map[*connection]bool{}}
	r.ctx, r.end = context.WithCancel(m.f.ctx)
	m.client.run = r
	m.f.tasks.Go(r.serve)
}

// stopClient ends the client's service.
func (m *Machine) stopClient() {
	if m.client == nil {
		return
	}
	m.mu.Lock()
	r := m.client.run
	m.client.run = nil
	m.mu.Unlock()
	if r != nil {
		r.end()
		<-r.done
	}
}

// restartClient restarts the client's service. Then it reports steady state, although the host has not rebooted.
func (m *Machine) restartClient() {
	m.stopClient()
	m.startClient()
}

// endClient ends the client and what it has staged with the boot. The next boot starts it.
func (m *Machine) endClient() {
	m.stopClient()
	if m.client == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.client.stopped, m.client.staged, m.client.finalized = false, "", false
}

// silenceClient silences the client.
func (m *Machine) silenceClient(mode clientMode) {
	if m.client == nil {
		return
	}
	m.mu.Lock()
	r := m.client.run
	if mode != clientSuspended {
		m.client.stopped = m.up
	} else if r != nil && r.frozen == nil {
		r.frozen = make(chan struct{})
	}
	m.mu.Unlock()
	if mode != clientSuspended {
		m.stopClient()
	}
}

// resumeClient ends silenceClient.
func (m *Machine) resumeClient(mode clientMode) {
	if m.client == nil {
		return
	}
	m.mu.Lock()
	m.client.stopped = false
	if r := m.client.run; r != nil && r.frozen != nil && mode == clientSuspended {
		close(r.frozen)
		r.frozen = nil
	}
	m.mu.Unlock()
	if obj := m.f.Node(m.name); mode == clientByHand && obj != nil {
		if n := turn.FromNode(obj); m.permits(&n) {
			m.mem.Logind().Shutdown("an admin")
			return
		}
	}
	m.startClient()
}

// hangUp breaks the client's connections.
func (m *Machine) hangUp() {
	if m.client == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.client.run; r != nil {
		for c := range r.open {
			c.end(errReset)
		}
	}
}

// offer offers the client an update, unless it has one staged: it looks for no other then.
func (m *Machine) offer(version string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.up && m.client.staged == "" {
		m.expected = version
	}
}

// cleanUp removes what is staged, as an admin does: the client would ask for a reboot again and again, without a restart.
func (m *Machine) cleanUp() {
	m.mu.Lock()
	m.client.staged, m.client.finalized, m.expected = "", false, ""
	m.mu.Unlock()
	m.restartClient()
}

// applyStaged makes what is staged and finalized the version of the next boot. A shutdown does so, and a crash does not.
func (m *Machine) applyStaged() {
	if m.client == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.client.finalized {
		m.mem.StageNext(m.client.staged)
	}
}

// serve runs the client until its service is stopped.
func (r *clientRun) serve() {
	defer close(r.done)
	m := r.m
	if pause(r.ctx, clientStarts) != nil {
		return
	}
	id, err := zincati.AppID(m.machineID())
	m.f.must(err)
	looks := m.client.IntN(2) // how often it finds no update before it finds one
	a := zincati.Agent{
		Client: &zincati.Client{
			BaseURL: clientsURL, Identity: zincati.Identity{ID: id, Group: zincati.DefaultGroup}, HTTP: &http.Client{Transport: r},
		},
		Staged:   func() bool { looks--; return looks < 0 && r.stage() },
		Sessions: func() bool { return len(m.mem.Logind().Sessions()) > 0 },
		Finalize: r.finalize,
		Reboot:   r.reboot,
		Log:      func(line string) { m.f.logf("%s: zincati: %s", m.name, line) },
		Refresh:  m.f.opts.ClientsAsk,
		Jitter:   func() int { return m.client.IntN(11) },
	}
	if a.Run(r.ctx) == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		r.over = true
	}
}

// stage stages the update that is offered, and reports whether one is staged.
func (r *clientRun) stage() bool {
	m := r.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.expected != "" && m.expected != m.mem.Version() {
		m.client.staged = m.expected
	}
	return m.client.staged != ""
}

// finalize has the shutdown apply what is staged. It fails now and then.
func (r *clientRun) finalize(ctx context.Context) error {
	if err := r.continued(ctx); err != nil {
		return err
	}
	m := r.m
	if slices.ContainsFunc(m.mem.Logind().Inhibitors(), func(i memhost.Inhibitor) bool { return i.Mode == "block" && strings.Contains(i.What, "shutdown") }) {
		return errors.New("a program inhibits shutdowns")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.client.staged == "":
		return errors.New("no update is staged")
	case m.client.IntN(8) == 0:
		return errors.New("a transaction is in progress")
	}
	m.client.finalized = true
	return nil
}

// reboot calls for the reboot as systemctl does.
func (r *clientRun) reboot(ctx context.Context) error {
	if err := r.continued(ctx); err != nil {
		return err
	}
	m := r.m
	bus := m.mem.Bus()
	if bus == nil {
		return memhost.ErrDown
	}
	conn, err := bus.Connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	set := func(name string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.client.caller = name
	}
	set(conn.Names()[0])
	defer set("")
	ctx, cancel := context.WithTimeout(ctx, clientCalls)
	defer cancel()
	return conn.Object("org.freedesktop.login1", dbus.ObjectPath("/org/freedesktop/login1")).CallWithContext(ctx, rebootCall, 0, uint64(0)).Err
}

// continued waits while the client is suspended.
func (r *clientRun) continued(ctx context.Context) error {
	for {
		r.m.mu.Lock()
		frozen := r.frozen
		r.m.mu.Unlock()
		if frozen == nil {
			return context.Cause(ctx)
		}
		select {
		case <-frozen:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// rebootByHand has an admin reboot each host that has permitted its client to reboot, and waits for that, if it never comes (docs/safety.md,
// "7. No turn is lost"): the client has nothing to reboot for or has tried already, or the node was uncordoned. If the Node does not show the
// permission, because the store was set back or the Node deleted, there is no turn to reboot in, and the admin restarts the client instead: it
// never asks again by itself. A Node that loses the permission in another way is a problem; see [Machine.judgePermission].
func (f *Fleet) rebootByHand(except []string) {
	for _, m := range f.hosts {
		obj := f.Node(m.name)
		if obj == nil || slices.Contains(except, m.name) {
			continue
		}
		n := turn.FromNode(obj)
		switch {
		case !m.permits(&n):
			if m.clientGaveUp() {
				m.f.logf("%s: an admin restarts the client", m.name)
				m.restartClient()
			}
		case n.Held == v1alpha1.ReasonOverdue && (m.clientRests() || n.Grant.Drains && !n.Unschedulable):
			m.mem.Logind().Shutdown("an admin")
		}
	}
}

// clientGaveUp reports whether the client has called for the reboot, and the host still runs in the same boot.
func (m *Machine) clientGaveUp() bool {
	if m.client == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.client.run != nil && m.client.run.over
}

// clientRests reports whether the client will not ask for permission.
func (m *Machine) clientRests() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.client.run
	return r == nil || r.over || m.client.staged == "" && (m.expected == "" || m.expected == m.mem.Version())
}
