package metrics

import (
	"net/http"
	"strings"
	"sync"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Contact counts the answers to one identity of this process. Its methods may be
// called from any goroutine.
type Contact struct {
	identity string

	mu        sync.Mutex
	answers   map[string]int
	evictions map[string]int
}

func newContact(identity string) *Contact {
	c := &Contact{identity: identity, answers: map[string]int{}, evictions: map[string]int{}}
	for _, a := range answers {
		c.answers[a], c.evictions[a] = 0, 0 // a counter is there from the start
	}
	return c
}

var answers = []string{v1alpha1.AnswerAccepted, v1alpha1.AnswerBusy, v1alpha1.AnswerRefused, v1alpha1.AnswerError}

// Wrap counts the requests that go through it.
func (c *Contact) Wrap(next http.RoundTripper) http.RoundTripper { return counted{next, c} }

type counted struct {
	next http.RoundTripper
	c    *Contact
}

// RoundTrip passes the request on.
func (t counted) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	code := 0
	if err == nil {
		code = resp.StatusCode
	}
	t.c.note(code, r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/eviction"))
	return resp, err
}

// note counts an answer; code 0 means that there was none.
func (c *Contact) note(code int, eviction bool) {
	answer := v1alpha1.AnswerError
	switch {
	case code == 0 || code >= 500:
	case code == http.StatusTooManyRequests:
		answer = v1alpha1.AnswerBusy
	case code >= 400:
		answer = v1alpha1.AnswerRefused
	default:
		answer = v1alpha1.AnswerAccepted
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[answer]++
	if eviction {
		c.evictions[answer]++
	}
}
