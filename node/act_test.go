package node

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
)

// TestConditionsWakeTheLoop checks that the loop runs again after a write of the conditions whose answer is the host's
// first view of an earlier write of the coordinator, because the watch does not report that write again.
func TestConditionsWakeTheLoop(t *testing.T) {
	node := corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{
		Name: "n1", UID: "uid", ResourceVersion: "12", Labels: map[string]string{v1alpha1.LabelState: string(v1alpha1.StateRebooting)}}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPatch || r.URL.Path != "/api/v1/nodes/n1/status" || r.Header.Get("Content-Type") != "application/strategic-merge-patch+json" {
			t.Errorf("%s %s in %s", r.Method, r.URL.Path, r.Header.Get("Content-Type"))
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(node); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	h, _ := newTestHost(t, v1alpha1.StateDraining)
	client, err := kube.ConnectConfig(&rest.Config{Host: server.URL}, "host", "v1", 1, 1)
	must(t, err)
	h.client = client
	outcome, err := h.writeConditions(t.Context(), kube.Patch{Node: "n1", ResourceVersion: "11", DropConditions: []corev1.NodeConditionType{corev1.NodeDrained}})
	if outcome != kube.Written || err != nil || h.facts().State != v1alpha1.StateRebooting {
		t.Errorf("%s, %v; the view has %s", outcome, err, h.facts().State)
	}
	select {
	case <-h.kick:
	default:
		t.Error("the loop was not woken")
	}
}

// TestLeaseOfAProxy checks that an answer that is not the Lease ends a drain like no answer: it does not show whether an emergency stop is set.
func TestLeaseOfAProxy(t *testing.T) {
	node := corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "uid", ResourceVersion: "12"}}
	lease := func(name string) any {
		return coordinationv1.Lease{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	for name, c := range map[string]struct {
		answer any
		valid  bool
	}{
		"the Lease":     {lease("lockkeeper"), true},
		"another Lease": {lease("other"), false},
		"of a proxy":    {map[string]string{"status": "ok"}, false},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var answer any = node
			if r.URL.Path != "/api/v1/nodes/n1" {
				answer = c.answer
			}
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(answer); err != nil {
				t.Error(err)
			}
		}))
		t.Cleanup(server.Close)
		h, _ := newTestHost(t, v1alpha1.StateDraining)
		client, err := kube.ConnectConfig(&rest.Config{Host: server.URL}, "host", "v1", 100, 100)
		must(t, err)
		h.client, h.LeaseNamespace, h.LeaseName = client, "lockkeeper", "lockkeeper"
		if err := h.readEviction(t.Context()); (err == nil) != c.valid || (h.fresh != nil) != c.valid {
			t.Errorf("%s: %v, and the read is %+v", name, err, h.fresh)
		}
	}
}
