package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/packaging/manifests"
)

// The objects that [ControlPlane.ApplyLockkeeper] creates, and the identities to which it grants rights.
const (
	LockkeeperNamespace = v1alpha1.DefaultLeaseNamespace
	LockkeeperLease     = v1alpha1.DefaultLeaseName // in LockkeeperNamespace
	NodesGroup          = "system:nodes"
)

// CoordinatorUser is the coordinator's user name.
var CoordinatorUser = v1alpha1.CoordinatorUser(LockkeeperNamespace)

// resources maps the kinds in the manifests to their resources.
var resources = map[schema.GroupKind]schema.GroupVersionResource{
	{Kind: "Namespace"}:                                                               {Version: "v1", Resource: "namespaces"},
	{Kind: "ServiceAccount"}:                                                          {Version: "v1", Resource: "serviceaccounts"},
	{Group: "coordination.k8s.io", Kind: "Lease"}:                                     {Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
	{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}:                 {Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	{Group: v1alpha1.GroupVersion.Group, Kind: "DisruptionPolicy"}:                    v1alpha1.PolicyResource,
	{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicy"}:        {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"},
	{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicyBinding"}: {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"},
	{Group: "rbac.authorization.k8s.io", Kind: "Role"}:                                {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	{Group: "rbac.authorization.k8s.io", Kind: "RoleBinding"}:                         {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
	{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole"}:                         {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	{Group: "rbac.authorization.k8s.io", Kind: "ClusterRoleBinding"}:                  {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
}

// ApplyLockkeeper applies what an administrator applies before lockkeeper can run: the output of `lockkeeper manifests` and, when the API
// server serves its kind, of `lockkeeper manifests --policy`. A second call restores changed objects and keeps the Lease's holder.
// ApplyLockkeeper returns when the API server enforces the objects. An admission policy that was changed, and not only bound or created,
// may take one more second.
func (cp *ControlPlane) ApplyLockkeeper(ctx context.Context) error {
	return cp.ApplyChanged(ctx, func(*unstructured.Unstructured) {})
}

// ApplyChanged is [ControlPlane.ApplyLockkeeper] with objects that a test has changed, such as those of another version. change must not remove
// what ApplyLockkeeper waits for: the admission policy lockkeeper-hostupdates, and the hosts' right to write HostUpdates.
func (cp *ControlPlane) ApplyChanged(ctx context.Context, change func(*unstructured.Unstructured)) error {
	client, err := dynamic.NewForConfig(cp.AdminConfig())
	if err != nil {
		return fmt.Errorf("applying lockkeeper's objects: %w", err)
	}
	text, err := manifests.Render(manifests.Options{})
	if err != nil {
		return fmt.Errorf("applying lockkeeper's objects: %w", err)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(io.MultiReader(bytes.NewReader(text), strings.NewReader("---\n"), bytes.NewReader(manifests.Policy())), 4<<10)
	for {
		obj := &unstructured.Unstructured{}
		if err := decoder.Decode(obj); errors.Is(err, io.EOF) {
			return cp.waitInForce(ctx)
		} else if err != nil {
			return fmt.Errorf("parsing lockkeeper's objects: %w", err)
		}
		change(obj)
		if err := cp.applyUnlessThere(ctx, client, obj); err != nil {
			return fmt.Errorf("applying %s %s: %w", obj.GetKind(), obj.GetName(), err)
		}
	}
}

// applied is an object as it was applied last, and the resourceVersion that it had after that.
type applied struct {
	obj     *unstructured.Unstructured
	version string
}

// applyUnlessThere applies an object, unless the same one was applied last and has not been written since. Every test applies these
// objects, and in a profile the API server spent a sixth of its time on compiling their rules again.
func (cp *ControlPlane) applyUnlessThere(ctx context.Context, client dynamic.Interface, obj *unstructured.Unstructured) error {
	key := obj.GetKind() + "/" + obj.GetNamespace() + "/" + obj.GetName()
	if was, ok := cp.lastApplied.Load(key); ok && reflect.DeepEqual(was.(applied).obj.Object, obj.Object) {
		is, err := client.Resource(resources[obj.GroupVersionKind().GroupKind()]).Namespace(obj.GetNamespace()).Get(ctx, obj.GetName(), metav1.GetOptions{})
		if err == nil && is.GetResourceVersion() == was.(applied).version {
			return nil
		}
	}
	version, err := apply(ctx, client, obj)
	if err != nil {
		return err
	}
	cp.lastApplied.Store(key, applied{obj, version})
	return nil
}

// waitInForce waits until the API server refuses that a host writes the HostUpdate of another host. To refuse it, the API server must serve
// HostUpdates and know the hosts' RBAC rules and the last admission policy of the manifests with its binding. The API server processes
// policies and bindings in the order of their writes, so the earlier policies are in force too.
func (cp *ControlPlane) waitInForce(ctx context.Context) error {
	config := cp.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:probe", Groups: []string{NodesGroup, "system:authenticated"}}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("waiting for lockkeeper's objects to be in force: %w", err)
	}
	foreign := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "HostUpdate", "metadata": map[string]any{"name": "probe-of-another"},
	}}
	err = cp.WaitRefused(ctx, "a host writes only the HostUpdate of its own Node", func(ctx context.Context) error {
		_, err := client.Resource(v1alpha1.HostUpdateResource).Apply(ctx, foreign.GetName(), foreign,
			metav1.ApplyOptions{FieldManager: "lockkeeper-testbed", DryRun: []string{metav1.DryRunAll}})
		return err
	})
	if err != nil {
		return fmt.Errorf("lockkeeper's objects are applied and not in force: %w", err)
	}
	return nil
}

// apply applies an object and returns its resourceVersion. It retries an object of a new kind until the API server serves the kind, shortly
// after its definition was applied.
func apply(ctx context.Context, client dynamic.Interface, obj *unstructured.Unstructured) (version string, err error) {
	resource, ok := resources[obj.GroupVersionKind().GroupKind()]
	if !ok {
		return "", errors.New("this testbed does not know the kind")
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		made, err := client.Resource(resource).Namespace(obj.GetNamespace()).
			Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: "lockkeeper-testbed", Force: true})
		if err == nil {
			return made.GetResourceVersion(), nil
		}
		if !apierrors.IsNotFound(err) || resource != v1alpha1.PolicyResource {
			return "", err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", fmt.Errorf("%w (%w)", err, ctx.Err())
		}
	}
}

// UnbindPolicies takes lockkeeper's admission policies out of force and returns when they no longer apply. It uses the selector that
// docs/install.md gives for an emergency. A test uses it to write a state to a Node that no coordinator gave it. The next
// [ControlPlane.ApplyLockkeeper] binds the policies again.
func (cp *ControlPlane) UnbindPolicies(ctx context.Context) error {
	err := cp.admin.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: manifests.PolicySelector})
	if err != nil {
		return fmt.Errorf("unbinding lockkeeper's admission policies: %w", err)
	}
	// lockkeeper-keys refuses the first label, lockkeeper-prefixes the second.
	forged := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-", Labels: map[string]string{
		v1alpha1.LabelState: string(v1alpha1.StateIdle), v1alpha1.Prefix + "probe": "",
	}}}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := cp.admin.CoreV1().Nodes().Create(ctx, forged, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the policies to be out of force: %w (%w)", err, ctx.Err())
		}
	}
}

