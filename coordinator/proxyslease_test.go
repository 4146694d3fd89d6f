package coordinator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
)

// TestAnswerThatIsNoLease checks that an instance does not take any JSON object of a proxy for the Lease, above all not for one that it holds.
func TestAnswerThatIsNoLease(t *testing.T) {
	lease := func(name, holder string) *coordinationv1.Lease {
		return &coordinationv1.Lease{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "lockkeeper", Name: name, ResourceVersion: "7"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}}
	}
	for name, c := range map[string]struct {
		answer        any
		reads, writes bool // counts as the answer to a Get, and to an Update
	}{
		"the Lease":               {lease("lockkeeper", "me_1"), true, true},
		"with another holder":     {lease("lockkeeper", "other_1"), true, false},
		"another Lease":           {lease("other", "me_1"), false, false},
		"any object":              {map[string]string{"status": "ok"}, false, false},
		"another kind, by a name": {map[string]any{"metadata": map[string]string{"name": "lockkeeper"}}, true, false},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(c.answer); err != nil {
				t.Error(err)
			}
		}))
		t.Cleanup(server.Close)
		client, err := kube.ConnectConfig(&rest.Config{Host: server.URL}, "coordinator", "v1", 100, 100)
		if err != nil {
			t.Fatal(err)
		}
		shown := 0
		leases := reportingLeases{client.CoordinationV1(), func(*coordinationv1.Lease) { shown++ }}.Leases("lockkeeper")
		_, readErr := leases.Get(t.Context(), "lockkeeper", metav1.GetOptions{})
		_, writeErr := leases.Update(t.Context(), lease("lockkeeper", "me_1"), metav1.UpdateOptions{})
		want := 0
		for _, o := range []struct {
			what   string
			err    error
			counts bool
		}{{"read", readErr, c.reads}, {"written", writeErr, c.writes}} {
			if o.counts {
				want++
			}
			if (o.err == nil) != o.counts || o.err != nil && !errors.Is(o.err, kube.ErrNotLease) {
				t.Errorf("%s, %s: %v", name, o.what, o.err)
			}
		}
		if shown != want {
			t.Errorf("%s: %d Leases were shown, expected %d", name, shown, want)
		}
	}
}

// silent never answers.
type silent struct {
	coordinationclient.LeasesGetter
	coordinationclient.LeaseInterface
}

func (s silent) Leases(string) coordinationclient.LeaseInterface { return s }

func (silent) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (silent) Update(ctx context.Context, _ *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestRequestsForTheLeaseAreBounded checks that a proxy that never answers does not keep a candidate from its next try.
func TestRequestsForTheLeaseAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leases := reportingLeases{LeasesGetter: silent{}}.Leases("n")
		began := time.Now()
		if _, err := leases.Get(t.Context(), "l", metav1.GetOptions{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if _, err := leases.Update(t.Context(), &coordinationv1.Lease{}, metav1.UpdateOptions{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if took := time.Since(began); took != 2*kube.Timeout {
			t.Errorf("took %v", took)
		}
	})
}

// silentAPI answers only a GET of the Lease, and only if it has one.
type silentAPI struct{ lease *coordinationv1.Lease }

func (a silentAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.lease == nil || r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/leases/l") {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	body, err := json.Marshal(a.lease)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: r}, err
}

// TestRequestsBeforeATermAreBounded checks that a proxy that never answers does not keep a candidate from its next campaign: not at
// the read of the Lease, nor when it frees the Lease of the process before it.
func TestRequestsBeforeATermAreBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	const text = `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],` +
		`"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],"users":[{"name":"u","user":{"token":"secret"}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	dead := &coordinationv1.Lease{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "l", ResourceVersion: "7"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: new("n1_dead")}}
	for what, c := range map[string]struct {
		api  silentAPI
		says string
	}{
		"reading the Lease": {silentAPI{}, "reading lease n/l: "},
		"freeing the Lease": {silentAPI{dead}, "this host's Node is not known yet"}, // it goes on
	} {
		synctest.Test(t, func(t *testing.T) {
			credential := kube.New(kube.Options{Identity: v1alpha1.IdentityCoordinator, Paths: []string{file}, Renewed: file + ".renewed", QPS: 100, Burst: 100,
				Wrap: func(http.RoundTripper) http.RoundTripper { return c.api }})
			host := &candidate{Options: Options{Log: slog.New(slog.DiscardHandler), Credential: credential, LeaseNamespace: "n", LeaseName: "l", LastEpoch: "n1_dead",
				RetryPeriod: 5 * time.Second, NodeName: func() string { return "" }}}
			defer host.disconnect()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			began := time.Now()
			_, err := host.campaign(ctx)
			if took := time.Since(began); took != kube.Timeout || err == nil || !strings.HasPrefix(err.Error(), c.says) {
				t.Errorf("%s: %v after %v, expected %q after %v", what, err, took, c.says, kube.Timeout)
			}
		})
	}
}

// page answers every request with a JSON object that is no object of the API server.
type page struct{}

func (page) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(`{"status":"ok"}`)), Request: r}, nil
}

// TestPageBeforeATerm checks that a candidate does not take a proxy's page for a Lease that the process before it no longer
// holds: it would not free that Lease any more.
func TestPageBeforeATerm(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	const text = `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],` +
		`"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],"users":[{"name":"u","user":{"token":"secret"}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		credential := kube.New(kube.Options{Identity: v1alpha1.IdentityCoordinator, Paths: []string{file}, Renewed: file + ".renewed", QPS: 100, Burst: 100,
			Wrap: func(http.RoundTripper) http.RoundTripper { return page{} }})
		host := &candidate{Options: Options{Log: slog.New(slog.DiscardHandler), Credential: credential, LeaseNamespace: "n", LeaseName: "l", LastEpoch: "n1_dead",
			RetryPeriod: 5 * time.Second, NodeName: func() string { return "" }}}
		defer host.disconnect()
		if _, err := host.campaign(t.Context()); !errors.Is(err, kube.ErrNotLease) || host.LastEpoch != "n1_dead" {
			t.Errorf("%v; the last epoch is %q", err, host.LastEpoch)
		}
	})
}
