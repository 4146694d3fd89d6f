package install

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// operated is the node that docs/operations.md works on.
const operated = "node-3"

// managed returns three hosts that lockkeeper manages, and the steps of a page.
func managed(t *testing.T, page string) *installation {
	in := begin(t, page)
	must(t, in.cp.ApplyLockkeeper(t.Context()))
	_, err := in.cp.ApplyPolicy(t.Context(), controlplane.TestPolicy, "rollout: {settle: 200ms}") // not a minute
	must(t, err)
	file, err := in.cp.CoordinatorKubeconfig()
	must(t, err)
	credential, err := os.ReadFile(file)
	must(t, err)
	for i, h := range in.hosts {
		h.copied = true
		if i < 2 {
			must(t, h.Put(t.Context(), credentialPath, credential, 0o600))
		}
		must(t, h.StartLockkeeper())
	}
	in.until("to be idle", soon, func(_ *simhost.Host, n *corev1.Node) bool { return n.Labels[v1alpha1.LabelState] == "idle" })
	return in
}

// node waits until the Node is as cond wants it, and returns it.
func (in *installation) node(what string, cond func(*corev1.Node) bool) *corev1.Node {
	in.t.Helper()
	ctx, cancel := context.WithTimeout(in.t.Context(), soon)
	defer cancel()
	n, err := in.cp.WaitNode(ctx, operated, what, func(n *corev1.Node) bool { return n != nil && cond(n) })
	must(in.t, err)
	return n
}

func state(s v1alpha1.State) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool { return n.Labels[v1alpha1.LabelState] == string(s) }
}

// released reports whether the Node has nothing of lockkeeper's but what people set, the information labels, and why.
func released(reason v1alpha1.Reason) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool {
		labels, annotations := v1alpha1.CoordinatorKeys()
		_, hosts := v1alpha1.HostKeys()
		for _, key := range slices.Concat(labels, annotations, hosts, []string{v1alpha1.LabelWants}) {
			if key != v1alpha1.LabelHeld && (n.Labels[key] != "" || n.Annotations[key] != "") {
				return false
			}
		}
		return n.Labels[v1alpha1.LabelHeld] == string(reason)
	}
}

