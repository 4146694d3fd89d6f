package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/watched"
	"lockkeeper.dev/lockkeeper/policy"
)

// By policies that cannot be read again nothing is committed. A server that says no
// keeps turns from beginning as well, and so does one that gives Nodes and no policies
// for a minute and a half; not one that was away.
func TestPoliciesUnread(t *testing.T) {
	kind := schema.GroupResource{Group: "lockkeeper.dev", Resource: "disruptionpolicies"}
	forbidden := fmt.Errorf("listing: %w", apierrors.NewForbidden(kind, "", errors.New("no")))
	none := fmt.Errorf("listing: %w", kube.ErrNotServed)
	away, broken, busy := errors.New("connection refused"), apierrors.NewInternalError(errors.New("no conversion")), apierrors.NewTooManyRequestsError("later")
	const again = "the policies to be read again: "
	var u unread
	now := time.Now()
	for _, c := range []struct {
		name            string
		after           time.Duration
		policies, nodes error
		text            string
		lasts           bool
	}{
		{"well", 0, nil, nil, "", false},
		{"no such kind", time.Hour, none, nil, "", false},
		{"still none", time.Hour, none, nil, "", false},
		{"may not", 0, forbidden, nil, again + forbidden.Error(), true},
		{"may not, and away", time.Hour, forbidden, away, again + forbidden.Error(), true},
		{"rights again", 0, nil, nil, "", false},
		{"all away", time.Hour, away, away, again + away.Error(), false},
		{"all away for long", time.Hour, away, away, again + away.Error(), false},
		{"Nodes are back", 0, away, nil, again + away.Error(), false},
		{"not yet", 89 * time.Second, away, nil, again + away.Error(), false},
		{"policies are back", 0, nil, nil, "", false},
		{"broken", time.Hour, broken, nil, again + broken.Error(), false},
		{"broken, not long", 89 * time.Second, busy, nil, again + busy.Error(), false},
		{"broken for long", time.Second, broken, nil, again + broken.Error(), true},
		{"and all away", time.Hour, away, away, again + away.Error(), true},
		{"broken again", 0, broken, nil, again + broken.Error(), true},
		{"deleted", 0, none, nil, "", false},
	} {
		now = now.Add(c.after)
		if text, lasts := u.hear(c.policies, c.nodes, now); text != c.text || lasts != c.lasts {
			t.Errorf("%s: %q, %t; expected %q, %t", c.name, text, lasts, c.text, c.lasts)
		}
	}
}

// A host whose rights to read the policies are taken away publishes that nothing is to
// begin on it, and waits at each check; when it has them again, it does not. If they
// cannot be read for another reason, it is the same when that lasts.
func TestPoliciesCannotBeReadAnyMore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var refuses, broken atomic.Bool
	ends := make(chan struct{}) // one watch for each
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
	client, err := kube.ConnectConfig(&rest.Config{Host: server.URL}, "host", "test", 100, 100)
	must(t, err)
	h, _ := newTestHost(t, v1alpha1.StateIdle)
	n := h.view.Get("n1").DeepCopy()
	n.ResourceVersion, n.Annotations[v1alpha1.AnnotationRequest] = "11", "reboot"
	h.view.Overlay(n)
	h.policies = kube.WatchPolicies(client, policy.Compile, h.wake)
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
			_ = wait(ctx, h.kick, 10*time.Millisecond)
		}
	}
	until("read", h.policies.Listed)
	if o := h.observe(ctx); o.Veto != "" || o.Sources.Unconfirmed != "" || o.Sources.Wants != v1alpha1.WantsReboot {
		t.Errorf("read: veto %q, waits for %q, wants %q", o.Veto, o.Sources.Unconfirmed, o.Sources.Wants)
	}
	refuses.Store(true)
	close(ends)
	until("refused", func() bool { return h.policies.Err() != nil })
	if o := h.observe(ctx); o.Veto != v1alpha1.ReasonSourceUnreadable || !strings.Contains(o.VetoDetail, "no rights") || o.Sources.Unconfirmed != o.VetoDetail || o.Sources.Wants != v1alpha1.WantsReboot {
		t.Errorf("refused: veto %q (%s), waits for %q, wants %q", o.Veto, o.VetoDetail, o.Sources.Unconfirmed, o.Sources.Wants)
	}
	refuses.Store(false)
	broken.Store(true)
	until("broken", func() bool { err := h.policies.Err(); return err != nil && !apierrors.IsForbidden(err) })
	h.unread = unread{}
	if o := h.observe(ctx); o.Veto != "" || !strings.Contains(o.Sources.Unconfirmed, "no conversion") {
		t.Errorf("broken: veto %q (%s), waits for %q", o.Veto, o.VetoDetail, o.Sources.Unconfirmed)
	}
	h.unread.since = time.Now().Add(-unreadFor)
	if o := h.observe(ctx); o.Veto != v1alpha1.ReasonSourceUnreadable || o.Sources.Unconfirmed != o.VetoDetail || o.Sources.Wants != v1alpha1.WantsReboot {
		t.Errorf("broken for long: veto %q (%s), waits for %q, wants %q", o.Veto, o.VetoDetail, o.Sources.Unconfirmed, o.Sources.Wants)
	}
	broken.Store(false)
	until("read again", func() bool { o := h.observe(ctx); return o.Veto == "" && o.Sources.Unconfirmed == "" })
}

func TestOutranks(t *testing.T) {
	for own, ranks := range map[v1alpha1.Reason][2]bool{ // HeldBack, Sources
		"": {true, true}, v1alpha1.ReasonWindow: {true, false}, v1alpha1.ReasonMinUptime: {true, false},
		v1alpha1.ReasonOtherManager: {true, false}, v1alpha1.ReasonHostPaused: {false, false}, v1alpha1.ReasonObserve: {false, false},
	} {
		got := [2]bool{outranks(v1alpha1.ReasonHeldBack, own), outranks(v1alpha1.ReasonSourceUnreadable, own)}
		if got != ranks || outranks("", own) {
			t.Errorf("over %q: %v, and nothing over it: %t; expected %v", own, got, outranks("", own), ranks)
		}
	}
}

// After a restart, before anything was read, what is watched is not known: also where
// more is watched than may be, and that is a problem from the beginning. There is no
// baseline of this boot: what it has published stays a change, read or not.
func TestTooManyWatched(t *testing.T) {
	h, _ := newTestHost(t, v1alpha1.StateIdle)
	p := policy.Policy{Name: "p"}
	for i := range watched.MaxWatched + 1 {
		p.Rules = append(p.Rules, v1alpha1.Rule{Source: v1alpha1.SourceFile, Path: fmt.Sprintf("/p/%03d", i), Actions: actions("Reboot")})
	}
	m := policy.Match{Policy: &p, All: []*policy.Policy{&p}}
	published := []v1alpha1.Change{fileChange("/p/000", "1"), fileChange("/p/500", "1")}
	if changes, unread, missing := h.differing(&m, published); missing == "" {
		t.Errorf("nothing was read, and there are %v, unread %q", changes, unread)
	}
	_ = h.watched.Refresh(t.Context())
	want := []v1alpha1.Change{fileChange("/p/000", v1alpha1.VersionAbsent), published[1]}
	if changes, unread, missing := h.differing(&m, published); missing != "" || unread == "" || !slices.Equal(changes, want) {
		t.Errorf("all was read that may be, and there are %v, unread %q, missing %q", changes, unread, missing)
	}
}
