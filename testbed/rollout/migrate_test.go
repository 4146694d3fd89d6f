package rollout

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/migrate"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

// fluoObjects are what FLUO runs as: names, labels, commands and variables are those of
// examples/deploy/update-operator.yaml and update-agent.yaml in flatcar/flatcar-linux-update-operator,
// and the Lease is that of pkg/operator/operator.go. Read, not run: the module is on no proxy.
const fluoObjects = `
apiVersion: v1
kind: Namespace
metadata: {name: reboot-coordinator}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: flatcar-linux-update-operator, namespace: reboot-coordinator}
spec:
  replicas: 1
  selector: {matchLabels: {app: flatcar-linux-update-operator}}
  template:
    metadata: {labels: {app: flatcar-linux-update-operator}}
    spec:
      containers:
      - name: update-operator
        image: ghcr.io/flatcar/flatcar-linux-update-operator:v0.10.0
        command: [/bin/update-operator, --before-reboot-annotations=example.com/ready]
        env:
        - {name: UPDATE_OPERATOR_REBOOT_WINDOW_START, value: "Thu 23:00"}
        - {name: UPDATE_OPERATOR_REBOOT_WINDOW_LENGTH, value: 1h30m}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: flatcar-linux-update-agent, namespace: reboot-coordinator}
spec:
  selector: {matchLabels: {app: flatcar-linux-update-agent}}
  template:
    metadata: {labels: {app: flatcar-linux-update-agent}}
    spec:
      containers:
      - name: update-agent
        image: ghcr.io/flatcar/flatcar-linux-update-operator:v0.10.0
        command: [/bin/update-agent]
        env:
        - name: UPDATE_AGENT_NODE
          valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
`

// kuredObjects are those of kured-ds.yaml in kubereboot/kured, with flags. Read, not run.
const kuredObjects = `
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: kured
  namespace: kube-system
  annotations:
    weave.works/kured-node-lock: '{"nodeID":"node-9","metadata":{"unschedulable":false},"created":"2026-11-01T03:04:05.123456789Z","TTL":0}'
spec:
  selector: {matchLabels: {name: kured}}
  template:
    metadata: {labels: {name: kured}}
    spec:
      containers:
      - name: kured
        image: ghcr.io/kubereboot/kured:1.20.0
        command:
        - /usr/bin/kured
        - --reboot-sentinel=/sentinel/reboot-required
        - --concurrency=2
        - --lock-release-delay=1s
        - --drain-timeout=20m
        - --start-time=00:00
        - --end-time=23:59:59
        - --annotate-nodes
        - --prefer-no-schedule-taint=weave.works/kured-node-reboot
        env:
        - name: KURED_NODE_ID
          valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
        volumeMounts: [{mountPath: /sentinel, name: sentinel, readOnly: true}]
      volumes: [{name: sentinel, hostPath: {path: /var/run}}]
`

// fluoKeys are the annotations and labels that pkg/agent/agent.go and pkg/operator/operator.go of FLUO
// leave on an idle node.
func fluoKeys(s *scene, name string, more map[string]any) {
	s.T.Helper()
	const p = "flatcar-linux-update.v1.flatcar-linux.net/"
	annotations := map[string]any{
		p + "status": "UPDATE_STATUS_IDLE", p + "last-checked-time": "1764000000", p + "new-version": "0.0.0",
		p + "reboot-needed": "false", p + "reboot-in-progress": "false", p + "reboot-ok": "false",
	}
	for key, value := range more {
		annotations[p+key] = value
	}
	s.Patch(name, map[string]any{"metadata": map[string]any{
		"annotations": annotations,
		"labels":      map[string]any{p + "id": "flatcar", p + "group": "stable", p + "version": "4230.2.1", p + "reboot-needed": "false"},
	}})
}

// run runs a command of the product as an admin, and returns what it prints.
func (s *scene) run(args ...string) (string, error) {
	s.T.Helper()
	text, err := exec.CommandContext(s.Within(rig.Soon), binary, append(args, "--kubeconfig", s.kubeconfig())...).CombinedOutput()
	s.T.Logf("lockkeeper %s: %v\n%s", strings.Join(args, " "), err, text)
	return string(text), err
}

