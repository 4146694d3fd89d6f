package install

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// recipes is a user who follows docs/recipes.md.
type recipes struct{ *installation }

// TestRecipesAsWritten runs each line of docs/recipes.md, and what a recipe is for.
func TestRecipesAsWritten(t *testing.T) {
	t.Parallel()
	in := recipes{managed(t, "recipes.md")}
	in.next("Recipes")
	in.tonight()
	in.calendar()
	in.mirror()
	in.quorum()
	in.gpu()
	in.autoscaler()
	in.kubelets()
	if len(in.steps) > 0 {
		t.Errorf("docs/recipes.md has steps that the test does not run: %q", in.steps)
	}
}

func (in recipes) tonight() {
	const title = "Reboot this one node tonight"
	host := in.hosts[2]
	ask := in.steps[0]
	in.says(in.next(title), 1, "node-3: paused; it gets no turn, until ", "node-3: a reboot is requested; ")
	in.node("to be paused, and to want a reboot", func(n *corev1.Node) bool {
		return state(v1alpha1.StatePaused)(n) && n.Labels[v1alpha1.LabelWants] == "reboot"
	})
	if host.Boots() != 1 {
		in.t.Error("the paused node has rebooted")
	}
	in.next(title)
	in.rebooted(host, 2)

	in.do(ask)
	in.node("to want a reboot again", func(n *corev1.Node) bool { return n.Labels[v1alpha1.LabelWants] == "reboot" })
	in.next(title)
	in.rebooted(host, 2)
}

// rebooted waits until a host has booted so often, and its node is idle again.
func (in recipes) rebooted(host *host, boots int) {
	in.t.Helper()
	ctx, cancel := context.WithTimeout(in.t.Context(), rolled)
	defer cancel()
	_, err := in.cp.WaitNode(ctx, host.Name(), "to have rebooted", func(n *corev1.Node) bool {
		return n != nil && host.Boots() == boots && state(v1alpha1.StateIdle)(n) && n.Labels[v1alpha1.LabelWants] == "nothing" && !n.Spec.Unschedulable
	})
	must(in.t, err)
}

func (in recipes) calendar() {
	const title = "A maintenance calendar"
	before := planned(time.Now())
	out := in.next(title)
	if after := planned(time.Now()); !before.MatchString(out) && !after.MatchString(out) {
		in.t.Errorf("the plan says neither %q nor %q", before, after)
	}
	// A turn takes 15 minutes, and a minute later the next one begins. The seventh begins at 22:36; an eighth would not end before
	// the holidays. In the last night of these, the window is open when they end.
	must(in.t, os.WriteFile(filepath.Join(in.dir, "fleet.yaml"), []byte(`start: 2026-12-17T12:00:00Z
nodes:
- {name: node, count: 10, takes: {drain: 10m, reboot: 5m}, changes: [{os: 4.2.0}]}
`), 0o644))
	in.says(in.next(title), 1, "from the first grant at Thu 2026-12-17 21:00:00 UTC",
		`calendar: Window (blackout "holidays" begins at 23:00:00 UTC, and a turn takes 20m0s; the next turn may begin at 2027-01-06 23:00:00 UTC)`,
		"\n2027-01-06 23:00:00  ", " 7 turns done, 0 unavailable\n", " 10 turns done, 0 unavailable\n")
	in.next(title)
}

// planned matches what the plan says with the page's calendar at a time.
func planned(now time.Time) *regexp.Regexp {
	next := now
	for !mayBegin(next) {
		next = next.Truncate(time.Minute).Add(time.Minute)
	}
	if next.Equal(now) {
		return regexp.MustCompile(`window +open, closes `)
	}
	format := "15:04:05 UTC"
	if next.UTC().Format(time.DateOnly) != now.UTC().Format(time.DateOnly) {
		format = "2006-01-02 15:04:05 UTC"
	}
	return regexp.MustCompile(`now +would be held \(Window\): policy calendar: .* ` + next.UTC().Format(format) + "\n")
}

