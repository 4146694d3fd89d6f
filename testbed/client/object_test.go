package client

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

func nodeWire(t *testing.T, name string) *wire {
	t.Helper()
	cfg, err := cp(t).NodeConfig(name)
	return newWire(t, cfg, err)
}

func coordinatorWire(t *testing.T) *wire {
	t.Helper()
	cfg, err := cp(t).CoordinatorConfig()
	return newWire(t, cfg, err)
}

// view runs a watch of the named Node, or of all Nodes if name is "", until the test ends.
func view(t *testing.T, client *kube.Client, name string) *kube.NodeWatch {
	t.Helper()
	v := kube.WatchNodes(client, nil, nil)
	if name != "" {
		v = kube.WatchNode(client, name, nil)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { v.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return v
}

// fresh fails the test unless every list is a quorum read and every request has the expected form.
func fresh(t *testing.T, w *wire) {
	t.Helper()
	for _, r := range w.requests() {
		for _, key := range []string{"resourceVersion", "resourceVersionMatch", "sendInitialEvents"} {
			if _, there := r.query[key]; there && !strings.HasPrefix(r.kind, "WATCH") {
				t.Errorf("%s with %s=%q", r.kind, key, r.query.Get(key))
			}
		}
		if _, streams := r.query["sendInitialEvents"]; streams {
			t.Errorf("%s streams its list", r.kind)
		}
		if strings.Contains(r.path, "/lockkeeper.dev/") {
			continue // custom resources: the API server supports only JSON and CBOR
		}
		if !strings.HasPrefix(r.accepts, "application/vnd.kubernetes.protobuf") {
			t.Errorf("%s accepts %s", r.kind, r.accepts)
		}
		if r.status != 0 && r.status < 300 && !strings.HasPrefix(r.answer, "application/vnd.kubernetes.protobuf") {
			t.Errorf("%s was answered in %s", r.kind, r.answer)
		}
		if !strings.HasPrefix(r.agent, "lockkeeper-") {
			t.Errorf("%s by %q", r.kind, r.agent)
		}
	}
}

func TestViewListsFromTheQuorum(t *testing.T) {
	freshLease(t)
	playHost(t, "v1", false)
	playHost(t, "v2", false)
	w := coordinatorWire(t)
	v := view(t, w.client("coordinator"), "")
	until(t, "the list", v.Listed)
	if v.Get("v1") == nil || v.Get("v2") == nil {
		t.Fatal("the list does not contain the nodes")
	}
	// Each watch is refused as too old until the client lists again. A single refusal could be lost with the
	// connection that is closed.
	w.on(func(_ context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
		if r.kind == "WATCH nodes" && w.count("LIST nodes") < 2 {
			return says(http.StatusGone, "Expired"), nil
		}
		return nil, nil
	})
	w.server.CloseClientConnections()
	until(t, "a second list", func() bool { return w.count("LIST nodes") >= 2 })
	fresh(t, w)
}

func TestHostSeesItsOwnNodeAlone(t *testing.T) {
	freshLease(t)
	playHost(t, "own", false)
	playHost(t, "other", false)
	w := nodeWire(t, "own")
	v := view(t, w.client("host"), "own")
	until(t, "the list", v.Listed)
	if len(v.All()) != 1 || v.Get("own") == nil || v.Err() != nil {
		t.Errorf("%d nodes, error %v; expected only its own", len(v.All()), v.Err())
	}
	name, err := kube.NodeName(t.Context(), w.client("host"))
	if name != "own" || err != nil {
		t.Errorf("node name %q, %v", name, err)
	}
	fresh(t, w)
	if _, err := kube.NodeName(t.Context(), coordinatorWire(t).client("host")); err == nil || !strings.Contains(err.Error(), controlplane.CoordinatorUser) {
		t.Errorf("node name of the coordinator's credential: %v", err)
	}
}

// TestViewFollowsADeletedNode deletes a Node and creates another one with the same name.
func TestViewFollowsADeletedNode(t *testing.T) {
	freshLease(t)
	playHost(t, "gone", false)
	v := view(t, nodeWire(t, "gone").client("host"), "gone")
	until(t, "the node", func() bool { return v.Get("gone") != nil })
	old := v.Get("gone")
	must(t, cp(t).Client().CoreV1().Nodes().Delete(t.Context(), "gone", deleteNow))
	until(t, "its end", func() bool { return v.Get("gone") == nil })
	if v.Overlay(old) || v.Get("gone") != nil {
		t.Error("an older answer brought the Node back")
	}
	playHost(t, "gone", false)
	until(t, "its successor", func() bool { n := v.Get("gone"); return n != nil && n.UID != old.UID })
}

func TestConflictOnAStaleVersion(t *testing.T) {
	freshLease(t)
	playHost(t, "stale", false)
	w := nodeWire(t, "stale")
	client := w.client("host")
	read, err := kube.Find(t.Context(), client, "stale")
	must(t, err)
	p := kube.Patch{
		Node: "stale", ResourceVersion: read.ResourceVersion, Manager: kube.FieldManager("host"),
		Unschedulable: new(true), Annotations: map[string]*string{"lockkeeper.dev/cordon": new("t1"), "lockkeeper.dev/host": nil},
		Labels: map[string]*string{"lockkeeper.dev/wants": new("drain")},
	}
	written, outcome, err := kube.Write(t.Context(), client, p)
	if outcome != kube.Written || err != nil {
		t.Fatal(outcome, err)
	}
	_, hasHost := written.Annotations["lockkeeper.dev/host"]
	if !written.Spec.Unschedulable || written.Annotations["lockkeeper.dev/cordon"] != "t1" || hasHost || written.Labels["lockkeeper.dev/wants"] != "drain" {
		t.Errorf("written: %+v", written)
	}
	if !slices.ContainsFunc(written.ManagedFields, func(f metav1.ManagedFieldsEntry) bool { return f.Manager == "lockkeeper-host" }) {
		t.Errorf("written by %+v", written.ManagedFields)
	}
	again, outcome, err := kube.Write(t.Context(), client, p)
	if outcome != kube.Conflict || err == nil || again == nil || again.ResourceVersion != written.ResourceVersion {
		t.Errorf("the same write again: %v, %v; expected a conflict with the written Node", outcome, err)
	}
	p.ResourceVersion = ""
	if _, outcome, _ := kube.Write(t.Context(), client, p); outcome == kube.Written {
		t.Error("a write without a precondition took effect")
	}
	p.Node, p.ResourceVersion = "nobody", "1" // refused before the version is checked
	playHost(t, "nobody", false)
	if _, outcome, _ := kube.Write(t.Context(), w.client("host"), p); outcome != kube.Refused {
		t.Errorf("a write to another host's Node: %v", outcome)
	}
	p.Node = "none"
	if _, outcome, _ := kube.Write(t.Context(), coordinatorWire(t).client("coordinator"), p); outcome != kube.Gone {
		t.Errorf("a write to a Node that does not exist: %v", outcome)
	}
	fresh(t, w)
}

func TestSettleAfterALostAnswer(t *testing.T) {
	freshLease(t)
	playHost(t, "lost", false)
	w := nodeWire(t, "lost")
	client := w.client("host")
	read, err := kube.Find(t.Context(), client, "lost")
	must(t, err)
	p := kube.Patch{Node: "lost", ResourceVersion: read.ResourceVersion, Manager: kube.FieldManager("host"), Unschedulable: new(true)}
	w.on(func(_ context.Context, r request, forward func() (*http.Response, error)) (*http.Response, error) {
		if r.kind == "PATCH node lost" {
			w.on(nil)
			return cutAnswer(forward)
		}
		return nil, nil
	})
	if _, outcome, err := kube.Write(t.Context(), client, p); outcome != kube.Unknown || err == nil {
		t.Fatalf("the answer was cut: %v, %v", outcome, err)
	}
	n, err := kube.Settle(t.Context(), client, p, func(error) {})
	must(t, err)
	if !n.Spec.Unschedulable {
		t.Error("the write with the lost answer is missing")
	}
	tries := w.requests("PATCH")
	if len(tries) != 2 || tries[0].body != tries[1].body || tries[1].status != http.StatusConflict {
		t.Errorf("tries %+v; expected the same write twice and a conflict for the second", tries)
	}
}

// TestViewOutlivesTheAPIServer checks that the view recovers without help after the API server and etcd were down.
func TestViewOutlivesTheAPIServer(t *testing.T) {
	freshLease(t)
	playHost(t, "live", false)
	// This client bypasses the wire: behind a proxy that loses its server, client-go retries for half a minute before
	// it reports an error.
	cfg, err := cp(t).NodeConfig("live")
	must(t, err)
	client, err := kube.ConnectConfig(cfg, "host", "test", 10, 10)
	must(t, err)
	v := view(t, client, "live")
	follows := func(after string) {
		t.Helper()
		patchNode(t, "live", `{"metadata":{"annotations":{"hook.lockkeeper.dev/after":"`+after+`"}}}`)
		until(t, "the write after "+after, func() bool {
			n := v.Get("live")
			return n != nil && n.Annotations["hook.lockkeeper.dev/after"] == after
		})
		if v.Err() != nil {
			t.Errorf("error after %s: %v", after, v.Err())
		}
	}
	until(t, "the list", v.Listed)
	follows("the start")
	t.Cleanup(func() { must(t, cp(t).StartAPIServer(context.Background())) })
	must(t, cp(t).StopAPIServer())
	until(t, "an error about the API server", func() bool { return v.Err() != nil })
	if v.Get("live") == nil || !v.Listed() {
		t.Error("the view forgot the Node")
	}
	must(t, cp(t).StartAPIServer(t.Context()))
	follows("the API server's restart")
	must(t, cp(t).RestartEtcd(t.Context()))
	follows("etcd's restart")
}