// kubectl runs kubectl as an admin with text as its input.
func (s *scene) kubectl(input string, args ...string) string {
	s.T.Helper()
	cmd := exec.CommandContext(s.Within(rig.Soon), s.ControlPlane.Binaries().Kubectl, append([]string{"--kubeconfig", s.kubeconfig()}, args...)...)
	cmd.Stdin, cmd.Env = strings.NewReader(input), []string{"HOME=" + s.T.TempDir()}
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.T.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// refuses fails the test unless --apply refuses, names what it found, and changes no Node.
func (s *scene) refuses(tool, because string) {
	s.T.Helper()
	before := s.fleetNodes()
	text, err := s.run("migrate", "--from", tool, "--apply", "--yes")
	if err == nil || !strings.Contains(text, tool+" is active") || !strings.Contains(text, because) {
		s.T.Fatalf("%s --apply: %v, expected that it refuses because of %q\n%s", tool, err, because, text)
	}
	for i, n := range s.fleetNodes() {
		b := before[i]
		if fmt.Sprint(n.Annotations[pausedKey], foreign(n)) != fmt.Sprint(b.Annotations[pausedKey], foreign(b)) || n.Spec.Unschedulable != b.Spec.Unschedulable {
			s.T.Errorf("%s was changed although it refused", n.Name)
		}
	}
}

const pausedKey = v1alpha1.AnnotationPaused

func (s *scene) fleetNodes() []corev1.Node {
	s.T.Helper()
	list, err := s.ControlPlane.Client().CoreV1().Nodes().List(s.Within(rig.Soon), metav1.ListOptions{})
	s.Must(err)
	return slices.DeleteFunc(list.Items, func(n corev1.Node) bool { return s.Fleet.Host(n.Name) == nil })
}

// foreign returns the keys of a Node that are FLUO's or kured's.
func foreign(n corev1.Node) (keys []string) {
	has := func(key string) bool {
		return strings.Contains(key, "linux-update") || strings.Contains(key, "weave.works") || strings.Contains(key, "kured")
	}
	for key := range n.Annotations {
		if has(key) {
			keys = append(keys, key)
		}
	}
	for key := range n.Labels {
		if has(key) {
			keys = append(keys, key)
		}
	}
	for _, t := range n.Spec.Taints {
		if has(t.Key) {
			keys = append(keys, "taint "+t.Key)
		}
	}
	slices.Sort(keys)
	return keys
}

// holdAll is what the fleet has until the generated policy takes precedence.
const holdAll = `{priority: -999, paused: true}`

// TestMigration comes from FLUO and from kured, which both left their keys on ten nodes: it refuses while they are active, then
// carries over the pause, removes the keys and its own cordon, and the fleet rolls with the policy that kured's flags make.
func TestMigration(t *testing.T) {
	t.Parallel()
	s := play(t, 10, 2, holdAll, func(o *rig.Options) { o.Budget = 2 }, quick)
	s.accepted()
	const p = "flatcar-linux-update.v1.flatcar-linux.net/"
	var all []string
	for _, h := range s.Fleet.Hosts {
		all = append(all, h.Name())
	}
	for _, name := range all {
		fluoKeys(s, name, nil)
		s.Patch(name, map[string]any{"metadata": map[string]any{"annotations": map[string]any{
			"weave.works/kured-most-recent-reboot-needed": "2026-11-01T03:04:05Z", "example.com/kept": "yes",
		}}})
	}
	fluoKeys(s, "node-3", map[string]any{"reboot-paused": "true"})
	fluoKeys(s, "node-4", map[string]any{"agent-made-unschedulable": "true", "reboot-ok": "true", "reboot-in-progress": "true"})
	s.Cordon("node-4")
	s.Cordon("node-5") // an admin's
	s.Patch("node-6", map[string]any{"spec": map[string]any{"taints": []map[string]any{
		{"key": "weave.works/kured-node-reboot", "effect": "PreferNoSchedule"}, {"key": "example.com/kept", "effect": "PreferNoSchedule"},
	}}})
	t.Cleanup(func() { // other tests use the same control plane
		ctx, client := context.Background(), s.ControlPlane.Client()
		if err := errors.Join(s.ControlPlane.DeletePolicy(ctx, "from-kured"),
			client.AppsV1().DaemonSets("kube-system").Delete(ctx, "kured", metav1.DeleteOptions{}),
			client.CoreV1().Namespaces().Delete(ctx, "reboot-coordinator", metav1.DeleteOptions{})); err != nil {
			t.Error(err)
		}
	})
	s.kubectl(fluoObjects, "apply", "-f", "-")
	s.kubectl(kuredObjects, "apply", "-f", "-")

	// While their pods exist, it refuses. The report can be made, and its policies are accepted.
	for tool, because := range map[string]string{"fluo": "pod reboot-coordinator/", "kured": "pod kube-system/kured-"} {
		s.Eventually("pods of "+tool, func(context.Context) (bool, error) {
			text, err := s.run("migrate", "--from", tool)
			return strings.Contains(text, because), err
		})
		s.refuses(tool, because)
		text, err := s.run("migrate", "--from", tool, "-o", "yaml")
		s.Must(err)
		s.kubectl(text, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
	}
	kuredPolicy, err := s.run("migrate", "--from", "kured", "-o", "yaml")
	s.Must(err)

	// Without pods: FLUO's turn is still under way, and kured's lock is held.
	s.kubectl("", "-n", "reboot-coordinator", "delete", "deployment,daemonset", "--all", "--wait")
	s.kubectl("", "-n", "kube-system", "patch", "daemonset", "kured", "-p", `{"spec":{"template":{"spec":{"nodeSelector":{"example.com/none":"true"}}}}}`)
	s.noPods("reboot-coordinator", "")
	s.noPods("kube-system", "name=kured")
	s.refuses("fluo", "node node-4: a turn is under way (annotation "+p+"reboot-ok=true)")
	s.refuses("kured", `"node-9" holds the lock since 2026-11-01T03:04:05Z`)

	// What an admin does then.
	s.Patch("node-4", map[string]any{"metadata": map[string]any{"annotations": map[string]any{p + "reboot-ok": "false", p + "reboot-in-progress": "false"}}})
	s.kubectl("", "-n", "kube-system", "annotate", "daemonset", "kured", "weave.works/kured-node-lock-")
	if text, err := s.run("migrate", "--from", "fluo", "--apply"); err == nil || !strings.Contains(text, "--yes") {
		t.Errorf("without a terminal and --yes: %v\n%s", err, text)
	}
	text, err := s.run("migrate", "--from", "fluo", "--apply", "--dry-run")
	s.Must(err)
	if !strings.Contains(text, "node-3: would pause it; remove the annotations") || len(foreign(s.fleetNodes()[0])) == 0 {
		t.Errorf("the dry run says\n%s", text)
	}
	s.Referee.AdminUncordon("node-4")
	for _, tool := range []string{"fluo", "kured"} {
		_, err := s.run("migrate", "--from", tool, "--apply", "--yes")
		s.Must(err)
		text, err := s.run("migrate", "--from", tool, "--apply")
		s.Must(err)
		if !strings.HasPrefix(text, "Nothing of "+tool+" is left on the nodes.\n") {
			t.Errorf("a second time:\n%s", text)
		}
	}
	for _, n := range s.fleetNodes() {
		intent, _ := v1alpha1.ParseIntent(n.Annotations[pausedKey])
		switch keys := foreign(n); {
		case len(keys) > 0:
			t.Errorf("%s still has %q", n.Name, keys)
		case n.Annotations["example.com/kept"] != "yes":
			t.Errorf("%s has lost another owner's annotation", n.Name)
		case (n.Annotations[pausedKey] != "") != (n.Name == "node-3"), n.Name == "node-3" && (intent.By != "ann" || intent.Reason != "carried over from "+p+"reboot-paused"):
			t.Errorf("%s is paused by %q", n.Name, n.Annotations[pausedKey])
		case n.Spec.Unschedulable != (n.Name == "node-5"):
			t.Errorf("%s: unschedulable %t", n.Name, n.Spec.Unschedulable)
		case n.Name == "node-6" && !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "example.com/kept" }):
			t.Errorf("%s has lost another owner's taint: %v", n.Name, n.Spec.Taints)
		}
	}

	// The fleet rolls with the policy of kured's flags: two at once, all but the paused node.
	s.kubectl(kuredPolicy, "apply", "-f", "-")
	s.stage(all...)
	rolled := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == "node-3" })
	s.updated(rolled...)
	for _, name := range rolled {
		if n := s.Now(name); n.Last == nil || n.Last.Result != v1alpha1.ResultDone {
			t.Errorf("%s: %+v", name, n.Last)
		}
		s.reboots(name, 1)
	}
	if n := s.Now("node-3"); n.State != v1alpha1.StatePaused || n.Last != nil {
		t.Errorf("node-3, which FLUO had paused, is %s and had the turn %+v", n.State, n.Last)
	}
	s.Annotate("node-3", pausedKey, nil)
	s.updated("node-3")
	s.Until("node-5", rig.Soon, "to keep an admin's cordon", func(n *turn.Node) bool { return n.Unschedulable && !n.Mark })
}

