package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/effect"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
)

func TestPace(t *testing.T) {
	for _, c := range []struct {
		again, busy bool
		settling    time.Duration
		window      time.Duration
		want        time.Duration
	}{
		{want: 30 * time.Second},
		{again: true, want: 11 * time.Second},
		{busy: true, want: 2 * time.Second},
		{again: true, busy: true, want: 2 * time.Second},
		{settling: 5 * time.Second, want: 6 * time.Second},
		{settling: time.Hour, want: 30 * time.Second},
		{settling: -time.Hour, want: 30 * time.Second},
		// min_uptime has not passed since the reboot, but the health is checked.
		{busy: true, settling: 2 * time.Minute, want: 2 * time.Second},
		{again: true, settling: 2 * time.Minute, want: 11 * time.Second},
		// A window opens or closes.
		{window: 5 * time.Second, want: 6 * time.Second},
		{window: 5 * time.Second, settling: 3 * time.Second, want: 4 * time.Second},
		{window: 3 * time.Second, settling: 5 * time.Second, again: true, want: 4 * time.Second},
		{window: time.Hour, want: 30 * time.Second},
		{window: -time.Second, want: 30 * time.Second},
	} {
		if got := pace(c.again, c.busy, c.settling, c.window); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// newTestHost returns a host with a root and a view of its Node in that state and in turn t1. It has no API server.
// last is its latest status.
func newTestHost(t *testing.T, state v1alpha1.State) (h *Host, last *local.Host) {
	t.Helper()
	last = &local.Host{}
	h, err := New(Options{Root: newRoot(t, nil), PollInterval: time.Hour, Report: func(s local.Host) { *last = s }})
	must(t, err)
	h.name = "n1"
	h.client, err = kube.ConnectConfig(&rest.Config{Host: "http://127.0.0.1:1"}, "host", "v1", 1, 1)
	must(t, err)
	h.view = kube.WatchNode(&kubernetes.Clientset{}, "n1", h.wake)
	must(t, h.makeEffects())
	h.view.Overlay(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n1", UID: "uid", ResourceVersion: "10", Labels: map[string]string{v1alpha1.LabelState: string(state)},
		Annotations: map[string]string{v1alpha1.AnnotationTurn: "t1"},
	}})
	return h, last
}

// TestTroubleTellsTheTruth checks that the status names the right component and keeps the known facts.
func TestTroubleTellsTheTruth(t *testing.T) {
	h, last := newTestHost(t, v1alpha1.StateDraining)
	n := h.facts()
	o := step.Observation{Node: *n, Sources: step.Sources{Complete: true, Wants: v1alpha1.WantsReboot,
		Changes: []v1alpha1.Change{{Source: v1alpha1.SourceSentinel, Name: "/run/x"}}}}
	h.reportDecision(o, step.Decision{Do: step.DoDrain, Detail: "3 pods to go"}, nil)
	if !strings.Contains(last.Text(), "draining (turn t1); at work on 3 pods to go since ") || !strings.HasSuffix(last.Text(), "; wants reboot for Sentinel /run/x") {
		t.Errorf("line %q", last.Text())
	}

	h.trouble(hostError{errors.New("asking logind: no such thing")})
	if last.API != nil || !strings.Contains(last.Detail, "asking logind") || strings.Contains(last.Text(), "API server") {
		t.Errorf("a failure of logind is reported as %q (API: %v)", last.Text(), last.API)
	}
	since := last.Since
	h.trouble(&kube.Trouble{Reason: v1alpha1.ReasonForbidden, Text: "writing node n1: forbidden"})
	if last.API == nil || last.Waits != v1alpha1.ReasonForbidden || !strings.Contains(last.Text(), "; waits: Forbidden since ") || !strings.HasSuffix(last.Text(), "; trouble with the API server: writing node n1: forbidden; wants reboot for Sentinel /run/x") {
		t.Errorf("a failure of the API server is reported as %+v", *last)
	}
	if !last.Since.Equal(since) {
		t.Errorf("since %v, expected the start of the failure, %v", last.Since, since)
	}
	if last.Wants != v1alpha1.WantsReboot || len(last.Changes) != 1 || last.State != v1alpha1.StateDraining || last.Turn != "t1" {
		t.Errorf("the status lost known facts: %+v", *last)
	}
	h.reportDecision(o, step.Decision{Do: step.DoDrain}, nil)
	if last.API != nil || strings.Contains(last.Text(), "trouble") {
		t.Errorf("status after the trouble: %q", last.Text())
	}
}

