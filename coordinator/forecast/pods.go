package forecast

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/drain"
)

// Pods are the pods and budgets that were read.
type Pods struct {
	// OnNode are the pods by the node that they are bound to. They need only the fields
	// that [Strip] keeps.
	OnNode map[string][]*corev1.Pod
	// Budgets are all PodDisruptionBudgets.
	Budgets []policyv1.PodDisruptionBudget
	// Unseen lists what could not be read, and why. NoPods reports that the pods could
	// not be read.
	Unseen []string
	NoPods bool
}

// Strip returns a copy of the pod with only the fields that a forecast needs. This saves
// most of the memory for a hundred thousand pods.
func Strip(p *corev1.Pod) *corev1.Pod {
	out := drain.Outline(p)
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			out.Status.Conditions = []corev1.PodCondition{c}
		}
	}
	return out
}

// budget is a PodDisruptionBudget with its parsed selector.
type budget struct {
	*policyv1.PodDisruptionBudget
	selector labels.Selector
}

func (b budget) String() string { return b.Namespace + "/" + b.Name }

func read(all []policyv1.PodDisruptionBudget) map[string][]budget {
	byNamespace := map[string][]budget{}
	for i := range all {
		// A budget whose selector is invalid selects nothing, as in the API server.
		if selector, err := metav1.LabelSelectorAsSelector(all[i].Spec.Selector); err == nil {
			byNamespace[all[i].Namespace] = append(byNamespace[all[i].Namespace], budget{&all[i], selector})
		}
	}
	for _, budgets := range byNamespace {
		slices.SortFunc(budgets, func(a, b budget) int { return cmp.Compare(a.Name, b.Name) })
	}
	return byNamespace
}

// addDrain records what a drain by these rules would do with the pods, and which budgets
// would delay it.
func (n *Node) addDrain(rules v1alpha1.PodRules, pods []*corev1.Pod, budgets map[string][]budget) {
	judge := drain.Selecting(rules)
	pods = slices.SortedFunc(slices.Values(pods), func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	guarded := map[string][]*corev1.Pod{} // pods by the budgets that select them
	of := map[string][]budget{}
	for _, p := range pods {
		v := judge.Judge(p)
		pod := Pod{p.Namespace + "/" + p.Name, string(v.Reason)}
		switch v.Class {
		case drain.Leave:
			n.Leave = append(n.Leave, pod)
			continue
		case drain.Wait:
			n.Wait = append(n.Wait, pod)
			continue
		case drain.Block:
			n.Block = append(n.Block, pod)
			continue
		}
		n.Evict = append(n.Evict, pod)
		if by := guards(p, budgets[p.Namespace]); len(by) > 0 {
			key := fmt.Sprint(by)
			of[key], guarded[key] = by, append(guarded[key], p)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(guarded)) {
		n.addObstacle(of[key], guarded[key])
	}
}

// guards returns the budgets that the API server checks before it evicts the pod.
func guards(p *corev1.Pod, budgets []budget) []budget {
	if p.Status.Phase == corev1.PodPending {
		return nil
	}
	var by []budget
	for _, b := range budgets {
		if b.selector.Matches(labels.Set(p.Labels)) {
			by = append(by, b)
		}
	}
	if len(by) == 1 && !ready(p) && by[0].letsUnhealthy() {
		return nil
	}
	return by
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// letsUnhealthy reports whether the budget's unhealthyPodEvictionPolicy allows the
// eviction of a pod that is not Ready, regardless of disruptionsAllowed.
func (b budget) letsUnhealthy() bool {
	if p := b.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
		return true
	}
	return b.Status.DesiredHealthy > 0 && b.Status.CurrentHealthy >= b.Status.DesiredHealthy
}

// addObstacle records an obstacle if the budgets would delay the eviction of the pods. The
// same budgets select all of the pods.
func (n *Node) addObstacle(by []budget, pods []*corev1.Pod) {
	o := Obstacle{}
	for _, b := range by {
		o.Budgets = append(o.Budgets, b.String())
	}
	for _, p := range pods {
		o.Pods = append(o.Pods, p.Namespace+"/"+p.Name)
	}
	b := by[0]
	figures := fmt.Sprintf("%d healthy, %d needed", b.Status.CurrentHealthy, b.Status.DesiredHealthy)
	switch allowed := int(b.Status.DisruptionsAllowed); {
	case len(by) > 1:
		o.Why = "the API server evicts no pod with more than one budget"
	case b.Status.ObservedGeneration < b.Generation:
		o.Why = "its status is not up to date, so the API server puts evictions off"
	case allowed <= 0:
		o.Why = "allows no disruption now: " + figures
	case allowed < len(pods):
		o.Why = fmt.Sprintf("allows %s now: %s", counted(allowed, "disruption"), figures)
		n.Slowing = append(n.Slowing, o)
		return
	default:
		return
	}
	n.Blocking = append(n.Blocking, o)
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
