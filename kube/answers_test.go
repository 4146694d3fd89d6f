package kube

import (
	"bufio"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestAnAnswerThatContinues checks that data arriving in a running watch counts as an answer too: the only request of
// an idle host is a watch that lasts for most of an hour.
func TestAnAnswerThatContinues(t *testing.T) {
	more := make(chan bool)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.NewResponseController(w).Flush()
		for range more {
			w.Write([]byte("a bookmark\n"))
			http.NewResponseController(w).Flush()
		}
	}))
	defer server.Close()
	defer close(more)
	a := &answers{}
	last := func() time.Time { return time.Unix(0, a.last.Load()) }
	resp, err := (&http.Client{Transport: a.wrap(http.DefaultTransport)}).Get(server.URL)
	must(t, err)
	defer resp.Body.Close()
	if time.Since(last()) > time.Minute {
		t.Errorf("after the start of the answer: %v", last())
	}
	lines := bufio.NewReader(resp.Body)
	for range 2 {
		a.last.Store(1)
		more <- true
		if _, err := lines.ReadString('\n'); err != nil || time.Since(last()) > time.Minute {
			t.Errorf("after a line: %v, %v", last(), err)
		}
	}
}

// TestAnswersShowARefusal checks that a 401 counts as a refusal from the first one on, until the API server accepts or
// forbids a request. Other failures change nothing.
func TestAnswersShowARefusal(t *testing.T) {
	code := 0
	a := &answers{}
	changes := 0
	a.changed = func() { changes++ }
	rt := a.wrap(roundTripper(func(*http.Request) (*http.Response, error) {
		if code == 0 {
			return nil, errors.New("no answer")
		}
		return &http.Response{StatusCode: code, Header: http.Header{"Retry-After": {"1"}}}, nil
	}))
	for i, step := range []struct {
		code              int
		answered, refused bool
		changes           int
	}{
		{503, false, false, 0}, {401, false, true, 1}, {0, false, true, 1}, {429, false, true, 1}, {500, false, true, 1}, {401, false, true, 1},
		{403, true, false, 2}, {0, true, false, 2}, {401, true, true, 3}, {200, true, false, 4},
	} {
		code = step.code
		if resp, _ := rt.RoundTrip(&http.Request{}); resp != nil && resp.Header.Get("Retry-After") != "" {
			t.Errorf("%d: client-go may send the request again", step.code)
		}
		if resp, _ := rt.RoundTrip((&http.Request{}).WithContext(Once(t.Context()))); resp != nil && resp.Header.Get("Retry-After") != "1" {
			t.Errorf("%d: the Retry-After of a request that is sent once is lost", step.code)
		}
		if answered, refused := a.last.Load() != 0, !a.refused.IsZero(); answered != step.answered || refused != step.refused || changes != step.changes {
			t.Errorf("step %d, %d: answered %t, refused %t, %d changes; want %+v", i, step.code, answered, refused, changes, step)
		}
	}
}
