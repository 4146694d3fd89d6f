package step

import (
	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// Observation is everything that a host knows at one moment. The node package
// fills it; nothing else is handed to [Step].
type Observation struct {
	// Node is the host's own Node: what the watch shows, overlaid by what the
	// host's own writes returned, or what was just read from the quorum. A
	// Node without a UID has not been seen yet.
	Node turn.Node

	// Self is what the host says of itself whatever its turn: version, boot,
	// OS. Step completes it with the Node's UID, veto, plan and managed.
	Self v1alpha1.Host
	// Info are the information labels, key to value; "" values are left out.
	Info map[string]string
	// ManagedByDefault is what an absent LabelManaged means on this host.
	ManagedByDefault bool
	// Veto is the host's own veto, or ""; VetoDetail is what a person would want
	// to know about it: which other reboot manager, and what switches it off.
	Veto       v1alpha1.Reason
	VetoDetail string

	// Own are the terms of the policy that applies to this host, as the host itself
	// reads it; nil while it has read none. The host does not carry out a grant in a
	// more disruptive way.
	Own *v1alpha1.Terms
	// Term is the epoch of the term that this process holds the Lease in, "" for none.
	Term string

	Sources Sources
	Drain   Drain
	Hooks   Work
	Apply   Work

	// Blocked is why logind would not, or should not yet, shut down: an
	// inhibitor, an open session, logind not answering. "" is nothing.
	Blocked       v1alpha1.Reason
	BlockedDetail string
	// Shutdown says whether a shutdown is under way on this host.
	Shutdown Shutdown
	// RebootError is logind's refusal of the call that this turn's commit
	// led to. "" is none.
	RebootError string

	Health Health

	// NoLeader says that the host has wanted something for long, has heard nothing,
	// and found that nobody leads, or that it may not look: NoCoordinator or
	// Forbidden. "" is neither.
	NoLeader       v1alpha1.Reason
	NoLeaderDetail string

	// Look is the last look at the Lease or, before a commit, at everything;
	// nil when there was none, or it is older than a look may be.
	Fresh *FreshRead
}

// Sources are the changes that the host's sources tell.
type Sources struct {
	// Complete reports that every source was read in this boot. Before that
	// what the host wants is not known, and it publishes nothing.
	Complete bool
	// Missing names the source that was not read, for the status.
	Missing string
	// Unconfirmed names the source whose earlier word alone makes Wants, or
	// Drains, as strong as it is, and which cannot be asked now, or the policies
	// that say what it costs: it is neither taken back nor committed to. "" is none.
	Unconfirmed string

	// Changes are those that cost something; HeldBack those to OS versions that
	// a policy holds back.
	Changes, HeldBack []v1alpha1.Change
	Wants             v1alpha1.Wants
	Drains            bool
	// Plan is what the changes cost and why, for people.
	Plan []string
	// Veto is why nothing of the plan may be committed, or ""; VetoDetail says
	// more.
	Veto       v1alpha1.Reason
	VetoDetail string
}

// Drain is what the eviction of the host's pods has come to since it was last
// started.
type Drain struct {
	Running  bool
	Complete bool // a moment came in which nothing evictable was left
	Detail   string
}

// Work is what the host's own hook units, or its plan's units, have come to
// in the present stage of the present turn.
type Work struct {
	Running bool
	// Late: it runs, and the host could not ask systemd in time for what comes next.
	// It may ask after another read. Only of hook units.
	Late   bool
	Done   bool
	Failed string // what failed; "" is nothing
	// Settling: it runs, and what it is for was taken as in effect already; whether it
	// has changed again is not known yet. Only of the plan's units.
	Settling bool
	// NeedsReboot: what the turn is for costs a reboot now, by rules that came since
	// it was granted. Only of the plan's units.
	NeedsReboot bool
	// ChangedAgain: it is done, and a change came meanwhile that makes it a failure, in
	// words. Only of the plan's units.
	ChangedAgain string
	// Due: what failed has rested, or a person said retry, and may run again.
	Due    bool
	Detail string // what runs
}

// Shutdown says whether the host is on its way down.
type Shutdown int

// The answers.
const (
	ShutdownUnknown Shutdown = iota // logind was not asked, or did not answer
	ShutdownNone
	ShutdownUnderway
)

// Health is what the host knows of itself after a boot.
type Health struct {
	Healthy bool
	Detail  string // what is missing
	// Overdue: it has had its time.
	Overdue bool
}

// Lease is what a look at the Lease showed.
type Lease struct {
	Exists bool
	Holder string
	// Stopped is set while the emergency stop is; StopText is why.
	Stopped  bool
	StopText string
}

// Look is a look at the cluster as it is, from the quorum.
type FreshRead struct {
	Lease Lease
	// Commit reports that this look was one for a commit: Observation.Node
	// was read first, the Lease after it, then the sources and the pods, all
	// in this order and at most 10 s of monotonic time ago. A look without
	// it was at the Lease alone.
	Commit bool
	// Evictable is how many pods a drain would still evict or wait for.
	Evictable int
}

// Effect is what a host does to itself while a decision stands.
type Effect string

// The effects.
const (
	DoNothing Effect = ""
	DoDrain   Effect = "drain"
	DoHooks   Effect = "hooks"
	DoApply   Effect = "apply"
	DoReboot  Effect = "reboot"
)

// Read is what has to be read before the next step can be taken.
type Read int

// What to read.
const (
	ReadNothing Read = iota
	// ReadLease: the Lease, from the quorum.
	ReadLease
	// ReadCommit: the own Node, then the Lease, both from the quorum, then
	// every source and the pods.
	ReadCommit
	// ReadShutdown: ask logind whether a shutdown is under way.
	ReadShutdown
)

// Decision is what a host does next. The order in which it is carried out:
// an effect that runs and is not Do is stopped; Read, and then Step again;
// otherwise Write, and then Step again; otherwise Do is started if it does
// not run, and the host waits for the observation to change.
type Decision struct {
	Read  Read
	Write *Write
	Do    Effect

	// Waits and Detail say what the host waits for, if it does.
	Waits  v1alpha1.Reason
	Detail string
	// Again asks for another look after about 10 s although nothing that the
	// host watches may change: a lifted stop changes no Node.
	Again bool
}

// Write is one patch of the host's own Node, sent with the resourceVersion of
// Observation.Node as its precondition.
type Write struct {
	// Labels and Annotations: a nil value removes the key.
	Labels      map[string]*string
	Annotations map[string]*string
	// Unschedulable, where not nil, is the new spec.unschedulable.
	Unschedulable *bool
	// Ack is the word in this write; the zero Ack if there is none.
	Ack v1alpha1.Ack
}

func (w *Write) empty() bool {
	return w == nil || len(w.Labels) == 0 && len(w.Annotations) == 0 && w.Unschedulable == nil
}

func (w *Write) setLabel(key string, value *string) {
	if w.Labels == nil {
		w.Labels = map[string]*string{}
	}
	w.Labels[key] = value
}

func (w *Write) setAnnotation(key string, value *string) {
	if w.Annotations == nil {
		w.Annotations = map[string]*string{}
	}
	w.Annotations[key] = value
}
