package virtual

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/apiserver"
	"lockkeeper.dev/lockkeeper/testbed/referee"
)

// answering answers each request with a status.
type answering int

func (a answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: int(a), Body: io.NopCloser(strings.NewReader("{}"))}, nil
}

// TestForceRule: a host deletes a pod only if a policy that applies to the host has said Force.
func TestForceRule(t *testing.T) {
	for name, c := range map[string]struct {
		policy    string
		onTimeout v1alpha1.OnTimeout
		want      []string // the hosts that may delete
	}{
		"no policy says Force":         {v1alpha1.DefaultPolicyName, v1alpha1.OnTimeoutAbort, nil},
		"the policy of all hosts does": {v1alpha1.DefaultPolicyName, v1alpha1.OnTimeoutForce, []string{canaryHost, "n2"}},
		"the canary policy does":       {canaryPolicy, v1alpha1.OnTimeoutForce, []string{canaryHost}},
		"the canary policy does not":   {canaryPolicy, v1alpha1.OnTimeoutAbort, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := &Fleet{trace: newTrace(), opts: Options{Hosts: 2}, Judge: referee.NewJudge(referee.Options{Budget: 1})}
			p := &v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
			p.Spec.Drain.OnTimeout = c.onTimeout
			f.wrote(apiserver.Write{Resource: "disruptionpolicies", Name: c.policy, Object: p})
			var got []string
			for _, host := range []string{canaryHost, "n2"} {
				before := len(f.problems)
				r := newRequest(t.Context(), t, http.MethodDelete, "/api/v1/namespaces/default/pods/p", "")
				if _, err := (conditional{f: f, host: host, next: answering(http.StatusOK)}).RoundTrip(r); err != nil {
					t.Fatal(err)
				}
				if len(f.problems) == before {
					got = append(got, host)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v may delete, expected %v", got, c.want)
			}
		})
	}
}

// TestInformed: a commit needs a read of the host's Node, and of the Lease after that, of its own.
func TestInformed(t *testing.T) {
	const commit = `{"metadata":{"annotations":{"lockkeeper.dev/ack":"t1/b1/draining/committed"}}}`
	for steps, want := range map[string]bool{
		"node lease commit":              true,
		"lease node lease commit":        true,
		"node lease wait commit":         true,
		"node lease patch commit":        true,
		"node lease commit node":         true,
		"commit":                         false,
		"node commit":                    false,
		"lease node commit":              false,
		"node lease wait wait commit":    false,
		"node lease commit commit":       false,
		"node lost lease commit":         true,
		"node lost commit":               false,
		"node lease commit lease commit": false,
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &Fleet{trace: newTrace()}
			i := &informed{f: f, host: "n1"}
			for step := range strings.FieldsSeq(steps) {
				i.next = answering(http.StatusOK)
				method, path, body := http.MethodGet, nodePath("n1"), ""
				switch step {
				case "wait":
					time.Sleep(readWithin / 2)
					continue
				case "commit":
					method, body = http.MethodPatch, commit
				case "patch":
					method, body = http.MethodPatch, patchOfState
				case "lost":
					path, i.next = leasePath, answering(http.StatusBadGateway)
				case "lease":
					path = leasePath
				}
				if _, err := i.RoundTrip(newRequest(t.Context(), t, method, path, body)); err != nil {
					t.Fatal(err)
				}
			}
			if got := len(f.problems) == 0; got != want {
				t.Errorf("%s: allowed %t, expected %t", steps, got, want)
			}
		})
	}
}
