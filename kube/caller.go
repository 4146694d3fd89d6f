package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ErrNoKubeconfig means that the caller has no kubeconfig.
var ErrNoKubeconfig = errors.New("no kubeconfig: none named by --kubeconfig or KUBECONFIG, and no ~/.kube/config")

// NoKubeconfig returns the error for a kubeconfig without clusters, contexts and users. If the user named a file, the error
// names it. Otherwise it is [ErrNoKubeconfig].
func (c Caller) NoKubeconfig() error {
	if c.Kubeconfig != "" {
		return fmt.Errorf("kubeconfig: %s is empty or is no kubeconfig, expected clusters, contexts and users", c.Kubeconfig)
	}
	if named := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); named != "" {
		return emptyKubeconfig(named)
	}
	return ErrNoKubeconfig
}

// emptyKubeconfig is what KUBECONFIG names if that is missing, empty or no kubeconfig. It is an [ErrNoKubeconfig].
type emptyKubeconfig string

func (e emptyKubeconfig) Error() string {
	return fmt.Sprintf("no kubeconfig: KUBECONFIG names %s, which is missing, empty or no kubeconfig", string(e))
}

// Is reports whether the target is [ErrNoKubeconfig].
func (emptyKubeconfig) Is(target error) bool { return target == ErrNoKubeconfig }

// CallerConfig finds the caller's kubeconfig in the same way as kubectl: file if it is not
// "", otherwise KUBECONFIG, otherwise ~/.kube/config. An empty contextName selects the
// current context.
func CallerConfig(file, contextName string) clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: contextName})
}

// Caller says which cluster a command talks to, and with whose credential.
type Caller struct {
	// Kubeconfig and Context select the credential; see [CallerConfig].
	Kubeconfig, Context string
	// RequestTimeout bounds each request except a watch; 0 means no bound.
	RequestTimeout time.Duration
	// Version is lockkeeper's version, for the user agent.
	Version string
}

// Connect returns a client with the caller's own credential. It does not contact the API server.
// The error is that of [Caller.NoKubeconfig] if there is no kubeconfig.
func (c Caller) Connect() (*Client, error) {
	cfg, err := CallerConfig(c.Kubeconfig, c.Context).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, c.NoKubeconfig()
	case err != nil:
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return c.client(cfg)
}

// client returns a client whose requests RequestTimeout bounds, and not [Timeout].
func (c Caller) client(cfg *rest.Config) (*Client, error) {
	client, err := ConnectConfig(c.Bound(cfg), "admin", c.Version, 20, 40)
	if err != nil {
		return nil, err
	}
	client.bounded = c.RequestTimeout > 0
	return client, nil
}

// Cluster names the caller's cluster in messages: the API server's address, and the context if
// there is one. It returns "" if the kubeconfig names no cluster.
func (c Caller) Cluster() string {
	loader := CallerConfig(c.Kubeconfig, c.Context)
	cfg, err := loader.ClientConfig()
	if err != nil {
		return ""
	}
	raw, err := loader.RawConfig()
	if name := cmp.Or(c.Context, raw.CurrentContext); err == nil && name != "" {
		return fmt.Sprintf("cluster %s, context %s", cfg.Host, name)
	}
	return "cluster " + cfg.Host
}

// Bound makes clients of cfg give up a request after RequestTimeout, and returns cfg. A watch is
// not bounded: it lasts until the caller ends it.
func (c Caller) Bound(cfg *rest.Config) *rest.Config {
	if c.RequestTimeout == 0 {
		return cfg
	}
	tooLong := fmt.Errorf("no complete answer within %s (--request-timeout)", c.RequestTimeout)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Query().Has("watch") {
				return next.RoundTrip(r)
			}
			ctx, cancel := context.WithTimeoutCause(r.Context(), c.RequestTimeout, tooLong)
			answer, err := next.RoundTrip(r.WithContext(ctx))
			if err != nil {
				cancel()
				return nil, err
			}
			answer.Body = boundBody{answer.Body, ctx, cancel}
			return answer, nil
		})
	})
	return cfg
}

// boundBody is the body of an answer to a bounded request.
type boundBody struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelFunc
}

// Read says why the body ended early.
func (b boundBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && b.ctx.Err() != nil {
		err = context.Cause(b.ctx)
	}
	return n, err
}

// Close releases what bounds the request.
func (b boundBody) Close() error {
	b.cancel()
	return b.ReadCloser.Close()
}
