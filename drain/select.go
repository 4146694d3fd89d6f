package drain

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Reasons of the verdicts of a [Policy] that [Selecting] returns, in addition to [Unmanaged].
const (
	// SkippedByPolicy: the pod stays because a selector skips it.
	SkippedByPolicy Reason = "SkippedByPolicy"
	// BlockedByPolicy: the drain waits for the pod and never evicts it, because a selector
	// blocks it.
	BlockedByPolicy Reason = "BlockedByPolicy"
	// EmptyDir: the pod has emptyDir volumes, whose data an eviction deletes.
	EmptyDir Reason = "EmptyDir"
)

// Selecting returns a Policy that waits for the pods that one of the rules blocks, and leaves
// the pods on the node that all rules skip; nil if no rule says anything.
func Selecting(rules ...v1alpha1.PodRules) Policy {
	var verdicts []func(*corev1.Pod, Verdict) Verdict
	silent := true
	for i := range rules {
		r := &rules[i]
		silent = silent && len(r.Block)+len(r.Skip) == 0 && evicts(r.Unmanaged) && evicts(r.EmptyDir)
		verdicts = append(verdicts, verdictBy(r))
	}
	if silent {
		return nil
	}
	return func(p *corev1.Pod, v Verdict) Verdict {
		var skipped Verdict
		evicted := false
		for _, verdict := range verdicts {
			switch own := verdict(p, v); own.Class {
			case Block:
				return own
			case Leave:
				skipped = own
			default:
				evicted = true
			}
		}
		if evicted {
			return v
		}
		return skipped
	}
}

func evicts(r v1alpha1.PodRule) bool { return r == "" || r == v1alpha1.PodEvict }

// verdictBy returns what rules say about a pod whose verdict would be v without them.
func verdictBy(rules *v1alpha1.PodRules) func(p *corev1.Pod, v Verdict) Verdict {
	blocks, skips := podMatch(rules.Block), podMatch(rules.Skip)
	return func(p *corev1.Pod, v Verdict) Verdict {
		switch unmanaged, emptyDir := metav1.GetControllerOfNoCopy(p) == nil, hasEmptyDir(p); {
		case blocks(p):
			return Verdict{Block, BlockedByPolicy}
		case skips(p):
			return Verdict{Leave, SkippedByPolicy}
		case unmanaged && rules.Unmanaged == v1alpha1.PodBlock:
			return Verdict{Block, Unmanaged}
		case emptyDir && rules.EmptyDir == v1alpha1.PodBlock:
			return Verdict{Block, EmptyDir}
		case unmanaged && rules.Unmanaged == v1alpha1.PodSkip:
			return Verdict{Leave, Unmanaged}
		case emptyDir && rules.EmptyDir == v1alpha1.PodSkip:
			return Verdict{Leave, EmptyDir}
		}
		return v
	}
}

func hasEmptyDir(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil })
}

// podMatch returns a function that reports whether one of the selectors selects a pod. An
// invalid selector, which no policy that grants has, selects none.
func podMatch(all []v1alpha1.PodSelector) func(*corev1.Pod) bool {
	selectors := make([]labels.Selector, len(all))
	for i := range all {
		selectors[i], _ = metav1.LabelSelectorAsSelector(&all[i].Selector)
	}
	return func(p *corev1.Pod) bool {
		for i := range all {
			if (all[i].Namespace == "" || all[i].Namespace == p.Namespace) && selectors[i] != nil && selectors[i].Matches(labels.Set(p.Labels)) {
				return true
			}
		}
		return false
	}
}
