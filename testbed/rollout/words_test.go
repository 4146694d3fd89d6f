package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// policyShows waits until the status of the policy, formatted by describe, is current and equals want. It returns that
// policy.
func (s *scene) policyShows(name, want string) (found v1alpha1.DisruptionPolicy) {
	s.T.Helper()
	policies := s.dynamic().Resource(v1alpha1.PolicyResource)
	s.Eventually("policy "+name+" to say\n"+want, func(ctx context.Context) (bool, error) {
		obj, err := policies.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		text, err := obj.MarshalJSON()
		s.Must(err)
		found = v1alpha1.DisruptionPolicy{}
		s.Must(json.Unmarshal(text, &found))
		got := describe(&found)
		return got == want, errors.New(got)
	})
	return found
}

// describe formats a policy's status in one line: its counts, and each condition with its reason.
func describe(p *v1alpha1.DisruptionPolicy) string {
	if p.Status.ObservedGeneration != p.Generation {
		return fmt.Sprintf("generation %d, the status is of %d", p.Generation, p.Status.ObservedGeneration)
	}
	n := p.Status.Nodes
	words := []string{fmt.Sprintf("selected %d, up to date %d, wanting %d, in turn %d, unavailable %d, failed %d, allowed %d",
		n.Selected, n.UpToDate, n.Wanting, n.InTurn, n.Unavailable, n.Failed, n.Allowed)}
	for _, c := range p.Status.Conditions {
		words = append(words, fmt.Sprintf("%s %s %s", c.Type, c.Status, c.Reason))
	}
	return strings.Join(words, "; ")
}

// kubectlShows waits until `kubectl get disruptionpolicies` shows the policy with these columns, each as Name=value.
// wide lists the additional columns of -o wide. Both leave out the age, which changes.
func (s *scene) kubectlShows(name, want, wide string) {
	s.T.Helper()
	config := s.ControlPlane.AdminConfig()
	config.GroupVersion, config.APIPath, config.QPS = &v1alpha1.GroupVersion, "/apis", -1
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	s.Must(err)
	s.Eventually("kubectl to show\n"+want+"\n"+wide, func(ctx context.Context) (bool, error) {
		text, err := client.Get().Resource(v1alpha1.PolicyResource.Resource).
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(ctx).Raw()
		if err != nil {
			return false, err
		}
		var table metav1.Table
		s.Must(json.Unmarshal(text, &table))
		got, more := row(&table, name)
		return got == want && more == wide, errors.New(got + "\n" + more)
	})
}

// row returns the columns of one object in a table, and the additional columns of -o wide.
func row(table *metav1.Table, name string) (shown, wide string) {
	for _, r := range table.Rows {
		if len(r.Cells) == 0 || r.Cells[0] != name {
			continue
		}
		var cells [2][]string
		for i, c := range table.ColumnDefinitions {
			if c.Name != "Age" {
				k := min(c.Priority, 1)
				cells[k] = append(cells[k], fmt.Sprintf("%s=%v", c.Name, r.Cells[i]))
			}
		}
		return strings.Join(cells[0], " "), strings.Join(cells[1], " ")
	}
	return fmt.Sprintf("no row for %s among %d rows", name, len(table.Rows)), ""
}
