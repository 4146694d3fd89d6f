package client

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// printed returns the commands that a command printed after a title.
func printed(out, title string) []string {
	var lines []string
	for line := range strings.Lines(out) {
		if command, ok := strings.CutPrefix(line, title); ok {
			lines = append(lines, strings.TrimSpace(command))
		}
	}
	return lines
}

// paste has a shell run a command line that lockkeeper printed.
func (w *world) paste(kubeconfig, line string) {
	w.t.Helper()
	binary, err := simhost.BuildLockkeeper(w.t.Context(), os.Stderr)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), drainPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euc", `lockkeeper() { "$LOCKKEEPER" "$@"; }; kubectl() { "$KUBECTL" "$@"; }; `+line)
	cmd.Env = []string{"KUBECONFIG=" + kubeconfig, "HOME=" + w.t.TempDir(), "LOCKKEEPER=" + binary, "KUBECTL=" + drainPlane().Binaries().Kubectl}
	if text, err := cmd.CombinedOutput(); err != nil {
		w.t.Errorf("%s: %v\n%s", line, err, text)
	}
}

// intents returns the intents of a Node: every key that an admin sets.
func (w *world) intents(name string) map[string]string {
	w.t.Helper()
	n, err := w.admin.CoreV1().Nodes().Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	set := map[string]string{}
	labels, annotations := v1alpha1.AdminKeys()
	for _, key := range labels {
		if value, ok := n.Labels[key]; ok {
			set[key] = value
		}
	}
	for _, key := range annotations {
		if value, ok := n.Annotations[key]; ok {
			set[key] = value
		}
	}
	return set
}

// TestIntentCommands runs the commands on two nodes, of which one has intents already. Then it
// pastes what they print into a shell: the undo lines restore both nodes, and the kubectl lines do
// the same as the command.
func TestIntentCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "intents")
	if err := applied(); err != nil {
		t.Fatal(err)
	}
	const other = "host-intents-too"
	w.addNode(other)
	w.managed(w.node)
	w.managed(other)
	admin, err := drainPlane().Kubeconfig("testbed:admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	patch := func(name, body string) {
		t.Helper()
		if _, err := w.admin.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	coordinator, err := drainPlane().NodeWriter(w.node, v1alpha1.AnnotationLast)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{w.node, other} {
		body := `{"metadata":{"annotations":{"lockkeeper.dev/last":"{\"turn\":\"t0\",\"result\":\"Failed\",\"reason\":\"NotUpdated\",\"end\":\"2026-11-23T10:00:00Z\"}"}}}`
		w.until("the coordinator to write", func() bool {
			_, err := coordinator.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
			return err == nil
		})
	}
	patch(other, `{"metadata":{"labels":{"lockkeeper.dev/managed":"false"},"annotations":{
		"lockkeeper.dev/paused":"it's \u001b[1m\nmine","lockkeeper.dev/detached":"","lockkeeper.dev/request":"reboot"}}}`)

	for words, want := range map[string]string{"pause host-": w.node, "pause --policy l": v1alpha1.DefaultPolicyName} {
		out, said, exit := w.lockkeeper(admin, append([]string{"__complete"}, strings.Fields(words)...)...)
		if exit != 0 || said != "" || !slices.Contains(strings.Fields(out), want) {
			t.Errorf("the completions of %q are %d, %q%s, expected %s among them", words, exit, out, said, want)
		}
	}

	const by = `"by":"testbed:admin"`
	for _, tc := range []struct {
		args string // each also gets the selector
		set  map[string]string
	}{
		{"pause --reason why --until 2126-11-23T10:00:00Z", nil}, // too far ahead, see below
		{"pause --reason why", map[string]string{"lockkeeper.dev/paused": `{"reason":"why",` + by + `}`}},
		{"resume", map[string]string{"lockkeeper.dev/paused": ""}},
		{"detach --reason why --force", map[string]string{"lockkeeper.dev/detached": `{"reason":"why",` + by + `,"force":true}`}},
		{"attach", map[string]string{"lockkeeper.dev/detached": ""}},
		{"manage", map[string]string{"lockkeeper.dev/managed": "true"}},
		{"unmanage", map[string]string{"lockkeeper.dev/managed": "false"}},
		{"request reboot --reason why", map[string]string{"lockkeeper.dev/request": `{"action":"reboot","reason":"why",` + by + `}`}},
		{"request reboot --now", map[string]string{"lockkeeper.dev/request-now": `{"action":"reboot",` + by + `}`}},
		{"retry host-intents host-intents-too", map[string]string{"lockkeeper.dev/retry": "t0"}},
	} {
		before := map[string]map[string]string{w.node: w.intents(w.node), other: w.intents(other)}
		want := map[string]map[string]string{w.node: maps.Clone(before[w.node]), other: maps.Clone(before[other])}
		for key, value := range tc.set {
			for _, set := range want {
				if set[key] = value; value == "" {
					delete(set, key)
				}
			}
		}
		shows := func(what string, want map[string]map[string]string) {
			t.Helper()
			for name, set := range want {
				if got := w.intents(name); !maps.Equal(got, set) {
					t.Errorf("%s: %s: %s has %q, expected %q", tc.args, what, name, got, set)
				}
			}
		}
		args := strings.Fields(tc.args)
		if args[0] != "retry" {
			args = append(args, "-l", "pool=intents")
		}
		if tc.set == nil {
			if _, said, exit := w.lockkeeper(admin, append(args, "--yes")...); exit != 64 {
				t.Errorf("%s: %d, %s", tc.args, exit, said)
			}
			shows("refused", before)
			continue
		}
		if out, said, exit := w.lockkeeper(admin, args...); exit != 64 || out != "" || !strings.HasSuffix(said, "would change 2 nodes (host-intents, host-intents-too); "+
			"add --yes, because there is no terminal to ask; nothing was changed\n") {
			t.Errorf("%s without --yes: %d, %s%s", tc.args, exit, out, said)
		}
		if out, said, exit := w.lockkeeper(admin, append(args, "--dry-run")...); exit != 0 || said != "" || !strings.HasPrefix(out, "Dry run, nothing is changed. ") {
			t.Errorf("%s --dry-run: %d, %s%s", tc.args, exit, out, said)
		}
		shows("dry run", before)
		out, said, exit := w.lockkeeper(admin, append(args, "--yes")...)
		if exit != 0 || said != "" || strings.Count(out, "\nhost-intents-too: ") != 1 {
			t.Errorf("%s: %d, %s%s", tc.args, exit, out, said)
		}
		t.Logf("lockkeeper %s\n%s", strings.Join(args, " "), out)
		shows("done", want)
		for _, line := range printed(out, "To undo: ") {
			w.paste(admin, line)
		}
		shows("undone", before)
		for _, line := range printed(out, "The same with kubectl: ") {
			w.paste(admin, line)
		}
		shows("done by kubectl", want)
		for _, line := range printed(out, "To undo: ") {
			w.paste(admin, line)
		}
	}
}