// mayBegin reports whether the page's calendar lets a turn of 20 minutes begin at a time.
func mayBegin(at time.Time) bool {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		panic(err)
	}
	for _, t := range []time.Time{at, at.Add(20*time.Minute - 1)} {
		t = t.In(berlin)
		night := t.Add(-22 * time.Hour) // the time since the window's opening, on its day
		day := t.Format("2006-01-02T15:04")
		if night.Weekday() < time.Monday || night.Weekday() > time.Thursday || night.Hour() >= 6 ||
			day >= "2026-12-18" && day < "2027-01-07" || day >= "2027-03-31T12:00" && day < "2027-04-01T12:00" {
			return false
		}
	}
	return true
}

// inEffect waits until so many rules of a policy are in effect on all hosts.
func (in recipes) inEffect(policy string, rules int) {
	in.t.Helper()
	in.typed(fmt.Sprintf(`for i in $(seq 300); do
	test "$(kubectl get dp %s -o jsonpath='{.status.effectiveRules[*].nodes}')" = "%s" && exit; sleep 0.1
done; kubectl get dp %[1]s -o yaml; exit 1`, policy, strings.TrimSpace(strings.Repeat("3 ", rules))))
}

func (in recipes) mirror() {
	const title = "Change a registry mirror without a drain"
	for _, h := range in.hosts {
		must(in.t, h.Units().Set("containerd.service", simhost.Unit{Load: "loaded", Active: "active"}))
	}
	in.next(title)
	in.inEffect("containerd", 2)
	in.says(in.next(title), 1, "File /etc/containerd on 3 nodes\n", "File /etc/containerd/certs.d on 3 nodes\n")
	for _, h := range in.hosts {
		must(in.t, h.WriteFile("/etc/containerd/certs.d/docker.io/hosts.toml", "server = \"https://mirror.example\"\n"))
	}
	host := in.hosts[2]
	must(in.t, host.WriteFile("/etc/containerd/config.toml", "version = 3\n"))
	cordoned := false
	in.node("to have restarted containerd", func(n *corev1.Node) bool {
		cordoned = cordoned || n.Spec.Unschedulable
		last, err := v1alpha1.ParseLast(n.Annotations[v1alpha1.AnnotationLast])
		return err == nil && last != nil && last.Result == v1alpha1.ResultDone && state(v1alpha1.StateIdle)(n) && slices.Equal(host.Units().Jobs(), []string{"TryRestartUnit containerd.service"})
	})
	if cordoned || host.Boots() != 2 || len(in.hosts[0].Units().Jobs())+len(in.hosts[1].Units().Jobs()) > 0 {
		in.t.Errorf("cordoned: %t, %d boots, the others' jobs %q and %q", cordoned, host.Boots(), in.hosts[0].Units().Jobs(), in.hosts[1].Units().Jobs())
	}
	in.next(title)
}

// statefulSet makes a StatefulSet with one member on each node.
const statefulSet = `kubectl apply -f - <<'END'
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec:
  replicas: 3
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers: [{name: db, image: example.invalid/db}]
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: db}}}]
END`

