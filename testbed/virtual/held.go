package virtual

import (
	"net/http"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// explainedWithin is how long a node may wait for a turn under one leader while held does not say why: a watch of the leader may hang for
// ten minutes.
const explainedWithin = 12 * time.Minute

// leading is who leads.
type leading struct {
	holder  string
	since   time.Time
	renewed time.Time
	stopped bool
}

// judgeLeader takes a new version of the Lease; nil if there is none.
func (f *Fleet) judgeLeader(lease *coordinationv1.Lease) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := leading{since: time.Now(), renewed: time.Now()}
	if lease == nil {
		f.leader = now
		return
	}
	if h := lease.Spec.HolderIdentity; h != nil {
		now.holder = *h
		if _, known := f.past.terms[now.holder]; !known {
			f.past.terms[now.holder] = now.since
		}
	}
	_, now.stopped = lease.Annotations[v1alpha1.AnnotationStop]
	if was := f.leader; was.holder == now.holder && was.stopped == now.stopped && time.Since(was.renewed) < leaseLasts {
		now.since = was.since
	}
	f.leader = now
}

// leaseLasts is less than a Lease lasts.
const leaseLasts = 15 * time.Second

// judgeHeld takes a new version of the host's Node.
func (m *Machine) judgeHeld(n *turn.Node) {
	requested := func() bool { // the host has not reported yet that the request is gone
		return n.Request == nil && v1alpha1.Has(n.Host.Changes, v1alpha1.SourceRequest)
	}
	inLine := n.State == v1alpha1.StateIdle && n.Wants.Something() && n.HostReported() && !requested()
	waits := (inLine || n.InTurn() && n.HasReport(v1alpha1.ReportFailed)) && n.Held == v1alpha1.ReasonNone
	m.mu.Lock()
	defer m.mu.Unlock()
	if !waits {
		m.waits = time.Time{}
	} else if m.waits.IsZero() {
		m.waits = time.Now()
	}
}

// restoredHeld takes the host's Node of a store that was set back, or nil if it has none. The node waits from now on.
func (m *Machine) restoredHeld(obj *corev1.Node) {
	m.judgeHeld(&turn.Node{})
	if obj != nil {
		n := turn.FromNode(obj)
		m.judgeHeld(&n)
	}
}

// tries records to which Nodes leaders try to write: while the outcome of a write to a Node is unknown, none writes why it is held.
type tries struct {
	f    *Fleet
	next http.RoundTripper
}

// RoundTrip sends a request, and records it.
func (t tries) RoundTrip(r *http.Request) (*http.Response, error) {
	if name, ok := strings.CutPrefix(r.URL.Path, "/api/v1/nodes/"); ok && r.Method == http.MethodPatch {
		if m := t.f.machine(name); m != nil {
			m.mu.Lock()
			m.tried = time.Now()
			m.mu.Unlock()
		}
	}
	return t.next.RoundTrip(r)
}

// judgeWaiting checks that nodes do not wait for a turn without being held for a reason.
func (f *Fleet) judgeWaiting() {
	f.mu.Lock()
	l, attack := f.leader, f.attack
	f.mu.Unlock()
	if l.holder == "" || l.stopped || attack.Thief || time.Since(l.renewed) > leaseLasts || time.Since(l.since) < explainedWithin {
		return
	}
	for _, m := range f.hosts {
		m.mu.Lock()
		since := m.waits
		late := !since.IsZero() && time.Since(since) > explainedWithin && time.Since(m.tried) > explainedWithin && !slices.Contains(attack.Liars, m.name)
		if late {
			m.waits = time.Now() // once
		}
		m.mu.Unlock()
		if late {
			f.problem("Held: %s has waited for a turn, or has been in one that failed, since %v, %s leads, and held does not say why", m.name, since.Sub(f.began).Round(time.Second), l.holder)
		}
	}
}
