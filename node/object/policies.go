package object

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// Policies is what this process knows of the cluster's DisruptionPolicies: a
// LIST from the quorum, kept up by one watch. Its methods may be called from any
// goroutine; what they hand out is shared and must not be changed.
type Policies struct {
	client *Client
	notify func()

	mu      sync.Mutex
	objects map[string]*v1alpha1.DisruptionPolicy
	set     policy.Set
	listed  bool
	err     error
}

// NewPolicies makes a view of all policies. notify is called after every change
// that says something, never with a lock held; it must not block.
func NewPolicies(client *Client, notify func()) *Policies {
	return &Policies{client: client, notify: notify, objects: map[string]*v1alpha1.DisruptionPolicy{}}
}

// Run lists and watches until ctx ends. It never gives up: while policies cannot
// be read, [Policies.Err] says why, and what was read before stands.
func (p *Policies) Run(ctx context.Context) {
	r := cache.NewReflectorWithOptions(policyWatch{p}, &v1alpha1.DisruptionPolicy{}, policyStore{p},
		cache.ReflectorOptions{Name: "disruptionpolicies", MinWatchTimeout: WatchTimeout})
	r.RunWithContext(Quiet(ctx))
}

// Listed reports whether the policies are known: a list was taken in, or the
// API server said that it knows no such kind, which are no policies.
func (p *Policies) Listed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listed
}

// Err is why the policies cannot be read at present, or nil.
func (p *Policies) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Set are the policies, ready to decide by.
func (p *Policies) Set() policy.Set {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.set
}

// Get returns a policy as the API server has it, or nil.
func (p *Policies) Get(name string) *v1alpha1.DisruptionPolicy {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.objects[name]
}

// change makes a change to the policies and tells whoever is to hear of it. A
// status that was written is none: nobody decides by it.
func (p *Policies) change(do func(map[string]*v1alpha1.DisruptionPolicy) (news bool)) {
	p.mu.Lock()
	news := do(p.objects) || !p.listed
	p.listed = true
	if news {
		var all []policy.Policy
		for _, obj := range p.objects {
			all = append(all, policy.Compile(obj, time.LoadLocation))
		}
		p.set = policy.NewSet(all...)
	}
	p.mu.Unlock()
	if news {
		p.notify()
	}
}

func (p *Policies) answered(err error) {
	p.mu.Lock()
	changed := (err == nil) != (p.err == nil)
	p.err = err
	p.mu.Unlock()
	if changed {
		p.notify()
	}
}

// none: there is no such kind. The definition was deleted, and every policy
// with it.
func (p *Policies) none() {
	p.change(func(all map[string]*v1alpha1.DisruptionPolicy) bool {
		news := len(all) > 0
		clear(all)
		return news
	})
}

// policies is a client of our own kinds, which the API server speaks of in JSON
// alone.
func (c *Client) policies() (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	cfg := rest.CopyConfig(c.config)
	cfg.GroupVersion = &v1alpha1.GroupVersion
	cfg.APIPath = "/apis"
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return rest.RESTClientForConfigAndClient(cfg, c.http)
}

// ReadPolicies reads the policies once, from the quorum. Where the API server
// knows no such kind there are none.
func ReadPolicies(ctx context.Context, client *Client) (policy.Set, error) {
	p := NewPolicies(client, func() {})
	list, err := policyWatch{p}.list(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []policy.Policy
	for i := range list.Items {
		all = append(all, policy.Compile(&list.Items[i], time.LoadLocation))
	}
	return policy.NewSet(all...), nil
}

// WriteStatus writes a policy's status: the coordinator's alone. The policy is
// as [Policies.Get] returned it; one that has been replaced since is left alone.
func (p *Policies) WriteStatus(ctx context.Context, obj *v1alpha1.DisruptionPolicy, status v1alpha1.DisruptionPolicyStatus) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	client, err := p.client.policies()
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

// policyWatch lists from the quorum, always, as listWatch does.
type policyWatch struct{ p *Policies }

// IsWatchListSemanticsUnSupported keeps the reflector to LIST and WATCH.
func (policyWatch) IsWatchListSemanticsUnSupported() bool { return true }

func (w policyWatch) List(o metav1.ListOptions) (runtime.Object, error) {
	return w.ListWithContext(context.Background(), o)
}

func (w policyWatch) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return w.list(ctx, o)
}

func (w policyWatch) list(ctx context.Context, o metav1.ListOptions) (*v1alpha1.DisruptionPolicyList, error) {
	o.ResourceVersion, o.ResourceVersionMatch = "", ""
	list := &v1alpha1.DisruptionPolicyList{}
	client, err := w.p.client.policies()
	if err == nil {
		err = client.Get().Resource(policiesResource).VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Into(list)
	}
	if err == nil {
		return list, nil // an answer once it is taken in
	}
	w.p.answered(err)
	if apierrors.IsNotFound(err) {
		w.p.none()
	}
	return nil, fmt.Errorf("listing policies: %w", err)
}

func (w policyWatch) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return w.WatchWithContext(context.Background(), o)
}

func (w policyWatch) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	client, err := w.p.client.policies()
	if err != nil {
		return nil, err
	}
	o.Watch = true
	answer, err := client.Get().Resource(policiesResource).VersionedParams(&o, metav1.ParameterCodec).Watch(ctx)
	w.p.answered(err)
	return answer, err
}

// policyStore is the view as the reflector fills it.
type policyStore struct{ p *Policies }

func (s policyStore) Add(obj any) error {
	n, err := asPolicy(obj)
	if err != nil {
		return err
	}
	s.p.change(func(all map[string]*v1alpha1.DisruptionPolicy) bool {
		old := all[n.Name]
		all[n.Name] = n
		return old == nil || old.UID != n.UID || old.Generation != n.Generation
	})
	return nil
}

func (s policyStore) Update(obj any) error { return s.Add(obj) }

func (s policyStore) Delete(obj any) error {
	n, err := asPolicy(obj)
	if err != nil {
		return err
	}
	s.p.change(func(all map[string]*v1alpha1.DisruptionPolicy) bool {
		delete(all, n.Name)
		return true
	})
	return nil
}

func (s policyStore) Replace(objs []any, _ string) error {
	policies := make([]*v1alpha1.DisruptionPolicy, 0, len(objs))
	for _, obj := range objs {
		n, err := asPolicy(obj)
		if err != nil {
			return err
		}
		policies = append(policies, n)
	}
	s.p.change(func(all map[string]*v1alpha1.DisruptionPolicy) bool {
		same := len(all) == len(policies) && !slices.ContainsFunc(policies, func(n *v1alpha1.DisruptionPolicy) bool {
			old := all[n.Name]
			return old == nil || old.UID != n.UID || old.Generation != n.Generation
		})
		clear(all)
		for _, n := range policies {
			all[n.Name] = n
		}
		return !same
	})
	// Not before: until here everybody decides by what was read last.
	s.p.answered(nil)
	return nil
}

func (policyStore) Resync() error { return nil }

// asPolicy takes a policy without what nobody needs to keep.
func asPolicy(obj any) (*v1alpha1.DisruptionPolicy, error) {
	n, ok := obj.(*v1alpha1.DisruptionPolicy)
	if !ok {
		return nil, fmt.Errorf("a %T among policies", obj)
	}
	n.ManagedFields, n.Annotations = nil, nil
	return n, nil
}
