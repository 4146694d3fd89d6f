package coordinator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/gate"

	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/policy"
)

// TestUnreadPolicies checks that a leader that can no longer read the policies uses the old ones for grants for a
// minute, and grants nothing after that until it has read them again.
func TestUnreadPolicies(t *testing.T) {
	kind := schema.GroupResource{Group: "lockkeeper.dev", Resource: "disruptionpolicies"}
	forbidden := apierrors.NewForbidden(kind, "", errors.New("no"))
	gone := fmt.Errorf("listing: %w", kube.ErrNotServed)
	for _, c := range []struct {
		age time.Duration
		err error
		why string // a part of the reason; "" means that the leader grants
		due time.Duration
	}{
		{0, nil, "", leadRound},
		{0, forbidden, "", leadRound}, // a list that only checks the revision of the store was refused; the watch is up
		{time.Second, nil, "", leadRound},
		{time.Second, forbidden, "", leadRound},
		{59 * time.Second, forbidden, "", time.Second},
		{time.Minute - 1, forbidden, "", 1},
		{time.Minute, forbidden, "forbidden", kube.CatchUp},
		{time.Hour, forbidden, "forbidden", kube.CatchUp},
		{time.Hour, nil, "has not answered", kube.CatchUp},
		{time.Hour, gone, "", leadRound},
	} {
		why, due := unread(c.age, c.err)
		if (why == "") != (c.why == "") || !strings.Contains(why, c.why) || due != c.due {
			t.Errorf("%v, %v: %q, next check in %v; expected %q, %v", c.age, c.err, why, due, c.why, c.due)
		}
	}
}

// apiServer answers lists with an empty list, or with refused if that is not nil.
type apiServer struct{ refused *apierrors.StatusError }

func (a *apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	code, answer := http.StatusOK, any(metav1.PartialObjectMetadataList{
		TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}})
	if strings.HasSuffix(r.URL.Path, "/leases") {
		answer = coordinationv1.LeaseList{TypeMeta: metav1.TypeMeta{Kind: "LeaseList", APIVersion: "coordination.k8s.io/v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	}
	if strings.Contains(r.URL.Path, "disruptionpolicies") {
		answer = v1alpha1.DisruptionPolicyList{TypeMeta: metav1.TypeMeta{Kind: "DisruptionPolicyList", APIVersion: v1alpha1.GroupVersion.String()},
			ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	}
	if a.refused != nil {
		status := a.refused.Status()
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		code, answer = int(status.Code), status
	}
	body, err := json.Marshal(answer)
	return &http.Response{StatusCode: code, Body: io.NopCloser(bytes.NewReader(body)), Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}}, err
}

// TestSnapshotOfUnreadPolicies checks that the leader's snapshot contains the reason if the policies are too old.
func TestSnapshotOfUnreadPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &apiServer{}
		client, err := kube.ConnectConfig(&rest.Config{Host: "http://api", Transport: api}, "coordinator", "test", 100, 100)
		if err != nil {
			t.Fatal(err)
		}
		nodes, err := kube.ConnectConfig(&rest.Config{Host: "http://api", Transport: &apiServer{}}, "coordinator", "test", 100, 100)
		if err != nil {
			t.Fatal(err)
		}
		l := &leader{
			candidate: &candidate{lease: newLeaseWatch(client, "n", "l", nil)}, lock: &termLock{}, epoch: "me_1", gates: gate.New(gate.Options{}),
			view: kube.WatchNodes(nodes, nil, nil), policies: kube.WatchPolicies(client, policy.Compile, nil),
		}
		l.candidate.lease.read(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "l", UID: "1", ResourceVersion: "5"},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: new("me_1")}})
		if err := errors.Join(l.view.Load(t.Context()), l.policies.Load(t.Context())); err != nil {
			t.Fatal(err)
		}
		api.refused = apierrors.NewForbidden(schema.GroupResource{Resource: "disruptionpolicies"}, "", errors.New("no"))
		for _, c := range []struct {
			after time.Duration
			why   string
		}{{59 * time.Second, ""}, {time.Second, "forbidden"}} {
			time.Sleep(c.after)
			if err := l.policies.Load(t.Context()); !apierrors.IsForbidden(err) {
				t.Fatal(err)
			}
			if err := l.view.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			s, due, ok := l.snapshot()
			if !ok || (s.Unread == "") != (c.why == "") || !strings.Contains(s.Unread, c.why) || due > leadRound {
				t.Errorf("after %v: %t, %q, due in %v", c.after, ok, s.Unread, due)
			}
		}
		api.refused = nil
		if err := l.policies.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s, _, _ := l.snapshot(); s.Unread != "" {
			t.Errorf("read again: %q", s.Unread)
		}
	})
}

// TestUnreadPoliciesAreTold checks that the leader logs the problem once, and its end.
func TestUnreadPoliciesAreTold(t *testing.T) {
	var said []Status
	l := &leader{candidate: &candidate{Options: Options{Report: func(s Status) { said = append(said, s) }, Log: slog.New(slog.DiscardHandler)}}, epoch: "me_1"}
	l.say(Status{Candidate: true, Leader: true, Epoch: "me_1"})
	for _, why := range []string{"", "forbidden", "forbidden", "", ""} {
		l.reportSight(why)
	}
	if len(said) != 3 || !said[1].Leader || !said[1].Blocked || !strings.Contains(said[1].Why, "forbidden") || said[2].Blocked || said[2].Why != "" || !said[2].Leader {
		t.Errorf("said %+v", said)
	}
}

// TestNodesThatCannotBeRead checks that a leader that can no longer read the Nodes stops deciding by what it read last, says
// so, and gives up its term.
func TestNodesThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &apiServer{}
		client, err := kube.ConnectConfig(&rest.Config{Host: "http://api", Transport: api}, "coordinator", "test", 100, 100)
		if err != nil {
			t.Fatal(err)
		}
		l := newLister(t)
		l.view = kube.WatchNodes(client, nil, nil)
		var said []Status
		var ended error
		l.Report, l.over = func(s Status) { said = append(said, s) }, func(why error) { ended = why }
		l.seeLease(5, "me_1", nil)
		if err := l.view.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, _, ok := l.snapshot(); !ok {
			t.Fatal("no snapshot at first")
		}
		api.refused = apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("no"))
		for range 60 {
			time.Sleep(5 * time.Second)
			l.lock.renewed = time.Now()
			if err := l.policies.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := l.view.Load(t.Context()); !apierrors.IsForbidden(err) {
				t.Fatal(err)
			}
			l.round(t.Context())
		}
		if _, _, ok := l.snapshot(); ok {
			t.Error("after 5 minutes it still decides by the old Nodes")
		}
		if !slices.ContainsFunc(said, func(s Status) bool {
			return s.Leader && s.Blocked && strings.Contains(s.Why, "the Nodes") && strings.Contains(s.Why, "forbidden")
		}) {
			t.Errorf("said %+v", said)
		}
		if ended == nil {
			t.Error("it keeps its term")
		}
	})
}
