package identity

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/packaging/manifests"
	"lockkeeper.dev/lockkeeper/testbed/fullnode"
)

// policyNames are the admission policies of the manifests.
var policyNames = []string{
	"lockkeeper-keys", "lockkeeper-prefixes", "lockkeeper-owners", "lockkeeper-coordinator", "lockkeeper-coordinator-lease", "lockkeeper-coordinator-token",
	"lockkeeper-policies",
}

// The API server holds every expression against what a Node is, and has nothing to say.
func TestNoTypeWarnings(t *testing.T) {
	must(t, cp.ApplyLockkeeper(t.Context()))
	for _, name := range policyNames {
		until(t, name+" to be checked", func() (bool, error) {
			p, err := cp.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || p.Status.TypeChecking == nil || p.Status.ObservedGeneration != p.Generation {
				return false, err
			}
			for _, w := range p.Status.TypeChecking.ExpressionWarnings {
				t.Errorf("%s: %s: %s", name, w.FieldRef, w.Warning)
			}
			return true, nil
		})
	}
}

// joins plays a kubelet: it joins, beats, reboots, beats again, and changes labels of its own.
func joins(t *testing.T, name string) {
	t.Helper()
	kubelet := asHost(t, name)
	ctx := t.Context()
	_, err := kubelet.CoreV1().Nodes().Create(ctx, newNode(name, map[string]string{v1alpha1.LabelManaged: "true", "example.com/rack": "7"}, nil), metav1.CreateOptions{})
	must(t, err)
	defer func() { must(t, cp.Client().CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})) }()
	for _, boot := range []string{"b1", "b2"} {
		beat := `{"metadata":{"annotations":{"volumes.kubernetes.io/keep-terminated-pod-volumes":"` + boot + `"}},"status":{"nodeInfo":{"bootID":"` + boot + `"},` +
			`"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady"}]}}`
		n, err := kubelet.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(beat), metav1.PatchOptions{}, "status")
		must(t, err)
		if n.Status.NodeInfo.BootID != boot || n.Labels[v1alpha1.LabelManaged] != "true" {
			t.Errorf("%s: boot %q, labels %v", name, n.Status.NodeInfo.BootID, n.Labels)
		}
		// And through the main resource.
		patch := `{"metadata":{"labels":{"example.com/rack":"` + boot + `"},"annotations":{"volumes.kubernetes.io/controller-managed-attach-detach":"true"}}}`
		_, err = kubelet.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		must(t, err)
	}
}

func TestKubeletsJoinAndBeat(t *testing.T) {
	fixture(t)
	joins(t, "id-kubelet")
}

// A Node may have neither labels nor annotations, before a write and after it.
func TestNodesWithoutLabels(t *testing.T) {
	fixture(t)
	ctx, admin := t.Context(), cp.Client()
	bare, err := admin.CoreV1().Nodes().Create(ctx, newNode("id-bare", nil, nil), metav1.CreateOptions{})
	must(t, err)
	defer func() { must(t, admin.CoreV1().Nodes().Delete(ctx, "id-bare", metav1.DeleteOptions{})) }()
	if len(bare.Labels) > 0 || len(bare.Annotations) > 0 {
		t.Fatalf("it is not bare: %v %v", bare.Labels, bare.Annotations)
	}
	for _, a := range []act{
		{"a status", status("id-bare", `{"status":{"nodeInfo":{"bootID":"b1"}}}`), ""},
		{"a cordon", node("id-bare", `{"spec":{"unschedulable":true}}`), ""},
		{"the first label", node("id-bare", label("example.com/rack", `"7"`)), ""},
		{"the first label of ours", node("id-bare", label(v1alpha1.LabelManaged, `"false"`)), ""},
		{"the first annotation of ours", node("id-bare", annotation(v1alpha1.AnnotationPaused, `"x"`)), ""},
		{"a forged state", node("id-bare", label(v1alpha1.LabelState, `"idle"`)), keys},
	} {
		if err := a.do(ctx, admin); refusedBy(err) != a.refused {
			t.Errorf("%s: %v", a.name, err)
		}
	}
	must(t, node("id-bare", `{"metadata":{"labels":{"lockkeeper.dev/state":"idle"},"annotations":{"lockkeeper.dev/last":"{}"}}}`)(ctx, asCoordinator(t)))
	// And losing all of them at once.
	full, err := admin.CoreV1().Nodes().Get(ctx, "id-c", metav1.GetOptions{})
	must(t, err)
	full.Labels, full.Annotations = nil, nil
	_, err = admin.CoreV1().Nodes().Update(ctx, full, metav1.UpdateOptions{DryRun: dryRun})
	must(t, err)
}

