package install

import (
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

const (
	patience = 4 * time.Minute // bounds every wait for something that is to happen: each look of a script is some kubectls
	examples = "../../packaging/examples"
)

func exampleSoon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// until polls until cond returns true. Use it for conditions that no watch reports.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}

// kubectl runs the real one with a kubeconfig and returns what it says, of both kinds.
func kubectl(t *testing.T, kubeconfig string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(exampleSoon(t), examplePlane().Binaries().Kubectl, args...)
	cmd.Env = []string{"KUBECONFIG=" + kubeconfig, "HOME=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func admin(t *testing.T) string {
	t.Helper()
	path, err := examplePlane().Kubeconfig("testbed:admin", "system:masters")
	must(t, err)
	return path
}

// An example is one that was applied.
type example struct {
	name, namespace string
	set             *appsv1.DaemonSet
	script          string // the file
	home            string // where its kubectls keep what they learn of the API
}

// apply applies an example as docs/hooks.md says, after the server has been asked whether it would take it. The script is the one
// in the ConfigMap that the DaemonSet mounts.
func apply(t *testing.T, name string) *example {
	t.Helper()
	must(t, examplePlane().ApplyLockkeeper(exampleSoon(t)))
	e := &example{name: name, namespace: "hook-" + name, home: t.TempDir()}
	for _, args := range [][]string{
		{"create", "namespace", e.namespace}, // the dry run refuses objects in a namespace that does not exist
		{"apply", "-k", filepath.Join(examples, name), "--dry-run=server"},
		{"apply", "-k", filepath.Join(examples, name)},
	} {
		if out, err := kubectl(t, admin(t), args...); err != nil {
			t.Fatalf("kubectl %q: %v\n%s", args, err, out)
		}
	}
	var err error
	e.set, err = examplePlane().Client().AppsV1().DaemonSets(e.namespace).Get(exampleSoon(t), "hook", metav1.GetOptions{})
	must(t, err)
	if got := e.container().Command; !slices.Equal(got, []string{"/bin/sh", "/hook/hook.sh"}) || e.container().VolumeMounts[0].MountPath != "/hook" {
		t.Fatalf("the container runs %q", got)
	}
	scripts, err := examplePlane().Client().CoreV1().ConfigMaps(e.namespace).Get(exampleSoon(t), e.set.Spec.Template.Spec.Volumes[0].ConfigMap.Name, metav1.GetOptions{})
	must(t, err)
	e.script = filepath.Join(t.TempDir(), "hook.sh")
	must(t, os.WriteFile(e.script, []byte(scripts.Data["hook.sh"]), 0o644))
	return e
}

func (e *example) container() *corev1.Container { return &e.set.Spec.Template.Spec.Containers[0] }

// onlyOn waits until the example has one pod, which runs on the node; with "" until it has none.
func (e *example) onlyOn(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	if node == "" {
		_, err := examplePlane().WaitPods(exampleSoon(t), e.namespace, "", "to be gone", func(pods []*corev1.Pod) bool { return len(pods) == 0 })
		must(t, err)
		return nil
	}
	pods, err := examplePlane().WaitPods(exampleSoon(t), e.namespace, "", "to run on "+node, func(pods []*corev1.Pod) bool {
		return len(pods) == 1 && pods[0].Spec.NodeName == node && pods[0].DeletionTimestamp == nil && controlplane.PodReady(pods[0])
	})
	must(t, err)
	return pods[0]
}

// token is a kubeconfig with a token of the hook's service account; with a pod it is that pod's, as the kubelet asks for it.
func (e *example) token(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	account := e.set.Spec.Template.Spec.ServiceAccountName
	issued, err := examplePlane().Client().CoreV1().ServiceAccounts(e.namespace).CreateToken(exampleSoon(t), account, request, metav1.CreateOptions{})
	must(t, err)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: examplePlane().URL(), CertificateAuthorityData: examplePlane().CA()}
	config.AuthInfos["c"] = &clientcmdapi.AuthInfo{Token: issued.Status.Token}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c"}
	config.CurrentContext = "c"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*config, path))
	return path
}

