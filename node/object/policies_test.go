package object

import (
	"net/http"
	"net/http/httptest"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// Policies that could not be read are read again when they are taken in, and not
// a moment before: whoever hears it decides by them.
func TestPoliciesAreReadWhenTakenIn(t *testing.T) {
	refuses := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		if refuses {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`))
			return
		}
		_, _ = w.Write([]byte(`{"kind":"DisruptionPolicyList","apiVersion":"lockkeeper.dev/v1alpha1","metadata":{"resourceVersion":"7"},` +
			`"items":[{"kind":"DisruptionPolicy","apiVersion":"lockkeeper.dev/v1alpha1","metadata":{"name":"web","uid":"u"}}]}`))
	}))
	defer server.Close()
	var p *Policies
	p = NewPolicies(&Client{config: &rest.Config{Host: server.URL}, http: server.Client()}, func() {
		if p.Err() == nil && p.Get("web") == nil {
			t.Error("they can be read, and are not there")
		}
	})
	w := policyWatch{p}
	if _, err := w.list(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) || !apierrors.IsForbidden(p.Err()) {
		t.Fatalf("refused: %v, %v", err, p.Err())
	}
	refuses = false
	list, err := w.list(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || p.Err() == nil {
		t.Fatalf("answered: %v, %v", err, p.Err())
	}
	if err := (policyStore{p}).Replace([]any{&list.Items[0]}, "7"); err != nil || p.Err() != nil || !p.Listed() {
		t.Errorf("taken in: %v, %v", err, p.Err())
	}
}
