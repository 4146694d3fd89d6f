package referee

// Rule is one promise; a [Violation] names the one that was broken.
type Rule string

// The rules. What each may demand, and why it is no more, is said here or next to its code.
const (
	// Budget: a node became disturbed when as many as the budget, or as its policy's, were already. Disturbed is a node with our mark, or in a turn
	// whose host has committed, until the turn ends. (A grant alone disturbs no one.) Where the budget was changed, the largest
	// since the oldest of these turns began counts.
	Budget Rule = "Budget"
	// Overgrant: a leader granted one more turn of its own term than the budget, or a policy's. It knows its own grants whatever its watch
	// shows, so no late write excuses it. Turns of other terms are not counted: it may not have seen them.
	Overgrant Rule = "Overgrant"
	// ControlPlane: a second control-plane node became disturbed.
	ControlPlane Rule = "ControlPlane"
	// Table: the state label moved as the table, under the turn's own plan and hooks, does not allow.
	Table Rule = "Table"
	// Grant: a node left idle without a turn and a grant that fit it, or in spite of a pause, a detach, managed=false or a
	// host that had not spoken; or the turn of a node in a turn was exchanged.
	Grant Rule = "Grant"
	// Epoch: a grant carries an epoch that no Lease ever named, or a turn was promoted by another epoch than its own (it may
	// be backed out by any).
	Epoch Rule = "Epoch"
	// Promotion: a state that ends by the host's word was left without it.
	Promotion Rule = "Promotion"
	// LateGrant: a stale leader's grant was neither backed out nor taken over although a leader had time to.
	LateGrant Rule = "LateGrant"
	// Stop: something went on under the emergency stop, longer than a look at the Lease may be old.
	Stop Rule = "Stop"

	// Commit: a commit (the cordon with the mark, or an ack committed) that its turn, state or boot did not ask for.
	Commit Rule = "Commit"
	// Fence: a commit or a reboot while the Lease named another epoch, or an old look at it.
	Fence Rule = "Fence"
	// Paused: a commit, eviction or reboot of a paused node; of one that an admin takes out, a commit.
	Paused Rule = "Paused"
	// Cancelled: a commit or a reboot for a want that was gone.
	Cancelled Rule = "Cancelled"
	// Drain: committed to an apply or a reboot, or rebooted, while evictable pods were on the node, or it was schedulable,
	// in a turn with a drain.
	Drain Rule = "Drain"
	// Reboot: a reboot was called without a commit of this turn in this boot.
	Reboot Rule = "Reboot"
	// RebootTwice: a second boot was ended in one turn.
	RebootTwice Rule = "RebootTwice"

	// Cordon: a node was cordoned without the mark, by no one that the test declared.
	Cordon Rule = "Cordon"
	// Mark: a cordon that stood before was marked; a mark went while the cordon stayed; a node reached idle, or lost our
	// labels, while the mark stood.
	Mark Rule = "Mark"
	// Uncordon: a cordon that is not ours was undone, or ours out of uncordoning or on a node that was not Ready.
	Uncordon Rule = "Uncordon"
	// LeftCordoned: a turn ended and left its own cordon.
	LeftCordoned Rule = "LeftCordoned"
	// Released: the write that took the state from a node that an admin has taken out left another key of ours, or no held that
	// says why; or something of ours was written to the Node after it, while it was taken out.
	Released Rule = "Released"

	// Evict: a pod was evicted from a node that was not committed to a drain, or a pod that no one may evict.
	Evict Rule = "Evict"

	// Gap: something may have been missed. A verdict without it is about everything that was written.
	Gap Rule = "Gap"
)

// Rules are all rules, in the order of their list.
func Rules() []Rule {
	return []Rule{
		Budget, Overgrant, ControlPlane, Table, Grant, Epoch, Promotion, LateGrant, Stop,
		Commit, Fence, Paused, Cancelled, Drain, Reboot, RebootTwice,
		Cordon, Mark, Uncordon, LeftCordoned, Released, Evict, Gap,
	}
}
