// Package credential mints the coordinator's kubeconfig, with an admin's credential. The
// kubeconfig contains a token of the service account in the manifests, or a client
// certificate of the group that the manifests bind. Both expire. The command
// `lockkeeper kubeconfig` uses this package. Package kube renews the token.
//
// The token comes from the TokenRequest API and is not stored in the cluster. A
// Secret of type service-account-token would never expire, and anyone who can
// read the namespace's Secrets could read it. Deleting the service account
// invalidates all of its tokens at once.
//
// The package does not know which hosts use the credential, and decides nothing about a
// rollout.
package credential

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/kube"
)

// The bounds of a credential's lifetime, and its default. The API server may shorten it.
const (
	MinLifetime     = time.Hour
	MaxLifetime     = v1alpha1.MaxTokenLifetime
	DefaultLifetime = 90 * 24 * time.Hour
)

// Options configures [Mint].
type Options struct {
	// Caller selects the admin's credential.
	kube.Caller
	// Namespace is the namespace of the manifests; "" means the default one.
	Namespace string
	// Lifetime is the requested lifetime, MinLifetime to MaxLifetime.
	Lifetime time.Duration
	// Server is the API server's URL as hosts reach it, https://…; "" means the one in
	// the admin's kubeconfig.
	Server string
	// Certificate requests a client certificate through the CertificateSigningRequest
	// API, instead of a token.
	Certificate bool
	// Kubectl has the flags with which kubectl reaches the same cluster, each after a space; "" for none.
	Kubectl string
	// Tell is called with a sentence that says what Mint waits for. It may be nil.
	Tell func(string)
}

func (o *Options) tell(what string) {
	if o.Tell != nil {
		o.Tell(what)
	}
}

// Credential is a kubeconfig that refers to no other file.
type Credential struct {
	Kubeconfig []byte // YAML; a secret
	User       string // the user name in the cluster
	Server     string // the API server's URL
	Expires    time.Time
	// Shortened: the API server granted a shorter lifetime than was requested.
	Shortened bool
	// Certificate: the credential is a certificate, which does not renew itself.
	Certificate bool
	// NoRenewal says why the token cannot renew itself and what to do about it. It is ""
	// if the token can, and for a certificate.
	NoRenewal string
	// Local: Server is a loopback address, so each host would connect to itself.
	Local bool
	// LocalProxy is the proxy at a loopback address through which the admin's kubeconfig, and
	// therefore this one, reaches Server; "" if there is none.
	LocalProxy string
}

// Mint requests a token from the API server, or has a certificate signed, and returns it in
// a kubeconfig. It also tests whether a token can renew itself. The only trace of a token
// is its record in the API server's audit log. For a certificate, Mint may wait until ctx
// ends. The error is that of [kube.Caller.NoKubeconfig] if the caller has no credential.
func Mint(ctx context.Context, o Options) (Credential, error) {
	o.Namespace = cmp.Or(o.Namespace, v1alpha1.DefaultLeaseNamespace)
	if o.Lifetime < MinLifetime || o.Lifetime > MaxLifetime {
		return Credential{}, fmt.Errorf("a lifetime of %s, expected %s to %s", days(o.Lifetime), days(MinLifetime), days(MaxLifetime))
	}
	admin, cluster, err := load(o.Caller)
	if err != nil {
		return Credential{}, err
	}
	if o.Server != "" {
		cluster.Server = o.Server
	}
	at, err := url.Parse(cluster.Server)
	if err != nil || at.Scheme != "https" || at.Hostname() == "" {
		return Credential{}, fmt.Errorf("the API server's address %q, expected https://HOST[:PORT]", cluster.Server)
	}
	c := Credential{
		Server: cluster.Server, Certificate: o.Certificate,
		Local: loopback(at),
	}
	if proxy, err := url.Parse(cluster.ProxyURL); err == nil && loopback(proxy) {
		c.LocalProxy = proxy.Redacted()
	}
	var user *clientcmdapi.AuthInfo
	if o.Certificate {
		began := time.Now()
		var leaf *x509.Certificate
		if user, leaf, err = signed(ctx, admin, o); err != nil {
			return Credential{}, err
		}
		c.User, c.Expires = leaf.Subject.CommonName, leaf.NotAfter.UTC()
		c.Shortened = c.Expires.Before(began.Add(o.Lifetime - backdate))
	} else {
		token, err := request(ctx, admin, o)
		if err != nil {
			return Credential{}, err
		}
		user = &clientcmdapi.AuthInfo{Token: token.Status.Token}
		c.User, c.Expires = v1alpha1.CoordinatorUser(o.Namespace), token.Status.ExpirationTimestamp.UTC()
		// The spec in the answer has the lifetime that the API server granted.
		c.Shortened = token.Spec.ExpirationSeconds != nil && *token.Spec.ExpirationSeconds < seconds(o.Lifetime)
		c.NoRenewal = proveRenewal(ctx, admin, &o, token)
	}
	c.Kubeconfig, err = c.render(cluster, user)
	return c, err
}

// loopback reports whether the URL's host is the one that connects to it.
func loopback(u *url.URL) bool {
	return u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback()
}

