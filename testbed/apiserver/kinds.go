package apiserver

import (
	"maps"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// kind describes how one resource is served. The flags are those of Kubernetes' own strategies, in pkg/registry.
type kind struct {
	gvr        schema.GroupVersionResource
	kind       string
	namespaced bool
	status     bool // it has a subresource for its status, and the rest cannot change the status
	generation bool // metadata.generation counts the changes of its spec
	custom     bool // it is defined by a CustomResourceDefinition: served as JSON only, stored as unstructured
	upsert     bool // a PUT creates it
	blind      bool // a PUT without a resourceVersion is accepted
	// created completes a new object.
	created func(object)
	// selectable are the paths that field selectors may name, besides metadata.name and metadata.namespace.
	selectable []string
	// ownerless are fields that the server sets itself, so that no manager owns them, in the form of FieldsV1.
	ownerless object
	// event is set for events.k8s.io, whose objects are stored as Events of the core API.
	event bool
}

// object is the unstructured form of an object.
type object = map[string]any

func (k *kind) gvk() schema.GroupVersionKind { return k.gvr.GroupVersion().WithKind(k.kind) }

func (k *kind) groupKind() schema.GroupKind { return k.gvk().GroupKind() }

// resource is how errors name the resource.
func (k *kind) resource() schema.GroupResource { return k.gvr.GroupResource() }

// stored is the name of the resource in the store.
func (k *kind) stored() string { return k.gvr.Resource }

// kinds are all resources, by "group/version/resource".
var kinds = func() map[string]*kind {
	core, apps, policy := corev1.SchemeGroupVersion, appsv1.SchemeGroupVersion, policyv1.SchemeGroupVersion
	all := map[string]*kind{}
	for _, k := range []*kind{
		{gvr: core.WithResource("nodes"), kind: "Node", status: true, blind: true, selectable: []string{"spec.unschedulable"}},
		{gvr: core.WithResource("pods"), kind: "Pod", namespaced: true, status: true, generation: true, blind: true, created: newPod,
			ownerless: object{"f:spec": object{"f:priority": object{}, "f:preemptionPolicy": object{}}},
			selectable: []string{"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
				"status.phase", "status.podIP", "status.nominatedNodeName"}},
		{gvr: core.WithResource("namespaces"), kind: "Namespace", status: true, blind: true, created: newNamespace, selectable: []string{"status.phase"}},
		{gvr: core.WithResource("configmaps"), kind: "ConfigMap", namespaced: true, blind: true},
		{gvr: core.WithResource("services"), kind: "Service", namespaced: true, status: true, blind: true},
		{gvr: core.WithResource("serviceaccounts"), kind: "ServiceAccount", namespaced: true, blind: true},
		{gvr: core.WithResource("events"), kind: "Event", namespaced: true, upsert: true, blind: true, selectable: eventFields},
		{gvr: eventsv1.SchemeGroupVersion.WithResource("events"), kind: "Event", namespaced: true, upsert: true, blind: true, event: true,
			selectable: []string{"reason", "type", "reportingController", "regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid"}},
		{gvr: coordinationv1.SchemeGroupVersion.WithResource("leases"), kind: "Lease", namespaced: true, upsert: true},
		{gvr: policy.WithResource("poddisruptionbudgets"), kind: "PodDisruptionBudget", namespaced: true, status: true, generation: true},
		{gvr: apps.WithResource("deployments"), kind: "Deployment", namespaced: true, status: true, generation: true, blind: true},
		{gvr: apps.WithResource("replicasets"), kind: "ReplicaSet", namespaced: true, status: true, generation: true, blind: true},
		{gvr: apps.WithResource("statefulsets"), kind: "StatefulSet", namespaced: true, status: true, generation: true, blind: true},
		{gvr: apps.WithResource("daemonsets"), kind: "DaemonSet", namespaced: true, status: true, generation: true, blind: true},
		{gvr: v1alpha1.PolicyResource, kind: "DisruptionPolicy", status: true, generation: true, custom: true, created: withDefaults},
		{gvr: v1alpha1.HostUpdateResource, kind: "HostUpdate", generation: true, custom: true},
	} {
		all[path(k.gvr)] = k
	}
	return all
}()

var eventFields = []string{"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
	"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason", "reportingComponent", "source", "type"}

func path(r schema.GroupVersionResource) string {
	return r.Group + "/" + r.Version + "/" + r.Resource
}

// kindOf returns the kind of a stored resource.
func kindOf(resource string) *kind {
	for _, k := range kinds {
		if k.gvr.Resource == resource && !k.event {
			return k
		}
	}
	return nil
}

// fieldsOf returns the fields of an object that selectors of the kind may name.
func (k *kind) fieldsOf(u object) fields.Set {
	set := fields.Set{"metadata.name": text(u, "metadata", "name")}
	if k.namespaced {
		set["metadata.namespace"] = text(u, "metadata", "namespace")
	}
	for _, p := range k.selectable {
		set[p] = text(u, strings.Split(p, ".")...)
	}
	switch k.gvr {
	case corev1.SchemeGroupVersion.WithResource("nodes"):
		set["spec.unschedulable"] = boolText(u, "spec", "unschedulable")
	case corev1.SchemeGroupVersion.WithResource("pods"):
		set["spec.hostNetwork"] = boolText(u, "spec", "hostNetwork")
	case corev1.SchemeGroupVersion.WithResource("events"):
		set["source"] = text(u, "source", "component")
	}
	return set
}

// at returns the value at a path of an object, or nil.
func at(u object, path ...string) any {
	var v any = u
	for _, p := range path {
		m, ok := v.(object)
		if !ok {
			return nil
		}
		v = m[p]
	}
	return v
}

// text returns the string at a path of an object, or "".
func text(u object, path ...string) string {
	s, _ := at(u, path...).(string)
	return s
}

func boolText(u object, path ...string) string {
	if b, _ := at(u, path...).(bool); b {
		return "true"
	}
	return "false"
}

// child returns the object at a key, and creates it if there is none.
func child(u object, key string) object {
	m, ok := u[key].(object)
	if !ok {
		m = object{}
		u[key] = m
	}
	return m
}

// setDefault sets a key that an object does not have.
func setDefault(u object, key string, value any) {
	if _, ok := u[key]; !ok {
		u[key] = value
	}
}

// newPod completes a pod: it begins as Pending, with the defaults that matter to an eviction.
func newPod(u object) {
	u["status"] = object{"phase": string(corev1.PodPending), "qosClass": string(corev1.PodQOSBestEffort)}
	spec := child(u, "spec")
	setDefault(spec, "terminationGracePeriodSeconds", int64(corev1.DefaultTerminationGracePeriodSeconds))
	setDefault(spec, "restartPolicy", string(corev1.RestartPolicyAlways))
	setDefault(spec, "dnsPolicy", string(corev1.DNSClusterFirst))
	setDefault(spec, "schedulerName", corev1.DefaultSchedulerName)
	setDefault(spec, "enableServiceLinks", true)
	setDefault(spec, "securityContext", object{})
	setDefault(spec, "priority", int64(0))
	setDefault(spec, "preemptionPolicy", string(corev1.PreemptLowerPriority))
}

func newNamespace(u object) {
	u["status"] = object{"phase": string(corev1.NamespaceActive)}
	name := text(u, "metadata", "name")
	labels := child(child(u, "metadata"), "labels")
	labels[corev1.LabelMetadataName] = name
}

// toCore returns an Event of events.k8s.io as one of the core API, and toEvents the reverse. The store has the former.
func toCore(u object) object { return rename(u, true) }

func toEvents(u object) object { return rename(u, false) }

var eventNames = [][2]string{
	{"regarding", "involvedObject"}, {"note", "message"}, {"reportingController", "reportingComponent"},
	{"deprecatedSource", "source"}, {"deprecatedFirstTimestamp", "firstTimestamp"},
	{"deprecatedLastTimestamp", "lastTimestamp"}, {"deprecatedCount", "count"},
}

func rename(u object, toCore bool) object {
	out := make(object, len(u))
	maps.Copy(out, u)
	for _, n := range eventNames {
		from, to := n[1], n[0]
		if toCore {
			from, to = n[0], n[1]
		}
		if v, ok := u[from]; ok {
			delete(out, from)
			out[to] = v
		}
	}
	out["apiVersion"] = eventsv1.SchemeGroupVersion.String()
	if toCore {
		out["apiVersion"] = "v1"
	}
	return out
}

// newObject returns an empty object of the kind, as the store holds it.
func (k *kind) newObject() (runtime.Object, error) { return typesOf.New(k.gvk()) }

// listKind is the kind of a list.
func (k *kind) listKind() string { return k.kind + "List" }

var statusKind = metav1.Unversioned.WithKind("Status")

// dropsStatus reports whether a new object begins without the status in the request.
func (k *kind) dropsStatus() bool { return k.status && k.kind != "Node" }

// zero returns the fields that even an empty object has.
func (k *kind) zero() object {
	if k.custom {
		return object{}
	}
	obj, err := k.newObject()
	if err != nil {
		panic(err)
	}
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		panic(err)
	}
	return ownable(u)
}
