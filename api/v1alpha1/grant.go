package v1alpha1

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OnTimeout is what happens when a hook or a drain is overdue.
type OnTimeout string

// The values of OnTimeout.
const (
	// OnTimeoutWait: the coordinator reports it and waits.
	OnTimeoutWait OnTimeout = "Wait"
	// OnTimeoutContinue: continue as if it had been confirmed. Not for drains.
	OnTimeoutContinue OnTimeout = "Continue"
	// OnTimeoutAbort: back the turn out. Not in before-uncordon.
	OnTimeoutAbort OnTimeout = "Abort"
	// OnTimeoutForce: delete the pods that are left. For drains only.
	OnTimeoutForce OnTimeout = "Force"
)

// Hook is the work of another program that a stage waits for.
type Hook struct {
	Name      string          `json:"name"`
	Timeout   metav1.Duration `json:"timeout"`
	OnTimeout OnTimeout       `json:"onTimeout"`
}

// Terms are the settings of a policy that a turn depends on. The grant records them, so
// that a turn ends by the terms that it began with, even if the policy changes.
type Terms struct {
	// Seen is how long a host may take to report that it has seen its turn.
	Seen metav1.Duration `json:"seen"`

	Draining     metav1.Duration `json:"draining"`
	DrainTimeout OnTimeout       `json:"drainOnTimeout"` // Wait, Abort or Force
	Rebooting    metav1.Duration `json:"rebooting"`
	Applying     metav1.Duration `json:"applying"`
	// HostHooks is how long the host's own hook units may take in a stage.
	HostHooks   metav1.Duration `json:"hostHooks"`
	Uncordoning metav1.Duration `json:"uncordoning"`

	BeforeDrain    []Hook `json:"beforeDrain,omitempty"`
	BeforeReboot   []Hook `json:"beforeReboot,omitempty"`
	BeforeUncordon []Hook `json:"beforeUncordon,omitempty"`
	// WaitForVolumeDetach: before-reboot waits until no volume is attached.
	WaitForVolumeDetach bool `json:"waitForVolumeDetach,omitempty"`

	// PodRules are the pods that the drain does not simply evict.
	PodRules
	// BlockTimeout is for how long pods may block before OnBlockTimeout applies; 0 is
	// indefinitely. OnBlockTimeout "" is Hold.
	BlockTimeout   metav1.Duration `json:"blockTimeout,omitzero"`
	OnBlockTimeout OnBlockTimeout  `json:"onBlockTimeout,omitempty"`
	// Exclusions are what the turn sets on its Node for other programs. Without
	// ExcludeFromLoadBalancers, its delay is 0.
	Exclusions

	// OnClose is what happens to the turn when the policy's windows close; "" is
	// OnCloseFinish.
	OnClose OnClose `json:"onClose,omitempty"`
}

// WithoutBlock returns the rules of a drain in which no pod blocks.
func (r PodRules) WithoutBlock() PodRules {
	r.Block = nil
	if r.Unmanaged == PodBlock {
		r.Unmanaged = PodEvict
	}
	if r.EmptyDir == PodBlock {
		r.EmptyDir = PodEvict
	}
	return r
}

// BlockLimit returns for how long pods may block a node before its next turn evicts them, or 0
// if they may block indefinitely.
func (t *Terms) BlockLimit() time.Duration {
	if t.OnBlockTimeout != OnBlockTimeoutEvict {
		return 0
	}
	return t.BlockTimeout.Duration
}

// Hooks are the hooks that the stage waits for; none in other states.
func (t *Terms) Hooks(stage State) []Hook {
	switch stage {
	case StateBeforeDrain:
		return t.BeforeDrain
	case StateBeforeReboot:
		return t.BeforeReboot
	case StateBeforeUncordon:
		return t.BeforeUncordon
	}
	return nil
}

// Limit is how long the state may take before it is overdue; 0 for the hook
// stages, whose hooks have their own, and outside a turn.
func (t *Terms) Limit(s State) time.Duration {
	switch s {
	case StateDraining:
		return t.Draining.Duration
	case StateRebooting:
		return t.Rebooting.Duration
	case StateApplying:
		return t.Applying.Duration
	case StateUncordoning:
		return t.Uncordoning.Duration
	}
	return 0
}

