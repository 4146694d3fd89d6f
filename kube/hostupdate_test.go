package kube

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestReadOddHostUpdate checks that a HostUpdate of another version, with fields that are unknown or have another type,
// is only a reason to write again, and not an error indefinitely. An answer that is not a HostUpdate is an error, also
// as the answer to a write.
func TestReadOddHostUpdate(t *testing.T) {
	answer := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, answer)
	}))
	defer server.Close()
	client, err := ConnectConfig(&rest.Config{Host: server.URL}, "host", "v1", 100, 100)
	if err != nil {
		t.Fatal(err)
	}
	h := HostUpdates{Client: client, Node: "n1"}
	const head = `{"apiVersion":"lockkeeper.dev/v1alpha1","kind":"HostUpdate","metadata":{"name":"n1","ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n1","uid":"u"}]},`
	for _, c := range []struct {
		answer string
		read   string // wants, "none" for no status, or "error"
		write  bool   // counts as an answer to a write
	}{
		{head + `"status":{"wants":"reboot","new":{"a":1}}}`, "reboot", true},
		{head + `"status":{"wants":7}}`, "none", true},
		{head + `"status":{"wants":"reboot","since":"soon"}}`, "none", true},
		{head + `"status":"gone"}`, "none", true},
		{`{"apiVersion":"lockkeeper.dev/v1alpha1","kind":"HostUpdate","metadata":{"name":"n2"}}`, "error", false},
		{`{"apiVersion":"v1","kind":"Status","status":"Success"}`, "error", false},
		{`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`, "error", false},
		{`{"login":"here"}`, "error", false},
		{`<html>`, "error", false},
	} {
		answer = c.answer
		u, err := h.Read(t.Context())
		got := "error"
		if err == nil && u != nil {
			if got = string(u.Status.Wants); got == "" {
				got = "none"
			}
		}
		if got != c.read {
			t.Errorf("reading %s: %s (%v), want %s", c.answer, got, err, c.read)
		}
		if err := h.Write(t.Context(), "u", &v1alpha1.HostUpdateStatus{}); (err == nil) != c.write {
			t.Errorf("answer %s to a write: %v", c.answer, err)
		}
	}
}
