package metrics

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Contact is how one identity of this process fares at the API server, seen
// from its requests. Its methods may be called from any goroutine.
type Contact struct {
	identity string

	mu        sync.Mutex
	last      time.Time // of the last answer that shows that all is well
	refused   time.Time // since when the answer is 401, zero while it is not
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

// Last is when the API server last answered with anything but 401, 429 or 5xx,
// the zero time for never.
func (c *Contact) Last() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// Refused is since when the API server refuses the credential, the zero time
// while it does not.
func (c *Contact) Refused() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused
}

// Forget says that there is no credential any more that could be refused.
func (c *Contact) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused = time.Time{}
}

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

// note takes in an answer; code 0 is none.
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
	switch {
	case code == http.StatusUnauthorized:
		if c.refused.IsZero() {
			c.refused = time.Now()
		}
	case answer == v1alpha1.AnswerAccepted || answer == v1alpha1.AnswerRefused:
		c.last, c.refused = time.Now(), time.Time{}
	}
}