// Grant is the coordinator's record of a node's present turn, the value of
// [AnnotationGrant]. The host checks it before every commit.
type Grant struct {
	// Turn is the turn's ID, the same as in AnnotationTurn.
	Turn string `json:"turn"`
	// Epoch is the term of the leader that granted the turn or took it over:
	// the Lease's holderIdentity. A host commits only while the Lease names
	// it.
	Epoch string `json:"epoch"`
	// NodeUID is the Node's metadata.uid. A turn belongs to one Node object.
	NodeUID string `json:"nodeUID"`
	// BootID is the boot that the turn was granted in and, from the promotion
	// to rebooting on, the boot that the reboot is to end.
	BootID string `json:"bootID"`

	Wants  Wants `json:"wants"`
	Drains bool  `json:"drains"`
	// Force: draining is overdue, and Terms.DrainTimeout is Force. The host
	// deletes the pods that it could not evict.
	Force bool `json:"force,omitempty"`
	// BlockOff: no pod blocks the drain of this turn, because pods have blocked the node for
	// longer than the policy allows. A host honors it only if its own record and its own
	// policy say so too.
	BlockOff bool `json:"blockOff,omitempty"`
	// OnlyNode: the turn has no drain because there was no other Node. A host
	// honors it only if its own process leads the term of Epoch.
	OnlyNode bool     `json:"onlyNode,omitempty"`
	Changes  []Change `json:"changes,omitempty"`
	// Request is the request that is one of the changes; nil if none is. If its Now is set,
	// the turn did not wait for windows, gates and the settle time.
	Request *Request `json:"request,omitempty"`
	// Requests are the annotations that the turn carries out. The end of the turn removes those that
	// have not changed since.
	Requests Requests `json:"requests,omitzero"`
	// Steps is the [StepsDigest] of the host's steps that the coordinator decided on.
	Steps string `json:"steps,omitempty"`
	// OSVersion is the OS version left, if one of the changes is an OS update.
	OSVersion string `json:"osVersion,omitempty"`

	Policy     string `json:"policy"`
	Generation int64  `json:"generation,omitempty"`
	Terms      Terms  `json:"terms"`

	// StartedAt and StageAt are when the turn and its present stage began, by
	// the coordinator's clock.
	StartedAt time.Time `json:"startedAt"`
	StageAt   time.Time `json:"stageAt"`
	// PausedSince is set while the turn is frozen; PausedFor is how long it
	// was frozen before, in the present stage. Timeouts do not count it.
	PausedSince *time.Time      `json:"pausedSince,omitempty"`
	PausedFor   metav1.Duration `json:"pausedFor,omitzero"`

	// Result and Reason are known as soon as the turn is backed out.
	Result Result `json:"result,omitempty"`
	Reason Reason `json:"reason,omitempty"`
}

// ParseGrant reads the annotation's value; "" is no Grant and no error.
func ParseGrant(s string) (*Grant, error) {
	g, err := parseRecord[Grant](s)
	if g == nil || err != nil {
		return nil, err
	}
	for _, id := range []struct{ field, value string }{
		{"turn", g.Turn}, {"epoch", g.Epoch}, {"nodeUID", g.NodeUID},
	} {
		if err := ValidateID(id.value); err != nil {
			return nil, fmt.Errorf("%s: %w", id.field, err)
		}
	}
	if !g.Wants.Known() {
		return nil, fmt.Errorf("wants: %q, expected nothing, apply, drain or reboot", clip(string(g.Wants)))
	}
	// Shells complete these names, and messages have them in commands. No schema checks a grant.
	for _, stage := range []State{StateBeforeDrain, StateBeforeReboot, StateBeforeUncordon} {
		for _, h := range g.Terms.Hooks(stage) {
			if err := ValidateHookName(h.Name); err != nil {
				return nil, fmt.Errorf("terms: %s: %w", stage, err)
			}
		}
	}
	return g, nil
}