// accepted has the API server check the policies that flags of every kind make, as its schema and its CEL rules see them.
func (s *scene) accepted() {
	s.T.Helper()
	all := [][]string{
		{},
		{"--concurrency=10000", "--lock-release-delay=24h", "--drain-timeout=168h", "--force-reboot"},
		{"--reboot-days=mon,tue", "--start-time=22:00", "--end-time=02:00", "--time-zone=America/Argentina/Buenos_Aires"},
		{"--start-time=04:00", "--end-time=04:11"},
		{"--start-time=9pm", "--end-time=23:59:59", "--time-zone=Etc/GMT+3"},
		{"--prometheus-url=http://p.example.com", "--alert-filter-regexp=^(A|B\"\\\\d)$", "--alert-firing-only"},
		{"--blocking-pod-selector=a=b,c!=d,e,!f", "--blocking-pod-selector=x in (y,z)", "--drain-pod-selector=a,b notin (c)"},
		{"--reboot-days=never", "--time-zone=Mars/Base", "--blocking-pod-selector=((", "--drain-timeout=-1s", "--concurrency=many"},
		{"--drain-timeout=1.000000001s", "--lock-release-delay=1h0m0.5s"},
		{"--alert-filter-regexp=" + strings.Repeat("x", 5000), "--prometheus-url=http://p.example.com"},
	}
	checks := make([]string, 16)
	for i := range checks {
		checks[i] = fmt.Sprintf("example.com/%063d", i)
	}
	fluo := [][]string{
		{"--reboot-window-start=Sat 18:30", "--reboot-window-length=167h"},
		{"--reboot-window-start=00:00", "--reboot-window-length=10m"},
		{"--before-reboot-annotations=" + strings.Join(checks, ","), "--after-reboot-annotations=a.b/c_d.e,plain," + checks[0]},
	}
	client := s.dynamic().Resource(v1alpha1.PolicyResource)
	for i, args := range slices.Concat(all, fluo) {
		tool, program := migrate.Kured, "kured"
		if i >= len(all) {
			tool, program = migrate.FLUO, "update-operator"
		}
		w := migrate.Workload{Kind: "DaemonSet", Namespace: "kube-system", Name: program}
		w.Template.Spec.Containers = []corev1.Container{{Command: append([]string{"/bin/" + program}, args...)}}
		w.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "linux"}
		r, err := migrate.From(tool, &migrate.Input{Workloads: []migrate.Workload{w}, Zones: time.LoadLocation})
		s.Must(err)
		text, err := r.Policies[0].YAML()
		s.Must(err)
		obj := &unstructured.Unstructured{}
		s.Must(yaml.Unmarshal([]byte(text), &obj.Object))
		if _, err := client.Create(s.Within(rig.Soon), obj, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}); err != nil {
			s.T.Errorf("%q: %v\n%s", args, err, text)
		}
	}
}

// noPods waits until the pods are gone.
func (s *scene) noPods(namespace, selector string) {
	s.T.Helper()
	_, err := s.ControlPlane.WaitPods(s.Within(rig.Soon), namespace, selector, "to be gone", func(pods []*corev1.Pod) bool {
		for _, p := range pods {
			now := int64(0)
			_ = s.ControlPlane.Client().CoreV1().Pods(namespace).Delete(s.T.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		}
		return len(pods) == 0
	})
	s.Must(err)
}
