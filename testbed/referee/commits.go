package referee

import (
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

func hasCommittedAck(n *turn.Node) bool {
	return n.HasAck(n.State) && n.Ack.Report == v1alpha1.ReportCommitted
}

// acked judges the ack committed: the host's last step before it evicts, applies or reboots.
func (e *engine) acked(n *node, before, after *turn.Node) {
	if after.Ack == before.Ack || after.Ack.Report != v1alpha1.ReportCommitted {
		return
	}
	a := after.Ack
	switch {
	case a.State != v1alpha1.StateDraining && a.State != v1alpha1.StateRebooting && a.State != v1alpha1.StateApplying:
		e.breaks(Commit, n.name, "an ack %q: nothing is committed to in this state", a)
	case a.State != before.State || a.Turn != before.Turn || !before.Ours():
		e.breaks(Commit, n.name, "an ack %q, the node is %s in the turn %q", a, before.State, before.Turn)
	case a.BootID != before.BootID:
		e.breaks(Commit, n.name, "an ack %q, the kubelet speaks from the boot %s", a, before.BootID)
	case a.State != v1alpha1.StateDraining && a.BootID != before.Grant.BootID:
		e.breaks(Commit, n.name, "an ack %q, the grant is for the boot %s", a, before.Grant.BootID)
	case a.State == v1alpha1.StateDraining && !after.Unschedulable:
		e.breaks(Commit, n.name, "an ack %q, and the node is schedulable", a)
	default:
		e.committed(n, before, after)
	}
	if n.turn != nil {
		n.turn.committed = true
	}
}

// committed judges a commit of the current turn, state and boot. The host decided on the version before, so anything on that version that forbids a
// commit makes this commit wrong, no matter when the write lands. The host publishes what it wants in the same write or earlier.
func (e *engine) committed(n *node, before, after *turn.Node) {
	row, _ := turn.Find(before.State)
	needs := row.Needs
	if before.State == v1alpha1.StateApplying {
		needs = v1alpha1.WantsApply // a host that wants nothing refuses
	}
	switch {
	case before.Managed != nil && !*before.Managed, before.Detached != nil:
		e.breaks(Paused, n.name, "committed in %s on a node that an admin takes out", before.State)
	case before.Paused != nil:
		e.breaks(Paused, n.name, "committed in %s on a paused node", before.State)
	case !after.Wants.AtLeast(needs):
		e.breaks(Cancelled, n.name, "committed in %s, its host wants %q", before.State, after.Wants)
	}
	read := e.readFrom(n)
	e.fence(n, before.Grant.Epoch, read)
	e.besideKured(n, before.State)
	if before.State == v1alpha1.StateDraining {
		return
	}
	if !before.Grant.Drains {
		leads := strings.HasPrefix(e.lease().holder, n.name+"_") // a host believes its own process, if that leads
		alone := before.Grant.OnlyNode && (leads || e.olderNode(n, before.Grant.StartedAt) == "")
		if before.State == v1alpha1.StateRebooting && after.Host != nil && after.Host.Drains && !alone {
			e.breaks(Drain, n.name, "committed in rebooting without a drain, and its host's plan drains")
		}
		return
	}
	switch {
	case !before.Unschedulable:
		e.breaks(Drain, n.name, "committed in %s on a schedulable node", before.State)
	case n.evictable > 0 && n.nonzeroSince.rev <= read:
		// The node had evictable pods at every moment since the host read its Node, so the host's list of pods cannot have been empty.
		e.breaks(Drain, n.name, "committed in %s with %d evictable pods on the node (%s)", before.State, n.evictable, e.podsOn(n.name))
	}
}

// readFrom returns the revision of the oldest version of the Node that the host may have read for a commit that lands now. A host keeps its reads
// when it publishes something after them: the write's precondition excludes any other write in between. So the host may have read the version before
// its own write, but only if that version was still there when the reads may have begun.
func (e *engine) readFrom(n *node) int64 {
	i := len(n.versions) - 1
	for i > 0 && e.now.elapsed(n.versions[i]) <= actWithin+e.lag {
		i--
	}
	return n.versions[i].rev
}

// publishes reports whether a write changed what the host says on its Node, and nothing else.
func publishes(before, after *turn.Node) bool {
	said := func(n *turn.Node) []any { return []any{n.Wants, n.RawHost, n.Ack, n.Info} }
	rest := func(n turn.Node) turn.Node {
		n.Wants, n.Host, n.RawHost, n.Ack, n.Info = "", nil, "", v1alpha1.Ack{}, nil
		n.ResourceVersion, n.Labels = "", nil
		return n
	}
	return !reflect.DeepEqual(said(before), said(after)) && reflect.DeepEqual(rest(*before), rest(*after))
}

// olderNode returns another node that exists since before a time, or "".
func (e *engine) olderNode(n *node, t time.Time) string {
	for name, other := range e.nodes {
		if other != n && other.cur != nil && other.cur.Created.Before(t) {
			return name
		}
	}
	return ""
}

// cordoned judges changes of the cordon and of its mark.
func (e *engine) cordoned(n *node, before, after *turn.Node, managers []string) {
	cordons := !before.Unschedulable && after.Unschedulable
	marks := !before.Mark && after.Mark
	unmarks := before.Mark && !after.Mark
	switch {
	case cordons && marks:
		e.cordonCommit(n, before, after)
	case cordons && !slices.ContainsFunc(managers, e.admin):
		e.breaks(Cordon, n.name, "cordoned without the mark (by %s)", strings.Join(managers, ", "))
	case marks && before.Unschedulable && !after.Cordon.Ours():
		e.cordonCommit(n, before, after) // it only names exclusions
	case marks && before.Unschedulable:
		e.breaks(Mark, n.name, "a cordon that stood before was marked in %s", before.State)
	case marks:
		e.breaks(Mark, n.name, "marked in %s without a cordon", before.State)
	case before.Unschedulable && !after.Unschedulable:
		e.uncordoned(n, before, after)
	case unmarks && before.Cordon.Ours() && after.Unschedulable && before.Detached == nil:
		// Only a release may remove the mark and keep the cordon: the cordon then belongs to the new owner.
		e.breaks(Mark, n.name, "the mark was removed in %s and the cordon stayed", before.State)
	}
	if n.turn != nil {
		if cordons && marks {
			n.turn.committed, n.turn.ourCordon = true, true
		}
		if !after.Unschedulable || unmarks && before.Detached != nil {
			n.turn.ourCordon = false
		}
	}
}

// cordonCommit judges the commit of draining: one write with the cordon, the mark and the ack committed. acked checks that the ack is correct.
// cordonCommit checks that it is in this write.
func (e *engine) cordonCommit(n *node, before, after *turn.Node) {
	switch {
	case before.State != v1alpha1.StateDraining || !before.Ours():
		e.breaks(Commit, n.name, "cordoned and marked in %s (turn %q)", before.State, before.Turn)
	case after.Ack == before.Ack || !hasCommittedAck(after):
		e.breaks(Commit, n.name, "cordoned and marked without the ack committed (the ack is %q)", after.Ack)
	}
}

// uncordoned judges an uncordon. A host removes its own cordon and the mark in one write, in the state uncordoning, after it has read that
// the Node is Ready. An uncordon by an admin leaves the mark on the Node, or the Node had no mark. A test must declare that uncordon,
// because a Node does not record who removed a field.
func (e *engine) uncordoned(n *node, before, after *turn.Node) {
	switch {
	case !before.OwnCordon():
		e.breaks(Uncordon, n.name, "a cordon without our mark was undone in %s", before.State)
	case after.Mark:
		e.breaks(Uncordon, n.name, "uncordoned in %s, the mark left behind", before.State)
	case before.State != v1alpha1.StateUncordoning:
		e.breaks(Uncordon, n.name, "our cordon was undone in %s", before.State)
	case !before.Ready:
		e.breaks(Uncordon, n.name, "our cordon was undone on a node that is not Ready")
	case before.Paused != nil && (before.Managed == nil || *before.Managed):
		e.breaks(Paused, n.name, "our cordon was undone on a paused node")
	}
}

func (e *engine) admin(manager string) bool {
	return slices.ContainsFunc(e.admins, func(a string) bool { return a != "" && strings.HasPrefix(manager, a) })
}

// managersOf returns the field managers that own spec.unschedulable.
func managersOf(obj *corev1.Node) []string {
	var owners []string
	for _, f := range obj.ManagedFields {
		if f.FieldsV1 != nil && strings.Contains(string(f.FieldsV1.GetRawBytes()), `"f:unschedulable"`) {
			owners = append(owners, f.Manager)
		}
	}
	return owners
}

// logTransition writes a readable line about the transition.
func (e *engine) logTransition(before, after *turn.Node) {
	name := after.Name
	if before.State != after.State {
		id := after.Turn
		if id == "" {
			id = before.Turn
		}
		text := before.State.String() + " -> " + after.State.String()
		if id != "" {
			text += "  turn " + id
		}
		if g := after.Grant; g != nil && g.Result != "" {
			text += "  " + string(g.Result) + " " + string(g.Reason)
		}
		e.logLine(name, "%s", text)
	} else if epochOf(before) != epochOf(after) && after.InTurn() {
		e.logLine(name, "%s, taken over by %s", after.State, epochOf(after))
	}
	if before.Wants != after.Wants {
		e.logLine(name, "wants %s", orNothing(string(after.Wants)))
	}
	if before.Held != after.Held && after.Held != "" {
		e.logLine(name, "held: %s", after.Held)
	}
	if before.Ack != after.Ack && after.Ack.Turn != "" {
		word := string(after.Ack.Report)
		if after.Ack.Reason != "" {
			word += ":" + string(after.Ack.Reason)
		}
		e.logLine(name, "%s: the host says %s", after.Ack.State, word)
	}
	switch {
	case !before.Unschedulable && after.Unschedulable && after.Mark:
		e.logLine(name, "cordoned")
	case !before.Unschedulable && after.Unschedulable:
		e.logLine(name, "cordoned by a person")
	case before.Unschedulable && !after.Unschedulable:
		e.logLine(name, "uncordoned")
	}
	if before.BootID != after.BootID && after.BootID != "" {
		e.logLine(name, "its kubelet speaks from the boot %s", after.BootID)
	}
	if before.Ready != after.Ready {
		e.logLine(name, "%s", map[bool]string{true: "Ready", false: "not Ready"}[after.Ready])
	}
}

func orNothing(s string) string {
	if s == "" {
		return "(no word)"
	}
	return s
}