// Last is how a node's last turn ended, the value of [AnnotationLast].
type Last struct {
	Turn    string   `json:"turn"`
	Result  Result   `json:"result"`
	Reason  Reason   `json:"reason,omitempty"`
	Changes []Change `json:"changes,omitempty"`
	// Request is the grant's.
	Request *Request `json:"request,omitempty"`
	// End is when the turn ended, by the coordinator's clock.
	End time.Time `json:"end"`
	// NotBefore is the earliest time of the next grant after BackedOut, and
	// Attempts how many turns were backed out since the last that was Done
	// or was for other changes; the delay doubles with each.
	NotBefore *time.Time `json:"notBefore,omitempty"`
	Attempts  int        `json:"attempts,omitempty"`
	// Turns are the times at which the node's turns of the last 24 hours began, by
	// the coordinator's clock, oldest first; at most MaxTurnsPerDay. A turn that only
	// removed a lost cordon is one of them.
	Turns []time.Time `json:"turns,omitempty"`
	// HostDigest is a digest of AnnotationHost at the end of the turn, set only with
	// Reason HostSilent. It shows whether the host has written the annotation since.
	HostDigest string `json:"hostDigest,omitempty"`
}

// ParseLast reads the annotation's value; "" is no Last and no error.
func ParseLast(s string) (*Last, error) {
	l, err := parseRecord[Last](s)
	if l == nil || err != nil {
		return nil, err
	}
	switch l.Result {
	case ResultDone, ResultCancelled, ResultBackedOut, ResultFailed:
	default:
		return nil, fmt.Errorf("result: %q, expected Done, Cancelled, BackedOut or Failed", clip(string(l.Result)))
	}
	if l.Attempts < 0 {
		return nil, fmt.Errorf("attempts: %d, expected 0 or more", l.Attempts)
	}
	return l, nil
}

// Report is what a host reports about the state that it is in; see [Ack].
type Report string

// The reports.
const (
	// ReportSeen: the host has seen the turn. It reports this at once in the first
	// state of a turn; a host that does not is silent.
	ReportSeen Report = "seen"
	// ReportCommitted: the host's last step before a disruption. In rebooting and
	// applying, the turn is not backed out after it.
	ReportCommitted Report = "committed"
	// ReportDone: the host has done what the state requires.
	ReportDone Report = "done"
	// ReportRefused: the host refuses to do it and has not done it; a reason follows.
	ReportRefused Report = "refused"
	// ReportFailed: the host did it, and it did not work; a reason follows.
	ReportFailed Report = "failed"
)

// Ack is a host's report on the state that it is in, the value of [AnnotationAck]:
//
//	<turn>/<boot id>/<state>/<report>
//
// where report is "seen", "committed", "done", "refused:<Reason>" or
// "failed:<Reason>". It is tied to the turn and to the boot in which the host wrote it.
// A report on another turn, or from a boot that is not the Node's
// status.nodeInfo.bootID, does not advance a turn.
type Ack struct {
	Turn   string // the turn's ID
	BootID string // the boot in which the host wrote it
	State  State  // the state that it is about
	Report Report
	Reason Reason // with ReportRefused and ReportFailed only
}

// String returns the annotation's value, or "" for the zero Ack.
func (a Ack) String() string {
	if a == (Ack{}) {
		return ""
	}
	s := a.Turn + "/" + a.BootID + "/" + string(a.State) + "/" + string(a.Report)
	if a.Report == ReportRefused || a.Report == ReportFailed {
		s += ":" + string(a.Reason)
	}
	return s
}

