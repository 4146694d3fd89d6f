package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/forecast"
	"lockkeeper.dev/lockkeeper/drain"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// applied applies the cluster resources of lockkeeper, once for all tests.
var applied = sync.OnceValue(func() error {
	ctx, cancel := context.WithTimeout(context.Background(), drainPatience)
	defer cancel()
	return drainPlane().ApplyLockkeeper(ctx)
})

// lockkeeper runs the command with a kubeconfig and returns its output and exit code.
func (w *world) lockkeeper(kubeconfig string, args ...string) (stdout, stderr string, exit int) {
	w.t.Helper()
	binary, err := simhost.BuildLockkeeper(w.t.Context(), os.Stderr) // built once; slow with a cold cache
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), drainPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = w.t.TempDir()
	cmd.Env = []string{"KUBECONFIG=" + kubeconfig, "HOME=" + cmd.Dir}
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	err = cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		w.t.Fatal(err)
	}
	return out.String(), said.String(), cmd.ProcessState.ExitCode()
}

// managed makes the Node of the world's host managed and idle, as its host and the coordinator do.
func (w *world) managed(name string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), drainPatience)
	defer cancel()
	node, err := drainPlane().WaitNode(ctx, name, "ready, under a boot id", func(n *corev1.Node) bool {
		return n.Status.NodeInfo.BootID != "" && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	})
	if err != nil {
		w.t.Fatal(err)
	}
	now := time.Now().UTC().Truncate(time.Second)
	host := v1alpha1.Host{
		Protocol: v1alpha1.Protocol, Version: "v0.0.0-test", NodeUID: string(node.UID), BootID: node.Status.NodeInfo.BootID,
		BootTime: now.Add(-time.Hour), Started: now.Add(-time.Hour), Managed: true, OSVersion: "4.1",
	}
	for _, keys := range []struct{ labels, annotations map[string]string }{
		{map[string]string{"pool": w.space}, nil},
		{map[string]string{v1alpha1.LabelWants: "nothing"}, map[string]string{v1alpha1.AnnotationHost: v1alpha1.FormatRecord(host)}},
		{map[string]string{v1alpha1.LabelState: "idle"}, nil},
	} {
		names := slices.Concat(slices.Collect(maps.Keys(keys.labels)), slices.Collect(maps.Keys(keys.annotations)))
		writer, err := drainPlane().NodeWriter(name, names...)
		if err != nil {
			w.t.Fatal(err)
		}
		var meta metav1.ObjectMeta // leaves out empty maps: null would remove all keys
		meta.Labels, meta.Annotations = keys.labels, keys.annotations
		patch, err := json.Marshal(map[string]any{"metadata": meta})
		if err != nil {
			w.t.Fatal(err)
		}
		// The API server may refuse rights that were just granted for a moment.
		w.until("the Node's keys to be written", func() bool {
			_, err := writer.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
			if err != nil {
				w.t.Logf("writing %v: %v", names, err)
			}
			return err == nil
		})
	}
}