// NodeWriter returns a client of the identity that may write labels and annotations with these keys on a Node: the coordinator, the Node's
// own kubelet or, for all other keys, an administrator. It is an error if one write needs keys of two identities.
func (cp *ControlPlane) NodeWriter(node string, keys ...string) (kubernetes.Interface, error) {
	var coordinator, host, other bool
	for _, key := range keys {
		switch {
		case slices.Contains(both(v1alpha1.CoordinatorKeys()), key):
			coordinator = true
		case slices.Contains(both(v1alpha1.HostKeys()), key):
			host = true
		default:
			other = true
		}
	}
	if coordinator && host || (coordinator || host) && other {
		return nil, fmt.Errorf("no single identity may write all of these: %q", keys)
	}
	if !coordinator && !host {
		return cp.admin, nil
	}
	who, config := node, cp.NodeConfig
	if coordinator {
		who, config = "", func(string) (*rest.Config, error) { return cp.CoordinatorConfig() }
	}
	if c, ok := cp.writers.Load(who); ok {
		return c.(kubernetes.Interface), nil
	}
	cfg, err := config(node)
	if err != nil {
		return nil, err
	}
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("creating a client for %q: %w", keys, err)
	}
	cp.writers.Store(who, c)
	return c, nil
}

func both(labels, annotations []string) []string { return slices.Concat(labels, annotations) }
