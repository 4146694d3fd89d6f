// Package kube talks to the API server. A [Credential] follows the kubeconfig of one
// identity, renews its token, and provides a [Client] for it, which explains errors. A
// [Watch] holds the objects of one kind and keeps them up to date.
//
// The package must not know which decisions lockkeeper makes.
package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/connrotation"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// FieldManager is the name of lockkeeper's writes in managedFields; role is
// "admin", "host" or "coordinator".
func FieldManager(role string) string { return "lockkeeper-" + role }

// Timeout bounds one request to the API server that is not a large list.
const Timeout = 10 * time.Second

// Client sends requests under one identity. A client of a [Credential] follows that
// Credential.
type Client struct {
	API
	config *rest.Config // without a credential
	http   *http.Client

	credential *Credential // nil: the client has a fixed configuration
	answers    *answers
	conn       atomic.Pointer[connection]
	ctx        context.Context // see Context
	end        context.CancelCauseFunc
}

// newClient returns a client that uses the connection. qps (requests a second) and burst
// are the client's own limits. With client-go's default of 5, a leader of a thousand nodes
// would fall minutes behind.
func newClient(conn *connection, credential *Credential, a *answers, qps float32, burst int) (c *Client, err error) {
	c = &Client{credential: credential, answers: a}
	c.ctx, c.end = context.WithCancelCause(context.Background())
	c.conn.Store(conn)
	c.http = &http.Client{
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) { return c.conn.Load().RoundTrip(r) }),
		// The API server redirects no request. To follow a redirect is to repeat a write, or to send a GET in its place.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	c.config = &rest.Config{
		Host: conn.base.Scheme + "://" + conn.base.Host, // the connection knows the path
		ContentConfig: rest.ContentConfig{
			ContentType:        "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
	}
	c.API, err = c.Limited(qps, burst)
	return c, err
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// ConnectConfig returns a client with a fixed configuration. Its credential may come from
// a plugin that prompts the user; client-go runs the plugin. ConnectConfig does not
// contact the API server.
func ConnectConfig(cfg *rest.Config, role, version string, qps float32, burst int) (*Client, error) {
	a := &answers{}
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = userAgent(role, version)
	cfg.Wrap(a.wrap)
	rt, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", cfg.Host, err)
	}
	conn := &connection{kubeconfig: &kubeconfig{}}
	if err := conn.use(cfg, rt); err != nil {
		return nil, err
	}
	return newClient(conn, nil, a, qps, burst)
}

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
	return ConnectConfig(c.Bound(cfg), "admin", c.Version, 20, 40)
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

func userAgent(role, version string) string { return "lockkeeper-" + role + "/" + version }

// Context ends when the client must not be used for anything new: the coordinator's
// kubeconfig is gone, has been unusable for ten seconds, or names another server,
// certificate authority or account. [context.Cause] returns the reason. The requests that
// end a term can still be sent, to the same server as before. The context of a host's
// client, or of a client with a fixed configuration, never ends.
func (c *Client) Context() context.Context { return c.ctx }

// Limited returns another client with the same connections and identity, but with separate
// limits, so that its requests do not delay those of c. With a qps below 0 it has no limit.
func (c *Client) Limited(qps float32, burst int) (API, error) {
	cfg := rest.CopyConfig(c.config)
	cfg.QPS, cfg.Burst = qps, burst
	api, err := newAPI(cfg, c.http)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", cfg.Host, err)
	}
	return api, nil
}

// OwnKinds returns a client for lockkeeper's own kinds, which the API server serves only
// as JSON.
func (c *Client) OwnKinds() (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	cfg := rest.CopyConfig(c.config)
	cfg.GroupVersion = &v1alpha1.GroupVersion
	cfg.APIPath = "/apis"
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return rest.RESTClientForConfigAndClient(cfg, c.http)
}

// Skew returns by how much the API server's clock is ahead of this process's clock, with
// an error of up to three seconds. It uses the Date header of the last prompt answer. ok is
// false before the first such answer. If this host's clock has been set since that answer,
// Skew takes that into account.
func (c *Client) Skew() (ahead time.Duration, ok bool) {
	d := c.answers.dated.Load()
	if d == nil {
		return 0, false
	}
	now := time.Now()
	return d.ahead(now.Sub(d.at), now), true
}

// Identity identifies the server, its certificate authority, and the account of the next request.
// It stays the same when the credential of an account is renewed.
func (c *Client) Identity() any { return c.conn.Load().over }

// serverOf returns what identifies the server and the account of the client's next request; see
// WatchOptions.Server. It returns nil if these never change.
func serverOf(client API) func() any {
	if c, ok := client.(*Client); ok && c != nil {
		return c.Identity
	}
	return nil
}

// NodeName asks the API server for the user of the client's credential, and returns the
// name in system:node:<name>.
func NodeName(ctx context.Context, client API) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	r, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("asking the API server whose credential this is: %w", err)
	}
	user := r.Status.UserInfo.Username
	name, ok := strings.CutPrefix(user, "system:node:")
	if !ok || name == "" {
		return "", fmt.Errorf("the credential is %q's, expected a kubelet's (system:node:<name>); set node_name if the Node has another name", user)
	}
	return name, nil
}

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