// names returns the pods' names, without the namespaces.
func names[T any](all []T, of func(T) string) []string {
	list := []string{}
	for _, one := range all {
		_, name, _ := strings.Cut(of(one), "/")
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

func podNames(pods []forecast.Pod) []string {
	return names(pods, func(p forecast.Pod) string { return p.Name })
}

// TestPlanForeseesTheDrain checks that a drain meets exactly what `lockkeeper plan` predicted, and that the command
// changes nothing: each of its requests is a get or a list, and finishes.
func TestPlanForeseesTheDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "plan")
	ctx, cancel := context.WithTimeout(t.Context(), 8*drainPatience) // the whole test
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(applied())
	w.addNode("host-plan-too")
	w.managed(w.node)
	w.managed("host-plan-too")
	_, err := drainPlane().ApplyPolicy(ctx, "plan-pool", `
priority: 10
nodeSelector: {matchLabels: {pool: plan}}
rules:
- {source: File, path: /etc/containerd, actions: [{type: Restart, unit: containerd.service}]}
rollout: {settle: 0s}
hooks: {beforeDrain: [{name: move, timeout: 20m}]}
drain: {timeout: 2h, skip: [{selector: {matchLabels: {app: kept}}}], block: [{namespace: plan, selector: {matchLabels: {app: leader}}}]}
`)
	must(err)
	hold := fmt.Appendf(nil, `{"spec":{"holderIdentity":"host-plan-too_1","leaseDurationSeconds":3600,"acquireTime":%[1]q,"renewTime":%[1]q}}`,
		time.Now().UTC().Format(metav1.RFC3339Micro))
	_, err = w.admin.CoordinationV1().Leases(controlplane.LockkeeperNamespace).Patch(ctx, controlplane.LockkeeperLease, types.MergePatchType, hold, metav1.PatchOptions{})
	must(err)

	daemon := w.daemonPod("ds")
	w.create(w.pod("web-0", app("web")), w.pod("web-1", app("web")), w.pod("cart", app("cart")), w.pod("pay-0", app("pay")),
		w.pod("pay-1", app("pay")), w.pod("free", app("free")), w.pod("kept", app("kept")), w.pod("leader", app("leader")))
	w.mirrorPod("static")
	w.budget("web", "web", 2, 2)
	w.budget("cart", "cart", 0, 1)
	w.budget("cart-too", "cart", 0, 1)
	w.budget("pay", "pay", 1, 2)
	w.until("the budgets' figures", func() bool {
		list, err := w.admin.PolicyV1().PodDisruptionBudgets(w.space).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false
		}
		allowed := map[string]int32{}
		for _, b := range list.Items {
			allowed[b.Name] = b.Status.DisruptionsAllowed
		}
		return reflect.DeepEqual(allowed, map[string]int32{"web": 0, "cart": 1, "cart-too": 1, "pay": 1})
	})

	config, err := drainPlane().ConfigFor("testbed:admin", "system:masters")
	must(err)
	proxy, err := faultproxy.Start(faultproxy.Options{Name: "admin", Config: config, Dir: t.TempDir()})
	must(err)
	defer proxy.Close()
	var f forecast.Forecast
	var out, said string
	var exit int
	w.until("a plan in which all pods run", func() bool {
		out, said, exit = w.lockkeeper(proxy.Kubeconfig(), "plan", "--exit-code", "-o", "json", "--change", "os:4.2", w.node)
		f = forecast.Forecast{}
		if exit != 3 || json.Unmarshal([]byte(out), &f) != nil || len(f.Groups) != 1 || len(f.Groups[0].Nodes) != 1 {
			t.Logf("not yet: %d, %s%s", exit, out, said)
			return false
		}
		return len(f.Groups[0].Nodes[0].Leave) == 3
	})
	g, n := f.Groups[0], f.Groups[0].Nodes[0]
	// The policy blocks the leader, so the node would not be granted its turn now.
	if g.Outcome != forecast.Held || g.Held != v1alpha1.ReasonDrainBlocked || !f.Held || g.Policy != "plan-pool" || g.Wants != v1alpha1.WantsReboot || !g.Drains || len(f.Unseen) != 0 {
		t.Errorf("%+v", f)
	}
	if rule := g.Changes[0].Rule; rule == nil || rule.Policy != v1alpha1.DefaultPolicyName || rule.Key != "OSUpdate" {
		t.Errorf("the rule is %+v, expected the rule of the policy in the manifests", rule)
	}
	for what, pair := range map[string][2][]string{
		"evicts":    {podNames(n.Evict), {"cart", "free", "pay-0", "pay-1", "web-0", "web-1"}},
		"waits for": {podNames(n.Block), {"leader"}},
		"leaves":    {podNames(n.Leave), sorted(daemon.Name, "kept", "static")},
	} {
		if !slices.Equal(pair[0], pair[1]) {
			t.Errorf("%s %v, expected %v", what, pair[0], pair[1])
		}
	}
	var blocked []string
	for _, o := range n.Blocking {
		blocked = append(blocked, names(o.Pods, func(s string) string { return s })...)
	}
	if slices.Sort(blocked); !slices.Equal(blocked, []string{"cart", "web-0", "web-1"}) {
		t.Errorf("blocked %v: %+v", blocked, n.Blocking)
	}
	if len(n.Slowing) != 1 || !slices.Equal(n.Slowing[0].Budgets, []string{"plan/pay"}) {
		t.Errorf("unexpected slowing pods %+v", n.Slowing)
	}
	w.until("both nodes in one paragraph", func() bool {
		text, said, exit := w.lockkeeper(proxy.Kubeconfig(), "plan", "--exit-code", "--change", "file:/etc/containerd/config.toml", "-l", "pool=plan")
		fine := exit == 0 && said == "" && strings.Contains(text, "\n2 nodes: host-plan, host-plan-too\n") &&
			strings.Contains(text, "File /etc/containerd of policy plan-pool: Restart containerd.service\n")
		if !fine {
			t.Logf("not yet: %d, %s%s", exit, text, said)
		}
		return fine
	})
	// The commands have exited. A watch that they left behind would be recorded or open.
	if open := proxy.CutWatches(); open != 0 {
		t.Errorf("%d watches are still open", open)
	}
	records, _ := proxy.Records()
	seen := map[string]bool{}
	for _, r := range records {
		if seen[r.Resource] = true; r.Verb != "get" && r.Verb != "list" {
			t.Errorf("the command sent more than reads: %v", &r)
		}
	}
	for _, resource := range []string{"nodes", "disruptionpolicies", "leases", "pods", "poddisruptionbudgets"} {
		if !seen[resource] {
			t.Errorf("no request for %s", resource)
		}
	}

	// The drain meets what the plan predicted.
	rules := v1alpha1.PodRules{
		Skip:  []v1alpha1.PodSelector{{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "kept"}}}},
		Block: []v1alpha1.PodSelector{{Namespace: "plan", Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "leader"}}}},
	}
	var wire drainWire
	r := w.drain(w.host(&wire), func(d *drain.Drainer) { d.Policy = drain.Selecting(rules) })
	r.blocked("web-0", drain.PodDisruptionBudget, "web needs 2 healthy pods")
	r.blocked("web-1", drain.PodDisruptionBudget, "web needs 2 healthy pods")
	r.blocked("cart", drain.PodDisruptionBudget, "more than one PodDisruptionBudget")
	// The budget of pay allows one eviction. No controller replaces that pod, so the other one stays.
	var left []string
	w.pods("the pods in the prediction", func(now []*corev1.Pod) bool {
		left = nil
		for _, p := range now {
			if p.DeletionTimestamp == nil && !strings.HasPrefix(p.Name, "pay-") {
				left = append(left, p.Name)
			}
		}
		slices.Sort(left)
		return slices.Equal(left, sorted(daemon.Name, "cart", "kept", "leader", "static", "web-0", "web-1"))
	})
}

