package coordinator

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/gate"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// nodesAPI plays the API server for Nodes, in memory. A patch only gives its Node another version.
type nodesAPI struct {
	ahead time.Duration // its clock
	slow  time.Duration // how long each answer takes

	slower   map[string]time.Duration // by Node, in addition
	mu       sync.Mutex
	versions map[string]int // by Node; 0: it does not exist
	lost     map[string]int // how many answers to patches of the Node are lost; the patches land
	refused  map[string]bool
	patched  []string
}

func (a *nodesAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(a.slow + a.slower[path.Base(r.URL.Path)])
	a.mu.Lock()
	defer a.mu.Unlock()
	code, answer, err := a.answer(r)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(answer)
	return &http.Response{StatusCode: code, Body: io.NopCloser(bytes.NewReader(body)), Request: r, Header: http.Header{
		"Content-Type": {"application/json"}, "Date": {time.Now().Add(a.ahead).UTC().Format(http.TimeFormat)},
	}}, err
}

func (a *nodesAPI) answer(r *http.Request) (code int, answer any, err error) {
	status := func(s *apierrors.StatusError) (int, any, error) {
		s.ErrStatus.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		return int(s.ErrStatus.Code), s.ErrStatus, nil
	}
	kind, name := corev1.Resource("nodes"), path.Base(r.URL.Path)
	if name == "nodes" {
		return http.StatusOK, corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: metav1.ListMeta{ResourceVersion: "99"}}, nil
	}
	if a.versions[name] == 0 {
		return status(apierrors.NewNotFound(kind, name))
	}
	if r.Method == http.MethodPatch {
		a.patched = append(a.patched, name)
		var patch struct{ Metadata metav1.ObjectMeta }
		if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
			return 0, nil, err
		}
		switch {
		case a.refused[name]:
			return status(apierrors.NewForbidden(kind, name, errors.New("no")))
		case patch.Metadata.ResourceVersion != strconv.Itoa(a.versions[name]):
			return status(apierrors.NewConflict(kind, name, errors.New("another version")))
		}
		a.versions[name]++
		if a.lost[name]--; a.lost[name] >= 0 {
			return 0, nil, errors.New("the connection was lost")
		}
	}
	return http.StatusOK, a.node(name), nil
}

func (a *nodesAPI) node(name string) *corev1.Node {
	return &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: "u", ResourceVersion: strconv.Itoa(a.versions[name])}}
}

// written returns the Nodes to which patches were sent, in order.
func (a *nodesAPI) written() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.patched)
}

func (a *nodesAPI) remove(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.versions[name] = 0
}

// newWriter returns a leader in a term that began now. Its view has the Nodes a, b and c, and no watch.
func newWriter(t *testing.T) (*leader, *nodesAPI) {
	t.Helper()
	api := &nodesAPI{versions: map[string]int{"a": 10, "b": 20, "c": 30}, lost: map[string]int{}, refused: map[string]bool{}}
	client, err := kube.ConnectConfig(&rest.Config{Host: "http://api", Transport: api}, "coordinator", "test", 100, 100)
	if err != nil {
		t.Fatal(err)
	}
	c := &candidate{Options: Options{LeaseDuration: 30 * time.Second, RenewDeadline: 20 * time.Second, RetryPeriod: 5 * time.Second,
		Log: slog.New(slog.DiscardHandler)}, client: client, lease: newLeaseWatch(client, "n", "l", nil)}
	l := &leader{candidate: c, epoch: "me_1", lock: &termLock{held: true, identity: "me_1", renewed: time.Now(), lasts: c.LeaseDuration}, events: recording(),
		uncertain: map[string]unsettled{}, refused: map[string]refusal{}, kick: make(chan struct{}, 1), over: func(error) {}}
	l.see(api, l.wake)
	return l, api
}

// see gives the leader a view of all Nodes.
func (l *leader) see(api *nodesAPI, changed func()) {
	l.view = kube.WatchNodes(l.client, changed, nil)
	for _, name := range slices.Sorted(maps.Keys(api.versions)) { // by version: a late answer does not bring a Node back
		l.view.Overlay(api.node(name))
	}
}

