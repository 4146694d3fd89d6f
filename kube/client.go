package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// FieldManager is the name of lockkeeper's writes in managedFields; role is
// "admin", "host" or "coordinator".
func FieldManager(role string) string { return "lockkeeper-" + role }

// Timeout bounds one request to the API server that is not a large list.
const Timeout = 10 * time.Second

// Client is a connection under one identity.
type Client struct {
	kubernetes.Interface
	skew atomic.Int64 // nanoseconds by which the API server's clock is ahead
	told atomic.Bool

	config *rest.Config // without a credential
	http   *http.Client
	// way is how the API server is reached at present; the error says why the
	// kubeconfig as it is now is no way, and the way is the one before.
	way func() (*way, error)
}

// Connect reads a kubeconfig and makes a client. It does not talk to the API
// server. wraps, if any, go around each request. role goes into the user agent;
// qps (requests per second) and burst are the client's own limits, set on
// purpose: client-go's default of 5 would let a leader of a thousand nodes fall
// minutes behind.
//
// A program that the kubeconfig names for a credential is run by this package
// and not by client-go; see plugin.
func Connect(kubeconfig, role, version string, qps float32, burst int, wraps ...func(http.RoundTripper) http.RoundTripper) (*Client, error) {
	c := &Client{}
	w, err := readWay(kubeconfig, userAgent(role, version), c.around(wraps))
	if err != nil {
		return nil, err
	}
	return c, c.use(w, nil, qps, burst)
}

// Follow is Connect for a kubeconfig that may become another one while the
// client is used: find returns its path, as often as once a second. What it
// says, and the PEM files that it names, are in force from the first request
// after a change; watches begin anew then. While it cannot be read the client
// goes on with what it said before.
func Follow(find func() (string, error), role, version string, qps float32, burst int, wraps ...func(http.RoundTripper) http.RoundTripper) (*Client, error) {
	c := &Client{}
	file, err := find()
	if err != nil {
		return nil, err
	}
	w, err := readWay(file, userAgent(role, version), c.around(wraps))
	if err != nil {
		return nil, err
	}
	f := &follower{find: find, agent: userAgent(role, version), wrap: c.around(wraps), at: w, looked: time.Now()}
	return c, c.use(w, f, qps, burst)
}

// ConnectService is Connect with a configuration at hand, which file says. The
// PEM files that it names are client-go's to follow.
func ConnectService(cfg *rest.Config, file, role, version string, qps float32, burst int) (*Client, error) {
	c := &Client{}
	w, err := newWay(cfg, file, userAgent(role, version), c.around(nil), false)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	return c, c.use(w, nil, qps, burst)
}

// ConnectConfig is Connect with a configuration at hand. Its credential may
// come from a program that asks the person who called: client-go runs that.
func ConnectConfig(cfg *rest.Config, role, version string, qps float32, burst int) (*Client, error) {
	c := &Client{}
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = userAgent(role, version)
	cfg.Wrap(c.around(nil))
	rt, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", cfg.Host, err)
	}
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("server %q: %w", cfg.Host, err)
	}
	w := &way{config: cfg, base: base, rt: rt}
	w.over, w.end = context.WithCancel(context.Background())
	return c, c.use(w, nil, qps, burst)
}

// ErrNoKubeconfig means that the caller has no kubeconfig.
var ErrNoKubeconfig = errors.New("no kubeconfig: none named by --kubeconfig or KUBECONFIG, and no ~/.kube/config")

// CallerConfig finds the caller's own kubeconfig as kubectl does: the file, if it
// is not "", else KUBECONFIG, else ~/.kube/config. contextName "" is its current
// context.
func CallerConfig(file, contextName string) clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: contextName})
}

// ConnectCaller makes a client of the caller's own credential; see [CallerConfig].
// It does not talk to the API server. The error is [ErrNoKubeconfig] if there is none.
func ConnectCaller(file, version string) (*Client, error) {
	cfg, err := CallerConfig(file, "").ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, ErrNoKubeconfig
	case err != nil:
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return ConnectConfig(cfg, "admin", version, 20, 40)
}

func userAgent(role, version string) string { return "lockkeeper-" + role + "/" + version }

