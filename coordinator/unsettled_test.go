package coordinator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// TestUnsettledWrites checks that a write whose outcome is unknown for a minute is reported once: with the node, the
// time, and the error of the last try.
func TestUnsettledWrites(t *testing.T) {
	client, err := kube.ConnectConfig(&rest.Config{Host: "https://127.0.0.1:1"}, "coordinator", "test", 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	idle := turn.Node{Name: "n1", UID: "u1", BootID: "b1", Ready: true, Keys: v1alpha1.Keys{State: v1alpha1.StateIdle, Wants: v1alpha1.WantsReboot,
		Host: &v1alpha1.Host{Protocol: 1, NodeUID: "u1", BootID: "b1", Managed: true, Drains: true}}}
	other := idle
	other.Name, other.UID = "n2", "u2"
	other.Host = &v1alpha1.Host{Protocol: 1, NodeUID: "u2", BootID: "b1", Managed: true, Drains: true}
	var all []rollout.Snapshot
	synctest.Test(t, func(t *testing.T) {
		l := &leader{candidate: &candidate{client: client}, uncertain: map[string]unsettled{}, refused: map[string]refusal{}}
		snapshot := func() rollout.Snapshot {
			s := rollout.Snapshot{Now: time.Now(), Epoch: "e1", Policies: policy.Set{policy.Default()}, Nodes: []turn.Node{idle, other},
				Uncertain: map[string]bool{}, Unsettled: map[string]string{}, Refused: map[string]string{}}
			l.writes(&s)
			return s
		}
		l.uncertainAbout("n1", errors.New("no answer"))
		if !l.answersMissing() {
			t.Error("reasons are written although the API server may be down")
		}
		time.Sleep(unsettledAfter - time.Second)
		l.uncertainAbout("n1", errors.New("the server was unable to return a response"))
		if s := snapshot(); !s.Uncertain["n1"] || len(s.Unsettled) != 0 {
			t.Errorf("before a minute: %v, %v", s.Uncertain, s.Unsettled)
		}
		if l.answersMissing() || l.refusals() != time.Second {
			t.Errorf("next check in %v", l.refusals())
		}
		time.Sleep(time.Second)
		all = []rollout.Snapshot{snapshot(), snapshot()}
	})
	want := "since 00:00:00 UTC: the server was unable to return a response"
	if got := all[0].Unsettled["n1"]; got != want {
		t.Errorf("unsettled %q, want %q", got, want)
	}
	for _, v := range rollout.Decide(all[0]).Verdicts {
		if v.Held != v1alpha1.ReasonHandover || v.Detail != "the outcome of a write to n1 has been unknown "+want {
			t.Errorf("%+v", v)
		}
	}

	e := recording()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lockkeeper", UID: "u9"}}
	for i := range all {
		all[i].Rewound = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		e.reportIntents(&all[i], lease)
	}
	var told []string // in any order
	for range 2 {
		e := e.next(t)
		about := e.Regarding
		told = append(told, strings.Join([]string{e.Namespace, e.Type, e.Reason, about.APIVersion, about.Kind, about.Namespace + "/" + about.Name, string(about.UID), e.Note}, " "))
	}
	slices.Sort(told)
	wants := []string{"default Warning Unsettled v1 Node /n1 u1 the outcome of a write to n1 has been unknown " + want,
		"ns Warning StoreRewound coordination.k8s.io/v1 Lease ns/lockkeeper u9 seen at 2026-01-01 12:00:00 UTC"}
	if !slices.Equal(told, wants) {
		t.Errorf("Events %q, want %q", told, wants)
	}
	if len(e.queue) > 0 {
		t.Errorf("another Event: %+v", e.next(t))
	}
}

// TestHandoverIsWrittenWhenItLasts checks that the reason Handover is written only if a handover lasts, because most
// take seconds.
func TestHandoverIsWrittenWhenItLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leader{}
		held := []rollout.Verdict{{Node: "a", Held: v1alpha1.ReasonBudget}, {Node: "b", Held: v1alpha1.ReasonHandover}}
		if left := l.handoverLeft(held); left != handoverAfter {
			t.Errorf("due in %v at first", left)
		}
		time.Sleep(handoverAfter - time.Second)
		if left := l.handoverLeft(held); left != time.Second {
			t.Errorf("due in %v after 9 s", left)
		}
		time.Sleep(time.Second)
		if left := l.handoverLeft(held); left > 0 {
			t.Errorf("due in %v after 10 s", left)
		}
		if l.handoverLeft(held[:1]) != handoverAfter || l.handoverLeft(held) != handoverAfter {
			t.Error("another handover is written at once")
		}
	})
}

// TestReasonsDuringAHandover checks that no more than one reason can have an unknown outcome while turns of another term are
// left, because the nodes with such a write count as unavailable.
func TestReasonsDuringAHandover(t *testing.T) {
	for _, c := range []struct {
		other v1alpha1.Reason // of the third node
		want  int
	}{{v1alpha1.ReasonHandover, 1}, {v1alpha1.ReasonNone, 2}} {
		synctest.Test(t, func(t *testing.T) {
			l, api := newWriter(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer l.settling.Wait()
			defer cancel()
			api.lost["a"], api.lost["b"] = 1000, 1000
			l.carryOutNow(ctx, []rollout.Verdict{{Node: "a", Held: v1alpha1.ReasonBudget}, {Node: "b", Held: v1alpha1.ReasonBudget}, {Node: "c", Held: c.other}})
			if got := l.uncertainNow(); got != c.want {
				t.Errorf("a node is held with %q: %d outcomes are unknown, expected %d", c.other, got, c.want)
			}
		})
	}
}
