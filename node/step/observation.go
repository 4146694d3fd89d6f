package step

import (
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// Observation is everything that a host knows at one moment. Package node fills it in.
// It is the only input of [Step].
type Observation struct {
	// Node is the host's own Node: from the watch, overlaid by what the host's own
	// writes returned, or just read from the quorum. Without a UID, the Node has not
	// been read yet.
	Node turn.Node

	// Self is the part of the host's record that does not depend on the turn: version,
	// boot, OS. Step adds the Node's UID, the veto, the plan and managed.
	Self v1alpha1.Host
	// ImageVersion is set if Self.OSVersion names an image, and so differs after each update.
	ImageVersion bool
	// Info holds the labels that are for information only. A value of "" means that
	// the label is absent.
	Info map[string]string
	// ManagedByDefault is what an absent LabelManaged means on this host.
	ManagedByDefault bool
	// Leaving is set once an admin of the host, or the removal of the package, has asked the
	// host to give its node up. The host is then not managed, even if LabelManaged is true:
	// no process will be there to take a turn.
	Leaving bool
	// Veto is the host's own veto, or "". VetoDetail explains it, for example which
	// other reboot manager is active and what switches it off.
	Veto       v1alpha1.Reason
	VetoDetail string

	// Now is the time by the host's clock, for its records.
	Now time.Time
	// EvictFrom is when the load balancers' delay is over; zero if it is, or if there is none.
	EvictFrom time.Time

	// Own holds the terms of the policy that applies to this host, as the host itself
	// read it; nil if it has read none. The host does not carry out a grant in a more
	// disruptive way than this.
	Own *v1alpha1.Terms
	// Term is the epoch of the term that this process leads, or "".
	Term string

	// Blocking are the pods that the drain must not evict; see [Observation.BlockingBy].
	Blocking Blocking

	Sources Sources
	Drain   Drain
	Hooks   Work
	Apply   Work

	// Blocked is why logind would not shut down, or should not yet: an inhibitor, an
	// open session, no answer from logind. "" means that nothing blocks.
	Blocked       v1alpha1.Reason
	BlockedDetail string
	// Shutdown says whether a shutdown is under way on this host.
	Shutdown Shutdown
	// Permission is what the host's FleetLock client asks for.
	Permission Permission
	// RebootError is logind's answer if it refused the reboot that this turn
	// committed to, or "".
	RebootError string

	Health Health

	// UnsettledRefusal is the report by which the host has refused, if the outcome of its write
	// is unknown and the Node still has the version that the write was based on. The write
	// may land at any time. Otherwise it is the zero Ack.
	UnsettledRefusal v1alpha1.Ack

	// NoLeader is NoCoordinator or Forbidden if the host has wanted something for a
	// long time, its Node has not changed, and it found that no instance leads or
	// that it may not read the Lease. Otherwise it is "".
	NoLeader       v1alpha1.Reason
	NoLeaderDetail string

	// Fresh is what was last read from the quorum; nil if nothing was, or if it is
	// too old to act on.
	Fresh *FreshRead
}

// Sources is what the host's sources of changes report.
type Sources struct {
	// Complete is set once every source was read in this boot. Before that, what the
	// host wants is unknown, and the host publishes nothing.
	Complete bool
	// Missing names a source that was not read.
	Missing string
	// Unconfirmed is set if Wants or Drains depends on an earlier report of a source
	// that cannot be read now, or on policies that cannot be read now. It names the
	// source. The want is then neither taken back nor committed to.
	Unconfirmed string
	// Passing is set if what is Unconfirmed need not be published, because it is usually over
	// soon: the API server was away, and the policies are about to be read again.
	Passing bool
	// Unreadable is which source cannot be read now, and why, or "": what changes there is unknown.
	// It is set even if the host wants nothing. Policies are not in it.
	Unreadable string

	// Changes are the changes that cost something. HeldBack are the changes to OS
	// versions that a policy holds back.
	Changes, HeldBack []v1alpha1.Change
	Wants             v1alpha1.Wants
	Drains            bool
	// Plan lists what the changes cost and why, for people.
	Plan []string
	// Steps are the actions of the plan, in order.
	Steps []v1alpha1.Action
	// Veto is why nothing of the plan may be committed, or "". VetoDetail explains
	// it.
	Veto       v1alpha1.Reason
	VetoDetail string
}

// Drain is the progress of the drain since it was last started.
type Drain struct {
	Running  bool
	Complete bool // at some moment no evictable pod was left
	Detail   string
}

// Work is the progress of the host's own hook units, or of its plan's units, in the
// present stage of the turn.
type Work struct {
	Running bool
	// Late is set if the work runs, and the fresh read became too old before the host
	// could start the next unit. The next unit needs another read. Only hook units
	// have it.
	Late   bool
	Done   bool
	Failed string // what failed; "" is nothing
	// ChangedAgain says what changed again during the work, so that the turn failed,
	// or is "". Only the plan's units have it.
	ChangedAgain string
	// Due is set if failed work may run again: its pause is over, or an admin set
	// retry.
	Due    bool
	Detail string // what runs
}

// Shutdown is whether the host is shutting down.
type Shutdown int

// The values of Shutdown.
const (
	ShutdownUnknown Shutdown = iota // logind was not asked, or did not answer
	ShutdownNone
	ShutdownUnderway
)

// Permission is what the FleetLock client on the host asks for: to be allowed to reboot it.
type Permission struct {
	// Asked is set from the client's first request until it withdraws it: it reports
	// steady-state, or does not ask again for some time.
	Asked bool
	// Known is set once a client that asked the process before this one must have asked again.
	Known bool
	// Open is set while a request waits for its answer. Only then can the client be permitted
	// anything.
	Open bool
}

// Health is what the host knows of its own health after a boot.
type Health struct {
	Healthy bool
	Detail  string // what is missing
	// Overdue is set once health.timeout has passed.
	Overdue bool
}

// Lease is the Lease as it was read.
type Lease struct {
	Exists bool
	Holder string
	// Renewed is when the holder renewed it last, and Duration for how long that is valid.
	Renewed  time.Time
	Duration time.Duration
	// Stopped reports whether the emergency stop is set. StopText is its reason.
	Stopped  bool
	StopText string
}

// FreshRead is what was read of the cluster, from the quorum.
type FreshRead struct {
	Lease Lease
	// Commit is set if the read was one for a commit: Observation.Node was read
	// first, then the Lease, then the sources and the pods, in this order and at most
	// 10 s of monotonic time ago. In before-uncordon, only the Node and the Lease were.
	// Otherwise only the Lease was read.
	Commit bool
	// Evictable is the number of pods that a drain would still evict or wait for.
	Evictable int
	// Blocked names those of them that the drain waits for and never evicts, or is "".
	Blocked string
}

// Effect is what a host does to itself until the next decision.
type Effect string

// The effects.
const (
	DoNothing Effect = ""
	DoDrain   Effect = "drain"
	DoHooks   Effect = "hooks"
	DoApply   Effect = "apply"
	DoReboot  Effect = "reboot"
	// DoPermit lets the FleetLock client reboot the host.
	DoPermit Effect = "permit"
)

// Read is what has to be read before the next step.
type Read int

// What to read.
const (
	ReadNothing Read = iota
	// ReadEviction: the host's own Node, then the Lease, both from the quorum.
	ReadEviction
	// ReadCommit: the host's own Node, then the Lease, both from the quorum, then
	// every source and the pods. In before-uncordon, only the Node and the Lease.
	ReadCommit
	// ReadShutdown: ask logind whether a shutdown is under way.
	ReadShutdown
)

// Decision is what a host does next. It is carried out in this order:
//
//  1. An effect that runs and is not Do is stopped.
//  2. If Read is set, the host reads, and calls Step again.
//  3. If Write is set, the host writes, and calls Step again.
//  4. Do is started unless it runs. The host waits until the observation changes.
type Decision struct {
	Read  Read
	Write *Write
	Do    Effect

	// Waits and Detail say what the host waits for, if it waits.
	Waits  v1alpha1.Reason
	Detail string
	// Again is set if the host has to read again after about 10 s, although nothing
	// that it watches may change. Lifting a stop, for example, changes no Node.
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
	// Ack is the ack in this write, or the zero Ack.
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
