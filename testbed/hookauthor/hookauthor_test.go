package hookauthor

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestConfirms needs no API server: what is confirmed when is all there is.
func TestConfirms(t *testing.T) {
	hook := func(name string) v1alpha1.Hook {
		return v1alpha1.Hook{Name: name, Timeout: metav1.Duration{Duration: time.Minute}, OnTimeout: v1alpha1.OnTimeoutAbort}
	}
	grant := v1alpha1.Grant{
		Turn: "aaaaaaaaaaaaaaaa", Epoch: "n0_bbbb", NodeUID: "uid", BootID: "boot", Wants: v1alpha1.WantsReboot, Policy: "test",
		StartedAt: time.Now().UTC(), StageAt: time.Now().UTC(),
		Terms: v1alpha1.Terms{
			DrainTimeout: v1alpha1.OnTimeoutAbort,
			BeforeDrain:  []v1alpha1.Hook{hook("storage"), hook("balancer")}, BeforeReboot: []v1alpha1.Hook{hook("backup")},
		},
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n1", Labels: map[string]string{v1alpha1.LabelState: string(v1alpha1.StateBeforeDrain)},
		Annotations: map[string]string{
			v1alpha1.AnnotationTurn: grant.Turn, v1alpha1.AnnotationGrant: v1alpha1.FormatRecord(&grant),
		},
	}}
	client := fake.NewClientset(node)
	a := &Authors{}
	var err error
	if a, err = Start(client, func(text string) { t.Error(text) }, "storage"); err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	await := func(hook string) {
		t.Helper()
		for tick, end := time.Tick(5*time.Millisecond), time.After(time.Minute); ; {
			n, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if n.Annotations[v1alpha1.HookAnnotation(hook)] == grant.Turn {
				return
			}
			select {
			case <-tick:
			case <-end:
				t.Fatalf("%s was not confirmed: %v", hook, n.Annotations)
			}
		}
	}
	await("balancer")
	n, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, hook := range []string{"storage", "backup"} {
		if v, ok := n.Annotations[v1alpha1.HookAnnotation(hook)]; ok {
			t.Errorf("%s was confirmed with %q: it is kept, or of another stage", hook, v)
		}
	}
	a.Release("storage")
	await("storage")
}
