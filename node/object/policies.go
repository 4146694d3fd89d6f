package object

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
	r := cache.NewReflectorWithOptions(p.listWatch(), &v1alpha1.DisruptionPolicy{}, policyStore{p},
		cache.ReflectorOptions{Name: "disruptionpolicies", MinWatchTimeout: WatchTimeout})
	r.RunWithContext(Quiet(ctx))
}

func (p *Policies) listWatch() *ListWatch {
	return &ListWatch{
		ListFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := p.client.listPolicies(ctx, o)
			if errors.Is(err, ErrNotServed) {
				p.none()
			}
			return list, err
		},
		WatchFunc: p.client.watchPolicies,
		Answered:  p.answered,
	}
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

// ownKinds returns a client of our own kinds, which the API server serves only in
// JSON.
func (c *Client) ownKinds() (*rest.RESTClient, error) {
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
// serves no such kind there are none.
func ReadPolicies(ctx context.Context, client *Client) (*Policies, error) {
	p := NewPolicies(client, func() {})
	list, err := client.listPolicies(ctx, metav1.ListOptions{})
	if errors.Is(err, ErrNotServed) {
		p.none()
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	p.change(func(all map[string]*v1alpha1.DisruptionPolicy) bool {
		for i := range list.Items {
			all[list.Items[i].Name] = &list.Items[i]
		}
		return true
	})
	return p, nil
}

// Progressing returns, by policy, the condition of that type as the coordinator
// last wrote it: whether the policy's nodes move, and what holds them if not.
func (p *Policies) Progressing() map[string]metav1.Condition {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]metav1.Condition, len(p.objects))
	for name, obj := range p.objects {
		if c := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionProgressing); c != nil {
			all[name] = *c
		}
	}
	return all
}

// WriteStatus writes a policy's status: the coordinator's alone. The policy is
// as [Policies.Get] returned it; one that has been replaced since is left alone.
func (p *Policies) WriteStatus(ctx context.Context, obj *v1alpha1.DisruptionPolicy, status v1alpha1.DisruptionPolicyStatus) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	client, err := p.client.ownKinds()
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

// listPolicies lists the policies. A 404 is not enough to say that there are
// none: a proxy gives that answer too. Discovery has to confirm it.
func (c *Client) listPolicies(ctx context.Context, o metav1.ListOptions) (*v1alpha1.DisruptionPolicyList, error) {
	list := &v1alpha1.DisruptionPolicyList{}
	client, err := c.ownKinds()
	if err == nil {
		err = client.Get().Resource(policiesResource).VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Into(list)
	}
	if apierrors.IsNotFound(err) {
		if served, discoveryErr := c.serves(ctx, v1alpha1.GroupVersion, policiesResource); discoveryErr == nil && !served {
			return nil, ErrNotServed
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listing policies: %w", err)
	}
	return list, nil
}

func (c *Client) watchPolicies(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	client, err := c.ownKinds()
	if err != nil {
		return nil, err
	}
	o.Watch = true
	return client.Get().Resource(policiesResource).VersionedParams(&o, metav1.ParameterCodec).Watch(ctx)
}

// serves reports whether the API server's discovery documents list the resource.
// It returns an error if it cannot read them.
func (c *Client) serves(ctx context.Context, gv schema.GroupVersion, resource string) (bool, error) {
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
		return !sameSpec(old, n)
	})
	return nil
}

// sameSpec reports whether two versions of a policy say the same. Status writes
// change neither UID nor generation; a store that was restored from a backup may
// count the same generation again for another spec.
func sameSpec(a, b *v1alpha1.DisruptionPolicy) bool {
	return a != nil && a.UID == b.UID && a.Generation == b.Generation && reflect.DeepEqual(a.Spec, b.Spec)
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
			return !sameSpec(all[n.Name], n)
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
