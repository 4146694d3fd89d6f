package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Policies holds the cluster's DisruptionPolicies, each with what the caller compiles it
// to. What its methods return is shared, and callers must not change it.
type Policies[T any] struct {
	*Watch[*v1alpha1.DisruptionPolicy, compiled[T]]
	client *Client
}

// compiled is a policy as the API server has it, and what it was compiled to.
type compiled[T any] struct {
	obj  *v1alpha1.DisruptionPolicy
	made T
}

// WatchPolicies makes a Watch of all policies. compile, which is policy.Compile, is called
// once for each version of a policy, with what loads time zones. changed is called when a spec has changed, and not for a status, by which
// nothing is decided; see [WatchOptions].
//
// An API server that does not serve the kind has no policies: they are listed then,
// and Err is [ErrNotServed].
func WatchPolicies[T any, Zones ~func(string) (*time.Location, error)](client *Client,
	compile func(*v1alpha1.DisruptionPolicy, Zones) T, changed func()) *Policies[T] {
	return &Policies[T]{client: client, Watch: NewWatch(policyResource{client}, WatchOptions[*v1alpha1.DisruptionPolicy, compiled[T]]{
		Name: "policies", Same: func(was, is compiled[T]) bool { return sameSpec(was.obj, is.obj) }, Changed: changed,
		NotServed: func(err error) bool { return errors.Is(err, ErrNotServed) },
		Keep: func(obj *v1alpha1.DisruptionPolicy) (compiled[T], bool) {
			obj.ManagedFields, obj.Annotations = nil, nil
			return compiled[T]{obj, compile(obj, time.LoadLocation)}, true
		},
	})}
}

// sameSpec reports whether two versions of a policy say the same. Status writes
// change neither UID nor generation; a store that was restored from a backup may
// count the same generation again for another spec.
func sameSpec(a, b *v1alpha1.DisruptionPolicy) bool {
	return a.UID == b.UID && a.Generation == b.Generation && reflect.DeepEqual(a.Spec, b.Spec)
}

// Compiled returns what the policies were compiled to, in no order.
func (p *Policies[T]) Compiled() []T {
	var all []T
	for _, c := range p.All() {
		all = append(all, c.made)
	}
	return all
}

// Get returns a policy as the API server has it, or nil.
func (p *Policies[T]) Get(name string) *v1alpha1.DisruptionPolicy { return p.Watch.Get(name).obj }

// Progressing returns, by policy, the condition of that type as the coordinator
// last wrote it: whether the policy's nodes move, and what holds them if not.
func (p *Policies[T]) Progressing() map[string]metav1.Condition {
	all := map[string]metav1.Condition{}
	for _, c := range p.All() {
		if condition := meta.FindStatusCondition(c.obj.Status.Conditions, v1alpha1.ConditionProgressing); condition != nil {
			all[c.obj.Name] = *condition
		}
	}
	return all
}

// WriteStatus writes a policy's status, which only the coordinator does. obj is what
// [Policies.Get] returned. If the policy has been deleted and created again since, the
// API server refuses the write.
func (p *Policies[T]) WriteStatus(ctx context.Context, obj *v1alpha1.DisruptionPolicy, status v1alpha1.DisruptionPolicyStatus) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	client, err := p.client.OwnKinds()
	if err != nil {
		return err
	}
	// A merge patch leaves alone what it does not name: each field has to be.
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": obj.UID},
		"status": map[string]any{
			"observedGeneration": status.ObservedGeneration, "conditions": status.Conditions,
			"nodes": status.Nodes, "effectiveRules": status.EffectiveRules,
		},
	})
	if err != nil {
		return fmt.Errorf("encoding the status of policy %s: %w", obj.Name, err)
	}
	made := &v1alpha1.DisruptionPolicy{}
	err = client.Patch(types.MergePatchType).Resource(policiesResource).Name(obj.Name).SubResource("status").
		Param("fieldManager", FieldManager("coordinator")).Body(body).Do(ctx).Into(made)
	if err != nil {
		return fmt.Errorf("writing the status of policy %s: %w", obj.Name, err)
	}
	return nil
}

const policiesResource = "disruptionpolicies"

// ErrNotServed is the error of reading policies if the API server does not serve
// them: the manifests were not applied, or the CustomResourceDefinition was deleted
// and every policy with it.
var ErrNotServed = errors.New("the API server does not serve DisruptionPolicies; apply the manifests: lockkeeper manifests | kubectl apply -f -")

// policyResource is the [Resource] of DisruptionPolicies.
type policyResource struct{ c *Client }

// List lists the policies. A 404 is not enough to say that there are none: a proxy
// gives that answer too. Discovery has to confirm it.
func (r policyResource) List(ctx context.Context, o metav1.ListOptions) (*v1alpha1.DisruptionPolicyList, error) {
	list := &v1alpha1.DisruptionPolicyList{}
	client, err := r.c.OwnKinds()
	if err == nil {
		err = client.Get().Resource(policiesResource).VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Into(list)
	}
	if apierrors.IsNotFound(err) {
		if served, discoveryErr := serves(ctx, r.c, v1alpha1.GroupVersion, policiesResource); discoveryErr == nil && !served {
			return nil, ErrNotServed
		}
	}
	return list, err
}

// Watch watches the policies.
func (r policyResource) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	client, err := r.c.OwnKinds()
	if err != nil {
		return nil, err
	}
	o.Watch = true
	return client.Get().Resource(policiesResource).VersionedParams(&o, metav1.ParameterCodec).Watch(ctx)
}

// serves reports whether the API server's discovery documents list the resource.
// It returns an error if it cannot read them.
func serves(ctx context.Context, c *Client, gv schema.GroupVersion, resource string) (bool, error) {
	get := func(path string, into runtime.Object) error {
		return c.CoreV1().RESTClient().Get().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Into(into)
	}
	groups := &metav1.APIGroupList{}
	if err := get("/apis", groups); err != nil {
		return false, err
	}
	if len(groups.Groups) == 0 { // every API server has some
		return false, errors.New("the answer does not list API groups; does a proxy answer in the API server's place?")
	}
	served := slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool {
		return g.Name == gv.Group && slices.ContainsFunc(g.Versions, func(v metav1.GroupVersionForDiscovery) bool { return v.Version == gv.Version })
	})
	if !served {
		return false, nil
	}
	resources := &metav1.APIResourceList{}
	if err := get("/apis/"+gv.String(), resources); err != nil {
		return false, err
	}
	if resources.GroupVersion != gv.String() {
		return false, errors.New("the answer does not list the resources of " + gv.String() + "; does a proxy answer in the API server's place?")
	}
	return slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool { return r.Name == resource }), nil
}
