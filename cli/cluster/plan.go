package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/coordinator/forecast"
)

const (
	// podsTimeout bounds the reading of pods and budgets: those of five thousand
	// nodes are some hundred requests.
	podsTimeout = 5 * time.Minute
	// fewNodes is up to how many nodes the pods are listed node by node; beyond that
	// all of the cluster are.
	fewNodes = 10
)

// Plan reads the cluster once, with LISTs and one GET, and forecasts what would happen to
// Source.Node if it is not "", and otherwise to the nodes that Source.Selector selects, if the
// changes arrived on them. Without changes it covers those that the nodes publish. If the caller may not read pods, budgets or the Lease, the Forecast says so.
func (s *Source) Plan(ctx context.Context, changes []v1alpha1.Change) (forecast.Forecast, error) {
	in, err := s.read(ctx)
	if err = cmp.Or(err, in.PoliciesErr); denied(err) {
		return forecast.Forecast{}, fmt.Errorf("%w; %s", err, s.planNeeds())
	} else if err != nil {
		return forecast.Forecast{}, err
	}
	q := forecast.Input{Snapshot: in.Present(), Asked: changes}
	for i := range in.Nodes {
		n := &in.Nodes[i]
		if s.Node == "" && (s.Selector == nil || s.Selector.Matches(labels.Set(n.Labels))) || s.Node == n.Name {
			q.Names = append(q.Names, n.Name)
		}
	}
	switch {
	case len(q.Names) > 0:
	case s.Node != "":
		return forecast.Forecast{}, report.NotFound(s.Node)
	case s.Selector != nil:
		return forecast.Forecast{}, s.noMatch()
	}
	if c := in.Coordinator(); !c.Live && c.Error == "" {
		q.NoLeader = "there is no coordinator"
	}
	asked := forecast.Ask(q)
	pods, err := s.readPods(ctx, asked.Draining())
	if err != nil {
		return forecast.Forecast{}, err
	}
	if in.Lease.Err != nil {
		pods.Unseen = append(pods.Unseen, fmt.Sprintf("the Lease, so an emergency stop and the coordinator are unknown: %v", in.Lease.Err))
	}
	return asked.Answer(pods), nil
}

// planNeeds describes the permissions that a plan needs.
func (s *Source) planNeeds() string {
	return fmt.Sprintf("`lockkeeper plan` requires permission to list nodes and disruptionpolicies.lockkeeper.dev; it shows more with permission to get Lease %s in namespace %s, "+
		"and to list pods and poddisruptionbudgets.policy in all namespaces", s.LeaseName, s.Namespace)
}

// readPods reads the pods of the nodes, and the budgets; nothing at all for none.
func (s *Source) readPods(ctx context.Context, nodes []string) (forecast.Pods, error) {
	pods := forecast.Pods{OnNode: map[string][]*corev1.Pod{}}
	if len(nodes) == 0 {
		return pods, nil
	}
	ctx, cancel := context.WithTimeout(ctx, podsTimeout)
	defer cancel()
	lists := [][]string{nodes}
	if len(nodes) <= fewNodes {
		lists = slices.Collect(slices.Chunk(nodes, 1))
	}
	for _, some := range lists {
		err := s.addPods(ctx, pods.OnNode, some)
		if denied(err) {
			pods.Unseen = append(pods.Unseen, fmt.Sprintf("pods, so evictions and what blocks them are unknown: %v", err))
			pods.NoPods = true
			return pods, nil
		}
		if err != nil {
			return pods, fmt.Errorf("listing pods: %w", err)
		}
	}
	budgets, err := s.Client.PolicyV1().PodDisruptionBudgets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	switch {
	case denied(err):
		pods.Unseen = append(pods.Unseen, fmt.Sprintf("PodDisruptionBudgets, so what blocks evictions is unknown: %v", err))
	case err != nil:
		return pods, fmt.Errorf("listing PodDisruptionBudgets: %w", err)
	default:
		pods.Budgets = budgets.Items
	}
	return pods, nil
}

// addPods lists pods in pages, and adds those of the nodes, which are sorted. Of each page it
// keeps only what a forecast needs, because a large cluster has hundreds of megabytes of pods.
func (s *Source) addPods(ctx context.Context, onNode map[string][]*corev1.Pod, nodes []string) error {
	selector := ""
	if len(nodes) == 1 {
		selector = fields.OneTermEqualSelector("spec.nodeName", nodes[0]).String()
	}
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		page, err := s.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
		if err != nil {
			return nil, err
		}
		var kept []corev1.Pod
		for i := range page.Items {
			p := &page.Items[i]
			if _, wanted := slices.BinarySearch(nodes, p.Spec.NodeName); wanted {
				small := forecast.Strip(p)
				small.Spec.NodeName = p.Spec.NodeName
				kept = append(kept, *small)
			}
		}
		page.Items = kept
		return page, nil
	})
	all, _, err := pages.List(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return err
	}
	return meta.EachListItem(all, func(o runtime.Object) error {
		p := o.(*corev1.Pod)
		onNode[p.Spec.NodeName] = append(onNode[p.Spec.NodeName], p)
		return nil
	})
}
