package referee

import (
	"reflect"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// released checks the release of a node that an admin has taken out: one write releases the node, and lockkeeper writes nothing to it after that. The
// referee cannot see that the host's own file takes the node out, because the release removes the host record.
func (e *engine) released(n *node, before, after *turn.Node) {
	if !takenOut(before) || !takenOut(after) || after.State != v1alpha1.StateAbsent || replaced(before) {
		return
	}
	// Lockkeeper itself keeps the information labels and held. Only an admin removes all keys: `lockkeeper leave`.
	if unmanaged(after) && after.Detached == nil && len(before.Info) > 0 && reflect.DeepEqual(ours(after), v1alpha1.Keys{}) {
		return
	}
	switch {
	case before.State != v1alpha1.StateAbsent:
		left := ours(after)
		left.Held, left.Info = "", nil
		switch {
		case !reflect.DeepEqual(left, v1alpha1.Keys{}):
			e.breaks(Released, n.name, "released with keys of ours left on it: %+v", left)
		case !heldNamesIntent(after):
			e.breaks(Released, n.name, "released, and held is %q", after.Held)
		case !reflect.DeepEqual(before.Info, after.Info):
			e.breaks(Released, n.name, "released, and its information labels became %v", after.Info)
		}
	case before.RawHost != "": // it is not released yet: under an emergency stop, only held is written
	case n.lost != nil && n.lostRev == n.rev() && !takenOut(n.lost):
		// A store that was set back gives its versions out again: the writer may have read the lost one of this number.
	case before.Held == v1alpha1.ReasonDetached || before.Held == v1alpha1.ReasonUnmanaged, reflect.DeepEqual(ours(before), v1alpha1.Keys{}):
		was, is := ours(before), ours(after)
		if !heldNamesIntent(&turn.Node{Keys: v1alpha1.Keys{Held: before.Held, Detached: after.Detached, Managed: after.Managed}}) {
			was.Held, is.Held = "", "" // an admin has changed why the node is out
		}
		if !reflect.DeepEqual(was, is) {
			e.breaks(Released, n.name, "written to after it was released: %+v became %+v", was, is)
		}
	}
}

// takenOut reports whether an admin has detached the node or set managed=false.
func takenOut(n *turn.Node) bool { return n.Detached != nil || unmanaged(n) }

func unmanaged(n *turn.Node) bool { return n.Managed != nil && !*n.Managed }

// heldNamesIntent reports whether held names an intent that is on the Node.
func heldNamesIntent(n *turn.Node) bool {
	return n.Held == v1alpha1.ReasonDetached && n.Detached != nil || n.Held == v1alpha1.ReasonUnmanaged && unmanaged(n)
}

// ours returns the Node's keys except those that users write.
func ours(n *turn.Node) v1alpha1.Keys {
	k := n.Keys
	k.Paused, k.Detached, k.Managed, k.Request, k.Requests, k.Retry, k.Hooks, k.Problems = nil, nil, nil, nil, v1alpha1.Requests{}, "", nil, nil
	k.Excluded = nil // the mark says which are ours
	return k
}
