package rollout

import (
	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// RequestedNow reports whether an admin has requested a reboot that does not wait, and the
// host's plan includes it.
func RequestedNow(n *turn.Node) bool {
	return n.Request != nil && n.Request.Now && n.HostReported() && v1alpha1.Has(n.Host.Changes, v1alpha1.SourceRequest)
}

// requestGone reports whether the host's plan has a request that is not on the Node: the turn
// that carried it out is over, or an admin has withdrawn it, and the host has not reported
// since. Without this check, such a node would have another turn at once where nothing settles.
func requestGone(n *turn.Node) bool {
	return n.Request == nil && v1alpha1.Has(n.Host.Changes, v1alpha1.SourceRequest)
}

// skipsWaits reports whether the node's turn begins although its policy's nodes wait; see
// [waits]. A restored store is not a wait of the policy's: for the settle time after it,
// lockkeeper does not know which nodes rebooted lately.
func (d *decision) skipsWaits(n *turn.Node, g *group) bool {
	return RequestedNow(n) && !d.credible(d.Rewound).Add(g.p.Settle).After(d.Now)
}

// waits reports whether the reason, which groupHold has returned, ends by itself: a window, a gate
// or the settle time. A request that does not wait skips these, and no other: not a policy that is
// halted or paused.
func waits(reason v1alpha1.Reason) bool {
	switch reason {
	case v1alpha1.ReasonWindow, v1alpha1.ReasonGateClosed, v1alpha1.ReasonBudget:
		return true
	}
	return false
}

// setRequest records the request that is one of the grant's changes. The coordinator reads it
// from the Node's annotation, which a host cannot write. If its texts make the grant larger
// than a reader accepts, they are left out.
func setRequest(g *v1alpha1.Grant, n *turn.Node) {
	g.Request, g.Requests = nil, v1alpha1.Requests{}
	if n.Request == nil || !v1alpha1.Has(g.Changes, v1alpha1.SourceRequest) {
		return
	}
	g.Requests = n.Requests
	if g.Request = n.Request; !g.Fits() {
		g.Request = &v1alpha1.Request{Action: n.Request.Action, Now: n.Request.Now}
	}
}

// carriedOut returns the annotations of the requests that the turn of g has carried out. A request
// that an admin has set or changed since the grant recorded them is not among them: it asks for
// another reboot.
func carriedOut(n *turn.Node, g *v1alpha1.Grant) []string {
	var keys []string
	if is := n.Requests.Waits; is != "" && is == g.Requests.Waits {
		keys = append(keys, v1alpha1.AnnotationRequest)
	}
	if is := n.Requests.Now; is != "" && is == g.Requests.Now {
		keys = append(keys, v1alpha1.AnnotationRequestNow)
	}
	return keys
}
