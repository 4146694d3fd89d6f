package virtual

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// answering answers each request with a status.
type answering int

func (a answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: int(a), Body: io.NopCloser(strings.NewReader("{}"))}, nil
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
