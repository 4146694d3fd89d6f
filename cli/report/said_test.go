package report

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// What the coordinator alone knows, such as a write that is not settled, is on the policy: `lockkeeper status` names it for the
// nodes that wait for it, and does not say that the rollout moves by itself.
func TestWhatTheCoordinatorSaid(t *testing.T) {
	const message = "1 held: the outcome of a write to n2 has been unknown since 12:00:00 UTC: no answer"
	for name, c := range map[string]struct {
		condition metav1.Condition
		why       string
	}{
		"the same reason":    {metav1.Condition{Reason: "Handover", Message: message}, message},
		"another reason":     {metav1.Condition{Reason: "Budget", Message: message}, v1alpha1.ReasonHandover.Doc().Means},
		"nothing was said":   {metav1.Condition{}, v1alpha1.ReasonHandover.Doc().Means},
		"no reason is given": {metav1.Condition{Message: message}, v1alpha1.ReasonHandover.Doc().Means},
	} {
		w := newWorld(t)
		n := w.add("n1", wantsReboot)
		n.Labels[v1alpha1.LabelHeld] = string(v1alpha1.ReasonHandover)
		in := w.input()
		in.Progressing = map[string]metav1.Condition{w.p.Name: c.condition}
		got := Build(in)
		if n := got.Find("n1"); n.Held != v1alpha1.ReasonHandover || n.Why != c.why || got.Status != Held {
			t.Errorf("%s: %s, held %q: %s", name, got.Status, n.Held, n.Why)
		}
	}
}
