package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/forecast"
	"lockkeeper.dev/lockkeeper/policy"
)

// What the caller may not read is told, and nothing is asked of the API server but
// to be read.
func TestPlanReadsOnly(t *testing.T) {
	change, err := forecast.ParseChange("request")
	if err != nil {
		t.Fatal(err)
	}
	forbidden := func(resource string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no permission"))
	}
	const needs = "`lockkeeper plan` requires permission to list nodes and disruptionpolicies.lockkeeper.dev; it shows more with permission to get Lease lockkeeper in namespace lockkeeper, " +
		"and to list pods and poddisruptionbudgets.policy in all namespaces"
	for _, tc := range []struct {
		name    string
		o       Source // Node and Selector
		refused string // the resource that may not be read
		nodes   []string
		unseen  []string // their beginnings
		err     string
	}{
		{"all", Source{}, "", []string{"n1", "n2", "n3"}, nil, ""},
		{"one", Source{Node: "n2"}, "", []string{"n2"}, nil, ""},
		{"some", Source{Selector: labels.SelectorFromSet(labels.Set{"pool": "web"})}, "", []string{"n1", "n3"}, nil, ""},
		{"one that is not there", Source{Node: "n9"}, "", nil, nil, `node "n9" not found`},
		{"none selected", Source{Selector: labels.SelectorFromSet(labels.Set{"pool": "db"})}, "", nil, nil, "no node matches -l pool=db"},
		{"without nodes", Source{}, "nodes", nil, nil, `listing nodes: nodes is forbidden: no permission; ` + needs},
		{"without policies", Source{}, "disruptionpolicies", nil, nil, `disruptionpolicies is forbidden: no permission; ` + needs},
		{"without pods", Source{Node: "n1"}, "pods", []string{"n1"}, []string{"pods, so evictions and what blocks them are unknown: pods is forbidden"}, ""},
		{"without budgets", Source{Node: "n1"}, "poddisruptionbudgets", []string{"n1"}, []string{"PodDisruptionBudgets, so what blocks evictions is unknown: poddisruptionbudgets is"}, ""},
		{"without the Lease", Source{Node: "n1"}, "leases", []string{"n1"}, []string{"the Lease, so an emergency stop and the coordinator are unknown: leases is"}, ""},
	} {
		lease := newLease()
		lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		on := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1"}, Spec: corev1.PodSpec{NodeName: "n1"}}
		objects := []runtime.Object{newNode("n1", web), newNode("n2"), newNode("n3", web), lease, on}
		s, client, _ := faulty(t, nil, objects...)
		s.WatchPolicies = func(func()) PolicyView {
			if tc.refused == "disruptionpolicies" {
				return policyView{Unavailable: forbidden(tc.refused)}
			}
			return policyView{Policies: policy.Set{policy.Default()}}
		}
		client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
			return a.GetResource().Resource == tc.refused, nil, forbidden(tc.refused)
		})
		s.Node, s.Selector = tc.o.Node, tc.o.Selector
		f, err := s.Plan(t.Context(), []v1alpha1.Change{change})
		if got := fmt.Sprint(err); got != tc.err && (tc.err != "" || err != nil) {
			t.Errorf("%s: %v, expected %s", tc.name, err, tc.err)
		}
		var names []string
		for _, g := range f.Groups {
			for _, n := range g.Nodes {
				names = append(names, n.Name)
				if n.Name == "n1" && tc.refused != "pods" && len(n.Evict) != 1 {
					t.Errorf("%s: evicts %v", tc.name, n.Evict)
				}
			}
		}
		if slices.Sort(names); !slices.Equal(names, tc.nodes) {
			t.Errorf("%s: %v, expected %v", tc.name, names, tc.nodes)
		}
		if !slices.EqualFunc(f.Unseen, tc.unseen, strings.HasPrefix) {
			t.Errorf("%s: not seen %q, expected %q", tc.name, f.Unseen, tc.unseen)
		}
		for _, a := range client.Actions() {
			if a.GetVerb() != "list" && a.GetVerb() != "get" {
				t.Errorf("%s: a %s of %s", tc.name, a.GetVerb(), a.GetResource().Resource)
			}
		}
	}
}