// TestBrokenExpression has a mistake in the policy that fails at run time. What speaks of our keys is refused, and says why;
// kubelets and everyone else continue.
func TestBrokenExpression(t *testing.T) {
	fixture(t)
	ctx := t.Context()
	policies := cp.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies()
	p, err := policies.Get(ctx, "lockkeeper-keys", metav1.GetOptions{})
	must(t, err)
	p.Spec.Validations[0].Expression = "[1, 2][variables.set.size() + 2] == 1"
	_, err = policies.Update(ctx, p, metav1.UpdateOptions{})
	must(t, err)
	defer func() {
		must(t, cp.ApplyLockkeeper(ctx))
		until(t, "the policy to be whole again", func() (bool, error) { err := says(t, "id-c"); return err == nil, err })
	}()
	must(t, cp.WaitRefused(ctx, "index out of bounds", func(context.Context) error { return says(t, "id-c") }))
	joins(t, "id-kubelet")
	for _, a := range []struct {
		name   string
		client kubernetes.Interface
		do     do
	}{
		{"an administrator's cordon", cp.Client(), node("id-a", `{"spec":{"unschedulable":null}}`)},
		{"an administrator's label", cp.Client(), node("id-a", label("example.com/rack", `"8"`))},
		{"a kubelet's status", asHost(t, "id-a"), status("id-a", `{"status":{"nodeInfo":{"bootID":"b9"}}}`)},
		{"the coordinator's word", asCoordinator(t), node("id-a", label(v1alpha1.LabelHeld, `"Budget"`))},
	} {
		if err := a.do(ctx, a.client); err != nil {
			t.Errorf("%s: %v", a.name, err)
		}
	}
	// Unbound, what was refused passes again.
	unbind(t)
	must(t, says(t, "id-c"))
}

// says has a host say what it wants.
func says(t *testing.T, name string) error {
	t.Helper()
	return node(name, label(v1alpha1.LabelWants, `"nothing"`))(t.Context(), asHost(t, name))
}

