package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// NodeWatch holds Nodes by name, stripped to the parts that decisions use.
type NodeWatch = Watch[*corev1.Node, *corev1.Node]

// WatchNodes returns a Watch of all Nodes for a leader; for both callbacks see
// [WatchOptions]. changed is not called for a new version of a Node that is the same for a
// decision: kubelets write such statuses all the time, and the leader itself may write the
// label held to thousands of Nodes in a row. A policy that selects nodes by that label takes
// effect at the leader's next decision.
func WatchNodes(client API, changed, rewound func()) *NodeWatch {
	labels := &sharedLabels{}
	return NewWatch(client.CoreV1().Nodes(), WatchOptions[*corev1.Node, *corev1.Node]{
		Name: "nodes", Same: sameDecision, Changed: changed, Rewound: rewound,
		Keep: func(n *corev1.Node) (*corev1.Node, bool) {
			s, keep := strip(n)
			s.Labels = labels.of(s.Labels)
			return s, keep
		},
	})
}

// FollowNodes is WatchNodes for a reader that shows the Nodes: changed is called for the label
// held too.
func FollowNodes(client API, changed func()) *NodeWatch {
	return NewWatch(client.CoreV1().Nodes(), WatchOptions[*corev1.Node, *corev1.Node]{
		Name: "nodes", Keep: strip, Same: alike, Changed: changed,
	})
}

// WatchNode returns a Watch of a host's own Node, the only one that the host may read.
// Changed is called for every version, because a host waits for the next version at a check.
func WatchNode(client API, name string, changed func()) *NodeWatch {
	return NewWatch(client.CoreV1().Nodes(), WatchOptions[*corev1.Node, *corev1.Node]{
		Name: "nodes", FieldSelector: named(name), Keep: stripOwn, Changed: changed, Server: serverOf(client),
	})
}

// LeaseWatch holds one Lease, under the key namespace/name.
type LeaseWatch = Watch[*coordinationv1.Lease, *coordinationv1.Lease]

// WatchLease returns a Watch of the Lease of that name. rewound may be nil; for both
// callbacks see [WatchOptions].
func WatchLease(client API, namespace, name string, changed, rewound func()) *LeaseWatch {
	return NewWatch(client.CoordinationV1().Leases(namespace), WatchOptions[*coordinationv1.Lease, *coordinationv1.Lease]{
		Name: "leases", FieldSelector: named(name), Changed: changed, Rewound: rewound,
		Keep: func(l *coordinationv1.Lease) (*coordinationv1.Lease, bool) { return l, true },
	})
}

// named selects the object of that name.
func named(name string) string {
	return fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
}

// sameDecision reports whether two stripped versions of a Node are alike except for the label
// held. No decision reads it on a node with a state; on another one it is the record of why the
// node was released.
func sameDecision(a, b *corev1.Node) bool {
	if held := a.Labels[v1alpha1.LabelHeld]; held != b.Labels[v1alpha1.LabelHeld] && a.Labels[v1alpha1.LabelState] != "" {
		same := *b
		same.Labels = maps.Clone(b.Labels)
		delete(same.Labels, v1alpha1.LabelHeld)
		if held != "" {
			same.Labels[v1alpha1.LabelHeld] = held
		}
		b = &same
	}
	return alike(a, b)
}

// alike reports whether two stripped versions of a Node differ only in their
// resourceVersion.
func alike(a, b *corev1.Node) bool {
	return a.UID == b.UID && a.CreationTimestamp.Equal(&b.CreationTimestamp) &&
		a.Spec.Unschedulable == b.Spec.Unschedulable && a.Status.NodeInfo.BootID == b.Status.NodeInfo.BootID &&
		slices.Equal(a.Status.Conditions, b.Status.Conditions) && slices.Equal(a.Status.VolumesAttached, b.Status.VolumesAttached) &&
		maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) && slices.EqualFunc(a.Spec.Taints, b.Spec.Taints, sameTaint) &&
		a.DeletionTimestamp.Equal(b.DeletionTimestamp) && slices.Equal(a.Finalizers, b.Finalizers)
}

func sameTaint(a, b corev1.Taint) bool {
	return a.Key == b.Key && a.Value == b.Value && a.TimeAdded.Equal(b.TimeAdded)
}

