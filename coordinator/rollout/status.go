package rollout

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// Reasons of a policy's conditions that are not reasons of nodes.
const (
	// ConditionReasonValid: of Valid, when it is true.
	ConditionReasonValid = "Valid"
	// ConditionReasonWithin: of Halted, when it is false.
	ConditionReasonWithin = "WithinMaxFailed"
	// ConditionReasonInTurn, ConditionReasonSettling: of Progressing, when it is
	// true.
	ConditionReasonInTurn   = "InTurn"
	ConditionReasonSettling = "Settling"
	// ConditionReasonUpToDate, ConditionReasonNoNodes: of Progressing, when it is
	// false and nothing is wrong.
	ConditionReasonUpToDate = "UpToDate"
	ConditionReasonNoNodes  = "NoNodes"
	// ConditionReasonRulesOnly: of Progressing, when it is false because the policy
	// decides no rollout.
	ConditionReasonRulesOnly = "RulesOnly"
)

const (
	maxProblems       = 10 // that a status names
	maxEffectiveRules = 100
	// maxMessage bounds a condition's message, in bytes. The text of a pause may be longer
	// than the 32 KiB that the API server accepts, and then the status would never be
	// written.
	maxMessage = 4 << 10
)

// Status returns the status of the policy that f is about. was is its present status: a
// condition that stays the same keeps its time. While nothing happens, the status does not
// change.
func Status(f *PolicyFigures, was v1alpha1.DisruptionPolicyStatus, now time.Time) v1alpha1.DisruptionPolicyStatus {
	s := v1alpha1.DisruptionPolicyStatus{
		ObservedGeneration: f.Generation,
		Nodes: v1alpha1.PolicyNodes{
			Selected: int32(f.Selected), UpToDate: int32(f.UpToDate), Wanting: int32(f.Wanting), InTurn: int32(f.InTurn),
			Unavailable: int32(f.Unavailable), Failed: int32(f.Failed), Allowed: int32(f.Allowed),
		},
		EffectiveRules: f.effectiveRules(),
	}
	for _, c := range []metav1.Condition{f.valid(), f.progressing(), f.haltedCondition()} {
		c.ObservedGeneration, c.LastTransitionTime = f.Generation, metav1.NewTime(now.UTC().Truncate(time.Second))
		for _, old := range was.Conditions {
			if old.Type == c.Type && old.Status == c.Status && !old.LastTransitionTime.IsZero() {
				c.LastTransitionTime = old.LastTransitionTime
			}
		}
		s.Conditions = append(s.Conditions, c)
	}
	return s
}

func condition(kind string, is bool, reason, format string, args ...any) metav1.Condition {
	message := fmt.Sprintf(format, args...)
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage-len("…")], "") + "…"
	}
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	if is {
		c.Status = metav1.ConditionTrue
	}
	return c
}

func (f *PolicyFigures) valid() metav1.Condition {
	if len(f.Problems) == 0 {
		return condition(v1alpha1.ConditionValid, true, ConditionReasonValid, "the policy can be understood")
	}
	var parts []string
	for _, p := range f.Problems[:min(len(f.Problems), maxProblems)] {
		parts = append(parts, p.String())
	}
	if more := len(f.Problems) - maxProblems; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return condition(v1alpha1.ConditionValid, false, string(v1alpha1.ReasonInvalidPolicy), "%s", strings.Join(parts, "; "))
}

func (f *PolicyFigures) haltedCondition() metav1.Condition {
	if !f.Halted {
		return condition(v1alpha1.ConditionHalted, false, ConditionReasonWithin, "%d failed, %d allowed", f.Failed, f.MaxFailed)
	}
	return condition(v1alpha1.ConditionHalted, true, string(v1alpha1.ReasonHalted),
		"%d failed, %d allowed; nothing is granted until `lockkeeper retry NODE` has cleared %d of them", f.Failed, f.MaxFailed, f.Failed-f.MaxFailed)
}

func (f *PolicyFigures) progressing() metav1.Condition {
	is := func(yes bool, reason, format string, args ...any) metav1.Condition {
		return condition(v1alpha1.ConditionProgressing, yes, reason, format, args...)
	}
	switch {
	case f.RulesOnly:
		return is(false, ConditionReasonRulesOnly, "the policy adds rules and decides no rollout")
	case f.Moving > 0:
		return is(true, ConditionReasonInTurn, "%d of %d nodes that want something are in a turn, %d unavailable, %d allowed", f.InTurn, f.Wanting, f.Unavailable, f.Allowed)
	case f.Wanting == 0 && f.Selected == 0:
		return is(false, ConditionReasonNoNodes, "the policy decides about no managed node")
	case f.Wanting == 0:
		return is(false, ConditionReasonUpToDate, "no node wants anything")
	}
	reason := f.leading()
	switch held := f.Held[reason]; {
	case reason == v1alpha1.ReasonNone: // nodes that want something wait for the next decision
		return is(true, ConditionReasonInTurn, "%d want something", f.Wanting)
	case reason == v1alpha1.ReasonBudget && !f.Settling.IsZero():
		return is(true, ConditionReasonSettling, "%d wait until the nodes have settled after the last turn", held)
	case reason == v1alpha1.ReasonBudget:
		return is(false, string(reason), "%d wait: %s", held, strings.TrimPrefix(f.Details[reason], "policy "+f.Name+": "))
	default:
		return is(false, string(reason), "%d held: %s", held, cmp.Or(f.Details[reason], reason.Doc().Means))
	}
}

// leading returns the reason that holds all of the policy's nodes or, if there is none, the
// reason that holds most of them.
func (f *PolicyFigures) leading() v1alpha1.Reason {
	for _, r := range []struct {
		reason v1alpha1.Reason
		all    bool
	}{
		{v1alpha1.ReasonStopped, true}, {v1alpha1.ReasonInvalidPolicy, len(f.Problems) > 0}, {v1alpha1.ReasonHalted, f.Halted},
		{v1alpha1.ReasonPaused, f.Paused}, {v1alpha1.ReasonWouldGrant, true},
	} {
		if r.all && f.Held[r.reason] > 0 {
			return r.reason
		}
	}
	most := v1alpha1.ReasonNone
	for _, reason := range slices.Sorted(maps.Keys(f.Held)) {
		if most == v1alpha1.ReasonNone || f.Held[reason] > f.Held[most] {
			most = reason
		}
	}
	return most
}

// effectiveRules returns the rules in force on the policy's nodes. For a policy with
// rulesOnly, it returns those of its own rules that are in force.
func (f *PolicyFigures) effectiveRules() []v1alpha1.EffectiveRule {
	byKey := map[string]*v1alpha1.EffectiveRule{}
	for _, m := range f.Matches {
		for _, r := range m.Rules() {
			if f.RulesOnly && r.Policy != f.Name {
				continue
			}
			key := policy.Key(&r.Rule)
			e := byKey[key+"\x00"+r.Policy]
			if e == nil {
				e = &v1alpha1.EffectiveRule{Key: key, Policy: r.Policy, Actions: policy.Costs(&r.Rule)}
				byKey[key+"\x00"+r.Policy] = e
			}
			e.Nodes += int32(m.Nodes)
		}
	}
	var all []v1alpha1.EffectiveRule
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		all = append(all, *byKey[key])
	}
	return all[:min(len(all), maxEffectiveRules)]
}