// TestFullNodes lets hosts fill their Nodes with as much as the API server stores, each with something else. Everyone can still cordon,
// taint and judge such a Node, its kubelet can report, and no one gets around the rules.
func TestFullNodes(t *testing.T) {
	fixture(t)
	people(t)
	ctx, admin := t.Context(), cp.Client()
	for _, s := range fullnode.Shapes(map[string]string{"hooks": v1alpha1.HookPrefix, "own": v1alpha1.Prefix}) {
		if os.Getenv("LOCKKEEPER_SOAK") == "" && s.Name != "annotations" {
			continue // `make soak` takes all of them: each is written a dozen times, and an API server is slow with such Nodes
		}
		t.Run(s.Name, func(t *testing.T) {
			name := "full-" + s.Name
			host := asHost(t, name)
			n := newNode(name, map[string]string{}, map[string]string{}) // null would remove what is there
			s.Fill(n)
			crowded := max(len(n.Labels), len(n.Annotations)) > manifests.MaxKeys
			_, err := host.CoreV1().Nodes().Create(ctx, newNode(name, nil, nil), metav1.CreateOptions{})
			must(t, err)
			defer func() { must(t, admin.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})) }()
			// Its turn waits for a hook.
			must(t, really(asCoordinator(t), name, annotation(v1alpha1.AnnotationGrant, waitsForBackup)))
			// Without managedFields, the API server does not write down in them who owns each label, which takes as much room again.
			must(t, really(host, name, `{"metadata":{"managedFields":[{}]}}`))
			must(t, really(host, name, object2json(map[string]any{"metadata": map[string]any{"labels": n.Labels, "annotations": n.Annotations, "managedFields": n.ManagedFields}})))
			if len(n.Status.Images) > 0 {
				_, err := host.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(object2json(map[string]any{"status": map[string]any{"images": n.Status.Images}})), metav1.PatchOptions{}, "status")
				must(t, err)
			}
			full, err := admin.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			must(t, err)
			t.Logf("%d bytes, %d labels, %d annotations, %d managers", full.Size(), len(full.Labels), len(full.Annotations), len(full.ManagedFields))
			if full.Size() < n.Size()*9/10 {
				t.Errorf("it has %d bytes, expected about %d", full.Size(), n.Size())
			}

			hold := ""
			if crowded {
				hold = coordinator
			}
			for _, a := range []struct {
				name    string
				client  kubernetes.Interface
				do      do
				refused string
			}{
				{"a cordon", asUser(t, "pat"), node(name, `{"spec":{"unschedulable":true}}`), ""},
				{"a taint", asUser(t, "pat"), node(name, `{"spec":{"taints":[{"key":"x","effect":"NoExecute"}]}}`), ""},
				{"NotReady", admin, status(name, `{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}`), ""},
				{"a heartbeat", host, status(name, `{"status":{"nodeInfo":{"bootID":"b1"},"conditions":[{"type":"Ready","status":"True"}]}}`), ""},
				{"an agent's condition", asUser(t, "agent"), status(name, `{"status":{"conditions":[{"type":"KernelDeadlock","status":"False"}]}}`), ""},
				{"a host's report", host, node(name, label(v1alpha1.LabelWants, `"reboot"`)), ""},
				{"a pause", asUser(t, "opal"), node(name, annotation(v1alpha1.AnnotationPaused, `"x"`)), ""},
				{"the coordinator's report", asCoordinator(t), node(name, label(v1alpha1.LabelHeld, `"Budget"`)), hold},

				{"a pause without the verb", asUser(t, "pat"), node(name, annotation(v1alpha1.AnnotationPaused, `"x"`)), keys},
				{"a pause through status", asUser(t, "agent"), status(name, annotation(v1alpha1.AnnotationPaused, `"x"`)), keys},
				{"a confirmation", asUser(t, "hooker"), node(name, annotation("hook.lockkeeper.dev/backup", `"t1"`)), ""},

				{"a confirmation without the verb", asUser(t, "pat"), node(name, annotation("hook.lockkeeper.dev/backup", `"t1"`)), keys},
				{"a confirmation through status", asUser(t, "agent"), status(name, annotation("hook.lockkeeper.dev/backup", `"t1"`)), keys},
				{"a forged state", admin, node(name, label(v1alpha1.LabelState, `"idle"`)), keys},
				{"a host's pause", host, node(name, annotation(v1alpha1.AnnotationPaused, `"x"`)), keys},
				{"a cordon by the coordinator", asCoordinator(t), node(name, `{"spec":{"unschedulable":true}}`), coordinator},
			} {
				if err := a.do(ctx, a.client); refusedBy(err) != a.refused {
					t.Errorf("%s: refused by %q, want %q: %v", a.name, refusedBy(err), a.refused, err)
				}
			}
			if !crowded {
				return
			}
			// The refusal says what it is about, not that some cost was exceeded.
			err = node(name, label(v1alpha1.LabelHeld, `"Budget"`))(ctx, asCoordinator(t))
			if want := fmt.Sprintf("this Node has more than %d labels or annotations", manifests.MaxKeys); !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("the coordinator's report: %v, want %q", err, want)
			}
		})
	}
}
