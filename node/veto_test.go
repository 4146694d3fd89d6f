package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/timing"
	"lockkeeper.dev/lockkeeper/policy"
)

// TestPoliciesCannotBeReadAnyMore checks that a host without permission to read the policies publishes a veto, so that
// no turn begins on it, and waits at each check until it has the permission again. If the policies cannot be read for
// another reason, the same happens after some time.
func TestPoliciesCannotBeReadAnyMore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var refuses, broken atomic.Bool
	ends := make(chan struct{}) // each element ends one watch
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case refuses.Load():
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"no rights","code":403}`)
		case broken.Load():
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","message":"no conversion","code":500}`)
		case r.URL.Query().Get("watch") != "":
			w.(http.Flusher).Flush()
			select {
			case <-ends:
			case <-ctx.Done():
			}
		default:
			fmt.Fprint(w, `{"kind":"DisruptionPolicyList","apiVersion":"lockkeeper.dev/v1alpha1","metadata":{"resourceVersion":"5"},"items":[]}`)
		}
	}))
	defer server.Close()
	h := newAskedHost(t, server.URL)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { h.policies.Run(ctx) })
	until := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(90 * time.Second); !is(); {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not in 90 s; the policies: %v", what, h.policies.Err())
			}
			_ = timing.Wait(ctx, h.kick, 10*time.Millisecond)
		}
	}
	until("read", h.policies.Listed)
	if o := h.observe(ctx); o.Veto != "" || o.Sources.Unconfirmed != "" || o.Sources.Wants != v1alpha1.WantsReboot {
		t.Errorf("read: veto %q, waits for %q, wants %q", o.Veto, o.Sources.Unconfirmed, o.Sources.Wants)
	}
	refuses.Store(true)
	close(ends)
	until("refused", func() bool { return h.policies.Err() != nil })
	h.policyMemory = step.PolicyMemory{}
	h.policyMemory.Unread("no rights", true, false, time.Now().Add(-10*time.Second)) // not by a server that starts
	if o := h.observe(ctx); o.Veto != v1alpha1.ReasonSourceUnreadable || !strings.Contains(o.VetoDetail, "no rights") || o.Sources.Unconfirmed != o.VetoDetail || o.Sources.Wants != v1alpha1.WantsReboot {
		t.Errorf("refused: veto %q (%s), waits for %q, wants %q", o.Veto, o.VetoDetail, o.Sources.Unconfirmed, o.Sources.Wants)
	}
	refuses.Store(false)
	broken.Store(true)
	until("broken", func() bool { err := h.policies.Err(); return err != nil && !apierrors.IsForbidden(err) })
	h.policyMemory = step.PolicyMemory{}
	publishes := func(o step.Observation) string {
		o.Node.UID, o.Sources.Complete, o.Sources.Missing = "u1", true, ""
		return h.sourcesError(&o)
	}
	if o := h.observe(ctx); o.Veto != "" || !strings.Contains(o.Sources.Unconfirmed, "no conversion") || publishes(o) != "" {
		t.Errorf("broken: veto %q (%s), waits for %q, publishes %q", o.Veto, o.VetoDetail, o.Sources.Unconfirmed, publishes(o))
	}
	h.policyMemory = step.PolicyMemory{}
	h.policyMemory.Unread("no conversion", false, false, time.Now().Add(-2*time.Minute))
	if o := h.observe(ctx); o.Veto != v1alpha1.ReasonSourceUnreadable || o.Sources.Unconfirmed != o.VetoDetail || o.Sources.Wants != v1alpha1.WantsReboot || !strings.Contains(publishes(o), "no conversion") {
		t.Errorf("broken for a long time: veto %q (%s), waits for %q, wants %q, publishes %q", o.Veto, o.VetoDetail, o.Sources.Unconfirmed, o.Sources.Wants, publishes(o))
	}
	broken.Store(false)
	until("read again", func() bool { o := h.observe(ctx); return o.Veto == "" && o.Sources.Unconfirmed == "" })
}

// TestWindowsOfAHostWithAWrongClock checks that a host's windows follow the API server's clock if its own is far off.
func TestWindowsOfAHostWithAWrongClock(t *testing.T) {
	for ahead, veto := range map[time.Duration]v1alpha1.Reason{
		0: "", 20 * time.Second: "", -12 * time.Hour: v1alpha1.ReasonWindow, 12 * time.Hour: v1alpha1.ReasonWindow,
	} {
		synctest.Test(t, func(t *testing.T) {
			h, api, _ := newMemoryHost(t, v1alpha1.StateIdle)
			api.ahead = ahead
			must(t, h.read(t.Context(), step.ReadEviction)) // the answers have the server's time
			opened := time.Now().UTC().Add(-10 * time.Minute)
			h.Reload(Settings{ManagedByDefault: true, Windows: []policy.Window{
				{Days: [7]bool{true, true, true, true, true, true, true}, Hour: opened.Hour(), Minute: opened.Minute(), Duration: time.Hour, Zone: time.UTC},
			}})
			if o := h.observe(t.Context()); o.Veto != veto {
				t.Errorf("the API server's clock is %v ahead: veto %q (%s), expected %q", ahead, o.Veto, o.VetoDetail, veto)
			}
		})
	}
}

