package kube

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/connrotation"
)

var dialer = &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}

// connection sends requests according to one version of a kubeconfig.
type connection struct {
	*kubeconfig // empty for a client with a fixed configuration
	base        *url.URL
	rt          http.RoundTripper
	inner       http.RoundTripper // rt without its wrappers
	plugin      *plugin           // nil if no plugin provides the credential
	over        context.Context   // ends when a connection to another server, or for another account, has replaced this one
	end         context.CancelFunc
}

// newConnection returns a connection. It does not contact the API server.
func newConnection(k *kubeconfig, agent string, wrap transport.WrapperFunc) (*connection, error) {
	c := &connection{kubeconfig: k}
	cfg := rest.CopyConfig(k.config)
	cfg.UserAgent = agent
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		c.inner = rt
		return wrap(rt)
	})
	plain := rest.CopyConfig(cfg)
	plain.ExecProvider = nil
	tc, err := plain.TransportConfig()
	if err != nil {
		return nil, err
	}
	// As in client-go, a credential in the kubeconfig takes precedence over a plugin.
	if !tc.HasTokenAuth() && !tc.HasBasicAuth() && !tc.HasCertAuth() {
		if c.plugin, err = newPlugin(cfg); err != nil {
			return nil, err
		}
	}
	if p := c.plugin; p != nil {
		tc.Wrap(func(next http.RoundTripper) http.RoundTripper { return pluginTripper{next, p} })
		tc.TLS.GetCertHolder = &transport.GetCertHolder{GetCert: p.certificate}
		connections := connrotation.NewConnectionTracker()
		p.renewed = connections.CloseAll
		tc.DialHolder = &transport.DialHolder{Dial: connrotation.NewDialerWithTracker(dialer.DialContext, connections).DialContext}
	}
	rt, err := transport.New(tc)
	if err != nil {
		return nil, err
	}
	return c, c.use(cfg, rt)
}

// use sets the connection's server and transport.
func (c *connection) use(cfg *rest.Config, rt http.RoundTripper) (err error) {
	if c.base, _, err = rest.DefaultServerUrlFor(cfg); err != nil {
		return fmt.Errorf("server %q: %w", cfg.Host, err)
	}
	c.rt = rt
	c.over, c.end = context.WithCancel(context.Background())
	return nil
}

// closeIdle closes the network connections that no request uses.
func (c *connection) closeIdle() { utilnet.CloseIdleConnectionsFor(c.inner) }

// RoundTrip sends a request over this connection, whichever server it is addressed to.
func (c *connection) RoundTrip(r *http.Request) (*http.Response, error) {
	watching := r.URL.Query().Has("watch")
	ctx, stop := r.Context(), func() {}
	// A request is addressed to the server of the client's first connection.
	to := *r.URL
	to.Scheme, to.Host, to.Path = c.base.Scheme, c.base.Host, strings.TrimSuffix(c.base.Path, "/")+r.URL.Path
	if watching {
		// Without this, a watch would continue with an account, or at a server, that the
		// kubeconfig no longer names.
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		unhook := context.AfterFunc(c.over, cancel)
		stop = func() { unhook(); cancel() }
	}
	r = r.Clone(ctx)
	r.URL, r.Host = &to, ""
	resp, err := c.rt.RoundTrip(r)
	if err != nil || !watching {
		stop()
		return resp, err
	}
	resp.Body = watched{resp.Body, stop}
	return resp, nil
}

// watched is the body of a watch, with a function that releases its resources.
type watched struct {
	io.ReadCloser
	stop func()
}

// Close closes the body and releases the watch's resources.
func (w watched) Close() error {
	defer w.stop()
	return w.ReadCloser.Close()
}