// seeMore gives the leader a view of more Nodes, and returns their names.
func (l *leader) seeMore(api *nodesAPI, count int) (names []string) {
	for i := range count {
		name := fmt.Sprintf("n%02d", i)
		api.versions[name] = 40 + i
		names = append(names, name)
	}
	l.see(api, l.wake)
	return names
}

// carryOutNow carries out verdicts about the nodes as the leader sees them now.
func (l *leader) carryOutNow(ctx context.Context, verdicts []rollout.Verdict) time.Duration {
	l.facts.of(l.view.All())
	return l.carryOut(ctx, verdicts)
}

// grants returns a verdict that grants a turn.
func grants(name string) rollout.Verdict {
	return rollout.Verdict{Node: name, Move: &rollout.Move{From: v1alpha1.StateIdle, To: v1alpha1.StateDraining, On: turn.Granted, NewTurn: true, Grant: &v1alpha1.Grant{}}}
}

// promotes returns a verdict that advances a turn.
func promotes(name string) rollout.Verdict {
	return rollout.Verdict{Node: name, Move: &rollout.Move{From: v1alpha1.StateDraining, To: v1alpha1.StateRebooting, On: turn.Progressed, Grant: &v1alpha1.Grant{Turn: "t1"}}}
}

// TestUnknownOutcome checks that a write whose answer is lost counts as uncertain until the leader sees what became of it,
// and that nothing else is written to its Node and nothing is granted meanwhile.
func TestUnknownOutcome(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l, api := newWriter(t)
			settled := true
			l.see(api, func() { settled = settled && l.uncertainNow() == 1 })
			api.lost["a"] = 1
			l.carryOutNow(t.Context(), []rollout.Verdict{grants("a"), grants("b"), promotes("c")})
			if l.uncertainNow() != 1 || !slices.Equal(api.written(), []string{"c", "a"}) {
				t.Errorf("%d uncertain; written to %q, expected the turn under way, and one grant", l.uncertainNow(), api.written())
			}
			l.carryOutNow(t.Context(), []rollout.Verdict{promotes("a"), grants("b"), promotes("c")})
			if !slices.Equal(api.written(), []string{"c", "a", "c"}) {
				t.Errorf("meanwhile written to %q", api.written())
			}
			if deleted {
				api.remove("a")
			}
			time.Sleep(2 * time.Second)
			l.settling.Wait()
			l.facts.of(l.view.All())
			a := l.facts.node("a")
			switch {
			case l.uncertainNow() != 0 || !settled:
				t.Errorf("%d uncertain; the Node was seen before that: %t", l.uncertainNow(), settled)
			case deleted && a != nil, !deleted && a.ResourceVersion != "11":
				t.Errorf("deleted %t: the leader sees %+v", deleted, a)
			}
		})
	}
}

// TestOwnWritesAreInView checks that a leader sees what became of each of its writes before its watch shows it, and decides again
// at once.
func TestOwnWritesAreInView(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(*nodesAPI)
		version   string // "" for no Node
	}{
		"written":  {func(*nodesAPI) {}, "11"},
		"conflict": {func(api *nodesAPI) { api.versions["a"] = 15 }, "15"},
		"deleted":  {func(api *nodesAPI) { api.remove("a") }, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, api := newWriter(t)
			l.see(api, func() {}) // only the leader itself wakes its loop
			c.meanwhile(api)
			l.carryOutNow(t.Context(), []rollout.Verdict{promotes("a")})
			version := ""
			if n := l.view.Get("a"); n != nil {
				version = n.ResourceVersion
			}
			if version != c.version || len(l.kick) != 1 || l.uncertainNow() != 0 {
				t.Errorf("%s: sees version %q, expected %q; decides again: %t; %d uncertain", name, version, c.version, len(l.kick) == 1, l.uncertainNow())
			}
		})
	}
}

