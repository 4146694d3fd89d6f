package coordinator

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"

	"lockkeeper.dev/lockkeeper/coordinator/credential"
	"lockkeeper.dev/lockkeeper/node/object"
)

// bearer is the token that a client shows. Another one of the same service
// account may take its place while the client is in use, so that a credential
// that renews itself ends nobody's term.
type bearer struct {
	info    credential.Info // of what token is now
	token   atomic.Pointer[string]
	spurned string // the token that follow was told of last and did not take
}

// wrap shows the token as it is now in each request.
func (b *bearer) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		r = r.Clone(r.Context()) // a RoundTripper changes no request
		r.Header.Set("Authorization", "Bearer "+*b.token.Load())
		return next.RoundTrip(r)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip passes the request on.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// dial makes a client of the coordinator's kubeconfig, and the bearer that it
// shows, nil unless that is a token in the file itself.
func (c *candidate) dial() (*object.Client, *bearer, error) {
	info, _, err := credential.ReadFile(c.Kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	var b *bearer
	if info.Kind == credential.KindToken {
		b = &bearer{info: info}
		b.token.Store(&info.Token)
		cfg.BearerToken = ""
		cfg.Wrap(b.wrap)
	}
	if c.Wrap != nil {
		cfg.Wrap(c.Wrap)
	}
	client, err := object.ConnectService(cfg, c.Kubeconfig, "coordinator", c.Version, qps, burst)
	return client, b, err
}

// What a client makes of a kubeconfig that has changed.
type verdict int

const (
	stranger verdict = iota // another credential: the client is not for it
	followed                // another token of the same account, which it shows from now on
	spurned                 // the same, but an expired one: it goes on with its own, which has not
)

// follow takes the token that is in the file now, if nothing else of the
// credential has changed, and says what it made of it. anew is whether a
// spurned one is another than the last time.
func (b *bearer) follow(file string, now time.Time) (v verdict, anew bool) {
	if b == nil {
		return stranger, false
	}
	info, _, err := credential.ReadFile(file)
	if err != nil || info.Kind != credential.KindToken || info.Frame != b.info.Frame ||
		info.User == "" || info.User != b.info.User {
		return stranger, false
	}
	if info.Token == b.info.Token {
		// Back again, after one that was spurned; else the file is what the
		// client was made from, but for a comment.
		if b.spurned == "" {
			return stranger, false
		}
		b.spurned = ""
		return followed, false
	}
	if past(&info, now) && !past(&b.info, now) {
		anew, b.spurned = b.spurned != info.Token, info.Token
		return spurned, anew
	}
	b.info, b.spurned = info, ""
	b.token.Store(&info.Token)
	return followed, false
}

// past reports whether a token says that it has expired.
func past(info *credential.Info, now time.Time) bool {
	return !info.Expires.IsZero() && !now.Before(info.Expires)
}

// follow does the same for the candidate, and tells. It reports whether its
// client goes on, and whether with what is in the file.
func (c *candidate) follow() (goesOn, same bool) {
	v, anew := c.bearer.follow(c.Kubeconfig, time.Now())
	switch {
	case v == followed:
		c.log.Info("the coordinator's credential was renewed; the term goes on", "file", c.Kubeconfig, "expires", c.bearer.info.Expires.Format(time.RFC3339))
	case anew:
		c.log.Warn("the token in the coordinator's kubeconfig has expired; the one before it goes on until it ends or is refused",
			"file", c.Kubeconfig, "expires", c.bearer.info.Expires.Format(time.RFC3339))
	}
	return v != stranger, v == followed
}

// taken notes whether the API server takes the credential, by its answer to a
// request. An error that is none of its answers says nothing.
func (c *candidate) taken(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case apierrors.IsUnauthorized(err):
		if c.refused.IsZero() {
			c.refused = time.Now()
		}
	case err == nil || apierrors.ReasonForError(err) != "":
		c.refused = time.Time{}
	}
}

func (c *candidate) isRefused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.refused.IsZero()
}

// refusal says that the API server does not take the credential, and what to
// do.
func (c *candidate) refusal() error {
	c.mu.Lock()
	since := c.refused
	c.mu.Unlock()
	ended := ""
	if c.bearer != nil {
		if info, _, err := credential.ReadFile(c.Kubeconfig); err == nil && !info.Expires.IsZero() && time.Now().After(info.Expires) {
			ended = ", which expired at " + info.Expires.Format(time.RFC3339)
		}
	}
	return fmt.Errorf("the API server has refused the coordinator's credential in %s%s, since %s; %s mints a new one",
		c.Kubeconfig, ended, since.UTC().Format(time.RFC3339), credential.Mints)
}
