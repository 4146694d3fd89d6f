package virtual

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/membus"
	"lockkeeper.dev/lockkeeper/testbed/memhost"
	"lockkeeper.dev/lockkeeper/testbed/referee"
)

// mostAge bounds how long before a disruption its host has read the Lease (docs/safety.md, "Commit"), and how long before a reboot the host has
// called for it. A host that acts later does harm only if the cluster has changed meanwhile, which seeds rarely bring about.
const mostAge = 10 * time.Second

// clockSlack is for what the test bed does between a host's own clock and its own.
const clockSlack = 100 * time.Millisecond

// reads is what a machine knows of its host's reads and calls. The machine's mutex guards it.
type reads struct {
	lease  time.Time            // when the last read of the Lease began that was answered
	thawed time.Time            // when the processes were thawed last
	calls  map[string]time.Time // when each call to reboot was sent, by [memhost.RebootFrom]
	wanted time.Time            // until when something requested a reboot, if nothing does now
}

// fresh checks that a host's process commits only shortly after it has read the Lease.
type fresh struct {
	a    *agentRun
	next http.RoundTripper
}

// RoundTrip sends a request, and checks it.
func (c fresh) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPatch && strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") && r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(body))
		if commits(body) {
			c.a.acts("it sends a commit")
			c.a.m.cordons(body)
		}
	}
	began := time.Now()
	resp, err := c.next.RoundTrip(r)
	if err == nil && r.Method == http.MethodGet && r.URL.Path == leasePath && (resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusNotFound) {
		c.a.m.mu.Lock()
		c.a.m.reads.lease = began
		c.a.m.mu.Unlock()
	}
	return resp, err
}

// commits reports whether the patch of a Node commits its host to a disruption.
func commits(body []byte) bool {
	if !bytes.Contains(body, []byte("/"+v1alpha1.ReportCommitted)) {
		return false
	}
	var doc written
	if err := json.Unmarshal(body, &doc); err != nil {
		return false
	}
	text := doc.Metadata.Annotations[v1alpha1.AnnotationAck]
	if text == nil {
		return false
	}
	a, err := v1alpha1.ParseAck(*text)
	return err == nil && a.Report == v1alpha1.ReportCommitted
}

// acts checks what the process does now.
func (a *agentRun) acts(what string) {
	m := a.m
	a.mu.Lock()
	stopped := !a.dead && !a.told.IsZero() && time.Since(a.told) > clockSlack
	a.mu.Unlock()
	m.mu.Lock()
	age := time.Since(m.reads.lease)
	thawed := time.Since(m.reads.thawed) < clockSlack // what was sent before the process was frozen
	m.mu.Unlock()
	switch {
	case thawed:
	case stopped:
		m.f.problem("Told to stop: %s: %s", m.name, what)
	case age > mostAge+clockSlack:
		m.f.problem("Fresh: %s: %s %v after its last read of the Lease", m.name, what, age.Round(time.Millisecond))
	}
}

// startsUnits are the calls to systemd that start something.
var startsUnits = []string{"StartUnit", "RestartUnit", "TryRestartUnit", "ReloadUnit", "Reload"}

const (
	systemdManager = "org.freedesktop.systemd1.Manager."
	rebootCall     = "org.freedesktop.login1.Manager.RebootWithFlags"
	sessionsCall   = "org.freedesktop.login1.Manager.ListSessions"
)

// delayed delays the calls of lockkeeper, and checks them. Listing the sessions is the last that a host asks before it calls for a
// reboot.
func (m *Machine) delayed(t membus.Transit) membus.Verdict {
	method, ofSystemd := strings.CutPrefix(t.Method, systemdManager)
	switch {
	case t.ToClient && t.Method == sessionsCall:
		m.f.exec.start(func() { m.f.exec.Happened(m.f.ctx, m.name, "sessions") })
		return membus.Verdict{Delay: max(time.Duration(m.busDelay.Load()), time.Millisecond)} // the faults that it triggers come first
	case t.ToClient:
	case ofSystemd && slices.Contains(startsUnits, method):
		if a, ours := t.By.(*agentRun); ours {
			a.acts("it calls " + method)
		}
		if method != "StartUnit" { // of the hooks
			m.applies("it calls " + method)
		}
	case t.Method == rebootCall && !m.callsReboot(t.Conn):
		m.judgeSessions(m.mem.Logind().Sessions())
		m.mu.Lock()
		m.reads.calls[memhost.RebootFrom(t.Conn, t.Serial)] = time.Now()
		m.mu.Unlock()
	}
	return membus.Verdict{Delay: time.Duration(m.busDelay.Load())}
}

// sessionDelay is how long hosts warn users who are logged in before they reboot, if the turn leaves enough time.
const sessionDelay = 5 * time.Minute

// judgeSessions checks the host's call for a reboot: users who were logged in when it checked that last had their time, which begins in the stage at
// the earliest.
func (m *Machine) judgeSessions(sessions []memhost.Session) {
	m.f.mu.Lock()
	n, stolen := m.f.nodes[m.name], m.f.attack.Thief
	m.f.mu.Unlock()
	m.mu.Lock()
	thawed := time.Since(m.reads.thawed) < clockSlack // what was sent before the process was frozen
	m.mu.Unlock()
	if n.State != v1alpha1.StateRebooting || !n.Ours() || stolen || thawed {
		return
	}
	delay, had := min(sessionDelay, n.Grant.Terms.Rebooting.Duration/2), time.Since(n.Grant.StageAt)
	for _, s := range sessions {
		if logged := time.Since(s.Since); logged > mostAge+clockSlack && had < delay {
			m.f.problem("Sessions: %s calls for its reboot %v after its stage began, and %s has been logged in for %v", m.name, had, s.User, logged)
		}
	}
}

// happened takes an event of the host.
func (m *Machine) happened(ev referee.HostEvent) {
	if ev.Kind == referee.RebootCalled {
		ev = m.judgeCaller(ev)
	}
	if ev.Kind == referee.RebootCalled {
		m.mu.Lock()
		sent, known := m.reads.calls[ev.Detail]
		m.mu.Unlock()
		if age := ev.Time.Sub(sent); known && age > mostAge+clockSlack {
			m.f.problem("Fresh: %s: it reboots %v after the call", m.name, age.Round(time.Millisecond))
		}
		m.judgeWant("it reboots")
	}
	m.f.Judge.HostEvent(ev)
}
