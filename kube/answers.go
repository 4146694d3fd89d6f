package kube

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// prompt is how soon an answer has to arrive for its Date header to say something
// about the clocks: the server may have written it at any moment between request and
// answer, and this process may have been stopped in between.
const prompt = 5 * time.Second

// answers records what the API server's answers to one identity show.
type answers struct {
	skew  atomic.Int64 // nanoseconds by which the API server's clock is ahead
	dated atomic.Bool
	last  atomic.Int64 // see State.Answered, in nanoseconds since 1970; 0 is never

	mu      sync.Mutex
	refused time.Time // see State.Refused
	changed func()    // is called after refused has changed; nil is fine
}

// wrap records the answers to each request. It also keeps client-go from sending a
// request again. client-go repeats any request, a PATCH too, up to ten times when a
// 429 or 5xx carries a Retry-After header. The last answer then hides the first: a
// write that may have landed although the answer was a 503 looks refused, or like a
// conflict. If the API server knows how long to wait, its Status says so as well.
func (a *answers) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		sent := time.Now()
		resp, err := next.RoundTrip(r)
		if err != nil {
			return resp, err
		}
		resp.Header.Del("Retry-After")
		a.date(resp, sent)
		switch code := resp.StatusCode; {
		case code == http.StatusUnauthorized:
			a.refuse(true)
		case code < 500 && code != http.StatusTooManyRequests:
			a.refuse(false)
			a.last.Store(time.Now().UnixNano())
			if resp.Body != nil {
				resp.Body = body{resp.Body, a}
			}
		}
		return resp, nil
	})
}

// date compares the clocks.
func (a *answers) date(resp *http.Response, sent time.Time) {
	took := time.Since(sent)
	if t, err := http.ParseTime(resp.Header.Get("Date")); err == nil && took <= prompt {
		// The header was written between sent and now, and cut to a second.
		mid := sent.Add(took / 2)
		a.skew.Store(int64(t.Add(500 * time.Millisecond).Sub(mid)))
		a.dated.Store(true)
	}
}

// refuse records whether the API server refuses the credential.
func (a *answers) refuse(is bool) {
	a.mu.Lock()
	changed := is != !a.refused.IsZero()
	switch {
	case changed && is:
		a.refused = time.Now()
	case changed:
		a.refused = time.Time{}
	}
	a.mu.Unlock()
	if changed && a.changed != nil {
		a.changed()
	}
}

// body is the body of an answer that shows that the API server accepts this identity.
type body struct {
	io.ReadCloser
	a *answers
}

// Read records that more of the answer has arrived.
func (b body) Read(p []byte) (n int, err error) {
	if n, err = b.ReadCloser.Read(p); n > 0 {
		b.a.last.Store(time.Now().UnixNano())
	}
	return n, err
}

// forget clears what the answers to another credential showed.
func (a *answers) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused = time.Time{}
}
