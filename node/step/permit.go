package step

import (
	"cmp"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Since returns what the client asks for, if p is what it has asked this process for. As long as a
// client that asked the process before this one need not have asked again, what this boot has
// published counts.
func (p Permission) Since(published *v1alpha1.Host) Permission {
	if !p.Known && published != nil && v1alpha1.Has(published.Changes, v1alpha1.SourceFleetLock) {
		p.Asked = true
	}
	return p
}

// Permits reports whether the host has committed in this turn, in this boot, to let its FleetLock
// client reboot. Users of the host were warned before.
func (o *Observation) Permits() bool {
	return o.permitted() && o.Node.Host.BootID == o.Self.BootID
}

// permitted is Permits for any boot of the turn.
func (o *Observation) permitted() bool {
	h := o.Node.Host
	return h != nil && h.NodeUID == o.Node.UID && h.Permits != "" && h.Permits == o.Node.Turn
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
		return Decision{Waits: r, Detail: cmp.Or(detail, r.Doc().Means) + mayReboot}
	}
	if r, text := o.frozen(); r != "" {
		return wait(r, text)
	}
	if n.Grant.Drains && !n.Unschedulable {
		return wait(v1alpha1.ReasonUncordoned, "")
	}
	if o.Blocked != "" {
		return wait(o.Blocked, o.BlockedDetail)
	}
	if o.lacksDrain() {
		return wait(v1alpha1.ReasonPlanChanged, "")
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
	case d.Waits != "":
		d.Detail = wait(d.Waits, d.Detail).Detail
	}
	return d
}

const mayReboot = "; the FleetLock client may have permission from before, and reboot"
