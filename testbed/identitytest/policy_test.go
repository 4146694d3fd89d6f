package identitytest

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// The API server holds every expression against what a Node is, and has nothing to say.
func TestNoTypeWarnings(t *testing.T) {
	must(t, cp.ApplyLockkeeper(t.Context()))
	for _, name := range []string{"lockkeeper-keys", "lockkeeper-coordinator"} {
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
// kubelets and everybody else go on.
func TestBrokenExpression(t *testing.T) {
	fixture(t)
	ctx := t.Context()
	policies := cp.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies()
	p, err := policies.Get(ctx, "lockkeeper-keys", metav1.GetOptions{})
	must(t, err)
	p.Spec.Validations[0].Expression = "[1, 2][variables.labels.size() + 2] == 1"
	_, err = policies.Update(ctx, p, metav1.UpdateOptions{})
	must(t, err)
	defer func() {
		must(t, cp.ApplyLockkeeper(ctx))
		until(t, "the policy to be whole again", func() (bool, error) { err := says(t, "id-c"); return err == nil, err })
	}()
	until(t, "the mistake to be in force", func() (bool, error) {
		err := says(t, "id-c")
		return err != nil && strings.Contains(err.Error(), "index out of bounds"), err
	})
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

// A Node may have as many annotations as it can hold, and 256 KiB in all is what it can; the policies' budget of work has to last.
func TestFullNode(t *testing.T) {
	fixture(t)
	ctx, admin := t.Context(), cp.Client()
	for _, many := range []int{1000, 10000} {
		full := map[string]string{}
		for i := range many {
			full[fmt.Sprintf("example.com/%05d", i)] = strings.Repeat("x", 256<<10/many-20)
		}
		name := fmt.Sprint("id-full-", many)
		_, err := admin.CoreV1().Nodes().Create(ctx, newNode(name, nil, full), metav1.CreateOptions{})
		must(t, err)
		must(t, status(name, `{"status":{"nodeInfo":{"bootID":"b1"}}}`)(ctx, asHost(t, name)))
		must(t, node(name, label(v1alpha1.LabelWants, `"reboot"`))(ctx, asHost(t, name)))
		must(t, node(name, annotation(v1alpha1.AnnotationPaused, `"x"`))(ctx, admin))
		must(t, node(name, label(v1alpha1.LabelState, `"idle"`))(ctx, asCoordinator(t)))
		if err := node(name, label(v1alpha1.LabelState, `"idle"`))(ctx, admin); refusedBy(err) != keys {
			t.Errorf("%d annotations: a forged state: %v", many, err)
		}
		must(t, admin.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}))
	}
}
