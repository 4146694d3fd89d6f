package drain

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Reasons of the verdicts of a [Policy] made by [Selecting].
const (
	// SkippedByPolicy: the pod stays, because a selector says so.
	SkippedByPolicy Reason = "SkippedByPolicy"
	// BlockedByPolicy: the pod is waited for and never evicted, because a
	// selector says so.
	BlockedByPolicy Reason = "BlockedByPolicy"
)

// Selecting returns the Policy that waits for the pods that block selects, and
// leaves the pods on the node that every list in skips selects; nil if there are
// none. Block wins over skip: a pod that must not be harmed is in both by mistake.
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

// Judge is what a drain with this policy, which may be nil, does about the pod.
func (f Policy) Judge(p *corev1.Pod) Verdict { return f.judge(p, Classify(p)) }

// podMatch reports whether one of the selectors is for a pod. One that cannot
// be read, which no policy that grants has, is for none.
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
