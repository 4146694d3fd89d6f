package identity

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestLeftovers removes what lockkeeper wrote from Nodes. On a Node that is labeled managed=false and has neither a state nor a mark,
// this needs the verb manage. On any other Node, and in a write that changes that label too, it needs override.
func TestLeftovers(t *testing.T) {
	fixture(t)
	people(t)
	operator, patcher, overrider := asUser(t, "opal"), asUser(t, "pat"), asUser(t, "olga")
	const (
		all = `{"metadata":{"labels":{"lockkeeper.dev/held":null,"lockkeeper.dev/wants":null,"lockkeeper.dev/os":null},` +
			`"annotations":{"lockkeeper.dev/host":null,"lockkeeper.dev/ack":null,"lockkeeper.dev/last":null}}}`
		needsOverride = "removing what lockkeeper wrote needs the verb override on nodes.lockkeeper.dev: "
	)
	held := label(v1alpha1.LabelHeld, "null")
	with := func(managed string) string {
		return `{"metadata":{"labels":{"lockkeeper.dev/held":null,"lockkeeper.dev/managed":` + managed + `}}}`
	}
	for i, c := range []struct {
		name, managed string // managed is the label's value, null for none
		state, mark   string
		client        kubernetes.Interface
		patch         string
		refused       string
	}{
		{"out", `"false"`, "null", "null", operator, all, ""},
		{"out, one key", `"false"`, "null", "null", operator, held, ""},
		{"out, without the verb", `"false"`, "null", "null", patcher, held, "removing what lockkeeper wrote needs the verb manage on nodes.lockkeeper.dev: lockkeeper.dev/held"},
		{"managed, with the verb override", "null", `"idle"`, `"t1"`, overrider, held, ""},

		{"managed", "null", "null", "null", operator, held, needsOverride + "lockkeeper.dev/held"},
		{"managed=true", `"true"`, "null", "null", operator, held, needsOverride + "lockkeeper.dev/held"},
		{"not released yet", `"false"`, `"idle"`, "null", operator, held, needsOverride + "lockkeeper.dev/held"},
		{"not released yet: the state itself", `"false"`, `"idle"`, "null", operator, label(v1alpha1.LabelState, "null"), needsOverride + "lockkeeper.dev/state"},
		{"with a mark", `"false"`, "null", `"t1"`, operator, held, needsOverride + "lockkeeper.dev/held"},
		{"with a mark: the mark itself", `"false"`, "null", `"t1"`, operator, annotation(v1alpha1.AnnotationCordon, "null"), needsOverride + "lockkeeper.dev/cordon"},
		{"taken out by the same write", "null", "null", "null", operator, with(`"false"`), needsOverride + "lockkeeper.dev/held"},
		{"taken in by the same write", `"false"`, "null", "null", operator, with("null"), needsOverride + "lockkeeper.dev/held"},
		{"out, and held gets another value", `"false"`, "null", "null", operator, label(v1alpha1.LabelHeld, `"Budget"`), "written by lockkeeper alone: lockkeeper.dev/held"},
	} {
		name := "left-" + string(rune('a'+i))
		host := asHost(t, name)
		_, err := host.CoreV1().Nodes().Create(t.Context(), newNode(name, nil, nil), metav1.CreateOptions{})
		must(t, err)
		defer func() { must(t, cp.Client().CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{})) }()
		must(t, really(host, name, `{"metadata":{"labels":{"lockkeeper.dev/wants":"reboot","lockkeeper.dev/os":"flatcar"},`+
			`"annotations":{"lockkeeper.dev/host":"{}","lockkeeper.dev/ack":"t1/b1/draining/done","lockkeeper.dev/cordon":`+c.mark+`}}}`))
		must(t, really(asCoordinator(t), name, `{"metadata":{"labels":{"lockkeeper.dev/held":"Unmanaged","lockkeeper.dev/state":`+c.state+`},`+
			`"annotations":{"lockkeeper.dev/last":"{}"}}}`))
		must(t, really(cp.Client(), name, label(v1alpha1.LabelManaged, c.managed)))
		err = node(name, c.patch)(t.Context(), c.client)
		switch {
		case c.refused == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.refused != "" && (refusedBy(err) != keys || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s: refused by %q, expected %s with %q: %v", c.name, refusedBy(err), keys, c.refused, err)
		}
	}
}
