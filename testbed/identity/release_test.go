package identity

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// releases is the write by which the coordinator releases a node, as the API gets it.
const releases = `{"metadata":{"labels":{"lockkeeper.dev/state":null,"lockkeeper.dev/wants":null,"lockkeeper.dev/held":"Detached"},` +
	`"annotations":{"lockkeeper.dev/host":null,"lockkeeper.dev/ack":null,"lockkeeper.dev/turn":null,"lockkeeper.dev/grant":null,` +
	`"lockkeeper.dev/last":null,"lockkeeper.dev/expired":null}}}`

// TestReleases has the coordinator remove a host's keys: from a Node that an admin or its host's file has taken out it may, in
// a write that leaves no state and no mark. In every other case that is refused.
func TestReleases(t *testing.T) {
	fixture(t)
	hostile := v1alpha1.FormatRecord(v1alpha1.Host{Protocol: 1, Managed: true, Changes: []v1alpha1.Change{{Source: v1alpha1.SourceFile, Name: `/x","managed":false,"`}}})
	const (
		managed  = `{"managed":true}`
		detached = `{"metadata":{"annotations":{"lockkeeper.dev/detached":"sold"}}}`
	)
	keys := func(labels, annotations string) string {
		return `{"metadata":{"labels":{` + labels + `},"annotations":{` + annotations + `}}}`
	}
	const gone, noWants, noHost, noAck = `"lockkeeper.dev/state":null`, `"lockkeeper.dev/wants":null`, `"lockkeeper.dev/host":null`, `"lockkeeper.dev/ack":null`
	for i, c := range []struct {
		name, record, admin string
		marked              bool
		patch               string
		refused             string
	}{
		{"detached", managed, detached, false, releases, ""},
		{"detached, by a payload that does not parse", managed, `{"metadata":{"annotations":{"lockkeeper.dev/detached":"{"}}}`, false, releases, ""},
		{"managed=false", managed, label(v1alpha1.LabelManaged, `"false"`), false, releases, ""},
		{"managed has another value", managed, label(v1alpha1.LabelManaged, `"no"`), false, releases, ""},
		{"its host's file", v1alpha1.FormatRecord(v1alpha1.Host{Protocol: 1}), "", false, releases, ""},
		{"its host's file, and the record was written by hand", `{ "managed" : false }`, "", false, releases, ""},

		{"managed", managed, "", false, releases, "labels not for the coordinator to change: lockkeeper.dev/wants"},
		{"managed=true", managed, label(v1alpha1.LabelManaged, `"true"`), false, releases, "labels not for the coordinator to change: lockkeeper.dev/wants"},
		{"managed, with a file name that looks like a record", hostile, "", false, releases, "labels not for the coordinator to change: lockkeeper.dev/wants"},
		{"managed, the host's record", managed, "", false, keys(gone, noHost), "annotations not for the coordinator to remove"},
		{"managed, the host's ack", managed, "", false, keys(gone, noAck), "annotations not for the coordinator to remove"},
		{"detached, and the state stays: wants", managed, detached, false, keys(noWants, ""), "labels not for the coordinator to change: lockkeeper.dev/wants"},
		{"detached, and the state stays: the host's record", managed, detached, false, keys("", noHost), "annotations not for the coordinator to remove"},
		{"detached, and the mark stays: wants", managed, detached, true, keys(gone+","+noWants, ""), "labels not for the coordinator to change: lockkeeper.dev/wants"},
		{"detached, and the mark stays: the host's ack", managed, detached, true, keys(gone, noAck), "annotations not for the coordinator to remove"},
		{"detached without force, and its mark", managed, detached, true, keys(gone, `"lockkeeper.dev/cordon":null`), "annotations not for the coordinator to remove"},
		{"detached, other wants", managed, detached, false, keys(gone+`,"lockkeeper.dev/wants":"nothing"`, ""), "labels not for the coordinator to change: lockkeeper.dev/wants"},
		{"detached, an ack of its own", managed, detached, false, keys(gone, `"lockkeeper.dev/ack":"x"`), "annotations not for the coordinator to set: lockkeeper.dev/ack"},
		{"detached, the information labels", managed, detached, false, keys(gone+`,"lockkeeper.dev/os":null`, ""), "labels not for the coordinator to change: lockkeeper.dev/os"},
	} {
		name := "release-" + string(rune('a'+i))
		host := asHost(t, name)
		_, err := host.CoreV1().Nodes().Create(t.Context(), newNode(name, nil, nil), metav1.CreateOptions{})
		must(t, err)
		defer func() { must(t, cp.Client().CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{})) }()
		annotations := map[string]any{v1alpha1.AnnotationHost: c.record, v1alpha1.AnnotationAck: "t1/b1/uncordoning/done"}
		if c.marked {
			annotations[v1alpha1.AnnotationCordon] = "t1"
		}
		must(t, really(host, name, object2json(map[string]any{"metadata": map[string]any{
			"labels": map[string]any{v1alpha1.LabelWants: "reboot", v1alpha1.LabelOS: "flatcar"}, "annotations": annotations}})))
		must(t, really(asCoordinator(t), name, label(v1alpha1.LabelState, `"idle"`)))
		if c.admin != "" {
			must(t, really(cp.Client(), name, c.admin))
		}
		err = node(name, c.patch)(t.Context(), asCoordinator(t))
		switch {
		case c.refused == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.refused != "" && (refusedBy(err) != coordinator || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s: refused by %q, expected %s with %q: %v", c.name, refusedBy(err), coordinator, c.refused, err)
		}
	}
}
