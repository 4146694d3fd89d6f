package zincati

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// host is a host and its server. Each list has the outcomes of a call in order; the last one, or the zero value, repeats.
type host struct {
	steady, pre      []int // the status codes; 0 is no answer
	staged, sessions []bool
	finalize, reboot []error
	jitter           int

	start time.Time
	trace []string // what the agent did, and when
}

func next[T any](list *[]T) (outcome T) {
	if len(*list) > 0 {
		outcome = (*list)[0]
	}
	if len(*list) > 1 {
		*list = (*list)[1:]
	}
	return outcome
}

func (h *host) record(what string, outcome any) {
	h.trace = append(h.trace, fmt.Sprintf("%v %s %v", time.Since(h.start), what, outcome))
}

func (h *host) RoundTrip(r *http.Request) (*http.Response, error) {
	name := strings.TrimPrefix(r.URL.Path, "/v1/")
	codes := map[string]*[]int{"steady-state": &h.steady, "pre-reboot": &h.pre}[name]
	code := next(codes)
	h.record(name, code)
	if code == 0 {
		return nil, errors.New("connection refused")
	}
	body := io.NopCloser(strings.NewReader(`{"kind": "lock_held", "value": "busy"}`))
	return &http.Response{StatusCode: code, Body: body, Request: r}, nil
}

func (h *host) agent() *Agent {
	return &Agent{
		Client: &Client{BaseURL: "http://server/", Identity: identity, HTTP: &http.Client{Transport: h}},
		Staged: func() bool {
			staged := len(h.staged) == 0 || next(&h.staged)
			h.record("staged", staged)
			return staged
		},
		Sessions: func() bool { return next(&h.sessions) },
		Finalize: func(context.Context) error {
			err := next(&h.finalize)
			h.record("finalize", err)
			return err
		},
		Reboot: func(context.Context) error {
			err := next(&h.reboot)
			h.record("reboot", err)
			return err
		},
		Jitter: func() int { return h.jitter },
	}
}

// run runs the agent and compares what it did with the lines of want. It must be called in a bubble.
func (h *host) run(t *testing.T, ctx context.Context, a *Agent, wantErr error, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 24*time.Hour)
	defer cancel()
	h.start, h.trace = time.Now(), nil
	if err := a.Run(ctx); !errors.Is(err, wantErr) {
		t.Errorf("Run = %v, want %v", err, wantErr)
	}
	compare(t, h.trace, want)
}

func compare(t *testing.T, got []string, want string) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(want) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	if !slices.Equal(got, lines) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(lines, "\n\t"))
	}
}
