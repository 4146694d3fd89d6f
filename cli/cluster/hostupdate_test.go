package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/kube"
)

// TestUndecodableUpdate: a HostUpdate that this version cannot decode is a note about its node, and the rest is shown.
func TestUndecodableUpdate(t *testing.T) {
	s := &Source{Node: "n1", ReadUpdate: func(_ context.Context, node string) (*v1alpha1.HostUpdate, error) {
		return &v1alpha1.HostUpdate{}, &kube.UndecodableError{Node: node, Field: "status.wants", Err: errors.New("it is a\nnumber")}
	}}
	r := &report.Report{Nodes: []report.Node{{Name: "n1", Managed: true}, {Name: "n2"}}}
	s.addUpdates(t.Context(), r)
	var b bytes.Buffer
	if _, err := (report.Form{Node: "n1"}).Print(&b, r); err != nil {
		t.Fatal(err)
	}
	const want = "note  HostUpdate n1: this version of lockkeeper cannot decode status.wants: it is a number; another version wrote it, and what it says is not shown\n"
	if !strings.Contains(b.String(), want) || !strings.Contains(b.String(), "n1: ") {
		t.Errorf("%s\nwant %s", b.String(), want)
	}
	if r.Nodes[0].Update != nil || r.Nodes[1].UpdateError != "" {
		t.Errorf("%+v", r.Nodes)
	}
}

// TestCoordinatorsUpdate checks that what keeps the coordinator from deciding is shown, also if its host has no Node, and that each
// HostUpdate is read once in a while.
func TestCoordinatorsUpdate(t *testing.T) {
	var reads atomic.Int32
	s := &Source{ReadUpdate: func(_ context.Context, node string) (*v1alpha1.HostUpdate, error) {
		reads.Add(1)
		u := &v1alpha1.HostUpdate{}
		if node == "leader" {
			u.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionCoordinatorHealthy, Status: "False", Message: "listing nodes: forbidden"}}
		}
		return u, nil
	}}
	r := &report.Report{}
	for i := range 30 {
		r.Nodes = append(r.Nodes, report.Node{Name: fmt.Sprintf("n%d", i), Managed: true, State: v1alpha1.StateDraining})
	}
	for _, live := range []bool{true, false, true} {
		r.Coordinator = report.Coordinator{Live: live, Node: "leader"}
		s.addUpdates(t.Context(), r)
		var b bytes.Buffer
		if _, err := (report.Form{}).Print(&b, r); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.String(), "\nThe coordinator has a PROBLEM: listing nodes: forbidden\n") != live {
			t.Errorf("live %t:\n%s", live, &b)
		}
	}
	if n := reads.Load(); n != maxUpdates+1 {
		t.Errorf("%d reads, expected %d", n, maxUpdates+1)
	}
}
