package step

import (
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// exclusionsBy returns what a turn sets on its Node for other programs, and how long it waits
// for load balancers. It combines the grant and own, the terms of the host's own policy, into
// the less disruptive of the two: what either says, and the longer delay.
func exclusionsBy(g *v1alpha1.Grant, own *v1alpha1.Terms) v1alpha1.Exclusions {
	var e v1alpha1.Exclusions
	add := func(t *v1alpha1.Terms) {
		e.ExcludeFromLoadBalancers = e.ExcludeFromLoadBalancers || t.ExcludeFromLoadBalancers
		e.DisableScaleDown = e.DisableScaleDown || t.DisableScaleDown
		e.ExcludeFromRemediation = e.ExcludeFromRemediation || t.ExcludeFromRemediation
		if t.ExcludeFromLoadBalancers {
			// A grant is checked by no schema.
			e.LoadBalancerDelay.Duration = min(max(e.LoadBalancerDelay.Duration, t.LoadBalancerDelay.Duration), v1alpha1.MaxLoadBalancerDelay)
		}
	}
	if g != nil {
		add(&g.Terms)
	}
	if own != nil {
		add(own)
	}
	return e
}

// setMark cordons the node, sets the exclusions and records in the mark which of them this turn
// has set. Where someone else has set one before, that one stays theirs. So does a cordon;
// the exclusions are set with it all the same.
func (o *Observation) setMark(w *Write) {
	n := &o.Node
	if n.Mark {
		return // of an earlier turn, which is given back as it is
	}
	mark := v1alpha1.Cordon{Turn: n.Turn, At: o.Now}
	if !n.Unschedulable {
		w.Unschedulable = new(true)
		mark.Set = append(mark.Set, v1alpha1.CordonOurs)
	}
	wanted := exclusionsBy(n.Grant, o.Own)
	for _, x := range n.ToSet(wanted.Names()) {
		mark.Set = append(mark.Set, x.Name)
		w.setExclusion(&x, &x.Value)
	}
	if len(mark.Set) > 0 {
		w.setAnnotation(v1alpha1.AnnotationCordon, new(mark.String()))
	}
}

// removeMark removes the mark and the exclusions that it names. What others have changed
// or removed since stays as they left it.
func (o *Observation) removeMark(w *Write) {
	for _, x := range o.Node.ToUndo() {
		w.setExclusion(&x, nil)
	}
	w.setAnnotation(v1alpha1.AnnotationCordon, nil)
}

// Changes reports whether the write sets or removes the exclusion. value is nil if it
// removes it.
func (w *Write) Changes(x *v1alpha1.Exclusion) (value *string, changed bool) {
	from := w.Labels
	if x.Kind == v1alpha1.MarkAnnotation {
		from = w.Annotations
	}
	value, changed = from[x.Key]
	return value, changed
}

func (w *Write) setExclusion(x *v1alpha1.Exclusion, value *string) {
	if x.Kind == v1alpha1.MarkLabel {
		w.setLabel(x.Key, value)
	} else {
		w.setAnnotation(x.Key, value)
	}
}

// LoadBalancerDelay is the time that load balancers get after the cordon, as one process
// measures it. The zero value measures nothing.
type LoadBalancerDelay struct {
	at    time.Time // of the cordon, from the mark
	began time.Time // with a monotonic reading
}

// Until returns when the delay of the node's turn is over, and how long that takes; 0 if it is
// over or there is none. It counts from the time that the mark records, so a process that
// was started again does not begin it again.
//
// The process compares the mark's time with its clock once. A clock that was set back before
// that costs the whole delay, and no more.
func (d *LoadBalancerDelay) Until(n *turn.Node, own *v1alpha1.Terms, now time.Time) (until time.Time, left time.Duration) {
	if n.State != v1alpha1.StateDraining || !n.Ours() || !n.Mark || !n.Cordon.Has(v1alpha1.ExclusionLoadBalancers) {
		*d = LoadBalancerDelay{}
		return time.Time{}, 0
	}
	if !d.at.Equal(n.Cordon.At) {
		d.at, d.began = n.Cordon.At, now.Add(-max(0, now.Sub(n.Cordon.At)))
	}
	e := exclusionsBy(n.Grant, own)
	until = d.began.Add(e.LoadBalancerDelay.Duration)
	return until, max(0, until.Sub(now))
}