// TestWritesAtATime checks that turns do not wait for each other's writes, that grants do, and that all do while turns of
// another term are left.
func TestWritesAtATime(t *testing.T) {
	handover := rollout.Verdict{Node: "c", Held: v1alpha1.ReasonHandover}
	for name, c := range map[string]struct {
		verdicts []rollout.Verdict
		took     time.Duration
	}{
		"turns":               {[]rollout.Verdict{promotes("a"), promotes("b"), promotes("c")}, time.Second},
		"a turn and a grant":  {[]rollout.Verdict{grants("a"), promotes("b")}, 2 * time.Second},
		"grants":              {[]rollout.Verdict{grants("a"), grants("b"), grants("c")}, 3 * time.Second},
		"turns in a handover": {[]rollout.Verdict{promotes("a"), promotes("b"), handover}, 2 * time.Second},
		"five turns":          {[]rollout.Verdict{promotes("a"), promotes("b"), promotes("c"), promotes("d"), promotes("e")}, 2 * time.Second},
		"one is slow":         {[]rollout.Verdict{promotes("slow"), promotes("b"), promotes("c"), promotes("d"), promotes("e")}, 3 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, api := newWriter(t)
			api.slow, api.slower = time.Second, map[string]time.Duration{"slow": 2 * time.Second}
			for i, name := range []string{"d", "e", "slow"} {
				api.versions[name] = 40 + i
			}
			l.see(api, l.wake)
			began := time.Now()
			l.carryOutNow(t.Context(), c.verdicts)
			if took := time.Since(began); took != c.took {
				t.Errorf("%s: took %v, expected %v", name, took, c.took)
			}
		})
	}
}

// TestManyUnknownOutcomes checks that a leader stops writing when too many outcomes are unknown, counting the writes under way,
// and that it looks again soon.
func TestManyUnknownOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, api := newWriter(t)
		var all []rollout.Verdict
		for _, name := range l.seeMore(api, maxUncertain+3) {
			api.lost[name] = 1
			all = append(all, promotes(name))
		}
		next := l.carryOutNow(t.Context(), all)
		if len(api.written()) != maxUncertain || l.uncertainNow() != maxUncertain || next != l.RetryPeriod {
			t.Errorf("%d writes, of which %d have an unknown outcome, expected %d; continues after %v", len(api.written()), l.uncertainNow(), maxUncertain, next)
		}
		l.settling.Wait()
	})
}

// TestWritesEndWithTheTerm checks that a leader begins no write once its Lease has not been renewed in time, or its term has
// ended, also if it is in the middle of many.
func TestWritesEndWithTheTerm(t *testing.T) {
	for name, end := range map[string]func(*leader, context.CancelFunc){
		"not renewed": func(l *leader, _ context.CancelFunc) {
			l.lock.renewed = time.Now().Add(1500*time.Millisecond - l.RenewDeadline)
		},
		"ended": func(_ *leader, end context.CancelFunc) { time.AfterFunc(1500*time.Millisecond, end) },
	} {
		synctest.Test(t, func(t *testing.T) {
			l, api := newWriter(t)
			api.slow = time.Second
			var all []rollout.Verdict
			for _, name := range l.seeMore(api, 12) {
				all = append(all, promotes(name))
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			end(l, cancel)
			if next := l.carryOutNow(ctx, all); len(api.written()) != 8 || next != l.RetryPeriod {
				t.Errorf("%s after 1.5 s: %d writes of a second each, four at a time, expected 8; continues after %v", name, len(api.written()), next)
			}
		})
	}
}

// TestReasonsAtATime checks how many reasons a round writes: as many as the pace allows, or four if something has changed.
func TestReasonsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, api := newWriter(t)
		var all []rollout.Verdict
		for _, name := range l.seeMore(api, 40) {
			all = append(all, rollout.Verdict{Node: name, Held: v1alpha1.ReasonBudget})
		}
		for i, c := range []struct {
			after   time.Duration
			changed bool
			want    int // in all
		}{{0, true, 4}, {0, false, 20}, {0, false, 20}, {3 * time.Second, false, 23}} {
			time.Sleep(c.after)
			if c.changed {
				l.wake()
			}
			if l.carryOutNow(t.Context(), all); len(api.written()) != c.want {
				t.Errorf("after round %d: %d reasons, expected %d", i, len(api.written()), c.want)
			}
			select {
			case <-l.kick:
			default:
			}
		}
	})
}

