package v1alpha1

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OnTimeout is what follows when a hook or a drain is overdue.
type OnTimeout string

// What can follow.
const (
	// OnTimeoutWait: nothing; it is reported.
	OnTimeoutWait OnTimeout = "Wait"
	// OnTimeoutContinue: go on as if it had been confirmed. Not for drains.
	OnTimeoutContinue OnTimeout = "Continue"
	// OnTimeoutAbort: turn the node round. Not in before-uncordon.
	OnTimeoutAbort OnTimeout = "Abort"
	// OnTimeoutForce: delete the pods that are left. For drains only.
	OnTimeoutForce OnTimeout = "Force"
)

// Hook is other people's work that a stage waits for.
type Hook struct {
	Name      string          `json:"name"`
	Timeout   metav1.Duration `json:"timeout"`
	OnTimeout OnTimeout       `json:"onTimeout"`
}

// Terms are what a turn's course depends on. The grant records them, so that
// a turn ends by the terms it began with, whatever becomes of the policy.
type Terms struct {
	// Seen is how long a host may take to say that it knows of its turn.
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

	// Skip and Block are the pods that the drain leaves, and those that it waits
	// for and never evicts.
	Skip  []PodSelector `json:"skip,omitempty"`
	Block []PodSelector `json:"block,omitempty"`

	// OnClose is what becomes of the turn when its policy's windows close; "" is
	// OnCloseFinish.
	OnClose OnClose `json:"onClose,omitempty"`
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
	// Turn is the turn's id, the same as in AnnotationTurn.
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
	// OnlyNode: the turn has no drain because there was no other Node. A host
	// honors it only if its own process leads the term of Epoch.
	OnlyNode bool     `json:"onlyNode,omitempty"`
	Changes  []Change `json:"changes,omitempty"`
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
	// was frozen before, in the present stage. Time-outs do not count it.
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
	return g, nil
}

// Last is how a node's last turn ended, the value of [AnnotationLast].
type Last struct {
	Turn    string   `json:"turn"`
	Result  Result   `json:"result"`
	Reason  Reason   `json:"reason,omitempty"`
	Changes []Change `json:"changes,omitempty"`
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
	// HostDigest tells whether the host has written AnnotationHost anew
	// since, with Reason HostSilent only.
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
