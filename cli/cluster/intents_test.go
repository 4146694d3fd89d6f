package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

func TestClearable(t *testing.T) {
	ended := func(result v1alpha1.Result) func(*corev1.Node) {
		return last(v1alpha1.Last{Turn: "t0", Result: result, Reason: v1alpha1.ReasonNotUpdated, End: at("12:00:00")})
	}
	newBoot := func(n *corev1.Node) { n.Status.NodeInfo.BootID = "new" }
	held := label(v1alpha1.LabelHeld, "Overdue")
	paused := func(since string) func(*corev1.Node) { // begun at 10:00:00
		return all(inTurn(v1alpha1.StateRebooting, "10:00:00", "committed"), label(v1alpha1.LabelHeld, "Paused"), func(n *corev1.Node) {
			g := grant(n, "10:00:00")
			g.PausedSince = new(at(since))
			n.Annotations[v1alpha1.AnnotationGrant] = v1alpha1.FormatRecord(g)
		})
	}
	for _, tc := range []struct {
		name      string
		node      func(*corev1.Node)
		id        string
		text, err string // the beginning
	}{
		{"no turn yet", func(*corev1.Node) {}, "", "", "nothing to retry: n1 has had no turn"},
		{"done", ended(v1alpha1.ResultDone), "", "", "nothing to retry: the last turn of n1 ended as Done"},
		{"cancelled", ended(v1alpha1.ResultCancelled), "", "", "nothing to retry: the last turn of n1 ended as Cancelled"},
		{"done, too many turns", all(ended(v1alpha1.ResultDone), label(v1alpha1.LabelHeld, "TurnLimit")), "t0", "the node may get another turn, although", ""},
		{"failed", ended(v1alpha1.ResultFailed), "t0", "turn t0, which ended as Failed (NotUpdated), is cleared", ""},
		{"backed out", ended(v1alpha1.ResultBackedOut), "t0", "turn t0, which ended as BackedOut (NotUpdated), is cleared", ""},
		{"draining", inTurn(v1alpha1.StateDraining, "13:00:00", "committed"), "", "", "nothing to retry: n1 is in draining"},
		{"its hook units failed", all(inTurn(v1alpha1.StateBeforeUncordon, "13:00:00", "failed:HookFailed"), held), "t-n1", "turn t-n1: the host now runs its hook units of before-uncordon again", ""},
		{"its hook units do not answer", all(inTurn(v1alpha1.StateBeforeUncordon, "10:00:00", "seen"), held), "", "", "nothing to retry: n1 is in before-uncordon"},
		{"draining, overdue", all(inTurn(v1alpha1.StateDraining, "10:00:00", "committed"), held), "", "", "nothing to retry: n1 is in draining"},
		{"draining, and the turn before failed", all(ended(v1alpha1.ResultFailed), inTurn(v1alpha1.StateDraining, "13:00:00", "committed")), "", "", "nothing to retry: n1 is in draining"},
		{"rebooting in time", inTurn(v1alpha1.StateRebooting, "13:00:00", "committed"), "", "", "nothing to retry: the turn of n1 is in rebooting and has not failed"},
		{"rebooting, failed", inTurn(v1alpha1.StateRebooting, "13:00:00", "failed:Unhealthy"), "t-n1", "turn t-n1 is cleared: the coordinator ends it", ""},
		{"rebooting, overdue, back", all(inTurn(v1alpha1.StateRebooting, "10:00:00", "committed"), held, newBoot), "t-n1", "turn t-n1 is cleared: the coordinator ends it", ""},
		{"rebooting, overdue, still away", all(inTurn(v1alpha1.StateRebooting, "10:00:00", "committed"), held), "t-n1", "turn t-n1 is cleared and no longer counts as failed. It ends when", ""},
		{"rebooting, paused in time", paused("10:29:00"), "", "", "nothing to retry: the turn of n1 is in rebooting and has not failed"},
		{"rebooting, paused when it was overdue, still away", paused("10:30:00"), "t-n1", "turn t-n1 is cleared and no longer counts as failed. It ends when the host reports from a new boot; the reboot may still happen; the turn is paused", ""},
		{"rebooting, paused when it was overdue, back", all(paused("10:31:00"), newBoot), "t-n1", "turn t-n1 is cleared: the coordinator ends it and returns the node to the cluster; the turn is paused", ""},
		{"rebooting, paused when it was overdue, and done", all(paused("10:31:00"), newBoot, annotation(v1alpha1.AnnotationAck, "t-n1/new/rebooting/done")), "", "",
			"nothing to retry: the turn of n1 is in rebooting and has not failed"},
		{"applying, failed", inTurn(v1alpha1.StateApplying, "13:00:00", "failed:ApplyFailed"), "t-n1", "turn t-n1 is cleared: the coordinator ends it", ""},
		{"uncordoning", inTurn(v1alpha1.StateUncordoning, "13:00:00", "seen"), "", "", "nothing to retry: n1 is in uncordoning"},
		{"a broken grant", all(inTurn(v1alpha1.StateRebooting, "13:00:00", "failed:Unhealthy"), annotation(v1alpha1.AnnotationGrant, "{")), "", "", "nothing to retry: n1 is in rebooting with an unreadable grant"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := turn.FromNode(newNode("n1", tc.node))
			id, text, err := clearable(&n)
			if id != tc.id || !strings.HasPrefix(text, tc.text) {
				t.Errorf("%q, %q", id, text)
			}
			if (tc.err == "") != (err == nil) || err != nil && !strings.HasPrefix(err.Error(), tc.err) {
				t.Errorf("error %v, expected %s", err, tc.err)
			}
		})
	}
}