// ParseAck reads the annotation's value. "" is the zero Ack. The error names
// the part that is wrong; the caller continues as if there were no annotation.
func ParseAck(s string) (Ack, error) {
	if s == "" {
		return Ack{}, nil
	}
	parts := strings.Split(s, "/")
	if len(parts) != 4 {
		return Ack{}, fmt.Errorf("%d parts in %q, expected <turn>/<boot id>/<state>/<report>", len(parts), clip(s))
	}
	report, reason, hasReason := strings.Cut(parts[3], ":")
	a := Ack{Turn: parts[0], BootID: parts[1], State: State(parts[2]), Report: Report(report), Reason: Reason(reason)}
	if err := ValidateID(a.Turn); err != nil {
		return Ack{}, fmt.Errorf("turn: %w", err)
	}
	if err := ValidateID(a.BootID); err != nil {
		return Ack{}, fmt.Errorf("boot id: %w", err)
	}
	if !a.State.Known() || !a.State.InTurn() {
		return Ack{}, fmt.Errorf("%q is not a state of a turn", clip(parts[2]))
	}
	switch a.Report {
	case ReportSeen, ReportCommitted, ReportDone:
		if hasReason {
			return Ack{}, fmt.Errorf("the report %q has no reason", a.Report)
		}
	case ReportRefused, ReportFailed:
		if !a.Reason.Valid() {
			return Ack{}, fmt.Errorf("the report %q needs a CamelCase reason, not %q", a.Report, clip(reason))
		}
	default:
		return Ack{}, fmt.Errorf("%q is not a report; expected seen, committed, done, refused:<Reason> or failed:<Reason>", clip(report))
	}
	return a, nil
}

// maxIDLength bounds a turn's ID, a boot ID, a Node UID and an epoch, in bytes.
// An epoch begins with a Node's name, of up to 253.
const maxIDLength = 320

// ValidateID returns what is wrong with an ID (of a turn, a boot, a Node, or an epoch), or
// nil. An ID has 1 to 320 of [A-Za-z0-9_.-].
func ValidateID(id string) error {
	if id == "" {
		return fmt.Errorf("empty, expected an id")
	}
	if len(id) > maxIDLength {
		return fmt.Errorf("%d bytes, expected at most %d", len(id), maxIDLength)
	}
	for i := range len(id) {
		if c := id[i]; !alphanumeric(c) && c != '-' && c != '_' && c != '.' {
			return fmt.Errorf("%q holds %q, expected letters, digits, '-', '_' and '.'", id, c)
		}
	}
	return nil
}

// clip shortens input that an error quotes with %q, to at most 80 bytes of it.
func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "…"
	}
	return s
}

// SlotUse is why a node counts as unavailable, and so takes a slot of the
// budgets (maxUnavailable and maxUnavailableTotal). It is a label's value in
// metrics and a field's in `lockkeeper status -o json`.
type SlotUse string

// Why a node takes a slot. A node has the first that is true of it.
const (
	// SlotUnsettled: the outcome of a write to the node is not known.
	SlotUnsettled SlotUse = "Unsettled"
	// SlotFailed: its turn failed or is overdue, and is not over.
	SlotFailed SlotUse = "Failed"
	// SlotInTurn: it is in a turn, or has a cordon of lockkeeper's.
	SlotInTurn SlotUse = "InTurn"
	// SlotDeleted: it is managed and in no turn, and another program deletes it.
	SlotDeleted SlotUse = "Deleted"
	// SlotNotReady: it is managed and in no turn, and its Ready condition is not
	// True.
	SlotNotReady SlotUse = "NotReady"
	// SlotCordoned: it is managed and in no turn, and someone else cordoned it.
	SlotCordoned SlotUse = "Cordoned"
)

// SlotUses are all uses, those first that end only when someone acts.
func SlotUses() []SlotUse {
	return []SlotUse{SlotCordoned, SlotFailed, SlotDeleted, SlotNotReady, SlotUnsettled, SlotInTurn}
}

// slotUses names all uses, for a document.
func slotUses() string {
	var all []string
	for _, u := range SlotUses() {
		all = append(all, string(u))
	}
	return strings.Join(all, ", ")
}

// Means returns the end of a sentence that begins with the node's name, and "" for an
// unknown use.
func (u SlotUse) Means() string {
	switch u {
	case SlotUnsettled:
		return "has a write whose outcome is not known"
	case SlotFailed:
		return "failed in its turn"
	case SlotInTurn:
		return "is in its turn"
	case SlotDeleted:
		return "is being deleted"
	case SlotNotReady:
		return "is not Ready"
	case SlotCordoned:
		return "is cordoned by another owner"
	}
	return ""
}
