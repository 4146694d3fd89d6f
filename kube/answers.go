package kube

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// prompt is the longest duration of a request whose Date header is used to compare the
// clocks. The server may have written the header at any moment between request and answer,
// and this process may have been stopped in between.
const prompt = 5 * time.Second

// answers records facts from the API server's answers to one identity.
type answers struct {
	dated atomic.Pointer[dated] // nil before the first prompt answer
	last  atomic.Int64          // see State.Answered; in nanoseconds since 1970, 0 means never

	mu      sync.Mutex
	refused time.Time // see State.Refused
	changed func()    // called after refused has changed; may be nil
}

// wrap records the answer to each request. It also prevents client-go from repeating a
// request. client-go repeats any request, even a PATCH, up to ten times if a 429 or 5xx has
// a Retry-After header. The last answer then hides the first one: a write that may have
// landed in spite of a 503 then looks like a refusal or a conflict. A Status of the API server
// contains the delay too, but the 429 with which it limits requests is plain text: the header
// stays in the answer to a request with a context of [Once].
func (a *answers) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		sent := time.Now()
		resp, err := next.RoundTrip(r)
		if err != nil {
			return resp, err
		}
		if r.Context().Value(onceKey{}) == nil {
			resp.Header.Del("Retry-After")
		}
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

type onceKey struct{}

// Once returns a context for a request that client-go sends only once (MaxRetries is 0). Its
// error contains the Retry-After of every answer, also of one that is not a Status.
func Once(ctx context.Context) context.Context { return context.WithValue(ctx, onceKey{}, true) }

// date compares the clocks of the API server and of this process.
func (a *answers) date(resp *http.Response, sent time.Time) {
	took := time.Since(sent)
	if t, err := http.ParseTime(resp.Header.Get("Date")); err == nil && took <= prompt {
		// The server wrote the header between sent and now, and truncated it to a second.
		a.dated.Store(&dated{server: t.Add(500 * time.Millisecond), at: sent.Add(took / 2)})
	}
}

// dated is what the API server's clock showed at a moment of this process, which has a
// monotonic reading.
type dated struct{ server, at time.Time }

// ahead returns by how much the API server's clock is ahead of this host's clock, which shows
// now, when elapsed has passed since then. elapsed is monotonic: a leader whose clock is set must
// not decide by it until the next answer.
func (d *dated) ahead(elapsed time.Duration, now time.Time) time.Duration {
	return d.server.Add(elapsed).Sub(now)
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

// Read reads from the body, and records that more of the answer has arrived.
func (b body) Read(p []byte) (n int, err error) {
	if n, err = b.ReadCloser.Read(p); n > 0 {
		b.a.last.Store(time.Now().UnixNano())
	}
	return n, err
}

// forget clears the facts that depend on the credential, after it was replaced.
func (a *answers) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused = time.Time{}
}
