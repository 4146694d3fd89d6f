package faults

import (
	"strings"
	"sync"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
)

// A trap catches one request and takes the leader away in the same moment.
type trap struct {
	mu     sync.Mutex
	over   bool
	left   int
	caught *faultproxy.Request
	hole   chan struct{}
	once   sync.Once
	remove []func()
}

// set sets a trap for the stroke's moment.
func (r *round) set(s *stroke) *trap {
	t := &trap{left: s.nth, hole: make(chan struct{})}
	for name, w := range r.Proxies {
		p := w.Coordinator
		if s.at == commit {
			p = w.Host
		}
		if p != nil {
			t.remove = append(t.remove, p.Add(func(q *faultproxy.Request) *faultproxy.Fault { return t.look(r, s, name, q) }))
		}
	}
	return t
}

func (t *trap) look(r *round, s *stroke, host string, q *faultproxy.Request) *faultproxy.Fault {
	if s.at == renewed {
		return t.interceptRenewal(r, host, q)
	}
	if !q.Is("patch", "nodes") || s.at == grant && !grants(q) || s.at == commit && !commits(q) {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || t.caught != nil {
		return nil
	}
	// A host's commit counts if its leader is another host's, a leader's write if it leads.
	epoch, err := r.lease()
	if leader := r.HostOf(epoch); err != nil || leader == nil || (leader.Name() == host) == (s.at == commit) {
		return nil
	}
	if t.left--; t.left > 0 || !r.away(epoch) {
		return nil
	}
	t.caught = q
	if s.at != unheard {
		return &faultproxy.Fault{Hold: t.hole, Late: true}
	}
	if s.how == stopped {
		return &faultproxy.Fault{}
	}
	return &faultproxy.Fault{HoldAnswer: t.hole}
}

func (t *trap) interceptRenewal(r *round, host string, q *faultproxy.Request) *faultproxy.Fault {
	if !q.Is("update", "leases") {
		return nil
	}
	return &faultproxy.Fault{CallSent: func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		epoch, err := r.lease()
		leader := r.HostOf(epoch)
		if t.over || t.caught != nil || err != nil || leader == nil || leader.Name() != host {
			return
		}
		if t.left--; t.left <= 0 && r.away(epoch) {
			t.caught = q // its record comes when this call returns
		}
	}}
}

// sprung is what was caught, nil for nothing yet.
func (t *trap) sprung() *faultproxy.Request {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.caught
}

// disarm has it catch nothing more, and returns what it has caught.
func (t *trap) disarm() *faultproxy.Request {
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	for _, remove := range t.remove {
		remove()
	}
	return t.sprung()
}

// letGo lets the request go.
func (t *trap) letGo() { t.once.Do(func() { close(t.hole) }) }

// grants reports whether a leader's patch is a grant: one that brings a node out of idle into the drain.
func grants(q *faultproxy.Request) bool {
	return strings.Contains(string(q.Body), `"`+v1alpha1.LabelState+`":"`+string(v1alpha1.StateDraining)+`"`)
}

// commits reports whether a host's patch is a commit.
func commits(q *faultproxy.Request) bool {
	return strings.Contains(string(q.Body), "/"+string(v1alpha1.ReportCommitted)+`"`)
}

// hold holds requests until release. What is a write arrives then, whether its sender still waits or not.
func hold(p *faultproxy.Proxy, which func(*faultproxy.Request) bool) (release func()) {
	hole := make(chan struct{})
	remove := p.Add(func(q *faultproxy.Request) *faultproxy.Fault {
		if which(q) {
			return &faultproxy.Fault{Hold: hole, Late: q.Write()}
		}
		return nil
	})
	return func() {
		remove()
		close(hole)
	}
}

// fall has a wire fall behind: watches of Nodes show nothing new, and a list that need not be the quorum's is of since.
func (r *round) fall(p *faultproxy.Proxy, since string) (release func()) {
	hole := make(chan struct{})
	remove := p.Add(func(q *faultproxy.Request) *faultproxy.Fault {
		switch {
		case q.Is("watch", "nodes"):
			return &faultproxy.Fault{Hold: hole}
		case q.Is("list", "nodes") && strings.Contains(q.URI, "resourceVersion=0"):
			r.counts.cached.Add(1)
			return &faultproxy.Fault{ListAt: since}
		case q.Is("list", "nodes"):
			r.counts.quorum.Add(1)
		}
		return nil
	})
	return func() {
		remove()
		close(hole)
	}
}