// load returns the admin's client configuration, and the part of its cluster entry that a
// coordinator needs.
func load(caller kube.Caller) (*rest.Config, *clientcmdapi.Cluster, error) {
	loader, contextName := kube.CallerConfig(caller.Kubeconfig, caller.Context), caller.Context
	raw, err := loader.RawConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if clientcmdapi.IsConfigEmpty(&raw) {
		return nil, nil, caller.NoKubeconfig()
	}
	contextName = cmp.Or(contextName, raw.CurrentContext)
	used, ok := raw.Contexts[contextName]
	if !ok || raw.Clusters[used.Cluster] == nil {
		return nil, nil, fmt.Errorf("kubeconfig: no context %q with a cluster", contextName)
	}
	cluster := raw.Clusters[used.Cluster]
	if cluster.InsecureSkipTLSVerify {
		return nil, nil, fmt.Errorf("kubeconfig: cluster %q is used with insecure-skip-tls-verify; the coordinator's kubeconfig would trust any server. Configure the cluster's certificate-authority instead", used.Cluster)
	}
	admin, err := loader.ClientConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("kubeconfig: %w", err)
	}
	if err := rest.LoadTLSFiles(admin); err != nil {
		return nil, nil, fmt.Errorf("kubeconfig: %w", err)
	}
	// None of the admin's secrets is copied.
	return caller.Bound(admin), &clientcmdapi.Cluster{
		Server: cluster.Server, TLSServerName: cluster.TLSServerName, ProxyURL: cluster.ProxyURL,
		CertificateAuthorityData: admin.CAData, // empty: hosts use the system's authorities, as the admin does
	}, nil
}

func request(ctx context.Context, admin *rest.Config, o Options) (*authenticationv1.TokenRequest, error) {
	client, err := kube.ConnectConfig(admin, "admin", o.Version, 20, 40)
	if err != nil {
		return nil, err
	}
	r, err := client.CoreV1().ServiceAccounts(o.Namespace).CreateToken(ctx, v1alpha1.CoordinatorServiceAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(seconds(o.Lifetime))},
	}, metav1.CreateOptions{FieldManager: kube.FieldManager("admin")})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no service account %s/%s; apply the manifests first: %s", o.Namespace, v1alpha1.CoordinatorServiceAccount, o.applies(nil))
	}
	if err != nil {
		return nil, fmt.Errorf("asking for a token of service account %s/%s: %w", o.Namespace, v1alpha1.CoordinatorServiceAccount, err)
	}
	if r.Status.Token == "" {
		return nil, errors.New("the API server gave an empty token")
	}
	return r, nil
}

func (c *Credential) render(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters["cluster"] = cluster
	config.AuthInfos["lockkeeper-coordinator"] = user
	config.Contexts["lockkeeper-coordinator"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "lockkeeper-coordinator"}
	config.CurrentContext = "lockkeeper-coordinator"
	text, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("encoding the coordinator's kubeconfig: %w", err)
	}
	return append(head(c.User, c.Expires), text...), nil
}

// head returns the comment at the top of the kubeconfig.
func head(user string, expires time.Time) []byte {
	return fmt.Appendf(nil, "# The credential of lockkeeper's coordinator, %s. A secret.\n# Valid until %s.\n", user, expires.UTC().Format(time.RFC3339))
}

// Notes returns what the user who minted the credential should know, one sentence each.
// The first says until when it is valid.
func (c *Credential) Notes(now time.Time) []string {
	notes := []string{fmt.Sprintf("valid until %s, for %s; a new one put in its place is noticed without a restart",
		c.Expires.Format(time.RFC3339), days(c.Expires.Sub(now).Round(time.Minute)))}
	if c.Certificate {
		notes = append(notes, "a certificate does not renew itself, and cannot be revoked: mint the next one before it expires")
	}
	if c.Shortened {
		notes = append(notes, "the API server issues none for longer than that")
	}
	if c.NoRenewal != "" {
		notes = append(notes, c.NoRenewal)
	}
	if c.Local {
		notes = append(notes, fmt.Sprintf("it reaches the API server at %s, which is each host's own; --server names another address", c.Server))
	}
	if c.LocalProxy != "" {
		notes = append(notes, fmt.Sprintf("it reaches the API server through the proxy %s, as your kubeconfig does; that address is each host's own. "+
			"If the hosts run no such proxy, remove proxy-url from it", c.LocalProxy))
	}
	return notes
}

// ParseLifetime parses a lifetime of MinLifetime to MaxLifetime, see [page.ParseDuration].
func ParseLifetime(text string) (time.Duration, error) {
	d, err := page.ParseDuration(text)
	if err != nil || d < MinLifetime || d > MaxLifetime {
		return 0, fmt.Errorf("%q, expected %s to %s, such as 36h or 90d", text, days(MinLifetime), days(MaxLifetime))
	}
	return d, nil
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

// days formats a duration for users, in days if it is about a number of whole days.
func days(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= day && d%day < time.Hour {
		return fmt.Sprintf("%dd", d/day)
	}
	if d%time.Hour == 0 {
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return d.String()
}
