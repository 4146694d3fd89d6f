package referee

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// leaseVersion is one version of the Lease; the zero one: there is none.
type leaseVersion struct {
	at      moment
	exists  bool
	holder  string
	stopped bool // the emergency stop, or no Lease
}

// onLease takes a version of the Lease; nil: it was deleted, or is not there.
func (e *engine) onLease(m moment, obj *coordinationv1.Lease) {
	e.now = m
	if !e.first {
		e.report.LeaseEvents++
	}
	before := e.lease()
	v := leaseVersion{at: m, stopped: true}
	if obj != nil {
		v.exists = true
		_, v.stopped = obj.Annotations[v1alpha1.AnnotationStop]
		if obj.Spec.HolderIdentity != nil {
			v.holder = *obj.Spec.HolderIdentity
		}
	}
	if v.holder != "" {
		e.held[v.holder], e.terms[v.holder] = true, true
	}
	if len(e.leases) > 0 && v.exists == before.exists && v.holder == before.holder && v.stopped == before.stopped {
		return // a renewal
	}
	e.leases = append(e.leases, v)
	switch {
	case before.exists && !v.exists:
		e.say("", "the Lease was deleted: everything stops")
	case v.stopped && !before.stopped:
		e.say("", "the emergency stop is set: %s", obj.Annotations[v1alpha1.AnnotationStop])
	case !v.stopped && before.stopped && len(e.leases) > 1:
		e.say("", "the emergency stop is lifted")
	}
	switch {
	case v.holder == before.holder:
	case v.holder == "":
		e.say("", "the leader gave the Lease back")
	default:
		e.say("", "term %s begins", v.holder)
	}
	for _, n := range e.nodes {
		e.look(n)
	}
}

// lease is the present version.
func (e *engine) lease() leaseVersion {
	if len(e.leases) == 0 {
		return leaseVersion{stopped: true}
	}
	return e.leases[len(e.leases)-1]
}

// holderSince is since when the present holder has the Lease without a stop.
func (e *engine) holderSince() moment {
	last := e.lease()
	since := last.at
	for i := len(e.leases) - 1; i >= 0 && e.leases[i].holder == last.holder && !e.leases[i].stopped; i-- {
		since = e.leases[i].at
	}
	return since
}

// stoppedSince is since when the stop stands; ok is false when it does not.
func (e *engine) stoppedSince() (since moment, ok bool) {
	for i := len(e.leases) - 1; i >= 0 && e.leases[i].stopped; i-- {
		since, ok = e.leases[i].at, true
	}
	return since, ok
}

// fence judges a commit that was decided on the Node's version of revision read: the host read the Lease after that version
// was written and before the commit was, and not longer before it than an act may follow its reads. So one of the
// versions that were current in between named the epoch, without a stop, and was current at most that long ago. lag is
// added because the commit's request may have been held back on its way.
func (e *engine) fence(n *node, epoch string, read int64) {
	var next moment // when the version that is looked at was replaced
	for i := len(e.leases) - 1; i >= 0; i-- {
		l := &e.leases[i]
		if l.exists && !l.stopped && l.holder == epoch {
			if next != (moment{}) && e.now.elapsed(next) > actWithin+e.lag {
				e.breaks(Fence, n.name, "committed in the term %s at least %v after the Lease had ceased to allow it (%s)",
					epoch, e.now.elapsed(next).Round(time.Second), e.leaseText())
			}
			return
		}
		next = l.at
		if l.at.rev <= read {
			break // what was there before was over when the Node was read
		}
		if i == 0 {
			return // the Node was read before our time: nothing is known of the Lease then
		}
	}
	rule := Fence
	if e.lease().stopped {
		rule = Stop
	}
	e.breaks(rule, n.name, "committed in the term %s, which the Lease did not allow at any moment since the Node was read (%s)", epoch, e.leaseText())
}

func (e *engine) leaseText() string {
	switch l := e.lease(); {
	case !l.exists:
		return "there is no Lease"
	case l.stopped:
		return "the emergency stop is set"
	case l.holder == "":
		return "nobody holds it"
	default:
		return "it names " + l.holder
	}
}
