package metrics

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Contact is how one identity of this process fares at the API server, seen
// from its requests. Its methods may be called from any goroutine.
type Contact struct {
	identity string
	last     atomic.Int64 // when an answer, or a part of one, last showed that all is well, in nanoseconds since 1970; 0 is never

	mu        sync.Mutex
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
// or sent more of such an answer: a watch is one answer, which goes on for most
// of an hour, with something in it every minute. The zero time is never.
func (c *Contact) Last() time.Time {
	if last := c.last.Load(); last != 0 {
		return time.Unix(0, last)
	}
	return time.Time{}
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
	well := t.c.note(code, r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/eviction"))
	if well && resp.Body != nil {
		resp.Body = read{resp.Body, t.c}
	}
	return resp, err
}

// read is the body of an answer that shows that all is well.
type read struct {
	io.ReadCloser
	c *Contact
}

// Read takes note of whatever comes.
func (b read) Read(p []byte) (n int, err error) {
	if n, err = b.ReadCloser.Read(p); n > 0 {
		b.c.last.Store(time.Now().UnixNano())
	}
	return n, err
}

// note takes in an answer; code 0 is none. well: it shows that the API server
// is there and lets this identity in.
func (c *Contact) note(code int, eviction bool) (well bool) {
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
		c.last.Store(time.Now().UnixNano())
		c.refused = time.Time{}
		return true
	}
	return false
}