// TestTroubleTellsHowLongTheTurnLasts checks that the status contains the age of the turn also during a failure, and
// that the grant of another turn does not count.
func TestTroubleTellsHowLongTheTurnLasts(t *testing.T) {
	began, stage := time.Unix(1700000000, 0).UTC(), time.Unix(1700000600, 0).UTC()
	for _, c := range []struct {
		grant                 string
		turnSince, stageSince time.Time
	}{{"t1", began, stage}, {"t0", time.Time{}, time.Time{}}} {
		h, last := newTestHost(t, v1alpha1.StateDraining)
		obj := h.view.Get("n1").DeepCopy()
		obj.ResourceVersion = "11"
		obj.Annotations[v1alpha1.AnnotationGrant] = v1alpha1.FormatRecord(v1alpha1.Grant{
			Turn: c.grant, Epoch: "e1", NodeUID: "uid", Wants: v1alpha1.WantsReboot, StartedAt: began, StageAt: stage,
		})
		h.view.Overlay(obj)
		h.trouble(errors.New("writing node n1: no"))
		if last.Turn != "t1" || !last.TurnSince.Equal(c.turnSince) || !last.StageSince.Equal(c.stageSince) {
			t.Errorf("grant of %s: turn %s since %v, stage since %v", c.grant, last.Turn, last.TurnSince, last.StageSince)
		}
	}
}

func TestFailedWaitsLongerEachTime(t *testing.T) {
	h, _ := newTestHost(t, v1alpha1.StateIdle)
	for i, want := range []time.Duration{1, 2, 4, 8, 11, 11, 11} {
		if got := h.failed(errors.New("no")); got != want*time.Second {
			t.Errorf("failure %d: %v, want %v", i+1, got, want*time.Second)
		}
	}
	for i := 8; i <= 100; i++ { // an hour without the API server
		if got := h.failed(errors.New("no")); got != readAgain {
			t.Fatalf("failure %d: %v, want %v", i, got, readAgain)
		}
	}
}

// TestReloadReadsOtherSentinels checks that new sentinels are read at once after a reload, not only after the poll
// interval, which may be an hour.
func TestReloadReadsOtherSentinels(t *testing.T) {
	h, _ := newTestHost(t, v1alpha1.StateIdle)
	must(t, os.MkdirAll(filepath.Join(h.Root, "run"), 0o755))
	must(t, os.WriteFile(filepath.Join(h.Root, "run/other"), nil, 0o600))
	must(t, os.Symlink("nowhere", filepath.Join(h.Root, "run/dangling")))
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.sentinels.Run(t.Context())
	}()
	t.Cleanup(func() { <-done })
	seen := func() int {
		present, read := h.sentinels.Present()
		if !read {
			return -1
		}
		return len(present)
	}
	until(t, "the first read", func() bool { return seen() == 0 })
	h.Reload(Settings{Sentinels: []string{"/run/other", "/run/dangling", "/run/none"}})
	until(t, "the other sentinels", func() bool { return seen() == 2 })
	h.Reload(Settings{})
	until(t, "no sentinels", func() bool { return seen() == 0 })
}

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}

func TestReadLastsTenSeconds(t *testing.T) {
	var none *freshRead
	if none.valid() {
		t.Error("a missing read counts as valid")
	}
	none.wrote("1", "2") // must not panic
	for age, want := range map[time.Duration]bool{0: true, 9900 * time.Millisecond: true, 10 * time.Second: false, time.Hour: false} {
		if got := (&freshRead{began: time.Now().Add(-age)}).valid(); got != want {
			t.Errorf("a read of %v: %t", age, got)
		}
	}
	l := &freshRead{resourceVersion: "5"}
	if l.wrote("4", "6"); l.resourceVersion != "5" {
		t.Error("a write of another version changed the read")
	}
	if l.wrote("5", "6"); l.resourceVersion != "6" {
		t.Error("the host's own write did not change the read")
	}
}

// TestTroubleOfItsOwn checks that the status shows whether the API server or this host's own credential has failed.
func TestTroubleOfItsOwn(t *testing.T) {
	h, last := newTestHost(t, v1alpha1.StateIdle)
	o := step.Observation{Node: *h.facts()}
	for _, c := range []struct {
		err error
		own bool
	}{{&kube.PluginError{Command: "mint", How: "exit status 1"}, true}, {errors.New("no answer"), false}} {
		if h.trouble(c.err); last.API == nil || last.API.Local != c.own {
			t.Errorf("%v, in the loop: %+v", c.err, *last)
		}
		if h.reportDecision(o, step.Decision{}, c.err); last.API == nil || last.API.Local != c.own {
			t.Errorf("%v, with a decision: %+v", c.err, *last)
		}
	}
}

// TestTroubleThatGoesOn checks that a failure that does not stop the host is not reported like one that does, which has
// an entry in the journal's catalog.
func TestTroubleThatGoesOn(t *testing.T) {
	var told []string
	h := &Host{log: slog.New(recorder{told: &told})}
	h.logTrouble(&kube.Trouble{Text: "soon", Usable: true})
	h.logTrouble(&kube.Trouble{Text: "soon", Usable: true})
	h.logTrouble(&kube.Trouble{Text: "now"})
	want := []string{"WARN err=soon", "DEBUG err=soon", "WARN message_id=" + string(v1alpha1.MessageTrouble) + " err=now"}
	if !slices.Equal(told, want) {
		t.Errorf("reported %q, expected %q", told, want)
	}
}

