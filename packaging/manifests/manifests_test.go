package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

func render(t *testing.T, o Options) string {
	t.Helper()
	text, err := Render(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func objects(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4<<10)
	for {
		o := &unstructured.Unstructured{}
		switch err := decoder.Decode(o); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		}
		all = append(all, o)
	}
}

func rules(t *testing.T, o *unstructured.Unstructured) string {
	t.Helper()
	list, _, err := unstructured.NestedSlice(o.Object, "rules")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, r := range list {
		rule := r.(map[string]any)
		fmt.Fprint(&b, rule["apiGroups"], rule["resources"], rule["resourceNames"], rule["verbs"])
	}
	return b.String()
}

// All that is granted, by hand. Whoever makes it longer says why in the manifests, in docs/install.md and here.
func TestGrants(t *testing.T) {
	want := map[string]string{
		"CustomResourceDefinition/disruptionpolicies.lockkeeper.dev": "",
		"CustomResourceDefinition/hostupdates.lockkeeper.dev":        "",

		"Namespace/lockkeeper":                      "",
		"Lease/lockkeeper":                          "",
		"ServiceAccount/lockkeeper-coordinator":     "",
		"Role/lockkeeper-host":                      "[coordination.k8s.io] [leases] [lockkeeper] [get]",
		"RoleBinding/lockkeeper-host":               "Role/lockkeeper-host to [map[apiGroup:rbac.authorization.k8s.io kind:Group name:system:nodes]]",
		"ClusterRole/lockkeeper-host":               "[lockkeeper.dev] [disruptionpolicies] <nil> [list watch][lockkeeper.dev] [hostupdates] <nil> [get create patch]",
		"ClusterRoleBinding/lockkeeper-host":        "ClusterRole/lockkeeper-host to [map[apiGroup:rbac.authorization.k8s.io kind:Group name:system:nodes]]",
		"ClusterRole/lockkeeper-coordinator":        "[] [nodes] <nil> [get list watch patch][lockkeeper.dev] [disruptionpolicies] <nil> [list watch][lockkeeper.dev] [disruptionpolicies/status] <nil> [patch]",
		"Role/lockkeeper-coordinator":               "[coordination.k8s.io] [leases] [lockkeeper] [get list watch update][events.k8s.io] [events] <nil> [create]",
		"ClusterRoleBinding/lockkeeper-coordinator": "ClusterRole/lockkeeper-coordinator to [map[kind:ServiceAccount name:lockkeeper-coordinator namespace:lockkeeper] map[apiGroup:rbac.authorization.k8s.io kind:Group name:lockkeeper:coordinators]]",
		"RoleBinding/lockkeeper-coordinator":        "Role/lockkeeper-coordinator to [map[kind:ServiceAccount name:lockkeeper-coordinator namespace:lockkeeper] map[apiGroup:rbac.authorization.k8s.io kind:Group name:lockkeeper:coordinators]]",

		"Role/lockkeeper-events":        "[events.k8s.io] [events] <nil> [create]",
		"RoleBinding/lockkeeper-events": "Role/lockkeeper-events to [map[kind:ServiceAccount name:lockkeeper-coordinator namespace:lockkeeper] map[apiGroup:rbac.authorization.k8s.io kind:Group name:lockkeeper:coordinators]]",

		"Role/lockkeeper-renewal":        "[] [serviceaccounts/token] [lockkeeper-coordinator] [create]",
		"RoleBinding/lockkeeper-renewal": "Role/lockkeeper-renewal to [map[kind:ServiceAccount name:lockkeeper-coordinator namespace:lockkeeper]]", // not the group

		// Bound to no one.
		"ClusterRole/lockkeeper-operator": "[lockkeeper.dev] [nodes] <nil> [pause detach manage request retry][lockkeeper.dev] [hostupdates] <nil> [delete]",
		"ClusterRole/lockkeeper-hook":     "[lockkeeper.dev] [nodes] <nil> [confirm]",
		// Without rollout, which the admission policy lockkeeper-policies asks for.
		"ClusterRole/lockkeeper-rules-editor": "[lockkeeper.dev] [disruptionpolicies] <nil> [get list watch create update patch delete]",
	}
	for _, name := range []string{"keys", "prefixes", "owners", "coordinator", "coordinator-lease", "coordinator-token", "hostupdates", "policies"} {
		want["ValidatingAdmissionPolicy/lockkeeper-"+name] = ""
		want["ValidatingAdmissionPolicyBinding/lockkeeper-"+name] = "lockkeeper-" + name + " [Deny]"
	}
	for _, o := range objects(t, render(t, Options{})) {
		name := o.GetKind() + "/" + o.GetName()
		got := rules(t, o)
		if ref, ok, _ := unstructured.NestedStringMap(o.Object, "roleRef"); ok {
			got = fmt.Sprint(ref["kind"], "/", ref["name"], " to ", o.Object["subjects"])
		}
		if policy, ok, _ := unstructured.NestedString(o.Object, "spec", "policyName"); ok {
			actions, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "validationActions")
			got = fmt.Sprint(policy, " ", actions)
		}
		// [""] prints as [].
		if expected, ok := want[name]; !ok || got != expected {
			t.Errorf("%s: %q, want %q", name, got, expected)
		}
		delete(want, name)
		if o.GetKind() == "Lease" && o.Object["spec"] != nil {
			t.Error("the Lease has a spec: applied again it would take the holder away")
		}
	}
	for name := range want {
		t.Errorf("%s is missing", name)
	}
}

