// Package webclient creates HTTP clients for the servers in the coordinator's configuration
// file: Prometheus, and the receiver of notifications. A client reads the bearer token
// from its file for each request, follows no redirect, bounds the size of answers, and
// respects the proxy settings in the environment.
//
// The package must not know what is asked or sent. The caller's context limits how long a
// request takes.
package webclient

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
)

const (
	maxToken   = 64 << 10 // bytes of the token file
	maxHeaders = 64 << 10 // bytes of an answer's headers
)

// Options configures a client.
type Options struct {
	// TokenFile contains the bearer token. It is read for each request, so a replaced
	// token needs no restart. "" means no token.
	TokenFile string
	// TokenKey is the configuration key that sets TokenFile, for errors.
	TokenKey string
	// Agent is the User-Agent header.
	Agent string
	// MaxAnswer bounds the body of an answer, in bytes. Reading a longer one fails with
	// [http.MaxBytesError].
	MaxAnswer int64
	// Conns is how many idle connections to the server are kept.
	Conns int
}

// Redirect is the error of a request that the server redirects. The client does not follow
// it, because the token and the data are only for the configured server.
type Redirect struct{ To *url.URL }

func (r Redirect) Error() string {
	return fmt.Sprintf("it redirects to %s; redirects are not followed, so configure the server's own address", r.To.Redacted())
}

// New returns a client.
func New(o Options) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost, transport.MaxResponseHeaderBytes = o.Conns, maxHeaders
	return &http.Client{
		Transport:     bounded{transport, o},
		CheckRedirect: func(r *http.Request, _ []*http.Request) error { return Redirect{r.URL} },
	}
}

// bounded is a RoundTripper that adds the token and the user agent to each request, and
// bounds the size of the answer.
type bounded struct {
	next http.RoundTripper
	Options
}

// RoundTrip implements [http.RoundTripper].
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("User-Agent", b.Agent)
	if b.TokenFile != "" {
		token, err := b.token()
		if err != nil {
			if r.Body != nil {
				r.Body.Close()
			}
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := b.next.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, b.MaxAnswer)
	}
	return resp, err
}

// CloseIdleConnections makes [http.Client.CloseIdleConnections] work through this
// RoundTripper.
func (b bounded) CloseIdleConnections() {
	if c, ok := b.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// token reads the token. Its error never contains the token.
func (b bounded) token() (string, error) {
	info, err := os.Stat(b.TokenFile)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", b.TokenFile)
	}
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", b.TokenKey, err)
	}
	f, err := os.Open(b.TokenFile)
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", b.TokenKey, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", b.TokenKey, err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" || len(data) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%s (%s) holds no token, expected one line of visible characters", b.TokenFile, b.TokenKey)
	}
	return token, nil
}
