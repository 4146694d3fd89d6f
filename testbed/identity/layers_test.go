package identity

import (
	"context"
	"slices"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// behind are the acts that more than one layer refuses, by who and act: what stands behind the first one, in the order in which the
// layers are asked. Written by hand; every other act that is refused has one layer alone.
var behind = map[string][]string{
	"the host of id-a: take the Lease":                              {restriction},
	"the host of id-a: lift the emergency stop":                     {restriction},
	"the host of id-a: delete the Lease":                            {restriction},
	"the host of id-a: make a Lease":                                {restriction},
	"the host of id-a: become the coordinator":                      {restriction},
	"the host of id-a: speak for another Node":                      {keys},
	"the host of id-a: promote another Node":                        {keys},
	"the host of id-a: promote another Node through status":         {keys},
	"the host of id-a: get itself deleted by the garbage collector": {owners},
	"the coordinator: write a Node's status":                        {coordinator},
	"the coordinator: replace a Node":                               {coordinator},
	"the coordinator: create a Node":                                {coordinator},
	"the coordinator: patch the Lease":                              {lease},
	"a user who may patch Nodes: forge a state through status":      {keys},
	"a user with the operator's verbs alone: pause through status":  {keys},
}

// byVerb are the acts that a policy refuses without a verb, which RBAC grants.
var byVerb = []string{"the host of id-a: confirm a hook that its turn does not wait for"}

// layers are all that refuse an act, the first one first.
func layers(who string, a act) []string {
	if a.refused == "" {
		return nil
	}
	return append([]string{a.refused}, behind[who+": "+a.name]...)
}

// TestLayers takes one layer after the other away: RBAC by a grant of everything to our identities, NodeRestriction by an API
// server without it, and the policies by unbinding them. An act is refused by the first of its layers that is left, and without all of
// them it succeeds: nothing else has refused it.
func TestLayers(t *testing.T) {
	fixture(t)
	people(t)
	tables := actTables(t)
	gone := map[string]bool{}
	try := func() {
		t.Helper()
		for _, table := range tables {
			for _, a := range table.acts {
				if gone[keys] && a.name == "unbind the policies" {
					continue // they are, and it was seen to succeed before
				}
				want := ""
				if left := slices.DeleteFunc(layers(table.who, a), func(l string) bool {
					return gone[l] || gone[rbac] && slices.Contains(byVerb, table.who+": "+a.name)
				}); len(left) > 0 {
					want = left[0]
				}
				if err := a.do(t.Context(), table.client); refusedBy(err) != want {
					t.Errorf("without %v: %s: %s: refused by %q, want %q: %v", gone, table.who, a.name, refusedBy(err), want, err)
				}
			}
		}
	}

	const everything = "identity-everything"
	_, err := cp.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: everything},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{
			{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: controlplane.NodesGroup},
			{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: v1alpha1.CoordinatorGroup},
			{Kind: rbacv1.ServiceAccountKind, Namespace: controlplane.LockkeeperNamespace, Name: v1alpha1.CoordinatorServiceAccount},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, cp.Client().RbacV1().ClusterRoleBindings().Delete(context.Background(), everything, metav1.DeleteOptions{}))
		host := asHost(t, "id-a")
		for end := time.Now().Add(soon); refusedBy(listSecrets(context.Background(), host)) != rbac; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the grant of everything is still in force")
			}
		}
	})
	until(t, "the grant to be in force", func() (bool, error) {
		err := listSecrets(t.Context(), asHost(t, "id-a"))
		return err == nil, err
	})
	// The users of the tables get what RBAC has refused them.
	for _, user := range []string{"pat", "vera"} {
		person(t, user, "", "nodes/status", "patch")
	}
	for _, user := range []string{"agent", "vera"} {
		person(t, user, "", "nodes", "patch")
	}
	for _, user := range []string{"pat", "opal"} {
		person(t, user, "coordination.k8s.io", "leases", "patch")
	}
	person(t, "tess", "lockkeeper.dev", "disruptionpolicies/status", "patch")
	gone[rbac] = true
	try()

	t.Cleanup(func() { must(t, cp.RestartAPIServer(context.Background())) })
	must(t, cp.RestartAPIServer(t.Context(), "--enable-admission-plugins=NamespaceLifecycle"))
	bound(t, true)
	gone[restriction] = true
	try()

	unbind(t)
	for _, policy := range policyNames {
		gone[policyLayer+policy] = true
	}
	try()
}