// faulty is a Source whose API server answers writes with these errors first. A
// conflict is one because the Node has changed: its version is a letter longer.
func faulty(t *testing.T, errs []error, objects ...runtime.Object) (*Source, *fake.Clientset, *int) {
	t.Helper()
	client := fake.NewClientset(objects...)
	writes := 0
	client.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		writes++
		if writes <= len(errs) && errs[writes-1] != nil {
			if apierrors.IsConflict(errs[writes-1]) {
				obj, err := client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("nodes"), "", "n1")
				if err != nil {
					t.Error(err)
					return true, nil, err
				}
				n := obj.(*corev1.Node).DeepCopy()
				n.ResourceVersion += "x"
				if err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), n, ""); err != nil {
					t.Error(err)
				}
			}
			return true, nil, errs[writes-1]
		}
		return false, nil, nil
	})
	client.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{
			UserInfo: authenticationv1.UserInfo{Username: "ann"},
		}}, nil
	})
	policies := func(func()) PolicyView { return policyView{Policies: policy.Set{policy.Default()}} }
	return &Source{Client: client, Namespace: "lockkeeper", LeaseName: "lockkeeper", WatchPolicies: policies}, client, &writes
}

func TestAway(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("connection refused"), true},
		{context.DeadlineExceeded, true},
		{context.Canceled, false},
		{apierrors.NewForbidden(nodes, "", errors.New("no")), false},
		{apierrors.NewUnauthorized("who"), false},
		{apierrors.NewServiceUnavailable("starting"), true},
		{apierrors.NewInternalError(errors.New("etcd")), true},
	} {
		if got := Away(tc.err); got != tc.want {
			t.Errorf("%v: %v", tc.err, got)
		}
	}
}

// A Lease that may not be read is part of the report, a Lease that is not there
// is a stop, and an answer that did not come is an error.
func TestReadLease(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		want report.Status
		fail bool
	}{
		{"there is none", apierrors.NewNotFound(coordinationv1.Resource("leases"), "lockkeeper"), report.Stopped, false},
		{"a proxy's 404", apierrors.NewGenericServerResponse(404, "GET", schema.GroupResource{}, "", "<html>", 0, true), "", true},
		{"forbidden", apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "lockkeeper", errors.New("no")), report.UpToDate, false},
		{"no answer", context.DeadlineExceeded, "", true},
	} {
		s, client, _ := faulty(t, nil, newNode("n1"))
		client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tc.err })
		r, err := s.Read(t.Context())
		if (err != nil) != tc.fail || r.Status != tc.want {
			t.Errorf("%s: %s, %v", tc.name, r.Status, err)
		}
	}
}
