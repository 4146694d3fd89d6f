package kube

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

// TestCallerWaits: an API server that is overloaded may answer after more than [Timeout], and a user who waits for it, with
// --request-timeout, is waiting to stop the cluster or to pause a node. A host's client does not wait.
func TestCallerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answersAfter := func(delay time.Duration) *rest.Config {
			return &rest.Config{Host: "https://api.example.com", Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
				select {
				case <-r.Context().Done():
					return nil, context.Cause(r.Context())
				case <-time.After(delay):
				}
				const node = `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","uid":"u1","resourceVersion":"7"}}`
				return &http.Response{
					StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(node)), Request: r,
				}, nil
			})}
		}
		patient := Caller{RequestTimeout: time.Minute}
		c, err := patient.client(answersAfter(3 * Timeout))
		if err != nil {
			t.Fatal(err)
		}
		if n, err := Find(t.Context(), c, "n1"); n == nil || err != nil {
			t.Errorf("reading: %v", err)
		}
		if _, o, err := Write(t.Context(), c, Patch{Node: "n1", ResourceVersion: "6"}); o != Written || err != nil {
			t.Errorf("writing: %v, %v", o, err)
		}
		if c, err = patient.client(answersAfter(2 * time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := Find(t.Context(), c, "n1"); err == nil || !strings.Contains(err.Error(), "no complete answer within 1m0s (--request-timeout)") {
			t.Errorf("after its own limit: %v", err)
		}
		host, err := ConnectConfig(answersAfter(3*Timeout), "host", "test", 20, 40)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if _, err := Find(t.Context(), host, "n1"); err == nil || time.Since(begin) != Timeout {
			t.Errorf("a host waits %v: %v", time.Since(begin), err)
		}
	})
}
