package identity

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/hostupdate"
	"lockkeeper.dev/lockkeeper/node/local"
)

// TestHostileHostUpdate: a host's credential is stolen, and the thief publishes what they like in the host's own HostUpdate. The API
// server refuses what would harm a reader; what lockkeeper itself makes of hostile texts, it takes.
func TestHostileHostUpdate(t *testing.T) {
	fixture(t)
	thief := asHost(t, "id-a")
	n, err := cp.Client().CoreV1().Nodes().Get(t.Context(), "id-a", metav1.GetOptions{})
	must(t, err)
	escape, long := `\u001b[31mall is well`, strings.Repeat("x", 1<<20)
	condition := func(message string) string {
		return `{"conditions":[{"type":"Blocked","status":"True","reason":"Pod","lastTransitionTime":"2026-11-22T00:00:00Z","message":"` + message + `"}]}`
	}
	for name, status := range map[string]string{
		"escape sequences":                `{"message":"` + escape + `"}`,
		"1 MiB":                           `{"message":"` + long + `"}`,
		"escape sequences in a name":      `{"blockers":[{"kind":"Pod","name":"` + escape + `","since":"2026-11-22T00:00:00Z"}]}`,
		"escape sequences in a reason":    `{"waits":"` + escape + `"}`,
		"bidirectional text":              `{"message":"\u202eelbatius si eno siht"}`,
		"bidirectional text in a name":    `{"blockers":[{"kind":"Pod","name":"\u2066x","since":"2026-11-22T00:00:00Z"}]}`,
		"bidirectional text in a message": condition(`\u202ex`),
		"what cannot be seen":             `{"waits":"Bud\u200bget"}`,
		"a separator of lines":            `{"message":"a\u2028b"}`,
		"a kind of its own":               `{"blockers":[{"kind":"Admin","name":"x","since":"2026-11-22T00:00:00Z"}]}`,
		"many blockers":                   `{"blockers":[` + strings.TrimSuffix(strings.Repeat(`{"kind":"Pod","name":"x","since":"2026-11-22T00:00:00Z"},`, 17), ",") + `]}`,
		"escape sequences in a condition": condition(escape),
		"a long condition":                condition(long[:30000]),
		"no time":                         `{"since":"yesterday"}`,
		"progress of its own":             `{"engine":{"operation":"IDLE","progress":101}}`,
		"a field of its own":              `{"approvedBy":"admin"}`,
	} {
		if err := applyHostUpdate(t.Context(), thief, "id-a", string(n.UID), status, metav1.DryRunAll); !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) && !apierrors.IsInternalError(err) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}

	hostile := "\x1b[31mred\u202e\u009b" + strings.Repeat("é", 1<<12) + string([]byte{0xff})
	h := local.Host{Node: "id-a", UID: string(n.UID), State: v1alpha1.State(hostile), Waits: v1alpha1.Reason(hostile), Detail: hostile, BootID: hostile,
		Wants: v1alpha1.WantsReboot, Engine: &v1alpha1.EngineStatus{Operation: v1alpha1.UpdateName(hostile)}, SourcesError: hostile}
	for i := range 40 {
		h.Changes = append(h.Changes, v1alpha1.Change{Source: v1alpha1.SourceFile, Name: hostile, Version: fmt.Sprint(i)})
		h.Plan = append(h.Plan, hostile)
		h.Blockers = append(h.Blockers, v1alpha1.Blocker{Kind: v1alpha1.BlockerPod, Name: v1alpha1.UpdateName(fmt.Sprint(i) + hostile), Message: v1alpha1.UpdateText(hostile)})
	}
	status := hostupdate.Next(&v1alpha1.HostUpdateStatus{}, &hostupdate.Facts{Host: h, Version: "v1"}, time.Now())
	text, err := json.Marshal(status)
	must(t, err)
	must(t, applyHostUpdate(t.Context(), thief, "id-a", string(n.UID), string(text)))
	kubeconfig, err := cp.Kubeconfig("testbed:admin", "system:masters")
	must(t, err)
	for _, args := range [][]string{
		{cp.Binaries().Kubectl, "--kubeconfig", kubeconfig, "get", "hu", "-o", "wide"},
		{cp.Binaries().Kubectl, "--kubeconfig", kubeconfig, "describe", "hu", "id-a"},
		{binary, "status", "--kubeconfig", kubeconfig, "id-a"},
		{binary, "status", "--kubeconfig", kubeconfig},
		{binary, "history", "--kubeconfig", kubeconfig},
	} {
		out, err := exec.CommandContext(within(t), args[0], args[1:]...).CombinedOutput()
		if len(out) == 0 {
			t.Errorf("%q prints nothing: %v", args[1:], err)
		}
		if strings.ContainsAny(string(out), "\x1b\u009b\u202e") || !utf8.Valid(out) {
			t.Errorf("%q prints control characters:\n%q", args[1:], out)
		}
	}
}

// TestHostsEvent checks that Kubernetes lets a host write Events about its Node and about a pod, whatever their names, and that both
// APIs show them.
func TestHostsEvent(t *testing.T) {
	fixture(t)
	n, err := cp.Client().CoreV1().Nodes().Get(t.Context(), "id-a", metav1.GetOptions{})
	must(t, err)
	kubeconfig, err := cp.NodeKubeconfig("id-a")
	must(t, err)
	client, err := kube.New(kube.Options{Identity: v1alpha1.IdentityHost, Paths: []string{kubeconfig}, Version: "test", QPS: 5, Burst: 5}).Client()
	must(t, err)
	d, ok := v1alpha1.EventOf(v1alpha1.EventDrainDelayed)
	if !ok {
		t.Fatal("no such Event")
	}
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "id-a", UID: n.UID}
	for range 2 { // of an Event that is there already nothing is written
		must(t, kube.WriteHostEvent(t.Context(), client, "id-a", about, "t1", time.Now(), d, "turn t1: "+strings.Repeat("é", 1000)))
	}
	list, err := cp.Client().EventsV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=DrainDelayed"})
	must(t, err)
	if len(list.Items) != 1 || list.Items[0].Regarding.Name != "id-a" || list.Items[0].Type != "Warning" || !strings.HasPrefix(list.Items[0].Note, "turn t1: é") {
		t.Errorf("%+v", list.Items)
	}

	d, _ = v1alpha1.EventOf(v1alpha1.EventDrainForced)
	const suffix = 1 + 16 // of the Event's name
	long := strings.Repeat("a", 253-suffix-1) + "-" + strings.Repeat("b", suffix)
	pod := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: metav1.NamespaceSystem, Name: long, UID: "u"}
	must(t, kube.WriteHostEvent(t.Context(), client, "id-a", pod, "t1", time.Now(), d, "deleted"))
	list, err = cp.Client().EventsV1().Events(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=DrainForced"})
	must(t, err)
	if len(list.Items) != 1 || list.Items[0].Regarding.Name != long || list.Items[0].DeprecatedSource.Host != "id-a" {
		t.Errorf("%+v", list.Items)
	}
}