func sorted(names ...string) []string { return slices.Sorted(slices.Values(names)) }

// TestPlanAndStatusWithoutLeave checks that the commands name what the caller may not read and the permission that it
// needs, and show the rest.
func TestPlanAndStatusWithoutLeave(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "leave")
	ctx, cancel := context.WithTimeout(t.Context(), 8*drainPatience) // the whole test
	defer cancel()
	if err := applied(); err != nil {
		t.Fatal(err)
	}
	w.addNode("host-leave-too")
	w.managed(w.node)
	w.managed("host-leave-too")
	grant := func(name string, rules ...rbacv1.PolicyRule) {
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "leave-" + name}, Rules: rules}
		_, err := w.admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: role.ObjectMeta, Subjects: []rbacv1.Subject{{Kind: "User", Name: name, APIGroup: rbacv1.GroupName}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}}
		_, err2 := w.admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		for _, r := range rules {
			if err := drainPlane().WaitAllowed(ctx, authorizationv1.SubjectAccessReviewSpec{User: name,
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Group: r.APIGroups[0], Resource: r.Resources[0]}}, true); err != nil {
				t.Fatal(err)
			}
		}
	}
	list := func(group, resource string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{"list"}}
	}
	grant("sees-nodes", list("", "nodes"))
	grant("sees-policies", list("", "nodes"), list("lockkeeper.dev", "disruptionpolicies"))
	as := func(user string, args ...string) (stdout, stderr string, exit int) {
		t.Helper()
		kubeconfig, err := drainPlane().Kubeconfig(user)
		if err != nil {
			t.Fatal(err)
		}
		return w.lockkeeper(kubeconfig, args...)
	}
	const needs = "`lockkeeper plan` requires permission to list nodes and disruptionpolicies.lockkeeper.dev; it shows more with permission to get Lease lockkeeper in namespace lockkeeper, " +
		"and to list pods and poddisruptionbudgets.policy in all namespaces (cluster "
	for user, refused := range map[string]string{"sees-nothing": "listing nodes: nodes is forbidden", "sees-nodes": "listing policies: disruptionpolicies.lockkeeper.dev is forbidden"} {
		if out, said, exit := as(user, "plan", "--change", "os"); exit != 1 || out != "" || !strings.HasPrefix(said, "lockkeeper: "+refused) || !strings.Contains(said, "; "+needs) || !strings.HasSuffix(said, ", context testbed)\n") {
			t.Errorf("%s: %d, %q, %q", user, exit, out, said)
		}
	}
	out, said, _ := as("sees-policies", "plan", "--change", "os", w.node)
	for _, want := range []string{
		"\nNot readable: pods, so evictions and what blocks them are unknown: pods is forbidden", "\nNot readable: the Lease, so ",
		"\nhost-leave\n", "OSUpdate of policy lockkeeper-default: Reboot\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("without pods: %q is not in\n%s%s", want, out, said)
		}
	}
	out, said, exit := as("sees-nodes", "status", "-A")
	if exit != 0 || !strings.Contains(out, "\nThe policies could not be read, so budgets are unknown") || !strings.Contains(out, "\nhost-leave-too ") {
		t.Errorf("status without policies: %d, %s%s", exit, out, said)
	}
}