// TestReasonsMakeWay checks that a leader writes no more reasons than those under way once something has changed.
func TestReasonsMakeWay(t *testing.T) {
	// During a handover, one reason is written at a time.
	held := []rollout.Verdict{{Node: "a", Held: v1alpha1.ReasonBudget}, {Node: "b", Held: v1alpha1.ReasonBudget}, {Node: "c", Held: v1alpha1.ReasonHandover}}
	for _, changed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l, api := newWriter(t)
			want := []string{"a", "b"}
			if changed {
				l.wake()
				want = want[:1]
			}
			if l.carryOutNow(t.Context(), held); !slices.Equal(api.written(), want) {
				t.Errorf("changed %t: written to %q, expected %q", changed, api.written(), want)
			}
		})
	}
}

// TestRefusedWrite checks that a leader leaves a node alone for a while after the API server has refused a write to it.
func TestRefusedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, api := newWriter(t)
		var journal strings.Builder
		l.Log = slog.New(slog.NewTextHandler(&journal, nil))
		api.refused["a"] = true
		again := func(want int) {
			t.Helper()
			if l.carryOutNow(t.Context(), []rollout.Verdict{promotes("a")}); len(api.written()) != want {
				t.Errorf("%d writes, want %d", len(api.written()), want)
			}
		}
		again(1)
		for _, c := range []struct {
			after  time.Duration
			writes int
		}{{refusedFor - 1, 1}, {1, 2}} {
			time.Sleep(c.after)
			l.lock.renewed = time.Now()
			again(c.writes)
		}
		if e := l.events.all(); len(e) != 1 {
			t.Errorf("Events %q, expected one for the same message", e)
		}
		for i, refused := range []bool{false, true} {
			time.Sleep(refusedFor)
			l.lock.renewed, api.refused["a"] = time.Now(), refused
			again(3 + i)
		}
		if e := l.events.all(); len(e) != 1 {
			t.Errorf("Events %q, expected one, because a write succeeded in between", e)
		}
		if n := strings.Count(journal.String(), "level=ERROR"); n != 2 {
			t.Errorf("%d errors in the journal, expected one for each Event:\n%s", n, journal.String())
		}
	})
}

// TestRefusedReason checks that the leader still writes why a node is held after the API server has refused a move, but not
// after it has refused a reason.
func TestRefusedReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, api := newWriter(t)
		api.refused["a"] = true
		held := rollout.Verdict{Node: "a", Held: v1alpha1.ReasonBudget}
		for range 2 {
			l.carryOutNow(t.Context(), []rollout.Verdict{held})
		}
		if len(api.written()) != 1 {
			t.Errorf("%d writes of the reason", len(api.written()))
		}
		time.Sleep(refusedFor)
		l.lock.renewed = time.Now()
		l.leaveAlone("a", refusedFor, errors.New("no"), false)
		l.carryOutNow(t.Context(), []rollout.Verdict{held})
		if len(api.written()) != 2 {
			t.Errorf("%d writes; the reason can be written although a move was refused", len(api.written()))
		}
	})
}

// TestTermThatWasNotRenewed checks that a leader whose Lease was not renewed in time neither decides nor writes.
func TestTermThatWasNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, api := newWriter(t)
		time.Sleep(l.RenewDeadline)
		if next := l.carryOutNow(t.Context(), []rollout.Verdict{promotes("a")}); len(api.written()) != 0 || next != l.RetryPeriod {
			t.Errorf("written to %q, and continues after %v", api.written(), next)
		}
		if next := l.round(t.Context()); next != l.RetryPeriod || !l.blind.IsZero() {
			t.Errorf("a round that ends after %v", next)
		}
	})
}

// newLister is newWriter, with a view of a cluster without Nodes and policies.
func newLister(t *testing.T) *leader {
	t.Helper()
	l, _ := newWriter(t)
	client, err := kube.ConnectConfig(&rest.Config{Host: "http://api", Transport: &apiServer{}}, "coordinator", "test", 100, 100)
	if err != nil {
		t.Fatal(err)
	}
	l.view, l.policies, l.gates = kube.WatchNodes(client, nil, nil), kube.WatchPolicies(client, policy.Compile, nil), gate.New(gate.Options{})
	l.statuses = newStatuses(l.policies, l.Log)
	if err := errors.Join(l.view.Load(t.Context()), l.policies.Load(t.Context())); err != nil {
		t.Fatal(err)
	}
	return l
}

