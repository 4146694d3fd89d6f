package referee

// Rule is one safety property. A [Violation] names the rule that was broken.
type Rule string

// The rules. The comment here or at the rule's code explains what the rule may demand, and why it demands no more.
const (
	// Budget: a node became disturbed when the number of disturbed nodes had already reached the budget, or its policy's budget. A node is
	// disturbed if it has lockkeeper's mark, or if it is in a turn whose host has committed, until the turn ends. A grant alone disturbs
	// no node. If the budget changed, the largest budget since the start of the oldest of these turns counts.
	Budget Rule = "Budget"
	// Overgrant: a leader granted more turns of its own term than the budget, or a policy's budget, allows. A leader knows its own grants even if its
	// watch is behind, so a late write is no excuse. Turns of other terms do not count, because the leader may not have seen them.
	Overgrant Rule = "Overgrant"
	// ControlPlane: a second control-plane node became disturbed.
	ControlPlane Rule = "ControlPlane"
	// Table: the state label changed in a way that the table does not allow under the turn's own plan and hooks.
	Table Rule = "Table"
	// Grant: a node left idle without a turn and a matching grant, or despite a pause, a detach, managed=false or a host that had not reported; or
	// the turn of a node in a turn was replaced.
	Grant Rule = "Grant"
	// Epoch: a grant has an epoch that the Lease never named, or an epoch other than the turn's own promoted the turn. (Any epoch may back
	// it out.)
	Epoch Rule = "Epoch"
	// Promotion: a state that only the host's report ends was left without that report, or rebooting on a node that was not Ready.
	Promotion Rule = "Promotion"
	// LateGrant: a stale leader's grant was neither backed out nor taken over although a leader had time to do it.
	LateGrant Rule = "LateGrant"
	// Stop: a host or a leader continued during the emergency stop for longer than a read of the Lease may be old.
	Stop Rule = "Stop"
	// Overdue: a leader called a turn overdue, or backed it out for that, although its stage had not lasted for its timeout; or it did not, although
	// the stage had lasted for its longest timeout ([Options.Late]). The time of stops and pauses and the time without a leader do not count.
	Overdue Rule = "Overdue"

	// Commit: a commit (the cordon with the mark, or the ack committed) that its turn, state or boot did not require.
	Commit Rule = "Commit"
	// Fence: a commit or a reboot while the Lease named another epoch, or after a read of the Lease that was too old.
	Fence Rule = "Fence"
	// Paused: a commit, an eviction or a reboot of a paused node; or a commit of a node that an admin takes out.
	Paused Rule = "Paused"
	// Cancelled: a commit or a reboot for a want that no longer existed.
	Cancelled Rule = "Cancelled"
	// Drain: in a turn with a drain, a host committed to an apply or a reboot, or rebooted, while evictable pods were on the node or the node was
	// schedulable.
	Drain Rule = "Drain"
	// Reboot: a host called for a reboot without a commit of this turn in this boot.
	Reboot Rule = "Reboot"
	// RebootTwice: one turn ended two boots.
	RebootTwice Rule = "RebootTwice"

	// Cordon: a node was cordoned without the mark, and no test had declared the cordon.
	Cordon Rule = "Cordon"
	// Mark: a cordon that already existed was marked; the mark was removed while the cordon stayed; or a node reached idle, or lost lockkeeper's
	// labels, while the mark was set.
	Mark Rule = "Mark"
	// Uncordon: a foreign cordon was removed, or lockkeeper's own cordon was removed outside of uncordoning or on a node that was not Ready.
	Uncordon Rule = "Uncordon"
	// LeftCordoned: a turn ended and left its own cordon.
	LeftCordoned Rule = "LeftCordoned"
	// Exclusion: a host changed a label or an annotation for another program that its mark does not name, claimed one that was there before, or left
	// one of its own when it removed the mark.
	Exclusion Rule = "Exclusion"
	// Released: an admin had taken the node out, and the write that removed the state left another of lockkeeper's keys or no matching held reason;
	// or lockkeeper wrote to the Node after the release, while it was taken out.
	Released Rule = "Released"

	// Evict: a pod was evicted from a node that was not committed to a drain, or the pod was one that no drain may evict.
	Evict Rule = "Evict"

	// Gap: the referee may have missed a write. A verdict without Gap covers everything that was written.
	Gap Rule = "Gap"
)

// Rules returns all rules in the order of the list above.
func Rules() []Rule {
	return []Rule{
		Budget, Overgrant, ControlPlane, Table, Grant, Epoch, Promotion, LateGrant, Stop, Overdue,
		Commit, Fence, Paused, Cancelled, Drain, Reboot, RebootTwice,
		Cordon, Mark, Uncordon, LeftCordoned, Exclusion, Released, Evict, Gap,
	}
}
