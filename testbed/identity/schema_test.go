package identity

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// policies is an administrator's client for DisruptionPolicies.
var policies dynamic.ResourceInterface

// policiesOf returns an administrator's client for DisruptionPolicies, and applies lockkeeper's manifests before.
func policiesOf(cp *controlplane.ControlPlane) (dynamic.ResourceInterface, error) {
	ctx, cancel := context.WithTimeout(context.Background(), policyTimeout)
	defer cancel()
	config := cp.AdminConfig()
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return client.Resource(v1alpha1.PolicyResource), cp.ApplyLockkeeper(ctx)
}

const policyTimeout = 60 * time.Second

// policyObject is a policy with what YAML says as its spec.
func policyObject(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	if !strings.HasPrefix(spec, "{") {
		spec = "{" + spec + "}"
	}
	text, err := yaml.ToJSON([]byte("apiVersion: lockkeeper.dev/v1alpha1\nkind: DisruptionPolicy\nspec: " + spec))
	must(t, err)
	obj := &unstructured.Unstructured{}
	must(t, obj.UnmarshalJSON(text))
	obj.SetName(name)
	return obj
}

// try has the API server judge a policy without keeping it, and returns it as it would be kept.
func try(t *testing.T, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), policyTimeout)
	defer cancel()
	return policies.Create(ctx, obj, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
}

// causes are what the API server refuses, as "field: message", in order.
func causes(t *testing.T, err error) []string {
	t.Helper()
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || status.ErrStatus.Reason != metav1.StatusReasonInvalid || status.ErrStatus.Details == nil {
		t.Fatalf("%v is no refusal by the schema", err)
	}
	var all []string
	for _, c := range status.ErrStatus.Details.Causes {
		if strings.HasPrefix(c.Field, "<nil>") {
			continue // it was not looked at any further
		}
		all = append(all, c.Field+": "+c.Message)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// compile reads the same policy as the coordinator does when the schema did not stand before it: what the counter-example
// does not say is as the API server writes it.
func compile(t *testing.T, obj *unstructured.Unstructured) []string {
	t.Helper()
	p := &v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
	p.Name = obj.GetName()
	text, err := json.Marshal(obj.Object["spec"])
	must(t, err)
	if err := json.Unmarshal(text, &p.Spec); err != nil {
		return []string{"unreadable: " + err.Error()}
	}
	var all []string
	for _, problem := range policy.Compile(p, time.LoadLocation).Problems {
		all = append(all, problem.String())
	}
	return all
}

// fieldOf is the part before the first ": ".
func fieldOf(text string) string {
	field, _, _ := strings.Cut(text, ": ")
	return field
}
