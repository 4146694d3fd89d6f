package referee

import (
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Kind is what a [HostEvent] is about. Others than those named here are only told.
type Kind string

// The kinds that are judged, by the names that the simulated hosts use.
const (
	// RebootCalled: logind was told to reboot the host, and obeyed.
	RebootCalled Kind = "RebootCalled"
	// RebootRefused: it was told, and did not obey.
	RebootRefused Kind = "RebootRefused"
	// WantCancelled and WantMade are a test's: the host's last want was taken back at the source; there is one again.
	WantCancelled Kind = "WantCancelled"
	WantMade      Kind = "WantMade"
)

// HostEvent is something that a host did or that happened to it, told by the host's simulation. RebootCalled has to be told before
// the reboot begins.
type HostEvent struct {
	Time   time.Time // monotonic, of the referee's machine
	Host   string    // its Node's name
	Kind   Kind
	BootID string // the boot it happened in
	Detail string
}

// slack is what a look at the clock and the way of a host's event may add to a bound.
const slack = 5 * time.Second

// window is a reboot that was called, between the last write that was surely before it and the first that was surely after
// it. The protocol asks for three things, read one after the other within ten seconds; each has to have held at some moment
// between ten seconds before the call and the end of the window. (All three need not have held at once.)
type window struct {
	HostEvent
	node, lease, pods bool
}

// hostEvent takes a host's event. A window that it returns has to be settled when everything that was written before the call
// has been fed.
func (e *engine) hostEvent(m moment, ev HostEvent) *window {
	e.now = m
	n := e.node(ev.Host)
	switch ev.Kind {
	case WantCancelled:
		n.cancelled = ev.Time
	case WantMade:
		n.cancelled = time.Time{}
	case RebootCalled, RebootRefused:
		e.say(ev.Host, "%s in the boot %s: %s", ev.Kind, ev.BootID, ev.Detail)
		return e.called(n, ev)
	default:
		e.say(ev.Host, "%s %s", ev.Kind, ev.Detail)
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
	e.lookAt(w)
	return w
}

// look is called after every write that touches what a reboot of the node depends on.
func (e *engine) look(n *node) {
	e.followReboot(n)
	for w := range e.windows {
		if w.Host == n.name {
			e.lookAt(w)
		}
	}
}

func (e *engine) lookAt(w *window) {
	n := e.node(w.Host)
	w.node = w.node || e.asksForReboot(n) && n.cur.Ack.BootID == w.BootID
	w.lease = w.lease || e.leaseAllows(n)
	w.pods = w.pods || n.evictable == 0 || n.cur != nil && n.cur.Grant != nil && !n.cur.Grant.Drains
}

// asksForReboot: the host has committed to ending the boot that the grant names, on a node that is as a drain leaves it.
func (e *engine) asksForReboot(n *node) bool {
	c := n.cur
	return c != nil && c.State == v1alpha1.StateRebooting && c.Ours() && saysCommitted(c) && c.Ack.BootID == c.Grant.BootID &&
		(!c.Grant.Drains || c.Unschedulable) && (c.Paused == nil || c.Managed != nil && !*c.Managed)
}

func (e *engine) leaseAllows(n *node) bool {
	l := e.lease()
	return n.cur != nil && n.cur.Grant != nil && l.exists && !l.stopped && l.holder == n.cur.Grant.Epoch
}

// followReboot keeps until when a reboot was in order. What holds now ends, at the latest, when the write that ends it is
// received, so the times are set again as long as it holds.
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

// settle judges a reboot, now that everything written before it is known.
func (e *engine) settle(m moment, w *window) {
	if !e.windows[w] {
		return
	}
	e.now = m
	e.lookAt(w)
	delete(e.windows, w)
	n := e.node(w.Host)
	if t := n.turn; w.Kind == RebootCalled && t != nil && !slices.Contains(t.boots, w.BootID) {
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