func (in recipes) quorum() {
	const title = "A StatefulSet with a quorum"
	in.next(title)
	in.typed(statefulSet)
	by := in.members("to be Ready, one on each node")
	behind := by["node-1"].Name
	// As if its readiness probe had found that it is not in sync.
	in.typed(`allows() { kubectl wait -n shop poddisruptionbudget/db --for=jsonpath='{.status.disruptionsAllowed}'=$1 --timeout 30s; }
allows 1
kubectl annotate pod -n shop ` + behind + ` ` + controlplane.ReadyAnnotation + `=never
kubectl patch pod -n shop ` + behind + ` --subresource status -p '{"status":{"conditions":[{"type":"Ready","status":"False"}]}}'
allows 0
lockkeeper request reboot node-3 --now
for i in $(seq 300); do
	lockkeeper status node-3 | grep "PodDisruptionBudget shop/db (pod shop/` + by["node-3"].Name + `)" && exit; sleep 0.1
done; lockkeeper status node-3; exit 1`)
	in.node("to wait in its drain", state(v1alpha1.StateDraining))
	pod, err := in.cp.Client().CoreV1().Pods("shop").Get(in.t.Context(), by["node-3"].Name, metav1.GetOptions{})
	if err != nil || pod.UID != by["node-3"].UID || pod.DeletionTimestamp != nil || in.hosts[2].Boots() != 2 {
		in.t.Errorf("the budget did not keep node-3's member: %v, %v, %d boots", err, pod.ObjectMeta, in.hosts[2].Boots())
	}
	in.typed(`kubectl annotate pod -n shop ` + behind + ` ` + controlplane.ReadyAnnotation + `-`)
	in.rebooted(in.hosts[2], 3)
	if now := in.members("to be Ready again"); now["node-3"].UID == by["node-3"].UID || now["node-1"].UID != by["node-1"].UID || now["node-2"].UID != by["node-2"].UID {
		in.t.Errorf("other members than node-3's have moved: %v, before: %v", now, by)
	}
	in.next(title)
}

// members waits until all members of the StatefulSet are Ready, and returns them by node.
func (in recipes) members(what string) map[string]*corev1.Pod {
	in.t.Helper()
	ctx, cancel := context.WithTimeout(in.t.Context(), soon)
	defer cancel()
	pods, err := in.cp.WaitPods(ctx, "shop", "app=db", what, func(pods []*corev1.Pod) bool {
		return len(pods) == 3 && !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return !controlplane.PodReady(p) })
	})
	must(in.t, err)
	by := map[string]*corev1.Pod{}
	for _, p := range pods {
		by[p.Spec.NodeName] = p
	}
	return by
}

