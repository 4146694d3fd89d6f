package identity

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

const soon = 2 * time.Minute

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func client(t *testing.T, config *rest.Config, err error) kubernetes.Interface {
	t.Helper()
	must(t, err)
	c, err := kubernetes.NewForConfig(config)
	must(t, err)
	return c
}

func asHost(t *testing.T, name string) kubernetes.Interface {
	t.Helper()
	config, err := cp.NodeConfig(name)
	return client(t, config, err)
}

func asUser(t *testing.T, name string, groups ...string) kubernetes.Interface {
	t.Helper()
	config, err := cp.ConfigFor(name, groups...)
	return client(t, config, err)
}

func asCoordinator(t *testing.T) kubernetes.Interface {
	t.Helper()
	config, err := cp.CoordinatorConfig()
	return client(t, config, err)
}

// until tries something until it is as it should be.
func until(t *testing.T, what string, is func() (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := is()
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %v", what, err)
		}
	}
}

// bound waits until all policies are in force, or none is: the API server reads them once a second. Each request is refused by the
// policy that it is for and by nothing else.
func bound(t *testing.T, want bool) {
	t.Helper()
	admin, leader := cp.Client(), asCoordinator(t)
	probes := []struct {
		policy string
		client kubernetes.Interface
		do     do
	}{
		{keys, admin, node("id-c", label(v1alpha1.LabelState, `"idle"`))},
		{prefixes, admin, node("id-c", label(v1alpha1.Prefix+"probe", `"x"`))},
		{owners, asHost(t, "id-probe"), create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "id-probe", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: "gone", UID: "gone"}}}})},
		{coordinator, leader, node("id-c", label(v1alpha1.LabelWants, `"idle"`))},
		{lease, leader, changeLease(func(l *coordinationv1.Lease) { l.Labels = map[string]string{"probe": "x"} })},
		{token, leader, mint(v1alpha1.CoordinatorServiceAccount, 2*v1alpha1.MaxTokenLifetime)},
		{policyWriters, asUser(t, "tess"), createPolicyAs("probe", `{}`)},
	}
	until(t, fmt.Sprintf("the policies to be in force: %t", want), func() (bool, error) {
		for _, p := range probes {
			if err := p.do(t.Context(), p.client); (refusedBy(err) == p.policy) != want {
				return false, fmt.Errorf("%s: %w", p.policy, err)
			}
		}
		return true, nil
	})
}

// unbind is what docs/install.md says to do in an emergency.
func unbind(t *testing.T) {
	t.Helper()
	must(t, cp.UnbindPolicies(t.Context()))
	t.Cleanup(func() { must(t, cp.ApplyLockkeeper(context.Background())) })
	bound(t, false)
}

var policyName = regexp.MustCompile(`ValidatingAdmissionPolicy '([^']*)'`)

// refusedBy names the layer that an error comes from.
func refusedBy(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	name := policyName.FindStringSubmatch(text)
	switch {
	case name != nil:
		return policyLayer + name[1]
	case !apierrors.IsForbidden(err):
		return "something else"
	case strings.Contains(text, " is forbidden: node "), strings.Contains(text, " is forbidden: can only access leases "):
		return restriction
	case strings.Contains(text, " cannot "):
		return rbac
	}
	return "something else"
}

// waitsForBackup is the grant of a turn that waits for the hooks database and backup, as the coordinator writes it, in quotes.
var waitsForBackup = strconv.Quote(v1alpha1.FormatRecord(&v1alpha1.Grant{
	Turn: "t1", Changes: []v1alpha1.Change{{Source: v1alpha1.SourceFile, Name: "/etc/x"}},
	Terms: v1alpha1.Terms{BeforeReboot: []v1alpha1.Hook{{Name: "database"}, {Name: "backup"}}},
}))

