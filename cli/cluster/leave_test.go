package cluster

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestLeaveUnreleasedCosts: leaving without a coordinator reads the Lease and the one Node, and
// lists nothing: it is done for each node of the cluster.
func TestLeaveUnreleasedCosts(t *testing.T) {
	lease := newLease()
	n := newNode("n1", label(v1alpha1.LabelManaged, "false"))
	s, client, _ := faulty(t, nil, n, newNode("n2"), lease)
	s.DeleteUpdate = func(context.Context, string) (bool, error) { return false, nil }
	if err := s.LeaveUnreleased(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	for _, a := range client.Actions() {
		if a.GetVerb() == "list" {
			t.Errorf("it lists %s", a.GetResource().Resource)
		}
	}
	got, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil || labels.FormatLabels(got.Labels) != v1alpha1.LabelManaged+"=false" || len(got.Annotations) > 0 {
		t.Errorf("left with %v, %v, %v", got.Labels, got.Annotations, err)
	}
	// An instance that holds the Lease releases nodes.
	lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	s, _, writes := faulty(t, nil, newNode("n1"), lease)
	if err := s.LeaveUnreleased(t.Context(), "n1"); err == nil || !strings.HasPrefix(err.Error(), "an instance on n3 releases nodes") || *writes != 0 {
		t.Errorf("%v, %d writes", err, *writes)
	}
}

// TestLeaveListsOnce: before the question, the nodes are read with one list, and not one by one:
// one that is deleted meanwhile must not end the command. The caller waits for the nodes of that list.
func TestLeaveListsOnce(t *testing.T) {
	s, client, writes := faulty(t, nil, three()...)
	var selected []string
	err := s.Apply(t.Context(), Options{
		Intent: &Leave, Selector: labels.Everything(), Printer: Printer{Out: io.Discard, Err: io.Discard},
		Selected: func(names []string) { selected = names },
		Confirm: func([]string) error {
			if reads := len(client.Actions()); reads != 1 {
				t.Errorf("%d requests before the question", reads)
			}
			return nil
		},
	})
	if err != nil || strings.Join(selected, " ") != "n1 n2 n3" || *writes != 3 {
		t.Errorf("%v, selected %q, %d writes", err, selected, *writes)
	}
}

// TestCommittedNodeDoesNotLeave: without a coordinator too, nothing takes a turn away from a host that has committed to a reboot or
// an apply, or a node that is not to leave any more.
func TestCommittedNodeDoesNotLeave(t *testing.T) {
	lease := newLease()
	for _, tc := range []struct {
		name, managed string
		state         v1alpha1.State
		report        string
		want          string // the error; "" for none
	}{
		{"draining", "false", v1alpha1.StateDraining, "committed", ""},
		{"rebooting, before the commit", "false", v1alpha1.StateRebooting, "seen", ""},
		{"rebooting", "false", v1alpha1.StateRebooting, "committed", "n1 is in rebooting and has committed to it; wait until its host reports, or delete the Node if the host is gone"},
		{"applying", "false", v1alpha1.StateApplying, "committed", "n1 is in applying and has committed to it; wait until its host reports, or delete the Node if the host is gone"},
		{"not to leave", "true", v1alpha1.StateDraining, "seen", "another user or program removed lockkeeper.dev/managed=false from n1, so it does not leave"},
	} {
		s, client, writes := faulty(t, nil, newNode("n1", inTurn(tc.state, "13:00:00", tc.report), label(v1alpha1.LabelManaged, tc.managed)), lease)
		s.DeleteUpdate = func(context.Context, string) (bool, error) { return false, nil }
		err := s.LeaveUnreleased(t.Context(), "n1")
		if tc.want != "" && (err == nil || err.Error() != tc.want || *writes != 0) || tc.want == "" && (err != nil || *writes == 0) {
			t.Errorf("%s: %v, %d writes", tc.name, err, *writes)
		}
		got, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, kept := got.Labels[v1alpha1.LabelState]; kept != (tc.want != "") {
			t.Errorf("%s: left with %v", tc.name, got.Labels)
		}
	}
}

// TestCommittedNodesKeepNoOthers: of a fleet that leaves without a coordinator, machines that died in the middle of their reboots stay,
// and no others. Another error ends the command: it would be the same for each node.
func TestCommittedNodesKeepNoOthers(t *testing.T) {
	lease := newLease()
	leaves := label(v1alpha1.LabelManaged, "false")
	dead := all(inTurn(v1alpha1.StateRebooting, "13:00:00", "committed"), leaves)
	s, client, _ := faulty(t, nil, newNode("n1", dead), newNode("n2", leaves), newNode("n3", dead), newNode("n4", leaves), lease)
	s.DeleteUpdate = func(context.Context, string) (bool, error) { return false, nil }
	names := []string{"n1", "n2", "n3", "n4"}
	var said []string
	pending, err := s.LeaveAllUnreleased(t.Context(), names, func(line string) { said = append(said, line) })
	if strings.Join(pending, " ") != "n1 n3" || err == nil || !strings.HasPrefix(err.Error(), "n3 is in rebooting") ||
		len(said) != 1 || !strings.HasPrefix(said[0], "n1 is in rebooting and has committed to it; wait until its host reports") {
		t.Errorf("%q have not left: %v, said %q", pending, err, said)
	}
	for _, name := range []string{"n2", "n4"} {
		if n, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}); err != nil || labels.FormatLabels(n.Labels) != v1alpha1.LabelManaged+"=false" {
			t.Errorf("%s left with %v, %v", name, n.Labels, err)
		}
	}
	lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	s, _, writes := faulty(t, nil, newNode("n1", leaves), newNode("n2", leaves), lease)
	pending, err = s.LeaveAllUnreleased(t.Context(), names[:2], func(line string) { t.Errorf("said %s", line) })
	if len(pending) != 2 || err == nil || !strings.HasPrefix(err.Error(), "an instance on n3 releases nodes") || *writes != 0 {
		t.Errorf("%q have not left: %v, %d writes", pending, err, *writes)
	}
}