// around puts wraps, dated and once around each request.
func (c *Client) around(wraps []func(http.RoundTripper) http.RoundTripper) transport.WrapperFunc {
	return func(next http.RoundTripper) http.RoundTripper {
		for _, wrap := range wraps {
			next = wrap(next)
		}
		return once{dated{next, c}}
	}
}

// once keeps client-go from repeating a request. client-go repeats any request,
// a PATCH too, up to ten times when a 429 or 5xx carries a Retry-After header.
// The last answer then hides the first: a write that may have landed although the
// answer was a 503 looks refused, or like a conflict. If the API server knows how
// long to wait, the Status says so as well.
type once struct{ next http.RoundTripper }

// RoundTrip passes the request on.
func (o once) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := o.next.RoundTrip(r)
	if resp != nil {
		resp.Header.Del("Retry-After")
	}
	return resp, err
}

// use makes the client go w, or, if f is not nil, wherever f goes.
func (c *Client) use(w *way, f *follower, qps float32, burst int) (err error) {
	c.way, c.http = func() (*way, error) { return w, nil }, &http.Client{Transport: w}
	if f != nil {
		c.way, c.http = f.now, &http.Client{Transport: f}
	}
	// Where requests really go is the way's to say: its credential is not here,
	// and neither is its path.
	c.config = &rest.Config{
		Host: w.base.Scheme + "://" + w.base.Host,
		ContentConfig: rest.ContentConfig{
			ContentType:        "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
	}
	c.Interface, err = c.Limited(qps, burst)
	return err
}

// halfWritten is how long a kubeconfig may be unusable before it is told of, as
// long as what it said before serves: whoever writes it needs a moment.
const halfWritten = 10 * time.Second

// Look looks whether the kubeconfig has changed, at most once a second, as each
// request does: a client that asks for nothing would go on with a watch under
// the credential before. The error is that the credential has expired, though
// what was begun with it may still go on; or that the kubeconfig has become
// unusable and stays so, though what it said before serves as yet.
func (c *Client) Look() error {
	w, err := c.way()
	u, _ := errors.AsType[*unread](err)
	stays := u != nil && time.Since(u.since) >= halfWritten
	switch expired := w.cert != nil && time.Now().After(w.cert.NotAfter); {
	case expired && stays:
		return &Trouble{Reason: v1alpha1.ReasonForbidden, Text: before(u, w.refused()), Own: true, err: u}
	case expired:
		return &Trouble{Reason: v1alpha1.ReasonForbidden, Text: w.refused()}
	case stays:
		return &Trouble{Text: u.Error() + "; goes on with what it said before", GoesOn: true, Own: true, err: u}
	}
	return nil
}

// Limited is another client on the same connections under the same identity,
// with limits of its own: what it sends takes nothing from the first one's.
func (c *Client) Limited(qps float32, burst int) (kubernetes.Interface, error) {
	cfg := rest.CopyConfig(c.config)
	cfg.QPS, cfg.Burst = qps, burst
	set, err := kubernetes.NewForConfigAndClient(cfg, c.http)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", cfg.Host, err)
	}
	return set, nil
}

// OwnKinds returns a client of our own kinds, which the API server serves only in
// JSON.
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

// prompt is how soon an answer has to come for its Date to say something of
// the clocks: where between request and answer it was written is not known,
// and a process may have been stopped in between.
const prompt = 5 * time.Second

// Skew is by how much the API server's clock is ahead of this process's, give
// or take three seconds, from the Date header of the last prompt answer; ok is
// false before the first one.
func (c *Client) Skew() (ahead time.Duration, ok bool) {
	return time.Duration(c.skew.Load()), c.told.Load()
}

// dated reads the Date header of every answer.
type dated struct {
	next http.RoundTripper
	c    *Client
}

// RoundTrip passes the request on.
func (d dated) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := time.Now()
	resp, err := d.next.RoundTrip(r)
	if err != nil {
		return resp, err
	}
	took := time.Since(sent)
	if t, err := http.ParseTime(resp.Header.Get("Date")); err == nil && took <= prompt {
		// The header was written between sent and now, and cut to a second.
		mid := sent.Add(took / 2)
		d.c.skew.Store(int64(t.Add(500 * time.Millisecond).Sub(mid)))
		d.c.told.Store(true)
	}
	return resp, nil
}

// NodeName asks the API server whose credential this is, and returns the name
// in system:node:<name>.
func NodeName(ctx context.Context, client kubernetes.Interface) (string, error) {
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
