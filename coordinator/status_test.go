package coordinator

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/policy"
)

// TestStatusPause checks that a changed reason is written at once and a changed count soon, but not every change of a
// mere text, for example the value that a closed gate's query returns.
func TestStatusPause(t *testing.T) {
	said := func(reason, message string, held int32) v1alpha1.DisruptionPolicyStatus {
		return v1alpha1.DisruptionPolicyStatus{
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionProgressing, Status: metav1.ConditionFalse, Reason: reason, Message: message}},
			Nodes:      v1alpha1.PolicyNodes{Wanting: held},
		}
	}
	was := said("GateClosed", "errors with 17", 2)
	for name, c := range map[string]struct {
		next v1alpha1.DisruptionPolicyStatus
		want time.Duration
	}{
		"another value": {said("GateClosed", "errors with 18", 2), 10 * time.Minute},
		"another count": {said("GateClosed", "errors with 18", 3), 10 * time.Second},
		"another word":  {said("Window", "closed", 3), time.Second},
		"the first":     {v1alpha1.DisruptionPolicyStatus{}, time.Second},
	} {
		if got := pauseBefore(c.next, was); got != c.want {
			t.Errorf("%s: %v, expected %v", name, got, c.want)
		}
	}
}

// policyAPI serves one policy, and counts the writes of its status.
type policyAPI struct{ writes int }

func (a *policyAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	policy := `{"kind":"DisruptionPolicy","apiVersion":"lockkeeper.dev/v1alpha1","metadata":{"name":"web","uid":"u","generation":2,"resourceVersion":"5"}}`
	if r.Method == http.MethodGet {
		policy = `{"kind":"DisruptionPolicyList","apiVersion":"lockkeeper.dev/v1alpha1","metadata":{"resourceVersion":"7"},"items":[` + policy + `]}`
	} else {
		a.writes++
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(policy)), Request: r}, nil
}

// TestStatusOfAnEarlierPolicy checks that figures of an earlier version of a policy are not written to its status.
func TestStatusOfAnEarlierPolicy(t *testing.T) {
	for generation, writes := range map[int64]bool{1: false, 2: true} {
		synctest.Test(t, func(t *testing.T) {
			api := &policyAPI{}
			client, err := kube.ConnectConfig(&rest.Config{Host: "http://api", Transport: api}, "coordinator", "test", 100, 100)
			if err != nil {
				t.Fatal(err)
			}
			policies := kube.WatchPolicies(client, policy.Compile, nil)
			if err := policies.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			s := newStatuses(policies, slog.New(slog.DiscardHandler))
			s.set([]rollout.PolicyFigures{{Name: "web", Generation: generation}})
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			s.run(ctx)
			if (api.writes > 0) != writes {
				t.Errorf("generation %d of 2: %d writes", generation, api.writes)
			}
		})
	}
}
