package kube

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestHostUpdatesInPages checks that all pages of HostUpdates are read.
func TestHostUpdatesInPages(t *testing.T) {
	page := func(next string, names ...int) text {
		var items []string
		for _, n := range names {
			items = append(items, fmt.Sprintf(`{"kind":"HostUpdate","apiVersion":"lockkeeper.dev/v1alpha1","metadata":{"name":"n%d"}}`, n))
		}
		return text(fmt.Sprintf(`{"kind":"HostUpdateList","apiVersion":"lockkeeper.dev/v1alpha1","metadata":{"continue":%q},"items":[%s]}`, next, strings.Join(items, ",")))
	}
	full := make([]int, updatesPage)
	s := newAPIServer(t, page("next", full...), page("", 1, 2))
	all, undecodable, err := ListHostUpdates(t.Context(), s.client())
	if len(all) != updatesPage+2 || len(undecodable) != 0 || err != nil {
		t.Errorf("%d HostUpdates, %d that cannot be decoded, %v", len(all), len(undecodable), err)
	}
}

// TestRefusedReadNamesTheReason checks that an error of reading HostUpdates has the API server's message: who lacks which permission.
func TestRefusedReadNamesTheReason(t *testing.T) {
	const message = `hostupdates.lockkeeper.dev is forbidden: User "viewer" cannot list resource "hostupdates"`
	c := newAPIServer(t, said{403, message}).client()
	if _, _, err := ListHostUpdates(t.Context(), c); err == nil || err.Error() != "listing hostupdates: "+message {
		t.Errorf("listing: %v", err)
	}
	if _, err := ReadHostUpdate(t.Context(), c, "n1"); err == nil || err.Error() != "reading hostupdate n1: "+message {
		t.Errorf("reading: %v", err)
	}
}

