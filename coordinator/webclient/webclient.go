// Package webclient makes HTTP clients for the servers that the coordinator's file
// names: a Prometheus, and the receiver of notifications. A client sends the bearer
// token that its file holds at the moment, follows no redirect, reads answers of
// bounded size, and respects the proxy settings in the environment.
//
// It must not know what is asked or sent. It does not limit how long a request
// takes: the caller's context does.
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
	maxToken   = 64 << 10 // bytes of the token's file
	maxHeaders = 64 << 10 // bytes of an answer's headers
)

// Options are what a client is made of.
type Options struct {
	// TokenFile holds the bearer token. It is read for each request, so a token
	// that was replaced needs nothing else. "" is no token.
	TokenFile string
	// TokenKey is the key in the configuration that names TokenFile, for errors.
	TokenKey string
	// Agent is the User-Agent header.
	Agent string
	// MaxAnswer bounds the body of an answer, in bytes. A longer one ends in a
	// [http.MaxBytesError].
	MaxAnswer int64
	// Conns is how many idle connections to the server are kept.
	Conns int
}

// Redirect is the error of a request that the server redirects: the token and the
// data are for the server that was named, and no other.
type Redirect struct{ To *url.URL }

func (r Redirect) Error() string {
	return fmt.Sprintf("it redirects to %s; redirects are not followed, write where the server is", r.To.Redacted())
}

// New makes a client.
func New(o Options) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost, transport.MaxResponseHeaderBytes = o.Conns, maxHeaders
	return &http.Client{
		Transport:     bounded{transport, o},
		CheckRedirect: func(r *http.Request, _ []*http.Request) error { return Redirect{r.URL} },
	}
}

// bounded sends requests with the token of the moment, and reads answers of
// bounded size.
type bounded struct {
	next http.RoundTripper
	Options
}

// RoundTrip passes the request on.
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

// CloseIdleConnections lets [http.Client.CloseIdleConnections] reach the
// connections.
func (b bounded) CloseIdleConnections() {
	if c, ok := b.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// token reads the token. The error does not repeat it.
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
