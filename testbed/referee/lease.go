package referee

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// leaseVersion is one version of the Lease. The zero value means that no Lease exists.
type leaseVersion struct {
	at      moment
	exists  bool
	holder  string
	stopped bool // the emergency stop is set, or no Lease exists
}

// onLease takes a version of the Lease. A nil obj means that the Lease does not exist.
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
		return // only a renewal
	}
	e.leases = append(e.leases, v)
	switch {
	case before.exists && !v.exists:
		e.logLine("", "the Lease was deleted: everything stops")
	case v.stopped && !before.stopped:
		e.logLine("", "the emergency stop is set: %s", obj.Annotations[v1alpha1.AnnotationStop])
	case !v.stopped && before.stopped && len(e.leases) > 1:
		e.logLine("", "the emergency stop is lifted")
	}
	switch {
	case v.holder == before.holder:
	case v.holder == "":
		e.logLine("", "the leader gave the Lease back")
	default:
		e.logLine("", "term %s begins", v.holder)
	}
	for _, n := range e.nodes {
		e.updateWindows(n)
	}
}

// lease returns the current version.
func (e *engine) lease() leaseVersion {
	if len(e.leases) == 0 {
		return leaseVersion{stopped: true}
	}
	return e.leases[len(e.leases)-1]
}

// holderSince returns the moment since which the current holder has held the Lease without a stop.
func (e *engine) holderSince() moment {
	last := e.lease()
	since := last.at
	for i := len(e.leases) - 1; i >= 0 && e.leases[i].holder == last.holder && !e.leases[i].stopped; i-- {
		since = e.leases[i].at
	}
	return since
}

// stoppedSince returns the moment since which the stop is set. ok is false if it is not set.
func (e *engine) stoppedSince() (since moment, ok bool) {
	for i := len(e.leases) - 1; i >= 0 && e.leases[i].stopped; i-- {
		since, ok = e.leases[i].at, true
	}
	return since, ok
}

// fence judges a commit that the host decided on the Node at revision read. The host read the Lease after that revision and before the commit, and no
// longer before the commit than actWithin. So one of the versions of the Lease in that interval must name the epoch without a stop, and must have
// been current at most actWithin ago. fence adds lag, because a fault may have delayed the commit's request.
func (e *engine) fence(n *node, epoch string, read int64) {
	var next moment // when the version at i was replaced
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
			break // older versions had been replaced when the Node was read
		}
		if i == 0 {
			return // the Node was read before the referee started, and the Lease of that time is unknown
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
		return "it has no holder"
	default:
		return "it names " + l.holder
	}
}
