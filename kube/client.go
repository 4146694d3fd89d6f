// Package kube talks to the API server. A [Credential] follows the kubeconfig of one
// identity, renews its token, and provides a [Client] for it, which explains errors. A
// [Watch] holds the objects of one kind and keeps them up to date.
//
// The package must not know which decisions lockkeeper makes.
package kube

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// FieldManager is the name of lockkeeper's writes in managedFields; role is
// "admin", "host" or "coordinator".
func FieldManager(role string) string { return "lockkeeper-" + role }

// Timeout bounds one request to the API server that is not a large list.
const Timeout = 10 * time.Second

// within bounds a request by [Timeout]. A user may wait longer: the requests of a command are bounded by --request-timeout
// instead, which the client does itself.
func within(ctx context.Context, client API) (context.Context, context.CancelFunc) {
	if c, ok := client.(*Client); ok && c.bounded {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, Timeout)
}

// Client sends requests under one identity. A client of a [Credential] follows that
// Credential.
type Client struct {
	API
	config *rest.Config // without a credential
	http   *http.Client

	bounded    bool        // [Caller.Bound] bounds its requests
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
