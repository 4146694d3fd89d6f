package cluster

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

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
