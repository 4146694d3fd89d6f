package drain

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Reasons of the verdicts of a [Policy] that [Selecting] returns.
const (
	// SkippedByPolicy: the pod stays because a selector skips it.
	SkippedByPolicy Reason = "SkippedByPolicy"
	// BlockedByPolicy: the drain waits for the pod and never evicts it, because a selector
	// blocks it.
	BlockedByPolicy Reason = "BlockedByPolicy"
)

// Selecting returns a Policy that waits for the pods that block selects, and leaves the pods
// on the node that every list in skips selects; nil if there are none. Block takes precedence:
// a pod that is in both must not be harmed.
func Selecting(block []v1alpha1.PodSelector, skips ...[]v1alpha1.PodSelector) Policy {
	none := len(skips) == 0 || slices.ContainsFunc(skips, func(s []v1alpha1.PodSelector) bool { return len(s) == 0 })
	if len(block) == 0 && none {
		return nil
	}
	blocked := podMatch(block)
	skipped := make([]func(*corev1.Pod) bool, len(skips))
	for i, skip := range skips {
		skipped[i] = podMatch(skip)
	}
	return func(p *corev1.Pod, v Verdict) Verdict {
		switch {
		case blocked(p):
			return Verdict{Block, BlockedByPolicy}
		case !none && !slices.ContainsFunc(skipped, func(by func(*corev1.Pod) bool) bool { return !by(p) }):
			return Verdict{Leave, SkippedByPolicy}
		}
		return v
	}
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
