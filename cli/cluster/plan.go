package cluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/coordinator/forecast"
)

const (
	// podsTimeout bounds the reading of pods and budgets: those of five thousand
	// nodes are some hundred requests.
	podsTimeout = 5 * time.Minute
	// podsPage is how many pods one LIST returns.
	podsPage = 500
	// fewNodes is up to how many nodes the pods are listed node by node; beyond that
	// all of the cluster are.
	fewNodes = 10
)

// PlanOptions say what a plan is asked for.
type PlanOptions struct {
	Node     string          // "" for several
	Selector labels.Selector // nil for all; not with Node
	// Changes come to these nodes; none: only those that they publish.
	Changes []v1alpha1.Change
}

// Plan reads the cluster once, with LISTs and one GET, and says what would become
// of the nodes. Pods, budgets and a Lease that may not be read are no error, but
// part of the Forecast.
func (s *Source) Plan(ctx context.Context, o PlanOptions) (forecast.Forecast, error) {
	in, err := s.readBounded(ctx)
	if err = cmp.Or(err, in.PoliciesErr); denied(err) {
		return forecast.Forecast{}, fmt.Errorf("%w; %s", err, s.planNeeds())
	} else if err != nil {
		return forecast.Forecast{}, err
	}
	q := forecast.Input{Snapshot: in.Present(), Asked: o.Changes}
	for i := range in.Nodes {
		n := &in.Nodes[i]
		if o.Node == "" && (o.Selector == nil || o.Selector.Matches(labels.Set(n.Labels))) || o.Node == n.Name {
			q.Names = append(q.Names, n.Name)
		}
	}
	switch {
	case len(q.Names) > 0:
	case o.Node != "":
		return forecast.Forecast{}, fmt.Errorf("there is no node %q", o.Node)
	case o.Selector != nil:
		return forecast.Forecast{}, fmt.Errorf("no node has labels that -l %s selects", o.Selector)
	}
	if c := in.Coordinator(); !c.Live && c.Error == "" {
		q.NoLeader = "nobody coordinates at present"
	}
	asked := forecast.Ask(q)
	pods, err := s.readPods(ctx, asked.Draining())
	if err != nil {
		return forecast.Forecast{}, err
	}
	if in.Lease.Err != nil {
		pods.Unseen = append(pods.Unseen, fmt.Sprintf("the Lease, and so neither an emergency stop nor whether somebody coordinates: %v", in.Lease.Err))
	}
	return asked.Answer(pods), nil
}

// planNeeds are the rights that a plan needs, for people.
func (s *Source) planNeeds() string {
	return fmt.Sprintf("`lockkeeper plan` needs leave to list nodes and disruptionpolicies.lockkeeper.dev; with leave to get the lease %s in namespace %s, "+
		"and to list pods and poddisruptionbudgets.policy in all namespaces, it says more", s.LeaseName, s.Namespace)
}

func (s *Source) readBounded(ctx context.Context) (report.Input, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	return s.read(ctx)
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
		selector := ""
		if len(lists) > 1 || len(nodes) == 1 {
			selector = fields.OneTermEqualSelector("spec.nodeName", some[0]).String()
		}
		found, err := s.podsOf(ctx, some, selector)
		maps.Copy(pods.OnNode, found)
		if denied(err) {
			pods.Unseen = append(pods.Unseen, fmt.Sprintf("pods, and so neither which are evicted nor what would block that: %v", err))
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
		pods.Unseen = append(pods.Unseen, fmt.Sprintf("PodDisruptionBudgets, and so not what would block evictions: %v", err))
	case err != nil:
		return pods, fmt.Errorf("listing PodDisruptionBudgets: %w", err)
	default:
		pods.Budgets = budgets.Items
	}
	return pods, nil
}

// podsOf lists pods in pages, and keeps those of the nodes, which are in order.
// When the API server has forgotten the list before its end, it begins again with
// all in one page.
func (s *Source) podsOf(ctx context.Context, nodes []string, selector string) (map[string][]*corev1.Pod, error) {
	found := map[string][]*corev1.Pod{}
	o := metav1.ListOptions{FieldSelector: selector, Limit: podsPage}
	for {
		list, err := s.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
		if apierrors.IsResourceExpired(err) && o.Continue != "" {
			o.Continue, o.Limit = "", 0
			clear(found)
			continue
		}
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			p := &list.Items[i]
			if _, wanted := slices.BinarySearch(nodes, p.Spec.NodeName); wanted {
				found[p.Spec.NodeName] = append(found[p.Spec.NodeName], forecast.Strip(p))
			}
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return found, nil
		}
	}
}