// env is the container's environment on the node, with what the test sets besides.
func (e *example) env(t *testing.T, node, kubeconfig string, more ...string) []string {
	t.Helper()
	env := []string{"KUBECONFIG=" + kubeconfig}
	for _, v := range e.container().Env {
		value := v.Value
		switch from := v.ValueFrom; {
		case from != nil && from.FieldRef != nil && from.FieldRef.FieldPath == "spec.nodeName":
			value = node
		case from != nil && from.SecretKeyRef != nil:
			s, err := examplePlane().Client().CoreV1().Secrets(e.namespace).Get(exampleSoon(t), from.SecretKeyRef.Name, metav1.GetOptions{})
			must(t, err)
			value = string(s.Data[from.SecretKeyRef.Key])
		case from != nil:
			t.Fatalf("the value of %s is from nowhere that this test knows", v.Name)
		}
		env = append(env, v.Name+"="+value)
	}
	return append(append(env, "POLL_SECONDS=2", "HOME="+e.home), more...)
}

// enter puts a node into a state of a turn, as the coordinator does: what hooks said before goes in the same write.
func enter(t *testing.T, node string, state v1alpha1.State, turn string) {
	t.Helper()
	n, err := examplePlane().Client().CoreV1().Nodes().Get(exampleSoon(t), node, metav1.GetOptions{})
	must(t, err)
	annotations := map[string]any{v1alpha1.AnnotationTurn: turn}
	for key := range n.Annotations {
		if _, ok := v1alpha1.HookName(key); ok {
			annotations[key] = nil
		}
	}
	if turn == "" {
		annotations[v1alpha1.AnnotationTurn] = nil
	}
	patchNode(t, node, map[string]any{"labels": map[string]any{v1alpha1.LabelState: string(state)}, "annotations": annotations})
}

func patchNode(t *testing.T, node string, metadata map[string]any) {
	t.Helper()
	leader, err := examplePlane().NodeWriter(node, v1alpha1.LabelState)
	must(t, err)
	_, err = leader.CoreV1().Nodes().Patch(exampleSoon(t), node, types.MergePatchType, jsonOf(t, map[string]any{"metadata": metadata}), metav1.PatchOptions{})
	must(t, err)
}

// cordon says whether the node takes pods.
func cordon(t *testing.T, node string, on bool) {
	t.Helper()
	body := jsonOf(t, map[string]any{"spec": map[string]any{"unschedulable": on}})
	_, err := examplePlane().Client().CoreV1().Nodes().Patch(exampleSoon(t), node, types.MergePatchType, body, metav1.PatchOptions{})
	must(t, err)
}

// said is what a hook has said on the node.
func said(t *testing.T, node, hook string) string {
	t.Helper()
	n, err := examplePlane().Client().CoreV1().Nodes().Get(exampleSoon(t), node, metav1.GetOptions{})
	must(t, err)
	return n.Annotations[v1alpha1.HookAnnotation(hook)]
}

// confirmed waits until a hook has confirmed the turn.
func confirmed(t *testing.T, node, hook, turn string) {
	t.Helper()
	_, err := examplePlane().WaitNode(exampleSoon(t), node, "to have "+hook+" confirmed", func(n *corev1.Node) bool {
		return n != nil && n.Annotations[v1alpha1.HookAnnotation(hook)] == turn
	})
	must(t, err)
}

// nodes creates Nodes, which KWOK plays, for as long as the test runs.
func nodes(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		_, err := examplePlane().CreateNode(exampleSoon(t), controlplane.NodeSpec{Name: name, Ballast: true})
		must(t, err)
		t.Cleanup(func() {
			_ = examplePlane().Client().CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})
		})
		_, err = examplePlane().WaitNode(exampleSoon(t), name, "to be Ready", func(n *corev1.Node) bool {
			return n != nil && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			})
		})
		must(t, err)
	}
}

func newTurn() string { return "t" + strings.ToLower(rand.Text()[:12]) }