// TestIntentVerbs: a user who may get and patch Nodes is told which verb is missing, also by a dry
// run. A user with the verb for one of two nodes changes that one, and the exit status says that the
// other was not changed. A user with the verbs alone is told about Nodes.
func TestIntentVerbs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "verbs")
	if err := applied(); err != nil {
		t.Fatal(err)
	}
	const other = "host-verbs-too"
	w.addNode(other)
	w.managed(w.node)
	w.managed(other)
	grant := func(user string, rules ...rbacv1.PolicyRule) {
		t.Helper()
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "verbs-" + user}, Rules: rules}
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: role.ObjectMeta, Subjects: []rbacv1.Subject{{Kind: "User", Name: user, APIGroup: rbacv1.GroupName}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}}
		if _, err := w.admin.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.admin.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, r := range rules {
			if err := drainPlane().WaitAllowed(t.Context(), authorizationv1.SubjectAccessReviewSpec{User: user,
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: r.Verbs[0], Group: r.APIGroups[0], Resource: r.Resources[0], Name: w.node}}, true); err != nil {
				t.Fatal(err)
			}
		}
	}
	nodes := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "patch"}}
	grant("verbs-none", nodes)
	grant("verbs-one", nodes, rbacv1.PolicyRule{APIGroups: []string{"lockkeeper.dev"}, Resources: []string{"nodes"}, Verbs: []string{"pause"}, ResourceNames: []string{w.node}})
	grant("verbs-only", rbacv1.PolicyRule{APIGroups: []string{"lockkeeper.dev"}, Resources: []string{"nodes"}, Verbs: []string{"pause"}})
	as := func(user string, args ...string) (stdout, stderr string, exit int) {
		t.Helper()
		kubeconfig, err := drainPlane().Kubeconfig(user)
		if err != nil {
			t.Fatal(err)
		}
		return w.lockkeeper(kubeconfig, args...)
	}
	const body = `{"metadata":{"annotations":{"lockkeeper.dev/paused":"x","lockkeeper.dev/detached":"x"}}}`
	if _, err := w.admin.CoreV1().Nodes().Patch(t.Context(), other, types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ args, verb string }{
		{"pause host-verbs", "pause"}, {"resume host-verbs-too", "pause"}, {"detach host-verbs --force", "detach"}, {"attach host-verbs-too", "detach"},
		{"manage host-verbs", "manage"}, {"unmanage host-verbs", "manage"}, {"request reboot host-verbs", "request"}, {"request reboot host-verbs --now", "request-now"},
	} {
		for _, dry := range []string{"", " --dry-run"} {
			out, said, exit := as("verbs-none", strings.Fields(tc.args+dry)...)
			if exit != 1 || strings.Contains(out, ": ") || !strings.Contains(said, " needs the verb "+tc.verb+" on nodes.lockkeeper.dev") {
				t.Errorf("%s%s: %d, %s%s", tc.args, dry, exit, out, said)
			}
		}
	}
	for name, want := range map[string]int{w.node: 0, other: 2} {
		if got := w.intents(name); len(got) != want {
			t.Errorf("after all refusals %s has %q", name, got)
		}
	}
	out, said, exit := as("verbs-one", "pause", other, w.node, "--reason", "why", "--yes")
	if exit != 1 || !strings.HasPrefix(out, "host-verbs: paused; it gets no turn.\n") || strings.Contains(out, other) ||
		!strings.HasPrefix(said, "lockkeeper: host-verbs-too was not changed: ") || !strings.Contains(said, "\nlockkeeper: pause failed on 1 of 2 nodes (cluster ") {
		t.Errorf("one of two: %d, %s%s", exit, out, said)
	}
	if got := w.intents(w.node)[v1alpha1.AnnotationPaused]; got != `{"reason":"why","by":"verbs-one"}` {
		t.Errorf("%s has %s", w.node, got)
	}
	if _, said, exit := as("verbs-only", "resume", w.node); exit != 1 ||
		!strings.Contains(said, "; `lockkeeper resume` requires permission to get and patch nodes, and the verb pause on nodes.lockkeeper.dev") {
		t.Errorf("without permission to read the Node: %d, %s", exit, said)
	}
	if _, said, exit := as("verbs-only", "pause", "--cluster"); exit != 1 ||
		!strings.Contains(said, "; `lockkeeper pause --cluster` requires permission to get and patch Lease lockkeeper in namespace lockkeeper") {
		t.Errorf("without permission to read the Lease: %d, %s", exit, said)
	}
}

