package step

import (
	"cmp"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Since returns what the client asks for, if p is what it has asked this process for. known is
// false until a client that asked the process before this one must have asked again. Until then,
// what this boot has published counts.
func (p Permission) Since(known bool, published *v1alpha1.Host) Permission {
	if !known && published != nil && v1alpha1.Has(published.Changes, v1alpha1.SourceFleetLock) {
		p.Asked = true
	}
	return p
}

// permits reports whether the host has committed in this turn to let its FleetLock client reboot.
func (o *Observation) permits() bool {
	h := Published(&o.Node, o.Self.BootID)
	return h != nil && h.Permits != "" && h.Permits == o.Node.Turn
}

// permit answers the FleetLock client's request, in a turn that has committed to let it reboot.
//
// The client may already have an answer: this process may have died after it, or its predecessor
// may have sent it. So the host never refuses here, and the turn ends only by a boot. What the
// host can still do is to give no further answer, because the client asks again while it delays
// its reboot. So each answer needs the same reads as a reboot of the host's own.
func (o *Observation) permit() Decision {
	n := &o.Node
	wait := func(r v1alpha1.Reason, detail string) Decision {
		return Decision{Waits: r, Detail: cmp.Or(detail, r.Doc().Means) + "; the FleetLock client may have permission from before, and reboot"}
	}
	if r, text := o.frozen(); r != "" {
		return wait(r, text)
	}
	if n.Grant.Drains && !n.Unschedulable {
		return wait(v1alpha1.ReasonUncordoned, "")
	}
	if o.Blocked == v1alpha1.ReasonInhibited { // users were warned before the commit
		return wait(o.Blocked, o.BlockedDetail)
	}
	if !o.Permission.Open {
		return Decision{Waits: v1alpha1.ReasonFleetLock, Detail: "the FleetLock client to reboot this host"}
	}
	d, ok := o.check(DoReboot)
	switch {
	case ok:
		return Decision{Do: DoPermit, Detail: "the FleetLock client to reboot this host"}
	case d.Write != nil:
		return wait(d.Waits, "") // a refusal
	}
	return d
}