func (in recipes) gpu() {
	const title = "GPU nodes and long jobs"
	in.next(title)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "train", Labels: map[string]string{"batch.kubernetes.io/job-name": "train"}},
		Spec:       corev1.PodSpec{NodeName: operated, Containers: []corev1.Container{{Name: "train", Image: "example.invalid/train"}}},
	}
	pods := in.cp.Client().CoreV1().Pods("default")
	_, err := pods.Create(in.t.Context(), pod, metav1.CreateOptions{})
	must(in.t, err)
	in.typed(`lockkeeper request reboot node-3 --now`)
	in.node("to be held", func(n *corev1.Node) bool {
		return n.Labels[v1alpha1.LabelHeld] == "DrainBlocked" && !n.Spec.Unschedulable
	})
	in.typed(`for i in $(seq 300); do lockkeeper status node-3 | grep default/train && exit; sleep 0.1; done; lockkeeper status node-3; exit 1`)
	in.next(title)
	must(in.t, pods.Delete(in.t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	in.rebooted(in.hosts[2], 4)
	in.next(title)
}

func (in recipes) autoscaler() {
	const title = "Clusters with an autoscaler"
	const noScaleDown, noBalancer = "cluster-autoscaler.kubernetes.io/scale-down-disabled", "node.kubernetes.io/exclude-from-external-load-balancers"
	in.next(title)
	in.typed(`lockkeeper request reboot node-3 --now`)
	in.node("to say so with its cordon", func(n *corev1.Node) bool {
		_, balanced := n.Labels[noBalancer]
		if marked := balanced && n.Annotations[noScaleDown] == "true"; marked != n.Spec.Unschedulable {
			in.t.Errorf("cordoned: %t, and the keys are %v, %v", n.Spec.Unschedulable, n.Labels, n.Annotations)
		}
		return n.Spec.Unschedulable
	})
	in.rebooted(in.hosts[2], 5)
	in.node("to have taken it back", func(n *corev1.Node) bool {
		_, balanced := n.Labels[noBalancer]
		return !balanced && n.Annotations[noScaleDown] == ""
	})
	in.next(title)
}

func (in recipes) kubelets() {
	const title = "Upgrade kubelets to a new minor version"
	in.next(title)
	in.upgradesNode()
	for _, h := range in.hosts {
		must(in.t, h.WriteFile("/etc/kubernetes/version", "1.36.4\n"))
	}
	in.next(title)
	in.next(title)
	in.inEffect("kubelet-version", 1)
	in.says(in.next(title), 1, "File /etc/kubernetes/version on 3 nodes\n")
	boots := []int{in.hosts[0].Boots(), in.hosts[1].Boots(), in.hosts[2].Boots()}
	for _, h := range in.hosts {
		must(in.t, h.WriteFile("/etc/kubernetes/version", "1.37.2\n"))
	}
	for i, h := range in.hosts {
		in.rebooted(h, boots[i]+1)
		if jobs := h.Units().Jobs(); !slices.Contains(jobs, "StartUnit lockkeeper-before-reboot.target") {
			in.t.Errorf("%s: the hook unit was not started: %q", h.Name(), jobs)
		}
	}
	in.next(title)
}

// upgradesNode runs the page's script on a directory that stands for a host, with programs that note their arguments.
func (in recipes) upgradesNode() {
	in.t.Helper()
	root := in.t.TempDir()
	text, err := os.ReadFile(filepath.Join(in.dir, "kubeadm-upgrade-node"))
	must(in.t, err)
	put := func(path, text string) {
		in.t.Helper()
		must(in.t, os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755))
		must(in.t, os.WriteFile(filepath.Join(root, path), []byte(text), 0o755))
	}
	put("script", strings.ReplaceAll(string(text), "/etc/", root+"/etc/"))
	put("bin/kubelet", "#!/bin/sh\ncat "+root+"/runs\n")
	for _, p := range []string{"apt-get", "apt-mark", "kubeadm"} {
		put("bin/"+p, "#!/bin/sh\necho \"${0##*/} $*\" >>"+root+"/log\n")
	}
	script := func(want, runs string) (string, error) {
		put("etc/kubernetes/version", want)
		put("etc/apt/sources.list.d/kubernetes.list", "deb [signed-by=/k.gpg] https://pkgs.k8s.io/core:/stable:/v1.36/deb/ /\n")
		put("runs", runs)
		put("log", "")
		_, err := run(in.t, "env", "PATH="+root+"/bin:/usr/bin:/bin", "sh", filepath.Join(root, "script"))
		log, readErr := os.ReadFile(filepath.Join(root, "log"))
		must(in.t, readErr)
		return string(log), err
	}
	const upgrade = "apt-get update\napt-mark unhold kubeadm kubelet kubectl\napt-get install -y kubeadm=1.37.2-*\nkubeadm upgrade node\n" +
		"apt-get install -y kubelet=1.37.2-* kubectl=1.37.2-*\napt-mark hold kubeadm kubelet kubectl\n"
	if log, err := script("1.37.2\n", "Kubernetes v1.36.4\n"); err != nil || log != upgrade {
		in.t.Errorf("the script says %v, and did\n%s", err, log)
	}
	if list, err := os.ReadFile(filepath.Join(root, "etc/apt/sources.list.d/kubernetes.list")); err != nil || !strings.Contains(string(list), "/v1.37/deb/") {
		in.t.Errorf("apt's source is %s, %v", list, err)
	}
	if log, err := script("1.37.2\n", "Kubernetes v1.37.2\n"); err != nil || log != "" {
		in.t.Errorf("on an upgraded host, the script says %v, and did\n%s", err, log)
	}
	if log, err := script("1.37\n", "Kubernetes v1.36.4\n"); err == nil || log != "" {
		in.t.Errorf("with half a version, the script says %v, and did\n%s", err, log)
	}
}
