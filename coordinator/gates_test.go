package coordinator

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/gate"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// TestGatesThatAreAsked checks that a gate is queried while a node waits for a turn under its policy.
func TestGatesThatAreAsked(t *testing.T) {
	gates := []v1alpha1.Gate{{Name: "a", Query: "x > 0"}, {Name: "b", Query: "y > 0"}}
	policies := policy.Set{
		{Name: "waits", Gates: gates}, {Name: "all-in-turns", Gates: gates[:1]}, {Name: "content", Gates: gates[:1]},
		{Name: "invalid", Gates: gates[:1], Problems: []policy.Problem{{}}}, {Name: "no-nodes", Gates: gates[:1]}, {Name: "no-gates"},
	}
	figures := []rollout.PolicyFigures{
		{Name: "no-gates", Wanting: 3, Waiting: 3}, {Name: "invalid", Wanting: 3, Waiting: 3}, {Name: "content"}, {Name: "all-in-turns", Wanting: 2, InTurn: 2},
		{Name: "waits", Wanting: 2, InTurn: 1, Waiting: 1},
	}
	want := []gate.Query{{Key: gate.Key{Policy: "waits", Gate: "a"}, Expr: "x > 0"}, {Key: gate.Key{Policy: "waits", Gate: "b"}, Expr: "y > 0"}}
	if got := awaitedGates(policies, figures); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, expected %+v", got, want)
	}
}

// TestGatesOfTurnsOfAnotherPolicy checks that the gates of a policy are queried for a node that waits, although a node that
// another policy selects by now is still in a turn that this policy granted.
func TestGatesOfTurnsOfAnotherPolicy(t *testing.T) {
	now := time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC)
	web := policy.Default()
	web.Name, web.MaxUnavailable, web.Gates = "web", policy.Limit{Number: 2}, []v1alpha1.Gate{{Name: "errors", Query: "x > 0"}}
	db := policy.Compile(&v1alpha1.DisruptionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: func() v1alpha1.DisruptionPolicySpec {
		spec := v1alpha1.DefaultPolicySpec()
		spec.Priority, spec.NodeSelector = 10, metav1.LabelSelector{MatchLabels: map[string]string{"pool": "db"}}
		return spec
	}()}, time.LoadLocation)
	s := rollout.Snapshot{Now: now, Epoch: "me_1", Policies: policy.NewSet(web, db)}
	for _, name := range []string{"a", "b"} {
		n := turn.Node{Name: name, UID: name, ResourceVersion: "1", BootID: "b1", Ready: true, Created: now.Add(-24 * time.Hour)}
		n.State, n.Wants = v1alpha1.StateIdle, v1alpha1.WantsReboot
		n.Host = &v1alpha1.Host{Protocol: v1alpha1.Protocol, NodeUID: name, BootID: "b1", Managed: true, Drains: true}
		s.Nodes = append(s.Nodes, n)
	}
	a := &s.Nodes[0]
	a.State, a.Turn, a.Labels = v1alpha1.StateDraining, "t1", map[string]string{"pool": "db"}
	a.Grant = &v1alpha1.Grant{Turn: "t1", Epoch: "me_1", NodeUID: "a", BootID: "b1", Wants: v1alpha1.WantsReboot, Drains: true, Policy: "web", Terms: web.Terms, StartedAt: now, StageAt: now}
	a.Ack = v1alpha1.Ack{Turn: "t1", BootID: "b1", State: v1alpha1.StateDraining, Report: v1alpha1.ReportSeen}
	out := rollout.Decide(s)
	if v := out.Verdicts[1]; v.Held != v1alpha1.ReasonGateClosed {
		t.Fatalf("b: %+v", v)
	}
	want := []gate.Query{{Key: gate.Key{Policy: "web", Gate: "errors"}, Expr: "x > 0"}}
	if got := awaitedGates(s.Policies, out.Figures.Policies); !slices.Equal(got, want) {
		t.Errorf("queries %+v, expected %+v; b waits: %s", got, want, out.Verdicts[1].Detail)
	}
}

// TestGatesOfATerm checks that a leader queries the server in its host's file, with the token that this file names, and decides
// again when there is an answer.
func TestGatesOfATerm(t *testing.T) {
	asked := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.URL.Path + " " + r.Header.Get("Authorization") + " " + r.Header.Get("User-Agent"):
		default: // it is asked again, and the test looks at the first query
		}
		w.Write([]byte(`{"status":"success","data":{"resultType":"vector","result":[]}}`))
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, _ := newWriter(t)
	l.PrometheusURL, l.PrometheusTokenFile, l.Version = server.URL, file, "v1"
	gates := l.newGates(l.wake)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { gates.Run(ctx) })
	key := gate.Key{Policy: "web", Gate: "errors"}
	gates.Ask([]gate.Query{{Key: key, Expr: "x > 0"}})
	select {
	case <-l.kick:
	case <-time.After(10 * time.Second):
		t.Fatal("the leader does not decide again")
	}
	if got, want := <-asked, "/api/v1/query Bearer secret lockkeeper-coordinator/v1"; got != want || !gates.Answers()[key].Open {
		t.Errorf("asked %q, expected %q; the answer is %+v", got, want, gates.Answers()[key])
	}
}