// TestWindowsAreTheHostsVeto checks windows from the host's file, and other windows after a reload.
func TestWindowsAreTheHostsVeto(t *testing.T) {
	h, _ := newTestHost(t, v1alpha1.StateIdle)
	h.policies = kube.WatchPolicies(nil, policy.Compile, h.wake)
	// Closed: the window opened half a day ago for ten minutes, and opens daily.
	now := time.Now().UTC()
	opened := now.Add(-12 * time.Hour)
	closed := policy.Window{Days: [7]bool{true, true, true, true, true, true, true}, Hour: opened.Hour(), Minute: opened.Minute(), Duration: 10 * time.Minute, Zone: time.UTC}
	open := policy.Window{Days: closed.Days, Hour: now.Hour(), Duration: 24 * time.Hour, Zone: time.UTC}
	for _, c := range []struct {
		name     string
		settings Settings
		veto     v1alpha1.Reason
		detail   string
	}{
		{"no windows", Settings{}, "", ""},
		{"closed", Settings{Windows: []policy.Window{closed}}, v1alpha1.ReasonWindow, "until a window of this host opens, on "},
		{"closed, and the host has just booted", Settings{Windows: []policy.Window{closed}, MinUptime: 1 << 62}, v1alpha1.ReasonWindow, "until a window of this host opens, on "},
		{"closed, and paused", Settings{Windows: []policy.Window{closed}, Paused: "disk"}, v1alpha1.ReasonHostPaused, "disk"},
		{"one of two is open", Settings{Windows: []policy.Window{closed, open}}, "", ""},
		{"closed again", Settings{Windows: []policy.Window{closed}}, v1alpha1.ReasonWindow, "until a window of this host opens, on "},
	} {
		h.Reload(c.settings)
		o := h.observe(t.Context())
		if o.Veto != c.veto || !strings.HasPrefix(o.VetoDetail, c.detail) || c.detail == "" && o.VetoDetail != "" {
			t.Errorf("%s: %q (%s), expected %q (%s)", c.name, o.Veto, o.VetoDetail, c.veto, c.detail)
		}
	}
}

// newAskedHost returns a host on whose node an admin has requested a reboot, and which reads the policies of that API server.
func newAskedHost(t *testing.T, url string) *Host {
	t.Helper()
	client, err := kube.ConnectConfig(&rest.Config{Host: url}, "host", "test", 100, 100)
	must(t, err)
	h, _ := newTestHost(t, v1alpha1.StateIdle)
	n := h.view.Get("n1").DeepCopy()
	n.ResourceVersion, n.Annotations[v1alpha1.AnnotationRequest] = "11", "reboot"
	h.view.Overlay(n)
	h.policies = kube.WatchPolicies(client, policy.Compile, h.wake)
	h.pods.read = time.Now() // nothing is found there
	return h
}

// TestPolicyOfANewerVersion checks that no turn begins on a host that does not know a value in a policy which a newer coordinator
// takes for valid. Otherwise the turn would wait for the host, which plans without the policy's rules and commits nothing by such a plan.
func TestPolicyOfANewerVersion(t *testing.T) {
	spec, err := json.Marshal(v1alpha1.DefaultPolicySpec())
	must(t, err)
	for text, want := range map[string]v1alpha1.Reason{
		string(spec): "",
		strings.Replace(string(spec), `"mode":"Act"`, `"mode":"Slow"`, 1): v1alpha1.ReasonInvalidPolicy,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"kind":"DisruptionPolicyList","apiVersion":"lockkeeper.dev/v1alpha1","metadata":{"resourceVersion":"5"},"items":[
				{"kind":"DisruptionPolicy","apiVersion":"lockkeeper.dev/v1alpha1","metadata":{"name":"p","uid":"u","resourceVersion":"4"},"spec":%s}]}`, text)
		}))
		defer server.Close()
		h := newAskedHost(t, server.URL)
		must(t, h.policies.Load(t.Context()))
		if o := h.observe(t.Context()); o.Veto != want || (want != "") != strings.Contains(o.VetoDetail, `spec.mode: "Slow"`) {
			t.Errorf("expected the veto %q: %q (%s), wants %q, %+v", want, o.Veto, o.VetoDetail, o.Sources.Wants, o.Sources.Missing)
		}
	}
}
