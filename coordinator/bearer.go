package coordinator

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"

	"lockkeeper.dev/lockkeeper/kube"
)

// bearer is the token that a client shows. Another one of the same service
// account may take its place while the client is in use, so that a credential
// that renews itself does not end a term.
type bearer struct {
	info  kube.Info // describes the present token
	token atomic.Pointer[string]
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

// dial makes a client of the coordinator's credential. It also returns the bearer
// that the client shows, or nil if the credential is not a token.
func (c *candidate) dial() (*kube.Client, *bearer, error) {
	info, err := c.Credential.Read()
	if err != nil {
		return nil, nil, err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Credential.Kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	var b *bearer
	if info.Kind == kube.KindToken {
		b = &bearer{info: info}
		b.token.Store(&info.Token)
		cfg.BearerToken = ""
		cfg.Wrap(b.wrap)
	}
	if c.Wrap != nil {
		cfg.Wrap(c.Wrap)
	}
	client, err := kube.ConnectService(cfg, c.Credential.Kubeconfig, "coordinator", c.Version, qps, burst)
	return client, b, err
}

// follow switches to the token in effect now, and reports whether nothing else of
// the credential has changed. If anything else has, the client is no longer
// usable.
func (b *bearer) follow(files kube.Files) bool {
	if b == nil {
		return false
	}
	info, err := files.Read()
	if err != nil || info.Kind != kube.KindToken || info.Frame != b.info.Frame || info.User == "" || info.User != b.info.User {
		return false
	}
	b.info = info
	b.token.Store(&info.Token)
	return true
}

// follow does the same for the candidate, and logs it.
func (c *candidate) follow() bool {
	if !c.bearer.follow(c.Credential) {
		return false
	}
	c.log.Info("the coordinator's credential was renewed or replaced, for the same account; the term continues",
		"file", c.Credential.Kubeconfig, "expires", c.bearer.info.Expires.Format(time.RFC3339))
	return true
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

// refusal says that the API server does not take the credential, and what to
// do.
func (c *candidate) refusal() error {
	c.mu.Lock()
	since := c.refused
	c.mu.Unlock()
	ended := ""
	if c.bearer != nil {
		if info, err := c.Credential.Read(); err == nil && !info.Expires.IsZero() && time.Now().After(info.Expires) {
			ended = ", which expired at " + info.Expires.Format(time.RFC3339)
		}
	}
	return fmt.Errorf("the API server has refused the coordinator's credential in %s%s, since %s; %s mints a new one",
		c.Credential.Kubeconfig, ended, since.UTC().Format(time.RFC3339), kube.Mints)
}
