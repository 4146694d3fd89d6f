package install

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
	in.says(in.next(title), 1, "node-3: paused; it gets no turn, until ", "node-3: a reboot is requested; ")
	in.node("to be paused, and to want a reboot", func(n *corev1.Node) bool {
		return state(v1alpha1.StatePaused)(n) && n.Labels[v1alpha1.LabelWants] == "reboot"
	})
	if host.Boots() != 1 {
		in.t.Error("the paused node has rebooted")
	}
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
	in.says(in.next(title), 1, "disruptionpolicy.lockkeeper.dev/calendar condition met")
	p, err := in.cp.GetPolicy(in.t.Context(), "calendar")
	must(in.t, err)
	if r := p.Spec.Rollout; len(r.Windows) != 1 || len(r.Blackouts) != 2 || r.Blackouts[1].Reason != "end of quarter" {
		in.t.Errorf("the calendar is %+v", r)
	}
	in.next(title)
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

func (in recipes) quorum() {
	const title, namespace = "A StatefulSet with a quorum", "shop"
	in.next(title)
	must(in.t, in.cp.CreateWorkload(in.t.Context(), controlplane.Workload{Namespace: namespace, Name: "db", Replicas: 3}))
	ctx, cancel := context.WithTimeout(in.t.Context(), soon)
	defer cancel()
	must(in.t, in.cp.WaitWorkload(ctx, namespace, "db"))
	in.typed(`lockkeeper request reboot node-3 --now`)
	in.rebooted(in.hosts[2], 3)
	ready := func(pods []*corev1.Pod) bool {
		return len(pods) == 3 && !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return !controlplane.PodReady(p) || p.Spec.NodeName == "node-3" })
	}
	_, err := in.cp.WaitPods(ctx, namespace, "app=db", "to be Ready on the other nodes", ready)
	must(in.t, err)
	in.next(title)
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
	const title, unit = "Upgrade kubelets to a new minor version", "kubeadm-upgrade-node.service"
	in.next(title)
	in.upgradesNode()
	for _, h := range in.hosts {
		must(in.t, h.WriteFile("/etc/kubernetes/version", "1.36.4\n"))
		must(in.t, h.Units().Set(unit, simhost.Unit{Load: "loaded"}))
		must(in.t, h.Units().Set("lockkeeper-before-reboot.target", simhost.Unit{Load: "loaded", Wants: []string{unit}}))
		h.StopLockkeeper() // the stand-in for systemd does not say that units were enabled
		must(in.t, h.StartLockkeeper())
	}
	in.next(title)
	in.inEffect("kubelet-version", 1)
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
