package faults

import (
	"strings"
	"sync"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
)

// trap catches one request and takes the leader away at the same moment.
type trap struct {
	mu     sync.Mutex
	over   bool
	left   int
	caught *faultproxy.Request
	hole   chan struct{}
	once   sync.Once
	remove []func()
}

// set sets a trap for the moment of the stroke.
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
	// A host's commit counts if another host leads. A leader's write counts if that process leads.
	epoch, err := r.lease()
	if leader := r.HostOf(epoch); err != nil || leader == nil || (leader.Name() == host) == (s.at == commit) {
		return nil
	}
	if t.left--; t.left > 0 || !r.away(epoch) {
		return nil
	}
	t.caught = q
	if s.at != answerLost {
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
			t.caught = q // the proxy records it when this call returns
		}
	}}
}

// sprung returns the caught request, or nil.
func (t *trap) sprung() *faultproxy.Request {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.caught
}

// disarm makes the trap catch nothing more, and returns what it has caught.
func (t *trap) disarm() *faultproxy.Request {
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	for _, remove := range t.remove {
		remove()
	}
	return t.sprung()
}

// letGo lets the caught request continue.
func (t *trap) letGo() { t.once.Do(func() { close(t.hole) }) }

// grants reports whether a leader's patch is a grant, which moves a node from idle into a turn.
func grants(q *faultproxy.Request) bool {
	return strings.Contains(string(q.Body), `"`+v1alpha1.LabelState+`":"`+string(v1alpha1.StateDraining)+`"`)
}

// commits reports whether a host's patch is a commit.
func commits(q *faultproxy.Request) bool {
	return strings.Contains(string(q.Body), "/"+string(v1alpha1.ReportCommitted)+`"`)
}

// hold holds requests until release is called. A held write arrives then, even if its sender no longer waits.
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

// fall makes a proxy serve an old view: watches of Nodes return nothing new, and a list that may come from a cache
// returns the version since.
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
