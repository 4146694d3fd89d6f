package install

import (
	"context"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// An act is a request, and what refuses it: a part of the server's answer, "" if it is allowed.
type act struct {
	what, why string
	do        func(context.Context, kubernetes.Interface) error
}

func clientOf(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	must(t, err)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	return client
}

// write is a patch of a Node.
func write(node, patch string, subresources ...string) func(context.Context, kubernetes.Interface) error {
	return func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
		return err
	}
}

// annotates sets an annotation; value is JSON.
func annotates(node, key, value string) func(context.Context, kubernetes.Interface) error {
	return write(node, `{"metadata":{"annotations":{"`+key+`":`+value+`}}}`)
}

// try has each act tried until its outcome is the expected one: the API server takes a moment to see a policy that is new.
func try(t *testing.T, kubeconfig string, acts []act) {
	t.Helper()
	client := clientOf(t, kubeconfig)
	for _, a := range acts {
		var err error
		right := func() bool {
			err = a.do(exampleSoon(t), client)
			return a.why == "" && err == nil || a.why != "" && apierrors.IsForbidden(err) && strings.Contains(err.Error(), a.why)
		}
		for end := time.Now().Add(patience); !right(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %v, expected %q", a.what, err, a.why)
			}
		}
	}
}

// rights tries what the token of a hook's pod may do, next to what the script shows that it may, and what it may not; and that a
// token of the same service account that is no pod's may nothing of it.
func rights(t *testing.T, e *example, token, own, other, hook, turn string) {
	t.Helper()
	key, id := "hook.lockkeeper.dev/"+hook, `"`+turn+`"`
	const (
		ownNode  = "a hook confirms on its own Node only"
		ownKey   = "this hook writes hook.lockkeeper.dev/"
		ownTurn  = "a hook confirms the Node's present turn only"
		noMore   = "a hook changes nothing of a Node but its own annotation"
		noRights = "cannot "
		policies = "ValidatingAdmissionPolicy" // the example's and lockkeeper's own both refuse it
	)
	try(t, token, []act{
		{"confirms on another Node", ownNode, annotates(other, key, id)},
		{"confirms another turn", ownTurn, annotates(own, key, `"another"`)},
		{"confirms another hook", ownKey, annotates(own, "hook.lockkeeper.dev/another", id)},
		{"sets the turn", policies, annotates(own, "lockkeeper.dev/turn", `"another"`)},
		{"sets the turn and confirms it", policies, write(own, `{"metadata":{"annotations":{"lockkeeper.dev/turn":"x","`+key+`":"x"}}}`)},
		{"removes the turn", policies, annotates(own, "lockkeeper.dev/turn", "null")},
		{"pauses", policies, annotates(own, "lockkeeper.dev/paused", `"why"`)},
		{"annotates", ownKey, annotates(own, "example.com/a", `"b"`)},
		{"labels", noMore, write(own, `{"metadata":{"labels":{"example.com/a":"b"}}}`)},
		{"taints", noMore, write(own, `{"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}`)},
		{"orphans", noMore, write(own, `{"metadata":{"finalizers":["example.com/a"]}}`)},
		{"writes the status", noRights, write(own, `{"metadata":{"annotations":{"`+key+`":`+id+`}}}`, "status")},
		{"lists Nodes", noRights, func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			return err
		}},
		{"reads secrets", noRights, func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().Secrets(e.namespace).List(ctx, metav1.ListOptions{})
			return err
		}},
		{"deletes a pod", noRights, func(ctx context.Context, c kubernetes.Interface) error {
			return c.CoreV1().Pods(e.namespace).Delete(ctx, "any", metav1.DeleteOptions{})
		}},
		{"deletes the Node", noRights, func(ctx context.Context, c kubernetes.Interface) error {
			return c.CoreV1().Nodes().Delete(ctx, own, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		}},
		{"reads a service account", noRights, func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().ServiceAccounts("lockkeeper").Get(ctx, "lockkeeper-coordinator", metav1.GetOptions{})
			return err
		}},
	})
	try(t, e.token(t, nil), []act{{"confirms without a pod", ownNode, annotates(own, key, id)}})
}