// strip keeps the parts of a Node that decisions use. Most of a Node consists of images,
// addresses, managed fields and the annotations of other programs. For five thousand Nodes,
// these would need a lot of memory.
func strip(n *corev1.Node) (*corev1.Node, bool) {
	s := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion,
			CreationTimestamp: n.CreationTimestamp, Labels: n.Labels, Annotations: ours(n.Annotations),
			DeletionTimestamp: n.DeletionTimestamp,
		},
		Spec: corev1.NodeSpec{Unschedulable: n.Spec.Unschedulable},
	}
	if n.DeletionTimestamp != nil {
		s.Finalizers = n.Finalizers
	}
	s.Status.NodeInfo.BootID = n.Status.NodeInfo.BootID
	if v1alpha1.State(n.Labels[v1alpha1.LabelState]) == v1alpha1.StateBeforeReboot {
		// A busy fleet attaches and detaches volumes all day, but only this state waits for
		// a detach. No decision uses their device paths.
		for _, v := range n.Status.VolumesAttached {
			s.Status.VolumesAttached = append(s.Status.VolumesAttached, corev1.AttachedVolume{Name: v.Name})
		}
	}
	for _, t := range n.Spec.Taints {
		if v1alpha1.InMarks(v1alpha1.MarkTaint, t.Key) {
			s.Spec.Taints = append(s.Spec.Taints, corev1.Taint{Key: t.Key, Value: t.Value, TimeAdded: t.TimeAdded})
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			s.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	return s, true
}

// stripOwn strips the host's own Node. It keeps all conditions and the annotations of
// exclusions, because the host writes some.
func stripOwn(n *corev1.Node) (*corev1.Node, bool) {
	s, keep := strip(n)
	s.Status.Conditions = n.Status.Conditions
	for _, x := range v1alpha1.AllExclusions() {
		if value, ok := n.Annotations[x.Key]; ok && x.Kind == v1alpha1.MarkAnnotation {
			s.Annotations[x.Key] = value
		}
	}
	return s, keep
}

// ours returns the annotations of lockkeeper and its hooks, and the marks of other owners. No
// decision uses other annotations, which may change often. All labels are kept, because users
// may select nodes by any of them.
func ours(annotations map[string]string) map[string]string {
	kept := make(map[string]string, len(annotations))
	for key, value := range annotations {
		if strings.HasPrefix(key, v1alpha1.Prefix) || strings.HasPrefix(key, v1alpha1.HookPrefix) || v1alpha1.InMarks(v1alpha1.MarkAnnotation, key) {
			kept[key] = value
		}
	}
	return kept
}

// Policies holds the cluster's DisruptionPolicies, each with its compiled form. The results
// of its methods are shared, and callers must not change them.
type Policies[T any] struct {
	*Watch[*v1alpha1.DisruptionPolicy, compiled[T]]
	client *Client
}

// compiled is a policy as the API server has it, and its compiled form.
type compiled[T any] struct {
	obj  *v1alpha1.DisruptionPolicy
	made T
}

// WatchPolicies returns a Watch of all policies. compile is policy.Compile; it is called
// once for each version of a policy, with a function that loads time zones. changed is
// called when a spec has changed. It is not called for a change of the status, which no
// decision uses; see [WatchOptions].
//
// If the API server does not serve the kind, there are no policies: Listed is true then, and
// Err is [ErrNotServed].
func WatchPolicies[T any, Zones ~func(string) (*time.Location, error)](client *Client,
	compile func(*v1alpha1.DisruptionPolicy, Zones) T, changed func()) *Policies[T] {
	return &Policies[T]{client: client, Watch: NewWatch(policyResource{client}, WatchOptions[*v1alpha1.DisruptionPolicy, compiled[T]]{
		Name: "policies", Same: func(was, is compiled[T]) bool { return sameSpec(was.obj, is.obj) }, Changed: changed,
		NotServed: func(err error) bool { return errors.Is(err, ErrNotServed) }, Server: serverOf(client),
		Keep: func(obj *v1alpha1.DisruptionPolicy) (compiled[T], bool) {
			obj.ManagedFields, obj.Annotations = nil, nil
			return compiled[T]{obj, compile(obj, time.LoadLocation)}, true
		},
	})}
}

// sameSpec reports whether two versions of a policy have the same spec. A write of the
// status changes neither UID nor generation. A store that was restored from a backup may use
// the same generation again for another spec.
func sameSpec(a, b *v1alpha1.DisruptionPolicy) bool {
	return a.UID == b.UID && a.Generation == b.Generation && reflect.DeepEqual(a.Spec, b.Spec)
}

// Compiled returns the compiled policies, in the order of their names.
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
	// A merge patch does not change fields that it does not contain, so it has to contain
	// every field.
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
	err = client.Patch(types.MergePatchType).Resource(v1alpha1.PolicyResource.Resource).Name(obj.Name).SubResource("status").
		Param("fieldManager", FieldManager("coordinator")).Body(body).Do(ctx).Into(made)
	if err != nil {
		return fmt.Errorf("writing the status of policy %s: %w", obj.Name, err)
	}
	// The watch may be late, and until then the caller would write the same status again.
	if made.UID == obj.UID {
		if _, matters := p.put(made, false); matters {
			p.opts.Changed() // someone has changed the spec, and the watch brings nothing that is new now
		}
	}
	return nil
}

// ErrNotServed is the error of reading policies if the API server does not serve
// them: the manifests were not applied, or the CustomResourceDefinition was deleted
// and every policy with it.
var ErrNotServed = errors.New("the API server does not serve DisruptionPolicies; apply the manifests: lockkeeper manifests | kubectl apply -f -")

// policyResource is the [Resource] of DisruptionPolicies.
type policyResource struct{ c *Client }

// List lists the policies. A 404 alone does not mean that there are none, because a proxy may
// give that answer too. Discovery has to confirm it.
func (r policyResource) List(ctx context.Context, o metav1.ListOptions) (*v1alpha1.DisruptionPolicyList, error) {
	list := &v1alpha1.DisruptionPolicyList{}
	client, err := r.c.OwnKinds()
	if err == nil {
		err = client.Get().Resource(v1alpha1.PolicyResource.Resource).VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Into(list)
	}
	if apierrors.IsNotFound(err) {
		if served, discoveryErr := serves(ctx, r.c, v1alpha1.PolicyResource); discoveryErr == nil && !served {
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
	return client.Get().Resource(v1alpha1.PolicyResource.Resource).VersionedParams(&o, metav1.ParameterCodec).Watch(ctx)
}

// serves reports whether the API server's discovery documents list the resource.
// It returns an error if it cannot read them.
func serves(ctx context.Context, c *Client, resource schema.GroupVersionResource) (bool, error) {
	gv := resource.GroupVersion()
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
	return slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool { return r.Name == resource.Resource }), nil
}
