package cluster

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"lockkeeper.dev/lockkeeper/cli/migrate"
)

// TestMigrateReadsAgain has a Node change before it is written: everything is read again. If
// the tool has come back meanwhile, nothing more is changed.
func TestMigrateReadsAgain(t *testing.T) {
	const key = "flatcar-linux-update.v1.flatcar-linux.net/status"
	for _, back := range []bool{false, true} {
		client := fake.NewClientset(newNode("n1", annotation(key, "UPDATE_STATUS_IDLE")), newNode("n2", annotation(key, "UPDATE_STATUS_IDLE")))
		conflicts := 0
		client.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.(clienttesting.PatchAction).GetName() != "n2" || conflicts > 0 {
				return false, nil, nil
			}
			conflicts++
			// The clientset is locked here, and its tracker is not.
			nodes, pods := corev1.SchemeGroupVersion.WithResource("nodes"), corev1.SchemeGroupVersion.WithResource("pods")
			n2 := newNode("n2", annotation(key, "UPDATE_STATUS_IDLE"))
			n2.ResourceVersion = "8"
			if err := client.Tracker().Update(nodes, n2, ""); err != nil {
				t.Error(err)
			}
			if back {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "agent", Labels: map[string]string{"app": "flatcar-linux-update-agent"}}}
				if err := client.Tracker().Create(pods, pod, "ns"); err != nil {
					t.Error(err)
				}
			}
			return true, nil, conflict("n2")
		})
		var out, errs bytes.Buffer
		asked := 0
		s := &Source{Client: client}
		err := s.Migrate(t.Context(), Migration{Tool: migrate.FLUO, Out: &out, Err: &errs, Confirm: func([]string) error { asked++; return nil }})
		n2, getErr := client.CoreV1().Nodes().Get(t.Context(), "n2", metav1.GetOptions{})
		if getErr != nil {
			t.Fatal(getErr)
		}
		_, left := n2.Annotations[key]
		if left != back || asked != 1 || !strings.Contains(out.String(), "n1: remove the annotations "+key) {
			t.Errorf("back %t: left %t, asked %d times, %q", back, left, asked, out.String())
		}
		if back != (err != nil) || back && !strings.Contains(err.Error(), "fluo is active, nothing more was changed: pod ns/agent exists") {
			t.Errorf("back %t: %v", back, err)
		}
	}
}
