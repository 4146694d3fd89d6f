package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// The pods of a node that is drained.
const (
	allPods      = 110 // a kubelet's default limit
	criticalPods = 10
	budgets      = 3
	budgetPods   = 10 // of each budget
	daemonSets   = 3  // each has one pod, in addition
	podStops     = 5 * time.Second

	toDrain   = "drain" // label of all pods but those of the DaemonSets
	freePod   = "free-000"
	oneBudget = "one" // the budget that may protect freePod
)

// held is which pods budgets block, and for how long.
type held struct {
	names  []string // of single pods, or of budgets, whose pods have their names
	budget string   // one more budget, which selects the only pod; "": names are of budgets
	length time.Duration
}

// has reports whether the pod of this name is blocked.
func (h held) has(pod string) bool {
	return slices.ContainsFunc(h.names, func(name string) bool { return pod == name || strings.HasPrefix(pod, name+"-") })
}

// pods returns how many pods are blocked.
func (h held) pods() int {
	if h.budget != "" {
		return len(h.names)
	}
	return len(h.names) * budgetPods
}

func budgetNames() (names []string) {
	for i := range budgets {
		names = append(names, fmt.Sprintf("budget-%d", i))
	}
	return names
}

// createDrained creates a Node and a Namespace of the same name, with the DaemonSets.
func (b *bench) createDrained(ctx context.Context, node string) error {
	if _, err := b.cp.CreateNode(ctx, controlplane.NodeSpec{Name: node, Ballast: true}); err != nil {
		return err
	}
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if _, err := b.cp.Client().CoreV1().Namespaces().Create(ctx, space, metav1.CreateOptions{}); err != nil {
		return err
	}
	for i := range daemonSets {
		labels := map[string]string{"app": fmt.Sprintf("daemon-%d", i)}
		set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: labels["app"]}, Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				NodeSelector: map[string]string{corev1.LabelHostname: node},
				Containers:   []corev1.Container{{Name: "app", Image: "example.invalid/app"}},
			}},
		}}
		if _, err := b.cp.Client().AppsV1().DaemonSets(node).Create(ctx, set, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return b.waitReady(ctx, node, "", daemonSets)
}

// setBudgets creates the budgets or changes them: those that are held let no pod be evicted, and all others let all.
func (b *bench) setBudgets(ctx context.Context, namespace string, h held, hold bool) error {
	names := budgetNames()
	if h.budget != "" {
		names = append(names, h.budget)
	}
	client := b.cp.Client().PolicyV1().PodDisruptionBudgets(namespace)
	for _, name := range names {
		least, selects := intstr.FromInt32(0), map[string]string{"app": name}
		switch {
		case name == h.budget:
			selects = map[string]string{"pod": h.names[0]}
			fallthrough
		case slices.Contains(h.names, name):
			if hold {
				least = intstr.FromInt32(budgetPods)
			}
		}
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: selects}}}
		_, err := client.Create(ctx, budget, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			patch := fmt.Appendf(nil, `{"spec":{"minAvailable":%d}}`, least.IntVal)
			_, err = client.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fillNode creates the pods and waits until they run.
func (b *bench) fillNode(ctx context.Context, node string) error {
	for i := range allPods {
		app, priority := "free", ""
		switch {
		case i < criticalPods:
			app, priority = "critical", "system-cluster-critical"
		case i < criticalPods+budgets*budgetPods:
			app = budgetNames()[i%budgets]
		}
		name, grace := fmt.Sprintf("%s-%03d", app, i), int64(podStops.Seconds())
		if i == allPods-1 {
			name = freePod
		}
		_, err := b.cp.Client().CoreV1().Pods(node).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app, "pod": name, toDrain: "yes"},
				Annotations: map[string]string{controlplane.StopsAfterAnnotation: podStops.String()}},
			Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: &grace, PriorityClassName: priority,
				Containers: []corev1.Container{{Name: "app", Image: "example.invalid/app"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return b.waitReady(ctx, node, toDrain, allPods)
}

// waitReady waits until so many pods with the label selector are there, and all are Ready.
func (b *bench) waitReady(ctx context.Context, namespace, selector string, n int) error {
	_, err := b.cp.WaitPods(ctx, namespace, selector, "all running", func(pods []*corev1.Pod) bool {
		return len(pods) == n && !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return !controlplane.PodReady(p) })
	})
	return err
}
