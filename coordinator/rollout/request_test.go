package rollout_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

var requested = v1alpha1.Change{Source: v1alpha1.SourceRequest}

// aRequest is the request of the cases.
func aRequest(reason string, now bool) *v1alpha1.Request {
	return &v1alpha1.Request{Action: "reboot", Reason: reason, By: "ada", Now: now}
}

// setRequest sets a request of the cases in what a Node's or a grant's records say of requests.
func setRequest(request **v1alpha1.Request, all *v1alpha1.Requests, reason string, now bool) {
	*request = aRequest(reason, now)
	if value := v1alpha1.Digest(reason); now {
		all.Now = value
	} else {
		all.Waits = value
	}
}

// describeRequest returns the request that a move records, as the cases write it.
func describeRequest(m *rollout.Move) string {
	var r *v1alpha1.Request
	switch {
	case m.Last != nil:
		r = m.Last.Request
	case m.Grant != nil && (m.On == turn.Granted || m.On == turn.Progressed):
		r = m.Grant.Request
	}
	note := r.Note(requested)
	if note == "" {
		return ""
	}
	return "request: " + strings.Trim(note, " ()")
}

// hurried: an admin asked for a reboot that does not wait, and the host says that this is among its changes. What it skips is
// "policy windows, blackouts, gates and settle", and "never stop, pause, host vetoes, maxFailed, budget or the control-plane rule".
func hurried(n *turn.Node) bool {
	if n.Request == nil || !n.Request.Now || !speaks(n) {
		return false
	}
	return slices.Contains(n.Host.Changes, requested)
}

// mayBegin reports whether the policy lets the node's turn begin.
func (w twin) mayBegin(n *turn.Node, p *policy.Policy) bool {
	if !hurried(n) {
		return w.begins(p)
	}
	age := w.Now.Sub(w.Rewound)
	restored := age < p.Settle && age >= -time.Minute
	return !p.Paused && w.failedIn(p) <= p.MaxFailed && !restored
}

// checkRequests: "the record says that it was used".
func checkRequests(t *testing.T, s *rollout.Snapshot, out *rollout.Outcome) {
	t.Helper()
	byName := map[string]*turn.Node{}
	for i := range s.Nodes {
		byName[s.Nodes[i].Name] = &s.Nodes[i]
	}
	for _, v := range out.Verdicts {
		n := byName[v.Node]
		if v.Move == nil || v.Move.On != turn.Granted {
			continue
		}
		asked := n.Request != nil && v1alpha1.Has(n.Host.Changes, v1alpha1.SourceRequest)
		switch r := v.Move.Grant.Request; {
		case asked != (r != nil):
			t.Errorf("%s: granted with the request %+v, it has %+v for %v", v.Node, r, n.Request, n.Host.Changes)
		case asked && (r.Now != n.Request.Now || r.Reason != n.Request.Reason || r.By != n.Request.By):
			t.Errorf("%s: granted with the request %+v, it has %+v", v.Node, *r, *n.Request)
		}
		if _, err := v1alpha1.ParseGrant(v1alpha1.FormatRecord(v.Move.Grant)); err != nil && v.Move.Grant.Turn != "" {
			t.Errorf("%s: its grant cannot be read: %v", v.Node, err)
		}
	}
}

// A request's texts never keep a node from its turn: where they do not fit, the grant is without them.
func TestLongRequest(t *testing.T) {
	s := situation(t, []string{"idle", "request-now=x"})
	n := &s.Nodes[0]
	n.Request.Reason, n.Request.By = strings.Repeat("<", v1alpha1.MaxRequestReason), strings.Repeat("<", v1alpha1.MaxRequestBy)
	n.Host.Changes = append(n.Host.Changes, v1alpha1.Change{Source: v1alpha1.SourceFile, Name: "/" + strings.Repeat("x", 28000)})
	m := rollout.Decide(s).Verdicts[0].Move
	if m == nil || m.On != turn.Granted {
		t.Fatalf("not granted: %+v", rollout.Decide(s).Verdicts[0])
	}
	if g := m.Grant; !g.Fits() || g.Request == nil || !g.Request.Now || g.Request.Reason != "" {
		t.Errorf("%d bytes, the request %+v", len(v1alpha1.FormatRecord(g)), g.Request)
	}
	n.Host.Changes = n.Host.Changes[:1]
	if g := rollout.Decide(s).Verdicts[0].Move.Grant; g.Request.Reason != n.Request.Reason || g.Request.By != n.Request.By {
		t.Errorf("the request %+v", g.Request)
	}
}
