package controlplane

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestPolicy is the name of the policy that fleets create.
const TestPolicy = "test"

// PoliciesResource is the resource of DisruptionPolicies.
var PoliciesResource = schema.GroupVersionResource{Group: "lockkeeper.dev", Version: "v1alpha1", Resource: "disruptionpolicies"}

// ApplyPolicy creates or replaces the DisruptionPolicy with this name. spec is YAML or JSON, and the API server sets the defaults for
// everything that it leaves out. ApplyPolicy returns the policy as the API server stores it. The policy of the manifests has the lowest
// priority and also selects every node.
func (cp *ControlPlane) ApplyPolicy(ctx context.Context, name, spec string) (*v1alpha1.DisruptionPolicy, error) {
	client, err := dynamic.NewForConfig(cp.AdminConfig())
	if err != nil {
		return nil, fmt.Errorf("applying policy %s: %w", name, err)
	}
	fields := map[string]any{}
	if err := yaml.Unmarshal([]byte(spec), &fields); err != nil {
		return nil, fmt.Errorf("parsing policy %s: %w", name, err)
	}
	obj := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "DisruptionPolicy",
		"metadata": map[string]any{"name": name}, "spec": fields,
	}}
	made, err := client.Resource(PoliciesResource).Apply(ctx, name, obj, metav1.ApplyOptions{FieldManager: "lockkeeper-testbed-policy", Force: true})
	if err != nil {
		return nil, fmt.Errorf("applying policy %s: %w", name, err)
	}
	return policyOf(made)
}

// GetPolicy reads a DisruptionPolicy with its status.
func (cp *ControlPlane) GetPolicy(ctx context.Context, name string) (*v1alpha1.DisruptionPolicy, error) {
	client, err := dynamic.NewForConfig(cp.AdminConfig())
	if err != nil {
		return nil, fmt.Errorf("reading policy %s: %w", name, err)
	}
	obj, err := client.Resource(PoliciesResource).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading policy %s: %w", name, err)
	}
	return policyOf(obj)
}

func policyOf(obj *unstructured.Unstructured) (*v1alpha1.DisruptionPolicy, error) {
	p := &v1alpha1.DisruptionPolicy{}
	text, err := json.Marshal(obj)
	if err == nil {
		err = json.Unmarshal(text, p)
	}
	if err != nil {
		return nil, fmt.Errorf("reading policy %s: %w", obj.GetName(), err)
	}
	return p, nil
}

// DeletePolicy deletes a DisruptionPolicy. It succeeds if the policy does not exist.
func (cp *ControlPlane) DeletePolicy(ctx context.Context, name string) error {
	client, err := dynamic.NewForConfig(cp.AdminConfig())
	if err == nil {
		err = client.Resource(PoliciesResource).Delete(ctx, name, metav1.DeleteOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting policy %s: %w", name, err)
	}
	return nil
}
