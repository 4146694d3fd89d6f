package rollout

import (
	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// takenOut returns the reason why the node is not managed: an admin's intent or
// the host's own configuration file. It is "" for a managed node.
func takenOut(n *turn.Node) v1alpha1.Reason {
	switch {
	case n.Managed != nil && !*n.Managed, n.HostReported() && !n.Host.Managed:
		return v1alpha1.ReasonUnmanaged
	case n.Detached != nil:
		return v1alpha1.ReasonDetached
	}
	return ""
}

// letGo releases a node that was detached with force.
func (d *decision) letGo(n *turn.Node) {
	d.released(n, v1alpha1.ReasonDetached, Move{On: turn.LetGo, Remove: []string{v1alpha1.AnnotationCordon}})
}

// release releases a node that is in no turn and has no mark, because of what
// [takenOut] returns.
func (d *decision) release(n *turn.Node, reason v1alpha1.Reason) {
	m := Move{On: turn.Released}
	switch {
	case n.Managed != nil && !*n.Managed:
	case n.Detached != nil:
		// Also if the host's record still has managed=false, which is gone.
		reason = v1alpha1.ReasonDetached
	default:
		// The host's own configuration file takes it out. The coordinator keeps the
		// record of its turns: a host must not be able to clear a failure, or its
		// turns of the day, by leaving.
		m.Last = n.Last
	}
	d.released(n, reason, m)
}

// released is the one write that releases a node. It removes our keys together
// with those of the host, so that no crash of either leaves a key behind, and it
// needs no host: a host that is dead cannot remove its keys. What stays are the
// information labels and held, so that people see the node and why nothing
// happens to it. After it, nothing is written until the node is back.
func (d *decision) released(n *turn.Node, reason v1alpha1.Reason, m Move) {
	m.To, m.Reason, m.LetGo, m.Remove = v1alpha1.StateAbsent, reason, true, append(hookKeys(n), m.Remove...)
	d.move(n, m)
	d.hold(n, reason, releasedText(n, reason))
}

// holdReleased keeps held on a node that was released, for as long as the reason
// applies. A node without held was never managed, and gets none: nothing is
// written to it.
func (d *decision) holdReleased(n *turn.Node) {
	if n.State != v1alpha1.StateAbsent || n.Held == v1alpha1.ReasonNone {
		return
	}
	reason := takenOut(n)
	switch {
	case n.Held == v1alpha1.ReasonDetached && n.Detached != nil:
		reason = v1alpha1.ReasonDetached // a second intent is not worth a write
	case reason == "" && n.Held == v1alpha1.ReasonUnmanaged && n.Managed == nil && n.RawHost == "":
		// The host's file took it out, and the record that said so is removed. Only
		// the host can say that it is back.
		reason = v1alpha1.ReasonUnmanaged
	}
	if reason != "" {
		d.hold(n, reason, releasedText(n, reason))
	}
}

// releasedText is the detail of a verdict that holds a released node.
func releasedText(n *turn.Node, reason v1alpha1.Reason) string {
	if reason == v1alpha1.ReasonDetached {
		return n.Detached.Reason
	}
	return ""
}