// Each verb says on its own line what it is for.
func TestEveryVerbSaysWhy(t *testing.T) {
	verbs := 0
	for line := range strings.Lines(render(t, Options{})) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "verbs:") && line != "verbs:" {
			t.Errorf("verbs on one line: %s", line)
		}
		verb, ok := strings.CutPrefix(line, "- ")
		if name, _, _ := strings.Cut(verb, " "); !ok || !slices.Contains([]string{
			"get", "list", "watch", "create", "update", "patch", "delete", "*", "pause", "detach", "manage", "request", "retry", "confirm"}, name) {
			continue
		}
		verbs++
		if _, why, _ := strings.Cut(verb, " # "); len(strings.Fields(why)) < 3 {
			t.Errorf("%q does not say why", line)
		}
	}
	if verbs != 34 {
		t.Errorf("%d verbs found, want 34", verbs)
	}
}

// Without the leave to renew the coordinator may ask for no token, and nothing else changes.
func TestNoRenewal(t *testing.T) {
	with, without := render(t, Options{}), render(t, Options{NoRenewal: true})
	const rule = "resources: [serviceaccounts/token]\n  resourceNames:"
	if strings.Contains(without, rule) || !strings.Contains(with, rule) {
		t.Error("the rule is there without it, or is not there with it")
	}
	if a, b := len(strings.Split(with, "\n")), len(strings.Split(without, "\n")); a-b != 5 {
		t.Errorf("%d lines are left out, want 5", a-b)
	}
	// What was granted before is taken back when this is applied: the role is there, and has no rule.
	found := false
	for _, o := range objects(t, without) {
		if o.GetKind() == "Role" && o.GetName() == "lockkeeper-renewal" {
			found = true
			if list, ok, _ := unstructured.NestedSlice(o.Object, "rules"); !ok || len(list) != 0 {
				t.Errorf("its rules are %v, %t", list, ok)
			}
		}
	}
	if !found {
		t.Error("its role is not there: kubectl apply would take nothing back")
	}
}

func TestNamesAreChosen(t *testing.T) {
	text := render(t, Options{Namespace: "123", Lease: "on"})
	for _, o := range objects(t, text) {
		switch {
		case o.GetKind() == "Namespace" && o.GetName() != "123", o.GetKind() == "Lease" && o.GetName() != "on",
			o.GetName() == "lockkeeper-events" && o.GetNamespace() != "default",
			o.GetName() != "lockkeeper-events" && slices.Contains([]string{"Lease", "ServiceAccount", "Role", "RoleBinding"}, o.GetKind()) != (o.GetNamespace() == "123"):
			t.Errorf("%s %s in %q", o.GetKind(), o.GetName(), o.GetNamespace())
		}
		if r := rules(t, o); strings.Contains(r, "leases") && !strings.Contains(r, "[leases] [on]") {
			t.Errorf("%s: %s", o.GetName(), r)
		}
	}
	if strings.Contains(text, `"lockkeeper"`) || strings.Contains(text, "<no value>") {
		t.Errorf("a default name is left:\n%s", text)
	}
	for _, o := range []Options{{Namespace: "Lock"}, {Namespace: "a.b"}, {Namespace: "x\n---\n"}, {Lease: "a/b"}, {Lease: `"`}, {Lease: strings.Repeat("a", 254)}} {
		if text, err := Render(o); err == nil {
			t.Errorf("%+v rendered:\n%s", o, text)
		}
	}
}

func TestStable(t *testing.T) {
	if a, b := render(t, Options{}), render(t, Options{Namespace: "lockkeeper", Lease: "lockkeeper"}); a != b || bytes.ContainsRune([]byte(a), '\t') {
		t.Error("the same options, other bytes, or a tab in YAML")
	}
}