// TestOperationsAsWritten runs each line of docs/operations.md, from the first to the last.
func TestOperationsAsWritten(t *testing.T) {
	t.Parallel()
	in := managed(t, "operations.md")
	in.next("Operations")

	in.says(in.next("Stop everything"), 1, "The emergency stop is set")
	in.next("Stop everything") // with kubectl
	for _, h := range in.hosts {
		must(t, h.StageUpdate(staged))
	}
	in.until("to be stopped", soon, func(_ *simhost.Host, n *corev1.Node) bool { return n.Labels[v1alpha1.LabelHeld] == "Stopped" })
	in.says(in.next("Stop everything"), 1, "EMERGENCY STOP: power failure in row 3")
	in.says(in.next("Stop everything"), 1, "The emergency stop is lifted")
	in.next("Stop everything")
	in.until("to be updated", rolled, func(h *simhost.Host, n *corev1.Node) bool {
		return h.Version() == staged && state(v1alpha1.StateIdle)(n) && n.Labels[v1alpha1.LabelWants] == "nothing"
	})

	in.says(in.next("Pause a node"), 1, "node-3: paused; it gets no turn, until ")
	in.node("to be paused", state(v1alpha1.StatePaused))
	in.next("Pause a node")
	in.says(in.next("Pause a node"), 1, " paused ")
	in.says(in.next("Pause a node"), 1, "node-3: resumed.")
	in.next("Pause a node")
	in.node("to be resumed", state(v1alpha1.StateIdle))

	paused := func(want bool) {
		t.Helper()
		p, err := in.cp.GetPolicy(t.Context(), v1alpha1.DefaultPolicyName)
		must(t, err)
		if p.Spec.Paused != want {
			t.Errorf("paused: %t, expected %t", p.Spec.Paused, want)
		}
	}
	in.next("Pause a policy")
	paused(true)
	in.says(in.next("Pause a policy"), 1, v1alpha1.DefaultPolicyName)
	in.next("Pause a policy")
	paused(false)

	in.says(in.next("Detach a node"), 1, "node-3: detached; ")
	in.next("Detach a node")
	in.says(in.next("Detach a node"), 1, "node/node-3 condition met", " Detached")
	in.node("to be released", released(v1alpha1.ReasonDetached))
	in.says(in.next("Detach a node"), 1, "node-3: attached; ")
	in.next("Detach a node")
	in.node("to be back", state(v1alpha1.StateIdle))

	in.says(in.next("Stop managing a node"), 1, "node-3: no longer managed; ")
	in.next("Stop managing a node")
	in.node("to be released", released(v1alpha1.ReasonUnmanaged))
	in.says(in.next("Stop managing a node"), 1, " false ", " Unmanaged")
	in.says(in.next("Stop managing a node"), 1, "node-3: managed, ")
	in.next("Stop managing a node")
	in.node("to be back", state(v1alpha1.StateIdle))

	node3 := in.hosts[2]
	boots := node3.Boots()
	in.says(in.next("Request a reboot"), 1, "node-3: a reboot is requested; ")
	in.next("Request a reboot")
	in.node("to have rebooted", func(n *corev1.Node) bool {
		return node3.Boots() > boots && state(v1alpha1.StateIdle)(n) && n.Annotations[v1alpha1.AnnotationRequest] == ""
	})
	in.next("Request a reboot")

	const next = "4.3.0"
	failure := "Continue after a failure"
	node3.SetNextBoot(simhost.NextBoot{Rollback: true})
	must(t, node3.StageUpdate(next))
	var last *v1alpha1.Last
	in.node("to have failed", func(n *corev1.Node) bool {
		var err error
		last, err = v1alpha1.ParseLast(n.Annotations[v1alpha1.AnnotationLast])
		return err == nil && last != nil && last.Result == v1alpha1.ResultFailed && state(v1alpha1.StateIdle)(n)
	})
	must(t, node3.StageUpdate(next)) // the host has forgotten it with the rollback
	in.node("to be held", func(n *corev1.Node) bool { return n.Labels[v1alpha1.LabelHeld] == "Failed" })
	in.says(in.next(failure), 1, "node-3: turn "+last.Turn+", which ended as Failed")
	in.node("to have its failed turn cleared", func(n *corev1.Node) bool { return n.Annotations[v1alpha1.AnnotationRetry] == last.Turn })
	in.next(failure)
	in.node("to name a turn", func(n *corev1.Node) bool { return v1alpha1.ValidateID(n.Annotations[v1alpha1.AnnotationRetry]) == nil })
	in.node("to be updated after the retry", func(n *corev1.Node) bool {
		return node3.Version() == next && state(v1alpha1.StateIdle)(n) && n.Labels[v1alpha1.LabelWants] == "nothing"
	})

	const example = "Example: two owners hand a node over"
	in.next(example)
	in.node("to be the team's", released(v1alpha1.ReasonDetached))
	in.next(example)
	in.node("to be cordoned, by the team alone", func(n *corev1.Node) bool {
		return n.Spec.Unschedulable && released(v1alpha1.ReasonDetached)(n)
	})
	in.next(example)
	in.node("to be schedulable", func(n *corev1.Node) bool { return !n.Spec.Unschedulable })

	before := in.pids()
	leader := in.holder("to be a coordinator", somebody)
	in.next("Upgrade lockkeeper")
	in.holder("to be the same coordinator", func(holder string) bool { return holder == leader })
	in.next("Upgrade lockkeeper")
	for name, pid := range in.pids() {
		if pid == before[name] || pid == 0 {
			t.Errorf("%s runs as process %d, and ran as %d", name, pid, before[name])
		}
	}
	in.until("to be idle after the upgrade", soon, func(_ *simhost.Host, n *corev1.Node) bool { return state(v1alpha1.StateIdle)(n) })

	in.next("Replace coordinators")
	in.next("Replace coordinators")
	in.holder("to be one of the others", func(holder string) bool { return somebody(holder) && !strings.HasPrefix(holder, "node-1_") })
	if len(in.steps) > 0 {
		t.Errorf("docs/operations.md has steps that the test does not expect: %q", in.steps)
	}
	in.labels()
}

// labels runs each line of docs/labels-and-annotations.md: one sets a key to a value that the parsers accept, and the next one
// removes it.
func (in *installation) labels() {
	in.t.Helper()
	in.read("labels-and-annotations.md")
	in.next("Labels and annotations")
	stop := in.steps[len(in.steps)-2:]
	in.do(stop[0]) // so that the keys have no effect
	keys := 0
	for len(in.steps) > 2 {
		key := strings.Replace(strings.Trim(in.steps[0].Title, "`"), "/NAME", "/backup", 1)
		has := func() bool {
			n, err := in.cp.Client().CoreV1().Nodes().Get(in.t.Context(), operated, metav1.GetOptions{})
			must(in.t, err)
			for _, p := range v1alpha1.ReadKeys(n.Labels, n.Annotations).Problems {
				in.t.Errorf("with %s: %v", key, p)
			}
			_, label := n.Labels[key]
			_, annotation := n.Annotations[key]
			return label || annotation
		}
		in.next(in.steps[0].Title)
		if !has() {
			in.t.Errorf("%s is not set", key)
		}
		in.next(in.steps[0].Title)
		if has() {
			in.t.Errorf("%s is not removed", key)
		}
		keys++
	}
	if keys < 6 {
		in.t.Errorf("%d keys were set", keys)
	}
	in.do(stop[0])
	in.do(stop[1])
}
