package referee

import (
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Kind is the kind of a [HostEvent]. The referee logs kinds that are not listed here, and does not judge them.
type Kind string

// Kinds that the referee judges. The simulated hosts use the same names.
const (
	// RebootCalled means that logind accepted a call to reboot the host.
	RebootCalled Kind = "RebootCalled"
	// RebootRefused means that logind refused a call to reboot the host.
	RebootRefused Kind = "RebootRefused"
	// A test sends WantCancelled when the source of the host's last want withdraws it, and WantMade when a source has a want again.
	WantCancelled Kind = "WantCancelled"
	WantMade      Kind = "WantMade"
)

// HostEvent is something that a host did or that happened to it. The simulated host reports it. It must report RebootCalled before the reboot begins.
type HostEvent struct {
	Time   time.Time // monotonic, of the referee's machine
	Host   string    // the name of its Node
	Kind   Kind
	BootID string // the boot in which it happened
	Detail string
}

// slack is added to a limit for the resolution of clocks and the delay of a host's event.
const slack = 5 * time.Second

// window is the interval of a reboot call: from the last write that was certainly before the call to the first write that was certainly
// after it. The protocol has three conditions, which a host reads one after another within ten seconds. Each must have been true at some
// moment between ten seconds before the call and the end of the window, but not all at the same moment.
type window struct {
	HostEvent
	node, lease, pods bool
}

// hostEvent takes a host's event. If it returns a window, the caller must settle the window after it has fed everything that was written before the
// call.
func (e *engine) hostEvent(m moment, ev HostEvent) *window {
	e.now = m
	n := e.node(ev.Host)
	switch ev.Kind {
	case WantCancelled:
		n.cancelled = ev.Time
	case WantMade:
		n.cancelled = time.Time{}
	case RebootCalled, RebootRefused:
		e.logLine(ev.Host, "%s in the boot %s: %s", ev.Kind, ev.BootID, ev.Detail)
		return e.called(n, ev)
	default:
		e.logLine(ev.Host, "%s %s", ev.Kind, ev.Detail)
	}
	return nil
}

func (e *engine) called(n *node, ev HostEvent) *window {
	if ev.Kind == RebootCalled {
		if key := ev.Host + "/" + ev.BootID; !e.rebooted[key] {
			e.rebooted[key] = true
			e.report.Reboots++
		}
	}
	if !n.cancelled.IsZero() && ev.Time.Sub(n.cancelled) > actWithin+slack {
		e.breaks(Cancelled, ev.Host, "a reboot was called %v after its want was taken back", ev.Time.Sub(n.cancelled).Round(time.Second))
	}
	since := ev.Time.Add(-actWithin - slack)
	w := &window{HostEvent: ev}
	w.node = n.ready.boot == ev.BootID && n.ready.until.After(since)
	w.lease = n.leaseUntil.After(since)
	w.pods = n.evictable > 0 && n.nonzeroSince.by.After(since)
	e.windows[w] = true
	e.readWindow(w)
	return w
}

// updateWindows updates the open windows of the node. The engine calls it after every write that affects whether the node may reboot.
func (e *engine) updateWindows(n *node) {
	e.followReboot(n)
	for w := range e.windows {
		if w.Host == n.name {
			e.readWindow(w)
		}
	}
}

func (e *engine) readWindow(w *window) {
	n := e.node(w.Host)
	w.node = w.node || e.asksForReboot(n) && n.cur.Ack.BootID == w.BootID
	w.lease = w.lease || e.leaseAllows(n)
	w.pods = w.pods || n.evictable == 0 || n.cur != nil && n.cur.Grant != nil && !n.cur.Grant.Drains
}

// asksForReboot reports whether the host has committed to ending the boot that the grant names, and the node is in the state in which a drain leaves
// it.
func (e *engine) asksForReboot(n *node) bool {
	c := n.cur
	return c != nil && c.State == v1alpha1.StateRebooting && c.Ours() && hasCommittedAck(c) && c.Ack.BootID == c.Grant.BootID &&
		(!c.Grant.Drains || c.Unschedulable) && (c.Paused == nil || c.Managed != nil && !*c.Managed)
}

func (e *engine) leaseAllows(n *node) bool {
	l := e.lease()
	return n.cur != nil && n.cur.Grant != nil && l.exists && !l.stopped && l.holder == n.cur.Grant.Epoch
}

// followReboot records until when a reboot was allowed. A condition that is true now ends at the latest when the engine receives the write that ends
// it, so followReboot updates the times as long as the condition is true.
func (e *engine) followReboot(n *node) {
	if e.asksForReboot(n) {
		n.ready = readyToReboot{boot: n.cur.Ack.BootID, turn: n.cur.Turn, until: always}
	} else if n.ready.until.Equal(always) {
		n.ready.until = e.now.by
	}
	if e.leaseAllows(n) {
		n.leaseUntil = always
	} else if n.leaseUntil.Equal(always) {
		n.leaseUntil = e.now.by
	}
}

// settle judges a reboot when everything written before it is known.
func (e *engine) settle(m moment, w *window) {
	if !e.windows[w] {
		return
	}
	e.now = m
	e.readWindow(w)
	delete(e.windows, w)
	n := e.node(w.Host)
	// Just after the store was set back, a host may act on a commit that is gone, and the turn on the Node may have another one.
	lost := w.Time.Sub(e.rewound) <= actWithin+slack
	if t := n.turn; w.Kind == RebootCalled && t != nil && !lost && !slices.Contains(t.boots, w.BootID) {
		if t.boots = append(t.boots, w.BootID); len(t.boots) > 1 {
			e.breaks(RebootTwice, w.Host, "the turn %s has ended the boots %v", t.id, t.boots)
		}
	}
	what := "a reboot of the boot " + w.BootID + " was called"
	if !w.node {
		if n.cur == nil {
			e.breaks(Reboot, w.Host, "%s, and there is no such Node", what)
		} else {
			e.breaks(Reboot, w.Host, "%s in %s without a commit to it (turn %q, ack %q, unschedulable %t, paused %t)",
				what, n.cur.State, n.cur.Turn, n.cur.Ack, n.cur.Unschedulable, n.cur.Paused != nil)
		}
	}
	if !w.lease && n.cur != nil && n.cur.Grant != nil {
		rule := Fence
		if e.lease().stopped {
			rule = Stop
		}
		e.breaks(rule, w.Host, "%s in the term %s, which the Lease did not allow (%s)", what, epochOf(n.cur), e.leaseText())
	}
	if !w.pods {
		e.breaks(Drain, w.Host, "%s with %d evictable pods on the node (%s)", what, n.evictable, e.podsOn(w.Host))
	}
}