// TestTroubleBeganThen checks that the time of a failure is its start: it stays while the same component fails, and
// changes with another one.
func TestTroubleBeganThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var last local.Host
		h := &Host{Options: Options{Report: func(s local.Host) { last = s }}}
		began := time.Now()
		for _, c := range []struct {
			api  *local.Failure
			want time.Duration // relative to began
		}{
			{&local.Failure{Error: "no answer"}, 0},
			{&local.Failure{Error: "still no answer"}, 0},
			{&local.Failure{Error: "no plugin", Local: true}, 2 * time.Second},
			{&local.Failure{Error: "no plugin", Local: true}, 2 * time.Second},
			{nil, 0},
			{&local.Failure{Error: "no plugin", Local: true}, 5 * time.Second},
		} {
			if h.report(local.Host{API: c.api}); c.api != nil && !last.API.Since.Equal(began.Add(c.want)) {
				t.Errorf("%s: since %v, want %v", c.api.Error, last.API.Since.Sub(began), c.want)
			}
			time.Sleep(time.Second)
		}
	})
}

// TestReadIsVoidAfterTheEviction checks that a read that counted pods is invalid after their eviction, and that a read
// that counted none, or that was made after the eviction, is valid.
func TestReadIsVoidAfterTheEviction(t *testing.T) {
	for _, c := range []struct {
		name      string
		evictable int
		before    bool // the read was made before the end of the eviction
		valid     bool
	}{
		{"pods were there, and evicted since", 2, true, false},
		{"pods came after the eviction", 2, false, true},
		{"no pods", 0, true, true},
	} {
		h, _ := newTestHost(t, v1alpha1.StateRebooting)
		began := time.Now()
		// There is no API server, so the eviction ends with its context.
		ctx, cancel := context.WithCancel(t.Context())
		h.drain.Start(ctx, effect.Stage{Turn: "t1", State: v1alpha1.StateRebooting}, step.Eviction{}, false)
		cancel()
		h.drain.Wait()
		if !c.before {
			began = time.Now()
		}
		h.fresh = &freshRead{FreshRead: step.FreshRead{Commit: true, Evictable: c.evictable}, began: began, resourceVersion: "7"}
		if got := h.validRead(&turn.Node{ResourceVersion: "7"}) != nil; got != c.valid {
			t.Errorf("%s: valid %t, expected %t", c.name, got, c.valid)
		}
	}
}

// TestNodeOfAnotherName checks that a host stops when its kubeconfig becomes that of another Node, and not when it becomes another
// one of the same Node, or while the API server does not say whose it is.
func TestNodeOfAnotherName(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user := map[string]string{"Bearer first": "system:node:n1", "Bearer second": "system:node:n1", "Bearer third": "system:node:n2"}[r.Header.Get("Authorization")]
		w.Header().Set("Content-Type", "application/json")
		if user == "" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprintf(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":%q}}}`, user)
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubelet.conf")
	use := func(token string) {
		t.Helper()
		text := `{current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: {server: "` + server.URL +
			`", insecure-skip-tls-verify: true}}], users: [{name: u, user: {token: ` + token + `}}]}`
		must(t, os.WriteFile(file+".new", []byte(text), 0o600))
		must(t, os.Rename(file+".new", file))
	}
	use("first")
	credential := kube.New(kube.Options{Identity: v1alpha1.IdentityHost, Paths: []string{file}, QPS: 100, Burst: 100})
	h, err := New(Options{Root: newRoot(t, nil), PollInterval: time.Hour, Connect: credential.Client})
	must(t, err)
	h.name, err = h.connect(t.Context())
	if must(t, err); h.name != "n1" {
		t.Fatalf("the Node is %q", h.name)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(wg.Wait)
	t.Cleanup(cancel)
	wg.Go(func() { credential.Run(ctx) })
	for _, c := range []struct {
		token string
		stops bool
	}{{"second", false}, {"refused", false}, {"third", true}} {
		before := h.client.Identity()
		use(c.token)
		for deadline := time.Now().Add(30 * time.Second); h.client.Identity() == before; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the client has not followed", c.token)
			}
		}
		if err := h.checkName(t.Context()); (err != nil) != c.stops || c.stops && !strings.Contains(err.Error(), "now that of Node n2, and was that of Node n1") {
			t.Errorf("%s: %v", c.token, err)
		}
	}
}

// BenchmarkFacts is what each round, and each pause after it, does first.
func BenchmarkFacts(b *testing.B) {
	h := &Host{name: "n1"}
	h.view = kube.WatchNode(&kubernetes.Clientset{}, "n1", h.wake)
	h.view.Overlay(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n1", UID: "uid", ResourceVersion: "10", Labels: map[string]string{v1alpha1.LabelState: "idle", v1alpha1.LabelWants: "nothing"},
		Annotations: map[string]string{
			v1alpha1.AnnotationHost: `{"nodeUID":"uid","bootID":"b1","bootTime":"2026-11-28T10:00:00Z","started":"2026-11-28T10:00:01Z","version":"v1","protocol":1,"managed":true,"osVersion":"4.1.0"}`,
		},
	}})
	b.ReportAllocs()
	for b.Loop() {
		h.facts()
	}
}