// Whose key is whose, by hand; what the policies do with it is tried on a real API server in the test bed.
func TestPoliciesNameTheKeys(t *testing.T) {
	text := render(t, Options{Namespace: "elsewhere"})
	const (
		labels      = `"lockkeeper.dev/wants", "lockkeeper.dev/os", "lockkeeper.dev/os-version", "lockkeeper.dev/group", "lockkeeper.dev/state", "lockkeeper.dev/held", "lockkeeper.dev/managed"`
		annotations = `"lockkeeper.dev/host", "lockkeeper.dev/ack", "lockkeeper.dev/cordon", ` +
			`"lockkeeper.dev/turn", "lockkeeper.dev/grant", "lockkeeper.dev/last", "lockkeeper.dev/runs", "lockkeeper.dev/expired", ` +
			`"lockkeeper.dev/paused", "lockkeeper.dev/detached", "lockkeeper.dev/request", "lockkeeper.dev/request-now", "lockkeeper.dev/retry"`
	)
	for want, times := range map[string]int{
		"[" + labels + "].exists(k,":      1,
		"[" + annotations + "].exists(k,": 1,
		`variables.isOwnHost && !(k in ["lockkeeper.dev/wants", "lockkeeper.dev/os", "lockkeeper.dev/os-version", "lockkeeper.dev/group", ` +
			`"lockkeeper.dev/host", "lockkeeper.dev/ack", "lockkeeper.dev/cordon"])`: 1,
		`!variables.isOwnHost && k in ["lockkeeper.dev/managed", "lockkeeper.dev/paused", "lockkeeper.dev/detached", "lockkeeper.dev/request", "lockkeeper.dev/request-now", "lockkeeper.dev/retry"] + variables.hooks`: 1,
		`variables.newLabels.filter(k, !(k in ["lockkeeper.dev/state", "lockkeeper.dev/held"] || k.startsWith("lockkeeper.dev/coordinator-"))`:                                                                          1,
		`variables.set.all(k, k in ["lockkeeper.dev/turn", "lockkeeper.dev/grant", "lockkeeper.dev/last", "lockkeeper.dev/runs", "lockkeeper.dev/expired"] || k.startsWith("lockkeeper.dev/coordinator-"))`:             1,
		`!(request.userInfo.username == "system:serviceaccount:elsewhere:lockkeeper-coordinator" || "lockkeeper:coordinators" in`:                                                                                       3, // everyone but the coordinator
		`      request.userInfo.username == "system:serviceaccount:elsewhere:lockkeeper-coordinator" || "lockkeeper:coordinators" in`:                                                                                   3, // the coordinator
		`&& !((k in ["lockkeeper.dev/wants"] || k.startsWith("lockkeeper.dev/host-")) && variables.takenOut))`:                                                                                                          1,
		`|| (k in ["lockkeeper.dev/host", "lockkeeper.dev/ack"] || k.startsWith("lockkeeper.dev/host-")) && variables.takenOut)`:                                                                                        1,
		`!(variables.isOwnHost && k.startsWith("lockkeeper.dev/host-"))`:                                                                                                                                                2,
		`namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: "elsewhere"}}`:                                                                                                                                  1,
	} {
		if strings.Count(text, want) != times {
			t.Errorf("%d times, want %d: %s", strings.Count(text, want), times, want)
		}
	}
}

// The expression by which the API server knows an intent with an end comes through YAML as it is, and is what the coordinator reads by.
func TestIntentPatternIsTheApis(t *testing.T) {
	found := 0
	for _, o := range objects(t, render(t, Options{})) {
		variables, _, _ := unstructured.NestedSlice(o.Object, "spec", "variables")
		for _, v := range variables {
			if v := v.(map[string]any); v["name"] == "intentForm" {
				found++
				if want := "r'" + v1alpha1.IntentPattern + "'"; v["expression"] != want {
					t.Errorf("%s, want %s", v["expression"], want)
				}
			}
		}
	}
	if found != 1 {
		t.Errorf("it is in %d policies, want 1", found)
	}
}

// Each object has the three labels, by hand, and no other: a label that changes with the version would be a difference at each upgrade.
func TestLabels(t *testing.T) {
	components := map[string]string{
		"CustomResourceDefinition": "api", "ValidatingAdmissionPolicy": "admission", "ValidatingAdmissionPolicyBinding": "admission",
		"Namespace": "coordinator", "Lease": "coordinator", "ServiceAccount": "coordinator", "DisruptionPolicy": "policy",
	}
	names := map[string]string{
		"lockkeeper-host": "host", "lockkeeper-coordinator": "coordinator", "lockkeeper-events": "coordinator", "lockkeeper-renewal": "coordinator",
		"lockkeeper-operator": "users", "lockkeeper-hook": "users", "lockkeeper-rules-editor": "users",
	}
	key, value, _ := strings.Cut(PolicySelector, "=")
	for _, o := range objects(t, render(t, Options{})+"---\n"+string(Policy())) {
		component := components[o.GetKind()]
		if component == "" {
			component = names[o.GetName()]
		}
		want := map[string]string{"app.kubernetes.io/name": "lockkeeper", "app.kubernetes.io/part-of": "lockkeeper", "app.kubernetes.io/component": component}
		if got := o.GetLabels(); !maps.Equal(got, want) || got[key] != value {
			t.Errorf("%s %s has labels %v, want %v", o.GetKind(), o.GetName(), got, want)
		}
	}
}