// seeLease gives the leader a version of the Lease.
func (l *leader) seeLease(version int, holder string, annotations map[string]string) {
	l.candidate.lease.read(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "l", UID: "1", ResourceVersion: strconv.Itoa(version), Annotations: annotations},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
	})
}

// TestPauseAfterDecisions checks that a leader pauses if its decisions take long, that the time for which it waits for changes
// counts as a pause, and that a pause ends with the term.
func TestPauseAfterDecisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLister(t)
		l.seeLease(5, "me_1", nil)
		var decides time.Duration
		l.Decided = func(time.Duration, *rollout.Snapshot, *rollout.Outcome) { time.Sleep(decides) }
		ctx, end := context.WithCancel(t.Context())
		defer end()
		for _, c := range []struct{ waits, decides, took time.Duration }{
			{0, 80, 80}, {0, 80, 140}, {1000, 300, 500}, {50, 50, 50}, {0, 300, 350},
		} {
			if c.took == 350 {
				time.AfterFunc(350*time.Millisecond, end)
			}
			time.Sleep(c.waits * time.Millisecond)
			decides = c.decides * time.Millisecond
			began := time.Now()
			l.round(ctx)
			if took := time.Since(began); took != c.took*time.Millisecond {
				t.Errorf("a decision of %v after a wait of %v: the round took %v, expected %v", decides, c.waits*time.Millisecond, took, c.took*time.Millisecond)
			}
		}
	})
}

// TestSnapshotOfTheLease checks what a leader takes from the Lease: it decides nothing before it sees its own term in it,
// and it knows of an emergency stop, of the time without a leader, and of a store that went back in time.
func TestSnapshotOfTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLister(t)
		led := time.Now().Add(-time.Hour)
		l.self, l.lock.lastRenewed, l.lock.lastHolder = "n1", led, "n2_0"
		l.candidate.wentBack()
		for i, holder := range []string{"other_1", "me_1"} {
			l.seeLease(5+i, holder, map[string]string{v1alpha1.AnnotationStop: "fire"})
			s, _, ok := l.snapshot()
			if ok != (holder == "me_1") {
				t.Errorf("the Lease is %s: decides %t", holder, ok)
			}
			if got := fmt.Sprintf("%t %s %t %t %t", s.Stopped, s.StopText, s.StoppedSince.Equal(s.Now), s.LedUntil.Equal(led), s.Rewound.Equal(time.Now())); ok && got != "true fire true true true" {
				t.Errorf("stopped, since now, since when there was no leader, rewound: %s", got)
			}
			if ok && (s.Epoch != "me_1" || s.Self != "n1" || s.LedBy != "n2_0") {
				t.Errorf("term %q of the host of %q after %q, expected me_1, n1 and n2_0", s.Epoch, s.Self, s.LedBy)
			}
		}
	})
}

// TestSnapshotDuringAWrite checks that a write whose outcome becomes known during a snapshot is seen on its Node. A snapshot
// that reads the Nodes first has neither the write nor that its outcome is unknown, and grants the same slot again.
func TestSnapshotDuringAWrite(t *testing.T) {
	l := newLister(t)
	l.seeLease(5, "me_1", nil)
	overlay := func(version string, state v1alpha1.State) {
		l.view.Overlay(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", ResourceVersion: version, Labels: map[string]string{v1alpha1.LabelState: string(state)}}})
	}
	overlay("10", v1alpha1.StateIdle)
	l.uncertainAbout("a", errors.New("timeout"))
	l.mu.Lock()
	seen := make(chan rollout.Snapshot, 1)
	go func() {
		s, _, _ := l.snapshot()
		seen <- s
	}()
	stacks := make([]byte, 1<<20)
	for began := time.Now(); !bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("(*leader).writes(")); time.Sleep(time.Millisecond) {
		if time.Since(began) > 30*time.Second {
			t.Fatalf("no snapshot waits for the outcomes of writes after %v", time.Since(began))
		}
	}
	overlay("11", v1alpha1.StateDraining)
	delete(l.uncertain, "a")
	l.mu.Unlock()
	if s := <-seen; len(s.Nodes) != 1 || s.Nodes[0].State != v1alpha1.StateDraining || s.Uncertain["a"] {
		t.Errorf("%v, uncertain %v: the write is not on its Node", s.Nodes, s.Uncertain)
	}
}

