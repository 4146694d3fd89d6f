package kube

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// paused is a compile function for the test.
func paused(p *v1alpha1.DisruptionPolicy, _ func(string) (*time.Location, error)) bool {
	return p.Spec.Paused
}

// TestPoliciesAreReadWhenTakenIn checks that the policies count as readable exactly when the Watch has stored them,
// because a caller that is notified uses them at once.
func TestPoliciesAreReadWhenTakenIn(t *testing.T) {
	refuses, notified, spec := true, 0, ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		if refuses {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`))
			return
		}
		_, _ = w.Write([]byte(`{"kind":"DisruptionPolicyList","apiVersion":"lockkeeper.dev/v1alpha1","metadata":{"resourceVersion":"7"},` +
			`"items":[{"kind":"DisruptionPolicy","apiVersion":"lockkeeper.dev/v1alpha1","metadata":{"name":"web","uid":"u"}` + spec + `}]}`))
	}))
	defer server.Close()
	client, err := ConnectConfig(&rest.Config{Host: server.URL}, "host", "test", 10, 10)
	must(t, err)
	var p *Policies[bool]
	p = WatchPolicies(client, paused, func() {
		notified++
		if p.Err() == nil && (p.Get("web") == nil || len(p.Compiled()) != 1) {
			t.Error("the policies count as readable, but are missing")
		}
	})
	if err := p.Load(t.Context()); !apierrors.IsForbidden(err) || !apierrors.IsForbidden(p.Err()) || p.Listed() {
		t.Fatalf("refused: %v, %v", err, p.Err())
	}
	refuses = false
	if err := p.Load(t.Context()); err != nil || p.Err() != nil || !p.Listed() || p.Get("web") == nil {
		t.Errorf("taken in: %v, %v", err, p.Err())
	}
	// A changed status is stored and wakes no caller; a changed spec does.
	for _, c := range []struct {
		spec  string
		wakes int
	}{{`,"status":{"observedGeneration":3}`, 0}, {`,"spec":{"paused":true}`, 1}} {
		spec, notified = c.spec, 0
		must(t, p.Load(t.Context()))
		if notified != c.wakes || (p.Get("web").Status.ObservedGeneration == 3) != (c.wakes == 0) || p.Compiled()[0] != (c.wakes == 1) {
			t.Errorf("%s: notified %d times, holds %+v", c.spec, notified, p.Get("web"))
		}
	}
}

// TestSameSpec checks that a policy with another spec counts as changed, even if a restored store repeats its
// generation.
func TestSameSpec(t *testing.T) {
	policy := func(uid types.UID, generation int64, paused bool) *v1alpha1.DisruptionPolicy {
		p := &v1alpha1.DisruptionPolicy{ObjectMeta: metav1.ObjectMeta{UID: uid, Generation: generation}}
		p.Spec.Paused = paused
		return p
	}
	is := policy("u", 2, false)
	for _, c := range []struct {
		was  *v1alpha1.DisruptionPolicy
		same bool
	}{{policy("u", 2, false), true}, {policy("v", 2, false), false}, {policy("u", 1, false), false}, {policy("u", 2, true), false}} {
		if got := sameSpec(c.was, is); got != c.same {
			t.Errorf("%+v: %t, expected %t", c.was, got, c.same)
		}
	}
}

// TestPoliciesNotServed checks that a 404 alone does not prove that the kind is not served: discovery has to confirm
// it.
func TestPoliciesNotServed(t *testing.T) {
	const groups = `{"kind":"APIGroupList","apiVersion":"v1","groups":[%s]}`
	const group = `{"name":"lockkeeper.dev","versions":[{"groupVersion":"lockkeeper.dev/v1alpha1","version":"v1alpha1"}]}`
	const resources = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"lockkeeper.dev/v1alpha1","resources":[{"name":%q,"namespaced":false,"kind":"X","verbs":[]}]}`
	for name, c := range map[string]struct {
		answers   map[string]string // by path; "" and other paths get a proxy's 404
		notServed bool
	}{
		"a proxy that has nothing":       {nil, false},
		"a proxy that answers anything":  {map[string]string{"/apis": "{}"}, false},
		"the group, then such a proxy":   {map[string]string{"/apis": fmt.Sprintf(groups, group), "/apis/lockkeeper.dev/v1alpha1": "{}"}, false},
		"another group":                  {map[string]string{"/apis": fmt.Sprintf(groups, `{"name":"apps","versions":[]}`)}, true},
		"the group with another kind":    {map[string]string{"/apis": fmt.Sprintf(groups, group), "/apis/lockkeeper.dev/v1alpha1": fmt.Sprintf(resources, "hostupdates")}, true},
		"the kind is served":             {map[string]string{"/apis": fmt.Sprintf(groups, group), "/apis/lockkeeper.dev/v1alpha1": fmt.Sprintf(resources, "disruptionpolicies")}, false},
		"the group is served, not known": {map[string]string{"/apis": fmt.Sprintf(groups, group)}, false},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer := c.answers[r.URL.Path]
			if answer == "" {
				http.Error(w, "404 page not found", http.StatusNotFound)
				return
			}
			w.Header().Set("Content-Type", runtime.ContentTypeJSON)
			_, _ = w.Write([]byte(answer))
		}))
		client, err := ConnectConfig(&rest.Config{Host: server.URL}, "host", "test", 100, 100)
		must(t, err)
		view := WatchPolicies(client, paused, nil)
		err = view.Load(t.Context())
		switch {
		case c.notServed && (err != nil || !view.Listed() || len(view.Compiled()) != 0):
			t.Errorf("%s: %v, expected no policies", name, err)
		case !c.notServed && !apierrors.IsNotFound(err):
			t.Errorf("%s: %v, expected the 404", name, err)
		}
		server.Close()
	}
}
