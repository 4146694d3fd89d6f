package manifests

import (
	"slices"
	"strings"
	"testing"
)

// TestDelete: every object of the manifests is there once, by kind, name and namespace and nothing else, in an order in which the rights
// of both identities go before what limits them, and nothing goes after its namespace.
func TestDelete(t *testing.T) {
	for _, o := range []Options{{}, {Namespace: "123", Lease: "on", NoRenewal: true}} {
		text, err := Delete(o)
		if err != nil {
			t.Fatal(err)
		}
		type id struct{ version, kind, namespace, name string }
		var want, got []id
		for _, obj := range objects(t, render(t, o)) {
			want = append(want, id{obj.GetAPIVersion(), obj.GetKind(), obj.GetNamespace(), obj.GetName()})
		}
		for _, obj := range objects(t, string(text)) {
			i := id{obj.GetAPIVersion(), obj.GetKind(), obj.GetNamespace(), obj.GetName()}
			if got = append(got, i); !slices.Contains(want, i) || len(obj.Object) != 3 {
				t.Errorf("%+v is not in the manifests, or more than its name is here: %v", i, obj.Object)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d objects, the manifests have %d", len(got), len(want))
		}
		place := func(kind string, last bool) int {
			at := -1
			for i := range got {
				if got[i].kind == kind && (last || at < 0) {
					at = i
				}
			}
			if at < 0 {
				t.Fatalf("no %s", kind)
			}
			return at
		}
		if place("Lease", false) != 0 || place("Namespace", true) != len(got)-1 {
			t.Errorf("the Lease is not first or the Namespace is not last: %v", got)
		}
		for _, first := range []string{"ClusterRoleBinding", "RoleBinding", "ServiceAccount"} {
			if place(first, true) > place("ValidatingAdmissionPolicyBinding", false) {
				t.Errorf("a %s goes after an admission policy", first)
			}
		}
	}
	// The namespace may have been there before, with objects of others in it.
	for namespace, o := range map[string]Options{"lockkeeper": {}, "kube-infra": {Namespace: "kube-infra"}} {
		text, err := Delete(o)
		if err != nil {
			t.Fatal(err)
		}
		if want := "# 3. WARNING: this deletes the namespace " + namespace + ", and with it everything in it"; !strings.Contains(string(text), want) {
			t.Errorf("it does not warn: %q", want)
		}
	}
	if text, err := Delete(Options{Namespace: "Lock"}); err == nil {
		t.Errorf("rendered:\n%s", text)
	}
}