// TestStoppedSince checks that a leader knows since when it has seen the emergency stop.
func TestStoppedSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leader{}
		began := time.Now()
		for _, c := range []struct {
			stopped bool
			since   time.Time
		}{{false, time.Time{}}, {true, began.Add(time.Minute)}, {true, began.Add(time.Minute)}, {false, time.Time{}}, {true, began.Add(4 * time.Minute)}} {
			if got := l.stoppedSince(c.stopped, time.Now()); !got.Equal(c.since) {
				t.Errorf("after %v, stopped %t: since %v, expected %v", time.Since(began), c.stopped, got, c.since)
			}
			time.Sleep(time.Minute)
		}
	})
}

// TestMissedStop checks that a leader remembers a stop that it could not record on a Node, also after the stop, until the
// Node records it or the turn is over.
func TestMissedStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLister(t)
		began := time.Now().UTC()
		version := 10
		seen := func(name string, stopped bool, state v1alpha1.State, g *v1alpha1.Grant) {
			version++
			obj := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: strconv.Itoa(version),
				Labels: map[string]string{v1alpha1.LabelState: string(state)}}}
			if g != nil {
				g.Turn, g.NodeUID = cmp.Or(g.Turn, "t1"), name
				obj.Annotations = map[string]string{v1alpha1.AnnotationTurn: "t1", v1alpha1.AnnotationGrant: v1alpha1.FormatRecord(g)}
			}
			l.view.Overlay(obj)
			var stop map[string]string
			if stopped {
				stop = map[string]string{v1alpha1.AnnotationStop: "fire"}
			}
			l.seeLease(version, "me_1", stop)
		}
		missed := func(step string, want map[string]rollout.Stop) {
			t.Helper()
			s, _, ok := l.snapshot()
			if !ok || !maps.Equal(s.StopMissed, want) {
				t.Errorf("%s: decides %t, missed %v, expected %v", step, ok, s.StopMissed, want)
			}
			time.Sleep(time.Second) // there is no watch of the Nodes, so the leader decides by them for a minute at most
		}
		grant := func(frozen bool) *v1alpha1.Grant {
			g := &v1alpha1.Grant{Epoch: "me_1", Wants: v1alpha1.WantsReboot, StartedAt: began, StageAt: began}
			if frozen {
				g.PausedSince = new(time.Now().UTC())
			}
			return g
		}
		seen("a", false, v1alpha1.StateDraining, grant(false))
		seen("b", false, v1alpha1.StateDraining, grant(false))
		seen("c", false, v1alpha1.StateIdle, nil)
		l.uncertainAbout("a", errors.New("timeout"))
		l.uncertainAbout("c", errors.New("timeout")) // a grant that may have landed
		missed("no stop", nil)
		seen("a", true, v1alpha1.StateDraining, grant(false))
		since := time.Now().UTC()
		missed("the stop", nil)
		seen("b", true, v1alpha1.StateDraining, grant(true))
		missed("recorded on b", nil)
		seen("b", false, v1alpha1.StateDraining, grant(true))
		stop := rollout.Stop{Since: since, Until: time.Now().UTC()}
		missed("lifted", map[string]rollout.Stop{"a": stop, "c": stop})
		l.mu.Lock()
		clear(l.uncertain)
		l.mu.Unlock()
		missed("the outcomes are known", map[string]rollout.Stop{"a": stop})
		seen("a", true, v1alpha1.StateDraining, grant(false))
		again := time.Now().UTC()
		missed("another stop", map[string]rollout.Stop{"a": stop})
		damaged := grant(false)
		damaged.Turn = "t0"
		seen("a", false, v1alpha1.StateDraining, damaged)
		both := rollout.Stop{Since: again.Add(-stop.Until.Sub(stop.Since)), Until: time.Now().UTC()}
		missed("lifted, and someone has edited the turn", map[string]rollout.Stop{"a": both})
		next := grant(false)
		next.StageAt = time.Now().UTC()
		seen("b", true, v1alpha1.StateDraining, grant(false))
		again = time.Now().UTC()
		missed("a third stop", map[string]rollout.Stop{"a": both})
		seen("b", false, v1alpha1.StateRebooting, next) // a promotion from before the stop
		third := rollout.Stop{Since: again, Until: time.Now().UTC()}
		missed("lifted", map[string]rollout.Stop{"a": both.And(third), "b": third})
		next.StageAt = time.Now().UTC()
		seen("b", false, v1alpha1.StateRebooting, next)
		missed("a stage that began after it", map[string]rollout.Stop{"a": both.And(third)})
		seen("a", false, v1alpha1.StateDraining, grant(true))
		missed("recorded on a", nil)
		seen("a", false, v1alpha1.StateDraining, grant(false))
		missed("goes on", nil)
	})
}

