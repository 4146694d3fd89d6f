package drain

import (
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

// Selecting is the Policy that leaves the pods on the node that skip selects, and
// waits for those that block selects; nil if both are empty. Block comes before
// skip: a pod that must not be hurt is in both by mistake.
func Selecting(skip, block []v1alpha1.PodSelector) Policy {
	if len(skip) == 0 && len(block) == 0 {
		return nil
	}
	blocks, skips := podMatch(block), podMatch(skip)
	return func(p *corev1.Pod, v Verdict) Verdict {
		switch {
		case blocks(p):
			return Verdict{Block, BlockedByPolicy}
		case skips(p):
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
