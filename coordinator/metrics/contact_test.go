package metrics

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// An idle host's only request is a watch that lasts for most of an hour: what comes in it is contact as well.
func TestAnAnswerThatGoesOnIsContact(t *testing.T) {
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
	old := time.Unix(1700000000, 0)
	c := newContact("host")
	if !c.Last().IsZero() {
		t.Error("there was contact before there was any")
	}
	resp, err := (&http.Client{Transport: c.Wrap(http.DefaultTransport)}).Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if time.Since(c.Last()) > time.Minute {
		t.Errorf("after its beginning: %v", c.Last())
	}
	lines := bufio.NewReader(resp.Body)
	for range 2 {
		c.last.Store(old.UnixNano())
		more <- true
		if _, err := lines.ReadString('\n'); err != nil || time.Since(c.Last()) > time.Minute {
			t.Errorf("after a line: %v, %v", c.Last(), err)
		}
	}
}

// What is not contact at its beginning is none later.
func TestARefusalThatGoesOnIsNoContact(t *testing.T) {
	for _, code := range []int{http.StatusUnauthorized, http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", code) }))
		c := newContact("host")
		resp, err := (&http.Client{Transport: c.Wrap(http.DefaultTransport)}).Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || text != "no\n" || !c.Last().IsZero() {
			t.Errorf("%d: %q, %v: last %v", code, text, err, c.Last())
		}
		resp.Body.Close()
		server.Close()
	}
}
