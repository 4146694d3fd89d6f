package virtual

import (
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// TestRestoredHeld checks since when a node has waited in a store that was set back: since then, or not at all if the store has no such Node.
func TestRestoredHeld(t *testing.T) {
	for _, there := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := New(t.TempDir(), Options{Hosts: 1})
			defer f.Close()
			m := f.machine("n1")
			f.Kill("n1")
			waiting := f.Node("n1").DeepCopy()
			waiting.Labels = map[string]string{v1alpha1.LabelState: string(v1alpha1.StateIdle), v1alpha1.LabelWants: string(v1alpha1.WantsReboot)}
			waiting.Annotations = map[string]string{v1alpha1.AnnotationHost: v1alpha1.FormatRecord(v1alpha1.Host{
				Protocol: v1alpha1.Protocol, NodeUID: string(waiting.UID), BootID: waiting.Status.NodeInfo.BootID, Managed: true,
			})}
			was := turn.FromNode(waiting)
			if there {
				waiting.ResourceVersion = ""
				if _, err := f.Admin.CoreV1().Nodes().Update(t.Context(), waiting, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			} else if err := f.Admin.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			s := f.Snapshot()
			m.judgeHeld(&turn.Node{})
			m.judgeHeld(&was)
			m.waits = m.waits.Add(-time.Minute)
			f.Restore(s)
			if there && !m.waits.Equal(time.Now()) || !there && !m.waits.IsZero() {
				t.Errorf("there %t: it has waited since %v, now it is %v", there, m.waits, time.Now())
			}
		})
	}
}