// fixture makes the Nodes of the tables, each key by who writes it:
//
//	id-a  in a turn that waits for the hook backup, cordoned and marked, with a pause that has ended, a request and a confirmation
//	id-b  idle, cordoned and marked, detached by force, with a confirmation that nothing waits for
//	id-c  nothing but a pause without an end
//
// The Lease carries an emergency stop. It also makes DisruptionPolicies:
//
//	team       what the user tess may write, who has the ClusterRole lockkeeper-rules-editor
//	theirs     decides a rollout
//	ranked     only rules, with a priority of 0
//	held-back  only rules, one of them for OSUpdate
func fixture(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	must(t, cp.ApplyLockkeeper(ctx))
	write := func(c kubernetes.Interface, name, patch string) {
		t.Helper()
		_, err := c.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		must(t, err)
	}
	for _, name := range []string{"id-a", "id-b", "id-c"} {
		n, err := asHost(t, name).CoreV1().Nodes().Create(ctx, newNode(name, map[string]string{corev1.LabelHostname: name}, nil), metav1.CreateOptions{})
		must(t, err)
		until(t, "the kind HostUpdate to be served, to hosts", func() (bool, error) {
			err := applyHostUpdate(ctx, asHost(t, name), name, string(n.UID), `{"wants":"reboot","state":"idle"}`)
			return err == nil, err
		})
		_, err = cp.Client().CoreV1().Pods("default").Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "on-" + name},
			Spec:       corev1.PodSpec{NodeName: name, Containers: []corev1.Container{{Name: "c", Image: "example.invalid/c"}}},
		}, metav1.CreateOptions{})
		must(t, err)
		t.Cleanup(func() {
			must(t, cp.Client().CoreV1().Pods("default").Delete(context.Background(), "on-"+name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
			must(t, cp.Client().CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}))
		})
	}
	stop := func(ctx context.Context, text string) {
		_, err := leases(cp.Client()).Patch(ctx, controlplane.LockkeeperLease, types.MergePatchType, []byte(annotation(v1alpha1.AnnotationStop, text)), metav1.PatchOptions{FieldManager: "an-admin"})
		must(t, err)
	}
	for name, spec := range map[string]string{
		"team": teamsRules, "theirs": `{"priority":5}`, "ranked": `{"rulesOnly":true,"priority":0}`,
		"held-back": `{"rulesOnly":true,"priority":-5,"rules":[{"source":"OSUpdate","holdBack":"4081.*","actions":[{"type":"Reboot"}]}]}`,
	} {
		_, err := policies.Create(ctx, policyObject(t, name, spec), metav1.CreateOptions{})
		must(t, err)
		t.Cleanup(func() { must(t, policies.Delete(context.Background(), name, metav1.DeleteOptions{})) })
	}
	bind(t, "tess", "lockkeeper-rules-editor", "disruptionpolicies", "create")
	stop(ctx, `"drill"`)
	t.Cleanup(func() { stop(context.Background(), "null") })
	bound(t, true)
	for _, name := range []string{"id-a", "id-b", "id-c"} {
		until(t, "NodeRestriction to know of the pod on "+name, func() (bool, error) { // it looks in a cache of its own
			err := evict("on-"+name)(ctx, asHost(t, name))
			return err == nil, err
		})
	}
	write(cp.Client(), "id-a", `{"metadata":{"annotations":{"lockkeeper.dev/paused":"{\"until\": \"2026-01-01T00:00:00Z\"}","lockkeeper.dev/request":"reboot","hook.lockkeeper.dev/backup":"t1"}}}`)
	write(cp.Client(), "id-b", `{"metadata":{"annotations":{"lockkeeper.dev/detached":"{\"force\": true}","example.com/keep":"x","hook.lockkeeper.dev/old":"t0"}}}`)
	write(cp.Client(), "id-c", annotation(v1alpha1.AnnotationPaused, `"disk change"`))
	for _, name := range []string{"id-a", "id-b"} {
		write(asHost(t, name), name, `{"metadata":{"labels":{"lockkeeper.dev/wants":"reboot"},"annotations":{"lockkeeper.dev/host":"{\"a\":1}",`+
			`"lockkeeper.dev/ack":"t1/b1/draining/done","lockkeeper.dev/cordon":"t1"}},"spec":{"unschedulable":true}}`)
	}
	write(asCoordinator(t), "id-a", `{"metadata":{"labels":{"lockkeeper.dev/state":"before-reboot","lockkeeper.dev/held":"Overdue"},`+
		`"annotations":{"lockkeeper.dev/turn":"t1","lockkeeper.dev/grant":`+waitsForBackup+`,"lockkeeper.dev/last":"{\"a\":1}"}}}`)
	write(asCoordinator(t), "id-b", label(v1alpha1.LabelState, `"idle"`))
}

