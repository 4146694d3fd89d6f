package object

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Client is a connection under one identity.
type Client struct {
	kubernetes.Interface
	skew atomic.Int64 // nanoseconds by which the API server's clock is ahead
	told atomic.Bool
}

// Connect reads a kubeconfig and makes a client. It does not talk to the API
// server. wraps, if any, go around each request. role goes into the user agent; qps (requests per second) and burst
// are the client's own limits, set on purpose: client-go's default of 5 would
// let a leader of a thousand nodes fall minutes behind.
func Connect(kubeconfig, role, version string, qps float32, burst int, wraps ...func(http.RoundTripper) http.RoundTripper) (*Client, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	for _, wrap := range wraps {
		cfg.Wrap(wrap)
	}
	return ConnectConfig(cfg, role, version, qps, burst)
}

// ConnectConfig is Connect with a configuration at hand.
func ConnectConfig(cfg *rest.Config, role, version string, qps float32, burst int) (*Client, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = "lockkeeper-" + role + "/" + version
	cfg.QPS, cfg.Burst = qps, burst
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	c := &Client{}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return dated{next, c} })
	set, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", cfg.Host, err)
	}
	c.Interface = set
	return c, nil
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
