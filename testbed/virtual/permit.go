package virtual

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/memhost"
	"lockkeeper.dev/lockkeeper/testbed/referee"
)

// The events that a client's requests are; see [executor.Happened].
const (
	eventAsks      = "client,asks"
	eventPermitted = "client,permitted"
)

// permission is what the host's client may do, and what the Node shows of that. The machine's mutex guards it.
type permission struct {
	turn, boot string    // of the last permission; "": none, or a person has taken the turn away
	shows, in  string    // the turn whose commit to a reboot by the client the Node shows, and the boot; "" for none
	taken      time.Time // when a person took such a turn away last
}

// connection is one request of the client.
type connection struct {
	ctx context.Context // ends with the client, and with the process that serves it
	end context.CancelCauseFunc
}

// serve takes what answers the process's FleetLock client, in place of a server on a socket.
func (a *agentRun) serve(h http.Handler) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.serves = h
}

// serving returns the process that has the client's address, and what answers there. Of two processes, it is the first one.
func (m *Machine) serving() (a *agentRun, h http.Handler) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.agents) == 0 {
		return nil, nil
	}
	a = m.agents[0]
	a.mu.Lock()
	defer a.mu.Unlock()
	return a, a.serves
}

// RoundTrip is the client's way to lockkeeper over the loopback. A request ends without an answer when the process is told to stop: its
// server closes the connections.
func (r *clientRun) RoundTrip(hr *http.Request) (*http.Response, error) {
	if err := r.continued(hr.Context()); err != nil {
		return nil, err
	}
	a, h := r.m.serving()
	if h == nil {
		return nil, errRefused
	}
	c, release := r.connect(hr.Context(), a)
	defer release()
	asks := strings.HasSuffix(hr.URL.Path, "/pre-reboot")
	if asks {
		r.m.f.exec.Happened(c.ctx, r.m.name, eventAsks)
	}
	if err := a.thawed(c.ctx); err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	answered := make(chan struct{})
	r.m.f.tasks.Go(func() {
		defer close(answered)
		h.ServeHTTP(w, hr.WithContext(c.ctx))
	})
	select {
	case <-answered:
	case <-c.ctx.Done():
		return nil, context.Cause(c.ctx)
	}
	if c.ctx.Err() != nil {
		return nil, context.Cause(c.ctx)
	}
	if a.frozen() != nil { // the process has not really sent it
		_ = a.thawed(c.ctx)
		return nil, errReset
	}
	if asks && w.Code == http.StatusOK {
		a.permitted()
		r.m.f.exec.Happened(c.ctx, r.m.name, eventPermitted)
	}
	if c.ctx.Err() != nil {
		return nil, context.Cause(c.ctx)
	}
	if err := r.continued(hr.Context()); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

// connect opens a connection to the process.
func (r *clientRun) connect(sent context.Context, a *agentRun) (c *connection, release func()) {
	c = &connection{}
	c.ctx, c.end = context.WithCancelCause(sent)
	stopped := context.AfterFunc(a.ctx, func() { c.end(errReset) })
	killed := context.AfterFunc(a.bus.alive, func() { c.end(errReset) })
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	r.open[c] = true
	return c, func() {
		stopped()
		killed()
		c.end(context.Canceled)
		r.m.mu.Lock()
		defer r.m.mu.Unlock()
		delete(r.open, c)
	}
}

// frozen returns a channel that is closed when the process continues; nil while it runs.
func (a *agentRun) frozen() chan struct{} {
	a.bus.mu.Lock()
	defer a.bus.mu.Unlock()
	return a.bus.frozen
}

// thawed waits while the process is frozen, or until ctx ends.
func (a *agentRun) thawed(ctx context.Context) error {
	for {
		frozen := a.frozen()
		if frozen == nil || ctx.Err() != nil {
			return context.Cause(ctx)
		}
		select {
		case <-frozen:
		case <-ctx.Done():
		}
	}
}

// showsPermission returns the turn in which the Node shows that the host has committed, in the boot, to let its client reboot; "" for none.
func showsPermission(n *turn.Node, boot string) string {
	if n.State != v1alpha1.StateRebooting || !n.HasAck(n.State) || n.Ack.Report != v1alpha1.ReportCommitted || n.Ack.BootID != boot ||
		!n.Ours() || n.Grant.BootID != boot || n.Host == nil || n.Host.Permits != n.Turn || n.Host.BootID != boot {
		return ""
	}
	return n.Turn
}

// permits reports whether the host has committed in this boot to let its client reboot.
func (m *Machine) permits(n *turn.Node) bool {
	boot := m.mem.BootID()
	return boot != "" && showsPermission(n, boot) != ""
}

// permitted checks the permission that the process has just given: its Node shows the commit to that, or did when the host read it, and everything
// holds that has to hold at a reboot by lockkeeper. From then on the client may reboot the host at any time.
func (a *agentRun) permitted() {
	m := a.m
	boot := m.mem.BootID()
	a.acts("it permits its client to reboot")
	m.mu.Lock()
	p := &m.client.permission
	shows := p.shows != "" && p.in == boot
	if shows {
		p.turn, p.boot = p.shows, boot
	}
	taken := time.Since(p.taken) <= mostAge+clockSlack
	m.mu.Unlock()
	m.f.logf("%s permits its client to reboot", m.name)
	if !shows && !taken {
		m.f.problem("Permit: %s permits its client to reboot, and its Node does not show the commit to that", m.name)
	}
	m.f.Judge.HostEvent(referee.HostEvent{Time: time.Now(), Host: m.name, Kind: referee.RebootCalled, BootID: boot, Detail: "by permission to its client"})
}

// judgePermission takes a new version of the host's Node, nil if it was deleted. A turn in which the client was permitted to
// reboot stays committed until the boot ends, no matter what else happens: its slot is taken. excused says that a person wrote it.
func (m *Machine) judgePermission(obj *corev1.Node, excused bool) {
	if m.client == nil {
		return
	}
	boot := m.mem.BootID()
	var n turn.Node
	if obj != nil {
		n = turn.FromNode(obj)
	}
	m.mu.Lock()
	p := &m.client.permission
	shows := showsPermission(&n, boot)
	if excused && p.shows != "" && p.shows != shows {
		p.taken = time.Now()
	}
	p.shows, p.in = shows, boot
	lost := ""
	if p.turn != "" && p.boot == boot && p.turn != shows {
		lost, p.turn = p.turn, "" // once
	}
	m.mu.Unlock()
	if lost != "" && !excused {
		m.f.problem("Permitted: the client of %s may reboot it in the turn %s, and the Node does not show the commit to that, but turn %q, %s and the ack %q",
			m.name, lost, n.Turn, n.State, n.Ack)
	}
}

// callsReboot reports whether the connection to the host's bus is its client's, which calls for the reboot.
func (m *Machine) callsReboot(conn string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.client != nil && m.client.caller != "" && m.client.caller == conn
}

// judgeCaller checks who calls for a reboot. A client's call was judged when it was permitted, because it may come at any time after that. A
// host that has permitted its client to reboot does not call.
func (m *Machine) judgeCaller(ev referee.HostEvent) referee.HostEvent {
	if m.client == nil {
		return ev
	}
	m.mu.Lock()
	by, p := m.client.caller, m.client.permission
	m.mu.Unlock()
	switch {
	case by != "" && strings.HasPrefix(ev.Detail, strings.TrimSuffix(memhost.RebootFrom(by, 0), "0")):
		ev.Kind = "ClientReboots"
	case p.turn != "" && p.boot == ev.BootID:
		m.f.problem("Permitted: %s calls for its reboot in the turn %s, in which it has permitted its client to reboot", m.name, p.turn)
	}
	return ev
}