// person lets a user do something with all objects of a resource, and returns when it is in force.
func person(t *testing.T, user, group, resource string, verbs ...string) {
	t.Helper()
	name := user + "-" + strings.ReplaceAll(resource, "/", "-") + "-" + verbs[0]
	_, err := cp.Client().RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = cp.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, cp.Client().RbacV1().ClusterRoleBindings().Delete(context.Background(), name, metav1.DeleteOptions{}))
		must(t, cp.Client().RbacV1().ClusterRoles().Delete(context.Background(), name, metav1.DeleteOptions{}))
	})
	resource, subresource, _ := strings.Cut(resource, "/")
	for _, verb := range verbs {
		must(t, cp.WaitAllowed(within(t), authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: group, Resource: resource, Subresource: subresource, Verb: verb,
		}}, true))
	}
}

// bind gives a user a ClusterRole of the manifests, and returns when it is in force.
func bind(t *testing.T, user, role, resource, verb string) {
	t.Helper()
	name := user + "-" + role
	_, err := cp.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, cp.Client().RbacV1().ClusterRoleBindings().Delete(context.Background(), name, metav1.DeleteOptions{}))
	})
	must(t, cp.WaitAllowed(within(t), authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
		Group: "lockkeeper.dev", Resource: resource, Verb: verb,
	}}, true))
}

// people gives the users of the tables their rights.
func people(t *testing.T) {
	t.Helper()
	for _, user := range []string{"pat", "olga", "opal", "hooker"} {
		person(t, user, "", "nodes", "patch")
	}
	person(t, "olga", "lockkeeper.dev", "nodes", "override")
	person(t, "agent", "", "nodes/status", "patch")
	person(t, "agent", "lockkeeper.dev", "nodes", "pause", "detach", "manage", "request", "request-now", "retry", "confirm", "override")
	bind(t, "opal", "lockkeeper-operator", "nodes", "pause")
	bind(t, "vera", "lockkeeper-operator", "nodes", "pause")
	bind(t, "hooker", "lockkeeper-hook", "nodes", "confirm")
	person(t, "wade", "lockkeeper.dev", "disruptionpolicies", "patch", "delete", "deletecollection")
	person(t, "rosa", "lockkeeper.dev", "disruptionpolicies", "create", "patch", "delete", "rollout")
}

// actTable is what one identity tries.
type actTable struct {
	who    string
	client kubernetes.Interface
	acts   []act
}

func actTables(t *testing.T) []actTable {
	t.Helper()
	return []actTable{
		{"the host of id-a", asHost(t, "id-a"), hostActs},
		{"the coordinator", asCoordinator(t), coordinatorActs},
		{"a coordinator's certificate", asUser(t, v1alpha1.CoordinatorCertificateUser, v1alpha1.CoordinatorGroup), certificateActs},
		{"an administrator", cp.Client(), adminActs},
		{"a user who may patch Nodes", asUser(t, "pat"), personActs},
		{"a user who may override", asUser(t, "olga"), overriderActs},
		{"an agent that may write the status of Nodes", asUser(t, "agent"), agentActs},
		{"an operator", asUser(t, "opal"), operatorActs},
		{"a user with the operator's verbs alone", asUser(t, "vera"), verbsActs},
		{"a hook", asUser(t, "hooker"), hookActs},
		{"a team that writes rules", asUser(t, "tess"), teamActs},
		{"a user who may write policies, without rollout", asUser(t, "wade"), policyWriterActs},
		{"a user who may decide rollouts", asUser(t, "rosa"), rolloutActs},
		{"the kubelet of id-new", asHost(t, "id-new"), kubeletActs},
	}
}

// TestActs tries every act, and those that a policy refuses once more without the policies: then they succeed.
func TestActs(t *testing.T) {
	fixture(t)
	people(t)
	tables := actTables(t)
	count := map[string]int{}
	for _, table := range tables {
		for _, a := range table.acts {
			err := a.do(t.Context(), table.client)
			if got := refusedBy(err); got != a.refused {
				t.Errorf("%s: %s: refused by %q, want %q: %v", table.who, a.name, got, a.refused, err)
			}
			count[a.refused]++
		}
	}
	for layer, n := range count {
		t.Logf("%3d %s", n, cmp.Or(layer, "allowed"))
	}

	unbind(t)
	for _, table := range tables {
		for _, a := range table.acts {
			want := a.refused
			if strings.HasPrefix(want, policyLayer) {
				want = ""
			}
			err := a.do(t.Context(), table.client)
			if got := refusedBy(err); got != want {
				t.Errorf("without the policies: %s: %s: refused by %q, want %q: %v", table.who, a.name, got, want, err)
			}
		}
	}
}
