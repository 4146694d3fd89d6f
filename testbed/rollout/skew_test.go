package rollout

import (
	"context"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// TestSkew rolls a fleet whose hosts are newer than the cluster's manifests, and then one whose hosts are older. Neither holds a node. Older
// manifests are today's without the last fields, values and rights; newer ones are today's with more.
func TestSkew(t *testing.T) {
	t.Parallel()
	s := play(t, 2, 1, "rollout: {settle: 1s}", quick)
	leader := s.leader()
	names := []string{s.Fleet.Hosts[0].Name(), s.Fleet.Hosts[1].Name()}
	version := newVersion
	roll := func() {
		t.Helper()
		s.Stage(version, names...)
		s.Updated(version, names...)
		version += ".1"
	}

	s.Must(s.ControlPlane.ApplyChanged(s.Within(rig.Soon), older))
	s.leadsNowhere(leader)
	roll()
	for _, h := range s.Fleet.Hosts {
		s.publishes(h, "the end of its turn, without what the schema lacks", func(u *v1alpha1.HostUpdateStatus) bool {
			lacks := u.BootID == "" && !slices.ContainsFunc(u.History, func(f v1alpha1.FinishedTurn) bool { return len(f.Stages) > 0 })
			// The HostUpdate may be that of an earlier test's host, and have its turns.
			return lacks && u.State == "idle" && u.Wants == v1alpha1.WantsNothing && len(u.History) > 0
		})
		s.Eventually("the log of "+h.Name()+" names what it leaves out", func(context.Context) (bool, error) {
			log := h.Logs()
			return strings.Contains(log, "the schema of HostUpdate is older than this lockkeeper") && strings.Contains(log, "status.history.stages"), nil
		})
	}

	// Without rights that only the records need.
	s.Must(s.ControlPlane.ApplyChanged(s.Within(rig.Soon), func(obj *unstructured.Unstructured) {
		older(obj)
		withoutRule(obj, "ClusterRole/lockkeeper-coordinator", "disruptionpolicies/status")
		withoutRule(obj, "Role/lockkeeper-coordinator", "events")
		withoutRule(obj, "Role/lockkeeper-events", "events")
		withoutVerb(obj, "ClusterRole/lockkeeper-host", "hostupdates", "get")
	}))
	roll()

	s.Must(s.ControlPlane.ApplyChanged(s.Within(rig.Soon), newer))
	roll()
	for _, h := range s.Fleet.Hosts {
		s.publishes(h, "all of it again", func(u *v1alpha1.HostUpdateStatus) bool {
			return u.BootID != "" && u.Role != "" && u.State == "idle" && u.Wants == v1alpha1.WantsNothing && len(u.History) > 0 && len(u.History[0].Stages) > 0
		})
	}
}

// leadsNowhere waits until the schema refuses the role Leader, in the HostUpdate of a host that does not lead: the API server accepts what an
// object has already.
func (s *scene) leadsNowhere(leader *simhost.Host) {
	s.T.Helper()
	i := slices.IndexFunc(s.Fleet.Hosts, func(h *simhost.Host) bool { return h != leader })
	s.Must(s.ControlPlane.WaitRefused(s.Within(rig.Soon), `Unsupported value: "Leader"`, func(ctx context.Context) error {
		_, err := s.hostUpdates().Patch(ctx, s.Fleet.Hosts[i].Name(), types.MergePatchType, []byte(`{"status":{"role":"Leader"}}`),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}))
}

// older removes what the last versions added, by hand: fields and a value of HostUpdate that hosts write in every turn, and the fields of
// DisruptionPolicy that came last, with the rules that name them.
func older(obj *unstructured.Unstructured) {
	switch kindAndName(obj) {
	case "CustomResourceDefinition/hostupdates.lockkeeper.dev":
		status := schemaOf(obj, "status")
		dropFields(status, "bootID")
		dropFields(fieldsOf(status, "history", "items"), "stages")
		fieldsOf(status, "role")["enum"] = []any{"Standby", "Host"}
	case "CustomResourceDefinition/disruptionpolicies.lockkeeper.dev":
		withoutRules(schemaOf(obj))
		dropFields(schemaOf(obj, "status"), "effectiveRules")
		dropFields(schemaOf(obj, "spec", "rollout"), "after", "blackouts", "maxTurnsPerDay")
		dropFields(schemaOf(obj, "spec", "drain"), "unmanaged", "emptyDir", "blockTimeout", "onBlockTimeout",
			"excludeFromLoadBalancers", "loadBalancerDelay", "disableScaleDown", "excludeFromRemediation")
	}
}

// newer adds what a later version may add: optional fields, with and without a default, values, rights, and keys on Nodes.
func newer(obj *unstructured.Unstructured) {
	field := func() any { return map[string]any{"type": "string"} }
	set := func(schema map[string]any, name string, value any) {
		schema["properties"].(map[string]any)[name] = value
	}
	switch kindAndName(obj) {
	case "CustomResourceDefinition/hostupdates.lockkeeper.dev":
		set(schemaOf(obj, "status"), "next", field())
		fieldsOf(schemaOf(obj, "status"), "role")["enum"] = []any{"Leader", "Standby", "Host", "Next"}
	case "CustomResourceDefinition/disruptionpolicies.lockkeeper.dev":
		set(schemaOf(obj, "spec"), "next", map[string]any{"type": "string", "default": "x"})
		set(schemaOf(obj, "spec", "rollout"), "next", map[string]any{"type": "string", "default": "x"})
		set(schemaOf(obj, "status"), "next", field())
	case "ClusterRole/lockkeeper-host":
		rules, _, _ := unstructured.NestedSlice(obj.Object, "rules")
		_ = unstructured.SetNestedSlice(obj.Object, append(rules, map[string]any{
			"apiGroups": []any{"lockkeeper.dev"}, "resources": []any{"next"}, "verbs": []any{"get"},
		}), "rules")
	}
	if obj.GetKind() == "ValidatingAdmissionPolicy" {
		replaceText(obj.Object, `"lockkeeper.dev/host", `, `"lockkeeper.dev/host", "lockkeeper.dev/host-next", `)
		replaceText(obj.Object, `"lockkeeper.dev/grant", "lockkeeper.dev/last"`, `"lockkeeper.dev/grant", "lockkeeper.dev/coordinator-next", "lockkeeper.dev/last"`)
	}
}

func kindAndName(obj *unstructured.Unstructured) string { return obj.GetKind() + "/" + obj.GetName() }

// schemaOf returns the schema of a field of a CustomResourceDefinition.
func schemaOf(obj *unstructured.Unstructured, path ...string) map[string]any {
	versions := obj.Object["spec"].(map[string]any)["versions"].([]any)
	return fieldsOf(versions[0].(map[string]any)["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any), path...)
}

// fieldsOf returns the schema of a field below another; "items" is that of a list's items.
func fieldsOf(schema map[string]any, path ...string) map[string]any {
	for _, name := range path {
		if name == "items" {
			schema = schema["items"].(map[string]any)
		} else {
			schema = schema["properties"].(map[string]any)[name].(map[string]any)
		}
	}
	return schema
}

// dropFields removes fields from a schema, each of which has to be there.
func dropFields(schema map[string]any, names ...string) {
	fields := schema["properties"].(map[string]any)
	for _, name := range names {
		if _, ok := fields[name]; !ok {
			panic("the schema has no field " + name)
		}
		delete(fields, name)
		if required, ok := schema["required"].([]any); ok {
			schema["required"] = slices.DeleteFunc(required, func(r any) bool { return r == name })
		}
	}
}

// withoutRules removes all CEL rules.
func withoutRules(value any) {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			withoutRules(item)
		}
	case map[string]any:
		delete(v, "x-kubernetes-validations")
		for _, item := range v {
			withoutRules(item)
		}
	}
}

// withoutRule removes the rule of a role about a resource, which has to be there.
func withoutRule(obj *unstructured.Unstructured, name, resource string) {
	if kindAndName(obj) != name {
		return
	}
	rules, _, _ := unstructured.NestedSlice(obj.Object, "rules")
	left := slices.DeleteFunc(slices.Clone(rules), func(r any) bool { return r.(map[string]any)["resources"].([]any)[0] == resource })
	if len(left) == len(rules) {
		panic(name + " has no rule about " + resource)
	}
	_ = unstructured.SetNestedSlice(obj.Object, left, "rules")
}

// withoutVerb removes a verb from the rule of a role about a resource, which has to have it.
func withoutVerb(obj *unstructured.Unstructured, name, resource, verb string) {
	if kindAndName(obj) != name {
		return
	}
	rules, _, _ := unstructured.NestedSlice(obj.Object, "rules")
	found := false
	for _, r := range rules {
		rule := r.(map[string]any)
		if verbs := rule["verbs"].([]any); rule["resources"].([]any)[0] == resource && slices.Contains(verbs, any(verb)) {
			rule["verbs"], found = slices.DeleteFunc(verbs, func(v any) bool { return v == verb }), true
		}
	}
	if !found {
		panic(name + " has no verb " + verb + " on " + resource)
	}
	_ = unstructured.SetNestedSlice(obj.Object, rules, "rules")
}

// replaceText replaces a text in all strings.
func replaceText(value any, old, text string) any {
	switch v := value.(type) {
	case string:
		return strings.ReplaceAll(v, old, text)
	case []any:
		for i := range v {
			v[i] = replaceText(v[i], old, text)
		}
	case map[string]any:
		for key := range v {
			v[key] = replaceText(v[key], old, text)
		}
	}
	return value
}