// Without the Lease, all other objects are the same, in the same order, and nothing says that the Lease is among them.
func TestWithoutLease(t *testing.T) {
	all := objects(t, render(t, Options{Namespace: "elsewhere"}))
	text := render(t, Options{Namespace: "elsewhere", WithoutLease: true})
	rest := objects(t, text)
	if last := all[len(all)-1]; last.GetKind() != "Lease" || last.GetName() != "lockkeeper" || last.GetNamespace() != "elsewhere" {
		t.Fatalf("the last object is %s %s/%s, want the Lease", last.GetKind(), last.GetNamespace(), last.GetName())
	}
	if !reflect.DeepEqual(rest, all[:len(all)-1]) {
		t.Error("without the Lease, other objects differ")
	}
	if !strings.HasPrefix(text, "# What lockkeeper needs in a cluster, except the Lease.") || strings.Contains(text, "kind: Lease") {
		t.Errorf("it begins with\n%.300s", text)
	}
}

// The Lease that `lockkeeper init` creates is the one of the manifests.
func TestLease(t *testing.T) {
	for _, o := range []Options{{}, {Namespace: "elsewhere", Lease: "on"}} {
		all := objects(t, render(t, o))
		got, err := Lease(o)
		if err != nil {
			t.Fatal(err)
		}
		want := all[len(all)-1]
		if got.Name != want.GetName() || got.Namespace != want.GetNamespace() || !maps.Equal(got.Labels, want.GetLabels()) || len(got.Labels) != 3 ||
			got.APIVersion != "coordination.k8s.io/v1" || got.Kind != "Lease" || !reflect.DeepEqual(got.Spec, coordinationv1.LeaseSpec{}) {
			t.Errorf("%+v: %+v, the manifests have %v", o, got, want.Object)
		}
	}
	if _, err := Lease(Options{Namespace: "Lock"}); err == nil || !strings.HasPrefix(err.Error(), `namespace "Lock": `) {
		t.Errorf("a namespace that cannot be: %v", err)
	}
}

func TestAudiences(t *testing.T) {
	for _, c := range []struct {
		audiences []string
		want      string
	}{
		{nil, `object.spec.audiences.all(a, a == "https://kubernetes.default.svc" || a.startsWith("https://kubernetes.default.svc."))`},
		{[]string{"https://oidc.example.com/id/1", "k3s"}, `object.spec.audiences.all(a, a in ["https://oidc.example.com/id/1", "k3s"])`},
	} {
		if text := render(t, Options{Audiences: c.audiences}); strings.Count(text, c.want) != 1 {
			t.Errorf("%q: not once: %s", c.audiences, c.want)
		}
	}
	for _, bad := range []string{"", " ", "a b", `a"`, "a'", `a\`, "a\n", "{{.Lease}}", "é", strings.Repeat("a", 257)} {
		if _, err := Render(Options{Audiences: []string{"good", bad}}); err == nil || !strings.HasPrefix(err.Error(), "audience ") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestWithoutGroup: after the theft of a certificate, docs/security.md applies the manifests without the lines that this expression of
// sed matches. Otherwise they would give the certificate its rights back.
func TestWithoutGroup(t *testing.T) {
	const line = `kind: Group, name: "` + v1alpha1.CoordinatorGroup + `"`
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := "lockkeeper manifests | sed '/" + line + "/d' | kubectl apply -f -"; !strings.Contains(string(page), want) {
		t.Errorf("docs/security.md does not have %s", want)
	}
	var kept []string
	text := render(t, Options{})
	for l := range strings.Lines(text) {
		if !strings.Contains(l, line) {
			kept = append(kept, l)
		}
	}
	all := objects(t, strings.Join(kept, ""))
	if len(all) != len(objects(t, text)) {
		t.Errorf("%d objects", len(all))
	}
	for _, o := range all {
		subjects, bound := o.Object["subjects"]
		if strings.Contains(fmt.Sprint(subjects), v1alpha1.CoordinatorGroup) || bound && len(subjects.([]any)) == 0 {
			t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), subjects)
		}
	}
}