// TestEmergencyStopCommands sets the stop of a Lease of its own, and pastes what the commands print.
func TestEmergencyStopCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "stop")
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
	if _, err := w.admin.CoordinationV1().Leases(w.space).Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	admin, err := drainPlane().Kubeconfig("testbed:admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	shows := func(what, want string) {
		t.Helper()
		l, err := w.admin.CoordinationV1().Leases(w.space).Get(t.Context(), "mine", metav1.GetOptions{})
		if err != nil || l.Annotations[v1alpha1.AnnotationStop] != want {
			t.Errorf("%s: the Lease has %q, %v, expected %q", what, l.Annotations[v1alpha1.AnnotationStop], err, want)
		}
	}
	run := func(want string, args ...string) (undo, kubectl string) {
		t.Helper()
		out, said, exit := w.lockkeeper(admin, append(args, "--cluster", "--namespace", w.space, "--lease", "mine")...)
		shows(args[0], want)
		undos, kubectls := printed(out, "To undo: "), printed(out, "The same with kubectl: ")
		if exit != 0 || said != "" || len(undos) != 1 || len(kubectls) != 1 {
			t.Fatalf("%v: %d, %s%s", args, exit, out, said)
		}
		return undos[0], kubectls[0]
	}
	const reason = "it's on fire (by testbed:admin)"
	undo, kubectl := run(reason, "pause", "--reason", "it's on fire")
	w.paste(admin, undo)
	shows("undone", "")
	w.paste(admin, kubectl)
	shows("kubectl", reason)
	undo, kubectl = run("", "resume")
	w.paste(admin, undo)
	shows("undone", reason)
	w.paste(admin, kubectl)
	shows("kubectl", "")
}
