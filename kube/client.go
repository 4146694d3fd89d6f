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

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// FieldManager is the name of lockkeeper's writes in managedFields; role is
// "admin", "host" or "coordinator".
func FieldManager(role string) string { return "lockkeeper-" + role }

// Timeout bounds one request to the API server that is not a large list.
const Timeout = 10 * time.Second

// Client sends requests under one identity. A client of a [Credential] follows it.
type Client struct {
	kubernetes.Interface
	config *rest.Config // without a credential
	http   *http.Client

	credential *Credential // nil: the client has a fixed configuration
	answers    *answers
	conn       atomic.Pointer[connection]
	ctx        context.Context // see Context
	end        context.CancelCauseFunc
}

// newClient makes a client of its first connection. qps (requests a second) and
// burst are the client's own limits. client-go's default of 5 would let a leader of
// a thousand nodes fall minutes behind.
func newClient(conn *connection, credential *Credential, a *answers, qps float32, burst int) (c *Client, err error) {
	c = &Client{credential: credential, answers: a}
	c.ctx, c.end = context.WithCancelCause(context.Background())
	c.conn.Store(conn)
	c.http = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) { return c.conn.Load().RoundTrip(r) })}
	c.config = &rest.Config{
		Host: conn.base.Scheme + "://" + conn.base.Host, // the connection knows the path
		ContentConfig: rest.ContentConfig{
			ContentType:        "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
	}
	c.Interface, err = c.Limited(qps, burst)
	return c, err
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// ConnectConfig makes a client of a fixed configuration. Its credential may come
// from a program that asks the caller, which client-go runs. It does not talk to
// the API server.
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

// Context ends when the client must not be used for anything new: the coordinator's
// kubeconfig is gone, or names another server, certificate authority or account.
// [context.Cause] says which. What ends a term can still be sent: the requests go
// where they went before. A client of a host, and one with a fixed configuration,
// never ends.
func (c *Client) Context() context.Context { return c.ctx }

// Limited is another client on the same connections under the same identity, with
// limits of its own: its requests do not delay those of the first one.
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

// Skew returns by how much the API server's clock is ahead of this process's, give
// or take three seconds, from the Date header of the last prompt answer; ok is false
// before the first one.
func (c *Client) Skew() (ahead time.Duration, ok bool) {
	return time.Duration(c.answers.skew.Load()), c.answers.dated.Load()
}

// NodeName asks the API server whose credential this is, and returns the name in
// system:node:<name>.
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
