package virtual

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/apiserver"
)

// past is what the fleet knows of turns that are over. Fleet.mu guards it.
type past struct {
	terms   map[string]time.Time // when each epoch first held the Lease
	ended   map[string]ending    // by node
	retried map[string]bool      // the turns that a retry has named
	granted map[string]int       // by node: turns since it was created, a retry named one, or the store was set back
	hasty   bool                 // the policy has had a shorter settle time than the fleet's
}

// ending is the write that ended a node's last turn.
type ending struct {
	turn, epoch string
	at          time.Time
}

func newPast() past {
	return past{terms: map[string]time.Time{}, ended: map[string]ending{}, retried: map[string]bool{}, granted: map[string]int{}}
}

// followEnds takes a write to a Node.
func (p *past) followEnds(w *apiserver.Write, before, after *turn.Node) {
	if w.Old == nil || w.Object == nil {
		delete(p.granted, w.Name)
		delete(p.ended, w.Name)
	}
	if after.Last == nil && !after.InTurn() {
		delete(p.granted, w.Name) // the record is gone, with the labels
	}
	if after.Retry != "" && (w.Old == nil || before.Retry != after.Retry) {
		p.retried[after.Retry] = true
		delete(p.granted, w.Name)
	}
	if l := after.Last; l != nil && l.Turn != p.ended[w.Name].turn {
		e := ending{turn: l.Turn, at: time.Now()}
		if before.Grant != nil && before.Turn == l.Turn {
			e.epoch = before.Grant.Epoch
		}
		p.ended[w.Name] = e
	}
}

// followSettle takes a new version of a policy.
func (f *Fleet) followSettle(spec *v1alpha1.DisruptionPolicySpec) {
	own := f.opts.spec()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.past.hasty = f.past.hasty || spec.Rollout.Settle.Duration < own.Rollout.Settle.Duration
}

// restoredPast forgets what was before the store was set back. A leader of then may not know yet what this store has.
func (f *Fleet) restoredPast() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.past.ended)
	clear(f.past.retried)
	clear(f.past.granted)
	for name, n := range f.nodes {
		if n.Retry != "" {
			f.past.retried[n.Retry] = true
		}
		if n.Last != nil {
			f.past.ended[name] = ending{turn: n.Last.Turn, at: time.Now()}
		}
	}
}

// knows reports whether the leader of the grant knew how the node's last turn ended when it decided on the grant: it had decided on that end
// itself, or read it when its term began.
func (p *past) knows(g *v1alpha1.Grant, n *turn.Node) bool {
	e := p.ended[n.Name]
	if n.Last == nil || e.turn != n.Last.Turn {
		return false
	}
	if e.epoch != "" && e.epoch == g.Epoch {
		return n.Last.End.Before(g.StartedAt)
	}
	began, known := p.terms[g.Epoch]
	return known && e.at.Before(began)
}

// judgeTurns takes a write to a Node. It checks that a turn begins only if no more turns have failed than the policy allows, the settle time is over,
// and the node has not had as many turns as a day allows.
func (f *Fleet) judgeTurns(w *apiserver.Write, excused bool) {
	var before, after turn.Node
	if old, _ := w.Old.(*corev1.Node); old != nil {
		before = turn.FromNode(old)
	}
	if obj, _ := w.Object.(*corev1.Node); obj != nil {
		after = turn.FromNode(obj)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.past.followEnds(w, &before, &after)
	if excused || f.attack.Thief || w.User != userCoordinator || !after.InTurn() || after.Grant == nil || after.Turn == before.Turn {
		return
	}
	add := func(format string, args ...any) { f.problems = append(f.problems, fmt.Sprintf(format, args...)) }
	g, spec := after.Grant, f.opts.spec()
	f.past.granted[w.Name]++
	if is, most := f.past.granted[w.Name], spec.Rollout.MaxTurnsPerDay; is > int(most) && g.Wants.Something() {
		add("Turn limit: %s begins its turn %d, %d allowed in a day", w.Name, is, most)
	}
	if !g.Wants.Something() { // it only removes a cordon
		return
	}
	failed := 0
	for name, n := range f.nodes {
		if name == w.Name {
			n = before
		}
		others := f.opts.Canary > 0 && (name == canaryHost) != (w.Name == canaryHost) || n.Labels[labelPool] != after.Labels[labelPool]
		if others || slices.Contains(f.attack.Liars, name) || !f.past.knows(g, &n) {
			continue
		}
		if n.Last.Result == v1alpha1.ResultFailed && !n.InTurn() && !f.past.retried[n.Last.Turn] {
			failed++
		}
		settled := n.Last.End.Add(spec.Rollout.Settle.Duration)
		if early := settled.Sub(g.StartedAt); early > 0 && !f.past.hasty && (g.Request == nil || !g.Request.Now) {
			add("Settle: %s begins its turn %v before the settle time after the last one of %s is over", w.Name, early, name)
		}
	}
	if failed > int(spec.Rollout.MaxFailed) {
		add("Halted: %s begins a turn, %d have failed, and %d may", w.Name, failed, spec.Rollout.MaxFailed)
	}
}