// TestLeaseOfAFailingWatch checks that a candidate asks the API server if its watch of the Lease does not work.
func TestLeaseOfAFailingWatch(t *testing.T) {
	api := &apiServer{}
	client, err := kube.ConnectConfig(&rest.Config{Host: "http://api", Transport: api}, "coordinator", "test", 100, 100)
	if err != nil {
		t.Fatal(err)
	}
	w := newLeaseWatch(client, "n", "l", nil)
	for i, want := range []bool{false, true, false} {
		if i == 2 {
			api.refused = apierrors.NewForbidden(coordinationv1.Resource("leases"), "", errors.New("no"))
		}
		if i > 0 {
			_ = w.Load(t.Context())
		}
		if _, _, _, ok := w.record(); ok != want {
			t.Errorf("list %d: the watch works: %t", i, ok)
		}
	}
}

// TestClocks checks that a host whose clock is off is no candidate, in either direction.
func TestClocks(t *testing.T) {
	for ahead, which := range map[time.Duration]string{0: "", 20 * time.Second: "", -20 * time.Second: "", time.Minute: "behind", -time.Minute: "ahead of"} {
		off := which != ""
		synctest.Test(t, func(t *testing.T) {
			l, api := newWriter(t)
			api.ahead = ahead
			if _, err := kube.Find(t.Context(), l.client, "a"); err != nil {
				t.Fatal(err)
			}
			if err := skewed(l.client); (err != nil) != off || off && !strings.Contains(err.Error(), " "+which+" the API server's") {
				t.Errorf("%v ahead: %v", ahead, err)
			}
			var unfit error
			lock := l.newLock("me_1", func(err error) { unfit = err })
			if err := lock.may(); (err != nil) != off {
				t.Errorf("%v ahead, taking the Lease: %v", ahead, err)
			}
			if lock.saw("another_1", nil); (unfit != nil) != off {
				t.Errorf("%v ahead, standing by: %v", ahead, unfit)
			}
		})
	}
}

// TestLeaderOfATermThatEnded checks that no leader begins after its term has ended.
func TestLeaderOfATermThatEnded(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var l leading
	l.start(ended, func() { t.Error("it began after the end of its context") })
	l.stop()
	l.start(t.Context(), func() { t.Error("it began after stop") })
	l.running.Wait()
	if l.hasBegun() {
		t.Error("it counts as begun")
	}
}

// TestTermEndsWithItsCredential checks that a campaign ends when the kubeconfig names another server.
func TestTermEndsWithItsCredential(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	write := func(server string) {
		text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],`+
			`"clusters":[{"name":"c","cluster":{"server":%q}}],"users":[{"name":"u","user":{"token":"secret"}}]}`, server)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("http://127.0.0.1:1")
	credential := kube.New(kube.Options{Identity: v1alpha1.IdentityCoordinator, Paths: []string{file}, Renewed: file + ".renewed", QPS: 1, Burst: 1})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	changed := credential.Changed()
	running.Go(func() { credential.Run(ctx) })
	<-changed
	client, err := credential.Client()
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	defer endWithCredential(client, func(why error) { over <- why })()
	write("http://127.0.0.1:2")
	select {
	case why := <-over:
		if why == nil {
			t.Error("it ended without a reason")
		}
	case <-time.After(time.Minute):
		t.Error("it continues after a minute")
	}
}
