package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
)

func testLease() *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "lockkeeper", Name: "lockkeeper", ResourceVersion: "3", Annotations: map[string]string{"other": "kept"}}}
}

// TestEmergencyStop: what undoes the command never lifts a stop that was set before it, perhaps by another admin.
func TestEmergencyStop(t *testing.T) {
	s, client, writes := faulty(t, nil, testLease())
	const (
		undo    = "To undo: lockkeeper resume --cluster\n"
		kubectl = "The same with kubectl: kubectl annotate lease -n lockkeeper lockkeeper "
		effect  = "No turn begins or advances, and no host commits to a cordon, an apply or a reboot. What was already committed continues.\n"
	)
	for i, step := range []struct {
		command string
		reason  string
		want    string
		stop    string // on the Lease afterwards; "-" is absent
		writes  int
	}{
		{"resume", "", "The emergency stop is not set, nothing changed.\n", "-", 0},
		{"pause", "", "The emergency stop is set: \"emergency stop (by ann)\"\n" + effect +
			kubectl + "--overwrite 'lockkeeper.dev/paused=emergency stop (by ann)'\n" + undo, "emergency stop (by ann)", 1},
		{"pause", "", "The emergency stop is already set, nothing changed: \"emergency stop (by ann)\"\n", "emergency stop (by ann)", 1},
		{"pause", "storage", "The emergency stop was already set. Its reason is now \"storage (by ann)\". It was \"emergency stop (by ann)\".\n" +
			kubectl + "--overwrite 'lockkeeper.dev/paused=storage (by ann)'\n" +
			"To undo: kubectl annotate lease -n lockkeeper lockkeeper --overwrite 'lockkeeper.dev/paused=emergency stop (by ann)'\n", "storage (by ann)", 2},
		{"pause", "storage", "The emergency stop is already set, nothing changed: \"storage (by ann)\"\n", "storage (by ann)", 2},
		{"resume", "", "The emergency stop is lifted. It was \"storage (by ann)\".\n" + kubectl + "lockkeeper.dev/paused-\n" +
			"To undo: kubectl annotate lease -n lockkeeper lockkeeper --overwrite 'lockkeeper.dev/paused=storage (by ann)'\n", "-", 3},
	} {
		out, errOut, err := do(t, s, step.command, Options{Stop: true, Reason: step.reason})
		if err != nil || out != step.want || errOut != "" {
			t.Errorf("step %d: %s%s%v\nexpected\n%s", i, out, errOut, err, step.want)
		}
		l, err := client.CoordinationV1().Leases("lockkeeper").Get(t.Context(), "lockkeeper", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		text, there := l.Annotations[v1alpha1.AnnotationStop]
		if !there {
			text = "-"
		}
		if text != step.stop || *writes != step.writes || l.Annotations["other"] != "kept" {
			t.Errorf("step %d: the Lease has %q after %d writes, expected %q after %d", i, text, *writes, step.stop, step.writes)
		}
	}
}

func TestEmergencyStopErrors(t *testing.T) {
	s, _, _ := faulty(t, nil)
	for _, command := range []string{"pause", "resume"} {
		if _, _, err := do(t, s, command, Options{Stop: true}); err == nil || !strings.HasPrefix(err.Error(), "lease lockkeeper/lockkeeper does not exist") {
			t.Errorf("%s: %v", command, err)
		}
	}
	if _, _, err := do(t, s, "pause", Options{Stop: true, Reason: strings.Repeat("x", MaxReason+1)}); err == nil {
		t.Error("a reason without a bound")
	}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, "lockkeeper", errors.New("no"))
	s, client, _ := faulty(t, []error{forbidden}, testLease())
	const needs = "; `lockkeeper pause --cluster` requires permission to get and patch Lease lockkeeper in namespace lockkeeper"
	if out, _, err := do(t, s, "pause", Options{Stop: true}); out != "" || !strings.HasSuffix(fmt.Sprint(err), needs) {
		t.Errorf("%q, %v", out, err)
	}
	client.PrependReactor("patch", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if dry := a.(clienttesting.PatchActionImpl).PatchOptions.DryRun; len(dry) != 1 {
			t.Errorf("dry run %q", dry)
		}
		return true, testLease(), nil
	})
	const dry = "Dry run, nothing is changed. Without --dry-run:\nThe emergency stop is set: \"x (by ann)\"\n"
	if out, _, err := do(t, s, "pause", Options{Stop: true, Reason: "x", DryRun: true}); err != nil || !strings.HasPrefix(out, dry) || strings.Contains(out, "To undo") {
		t.Errorf("%s%v", out, err)
	}
}

// TestEmergencyStopThroughAProxy checks that no answer of a proxy counts as the Lease: a user would believe that all has stopped, or that nothing
// is stopped.
func TestEmergencyStopThroughAProxy(t *testing.T) {
	for _, c := range []struct{ verb, command, want string }{
		{"get", "pause", "reading Lease lockkeeper/lockkeeper: " + kube.ErrNotLease.Error()},
		{"get", "resume", "reading Lease lockkeeper/lockkeeper: " + kube.ErrNotLease.Error()},
		{"patch", "pause", "writing Lease lockkeeper/lockkeeper: " + kube.ErrNotLease.Error()},
	} {
		s, client, _ := faulty(t, nil, testLease())
		client.PrependReactor(c.verb, "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, &coordinationv1.Lease{}, nil // as client-go decodes {"ok":true}
		})
		if out, _, err := do(t, s, c.command, Options{Stop: true}); err == nil || err.Error() != c.want || out != "" {
			t.Errorf("%s with a proxy's answer to the %s: %q, %v", c.command, c.verb, out, err)
		}
	}
}