// TestHostEventIsWrittenOnce checks that an Event that exists already, because the answer to the first write was lost, is not
// an error.
func TestHostEventIsWrittenOnce(t *testing.T) {
	exists := text(`{"kind":"Event","apiVersion":"v1","metadata":{"name":"x"}}`)
	again := text(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"AlreadyExists","code":409}`)
	s := newAPIServer(t, exists, again, 403)
	doc, _ := v1alpha1.EventOf(v1alpha1.EventDrainDelayed)
	at, about := time.Unix(1700000000, 0), corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "u"}
	for i, fails := range []bool{false, false, true} {
		if err := WriteHostEvent(t.Context(), s.client(), "n1", about, "k", at, doc, "note"); (err != nil) != fails {
			t.Errorf("write %d: %v", i+1, err)
		}
	}
}

// TestPolicyStatusNamesThePolicy checks that the status of a policy is written only to that policy, and not to a later one of
// the same name, and that it contains every field.
func TestPolicyStatusNamesThePolicy(t *testing.T) {
	s := newAPIServer(t, text(`{"kind":"DisruptionPolicy","apiVersion":"lockkeeper.dev/v1alpha1","metadata":{"name":"web"}}`))
	p := &Policies[bool]{client: s.client()}
	obj := &v1alpha1.DisruptionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "u1"}}
	must(t, p.WriteStatus(t.Context(), obj, v1alpha1.DisruptionPolicyStatus{ObservedGeneration: 3}))
	var body struct {
		Metadata struct{ UID string }
		Status   map[string]any
	}
	must(t, json.Unmarshal([]byte(strings.TrimPrefix(s.seen()[0], "PATCH ")), &body))
	if body.Metadata.UID != "u1" || len(body.Status) != 4 || body.Status["observedGeneration"] != 3.0 {
		t.Errorf("sent %s", s.seen()[0])
	}
}

// TestWrittenStatusIsHeld checks that a status that was written is held before the watch shows it, so that it is not written again,
// and that a spec that someone has changed meanwhile is not missed.
func TestWrittenStatusIsHeld(t *testing.T) {
	answer := func(uid, version string, spec int, upToDate int) text {
		return text(fmt.Sprintf(`{"kind":"DisruptionPolicy","apiVersion":"lockkeeper.dev/v1alpha1","metadata":{"name":"web","uid":%q,"resourceVersion":%q},
			"spec":{"priority":%d},"status":{"nodes":{"upToDate":%d}}}`, uid, version, spec, upToDate))
	}
	list := func(item text) text {
		return text(`{"kind":"DisruptionPolicyList","apiVersion":"lockkeeper.dev/v1alpha1","metadata":{"resourceVersion":"10"},"items":[` + string(item) + `]}`)
	}
	s := newAPIServer(t, list(answer("u1", "10", 1, 0)), answer("u1", "11", 1, 3), answer("u1", "13", 2, 4), answer("u2", "14", 1, 5))
	changed := 0
	p := WatchPolicies(s.client(), paused, func() { changed++ })
	must(t, p.Load(t.Context()))
	changed = 0
	for _, want := range []struct {
		held    int32
		changed int
	}{{3, 0}, {4, 1}, {4, 1}} {
		must(t, p.WriteStatus(t.Context(), p.Get("web"), v1alpha1.DisruptionPolicyStatus{}))
		if got := p.Get("web").Status.Nodes.UpToDate; got != want.held || changed != want.changed {
			t.Errorf("held %d, expected %d; changed %d times, expected %d", got, want.held, changed, want.changed)
		}
	}
}

// TestStatusPatchHasAPrecondition checks that a patch of the Node's status conflicts with every other write.
func TestStatusPatchHasAPrecondition(t *testing.T) {
	p := Patch{Node: "n1", ResourceVersion: "7", Conditions: []corev1.NodeCondition{{Type: "Drained", Status: "True"}}, DropConditions: []corev1.NodeConditionType{"Old"}}
	const want = `{"metadata":{"resourceVersion":"7"},"status":{"conditions":[{"lastHeartbeatTime":null,"lastTransitionTime":null,"status":"True","type":"Drained"},` +
		`{"$patch":"delete","type":"Old"}]}}`
	var got, expected any
	must(t, json.Unmarshal(p.body(), &got))
	must(t, json.Unmarshal([]byte(want), &expected))
	if g, w := fmt.Sprint(got), fmt.Sprint(expected); g != w {
		t.Errorf("body\n%s, want\n%s", g, w)
	}
}

// TestGoneNamesTheObject checks that a 404 counts as the object's own only if it names the object: a proxy, or an API server
// that does not serve the kind, gives other ones.
func TestGoneNamesTheObject(t *testing.T) {
	nodes := corev1.Resource("nodes")
	proxy := apierrors.NewGenericServerResponse(404, "get", nodes, "n1", "404 page not found", 0, true)
	for name, c := range map[string]struct {
		err  error
		gone bool
	}{
		"this Node":     {apierrors.NewNotFound(nodes, "n1"), true},
		"another Node":  {apierrors.NewNotFound(nodes, "n2"), false},
		"without name":  {apierrors.NewNotFound(nodes, ""), false},
		"another kind":  {apierrors.NewNotFound(corev1.Resource("pods"), "n1"), false},
		"another group": {apierrors.NewNotFound(coordinationv1.Resource("nodes"), "n1"), false},
		"a proxy":       {proxy, false},
	} {
		if gone := IsGone(c.err, nodes, "n1"); gone != c.gone {
			t.Errorf("%s: %t (%v)", name, gone, c.err)
		}
	}
}

// TestProxyServesNoPolicies checks that the 404 of a proxy does not mean that there are no policies: discovery has to confirm
// that the API server does not serve the kind.
func TestProxyServesNoPolicies(t *testing.T) {
	p := WatchPolicies(newAPIServer(t, html(404)).client(), paused, nil)
	if err := p.Load(t.Context()); err == nil || p.Listed() {
		t.Errorf("listed %t, %v", p.Listed(), err)
	}
}
