package kube

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/connrotation"
)

// lookEvery is how often, at most, a client looks whether its kubeconfig has
// changed; only when it has something to ask for.
const lookEvery = time.Second

var dialer = &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}

// maxCredential bounds what is read of a kubeconfig, or of a file it names.
const maxCredential = 1 << 20

// way is the way to the API server that a kubeconfig named at one moment: the
// files' contents are in it, so that it is whole or not at all.
type way struct {
	file   string // the kubeconfig's path, "" if there is none
	config *rest.Config
	base   *url.URL
	rt     http.RoundTripper
	plugin *plugin // nil: the credential comes from no program

	certFile string            // the client certificate's path, or that of the kubeconfig it is in
	cert     *x509.Certificate // nil: the credential is no certificate

	print [sha256.Size]byte // of the contents of all files
	over  context.Context   // ends when another way has taken its place
	end   context.CancelFunc
}

// readWay makes a way of the kubeconfig as it is now. It talks to nobody.
func readWay(file, agent string, wrap transport.WrapperFunc) (*way, error) {
	wrong := func(err error) (*way, error) { return nil, fmt.Errorf("kubeconfig %s: %w", file, err) }
	before, err := fingerprint(file, nil)
	if err != nil {
		return wrong(err)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return wrong(err)
	}
	print, err := fingerprint(file, cfg)
	if err != nil {
		return wrong(err)
	}
	w, err := newWay(cfg, file, agent, wrap, true)
	if err != nil {
		return wrong(err)
	}
	after, err := fingerprint(file, nil)
	if err != nil {
		return wrong(err)
	}
	same, err := fingerprint(file, cfg)
	if err != nil {
		return wrong(err)
	}
	if before != after || print != same {
		return wrong(errors.New("it is being written"))
	}
	w.print = print
	return w, nil
}

// newWay makes a way of a configuration that file says. whole: what the PEM
// files hold now is a part of it.
func newWay(cfg *rest.Config, file, agent string, wrap transport.WrapperFunc, whole bool) (*way, error) {
	w := &way{file: file, certFile: file}
	if cfg.CertFile != "" {
		w.certFile = cfg.CertFile
	}
	w.config = rest.CopyConfig(cfg)
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = agent
	// Whole files, once: client-go would follow the certificate alone, and take
	// up to five minutes for it.
	loaded := rest.CopyConfig(cfg)
	if err := rest.LoadTLSFiles(loaded); err != nil {
		return nil, err
	}
	if len(loaded.CertData) > 0 {
		if _, err := tls.X509KeyPair(loaded.CertData, loaded.KeyData); err != nil {
			return nil, fmt.Errorf("the client certificate in %s and its key: %w", w.certFile, err)
		}
		w.cert = leaf(loaded.CertData)
	}
	if whole {
		cfg = loaded
		cfg.CAFile, cfg.CertFile, cfg.KeyFile = "", "", ""
	} else if cfg.CertFile != "" {
		w.cert = nil // it may be another one by then
	}
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("server %q: %w", cfg.Host, err)
	}
	w.base = base
	cfg.Wrap(wrap)
	plain := rest.CopyConfig(cfg)
	plain.ExecProvider = nil
	tc, err := plain.TransportConfig()
	if err != nil {
		return nil, err
	}
	// As in client-go, a plugin gives way to a credential that the user has without it.
	if !tc.HasTokenAuth() && !tc.HasBasicAuth() && !tc.HasCertAuth() {
		if w.plugin, err = newPlugin(cfg); err != nil {
			return nil, err
		}
	}
	if p := w.plugin; p != nil {
		tc.Wrap(func(next http.RoundTripper) http.RoundTripper { return pluginTripper{next, p} })
		tc.TLS.GetCertHolder = &transport.GetCertHolder{GetCert: p.certificate}
		connections := connrotation.NewConnectionTracker()
		p.renewed = connections.CloseAll
		tc.DialHolder = &transport.DialHolder{Dial: connrotation.NewDialerWithTracker(dialer.DialContext, connections).DialContext}
	}
	if w.rt, err = transport.New(tc); err != nil {
		return nil, err
	}
	w.over, w.end = context.WithCancel(context.Background())
	return w, nil
}

// leaf is the first certificate in PEM text, nil if there is none.
func leaf(text []byte) *x509.Certificate {
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return nil
		}
		if block.Type == "CERTIFICATE" {
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil
			}
			return c
		}
		text = rest
	}
}

// fingerprint tells one content of a kubeconfig and of the files that it names
// from another. Tokens in files of their own are client-go's to follow.
func fingerprint(file string, cfg *rest.Config) (print [sha256.Size]byte, err error) {
	sum := sha256.New()
	files := []string{file}
	if cfg != nil {
		files = append(files, cfg.CAFile, cfg.CertFile, cfg.KeyFile)
	}
	for _, name := range files {
		fmt.Fprintf(sum, "%q\n", name)
		if name == "" {
			continue
		}
		text, err := readBounded(name)
		if err != nil {
			return print, err
		}
		fmt.Fprintf(sum, "%d\n", len(text))
		sum.Write(text)
	}
	return [sha256.Size]byte(sum.Sum(nil)), nil
}

func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxCredential+1))
	if err == nil && len(text) > maxCredential {
		err = fmt.Errorf("%s is larger than %d KiB", name, maxCredential>>10)
	}
	return text, err
}

// RoundTrip sends a request this way, wherever it was addressed to.
func (w *way) RoundTrip(r *http.Request) (*http.Response, error) {
	watching := r.URL.Query().Has("watch")
	ctx, stop := r.Context(), func() {}
	// A request is addressed to the server that the first way led to.
	to := *r.URL
	to.Scheme, to.Host, to.Path = w.base.Scheme, w.base.Host, strings.TrimSuffix(w.base.Path, "/")+r.URL.Path
	if watching {
		// A watch would go on under a credential, or at a server, that is not
		// the kubeconfig's any more.
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		unhook := context.AfterFunc(w.over, cancel)
		stop = func() { unhook(); cancel() }
	}
	r = r.Clone(ctx)
	r.URL, r.Host = &to, ""
	resp, err := w.rt.RoundTrip(r)
	if err != nil || !watching {
		if watching {
			stop()
		}
		return resp, err
	}
	resp.Body = watched{resp.Body, stop}
	return resp, nil
}

// watched is a watch's body, with what has to be let go at its end.
type watched struct {
	io.ReadCloser
	stop func()
}

// Close closes it.
func (w watched) Close() error {
	defer w.stop()
	return w.ReadCloser.Close()
}

// follower goes the way that a kubeconfig names now: the kubelet's credential
// is renewed, or a cluster moves, while this process runs.
type follower struct {
	find  func() (string, error)
	agent string
	wrap  transport.WrapperFunc

	mu     sync.Mutex
	at     *way
	looked time.Time
	err    error // of type *unread: why the kubeconfig, as it is now, is no way; at is the one before
}

// now is the way to go.
func (f *follower) now() (*way, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.looked) < lookEvery {
		return f.at, f.err
	}
	f.looked = time.Now()
	file, err := f.find()
	if err != nil {
		return f.at, f.stays(err)
	}
	if f.at.file == file {
		if print, err := fingerprint(file, f.at.config); err == nil && print == f.at.print {
			f.err = nil
			return f.at, nil
		}
	}
	next, err := readWay(file, f.agent, f.wrap)
	if err != nil {
		return f.at, f.stays(err) // half written perhaps; what was good may still be
	}
	old := f.at
	f.at, f.err = next, nil
	old.end()
	utilnet.CloseIdleConnectionsFor(old.rt)
	return f.at, nil
}

// stays takes in why the way remains the one before; the caller holds mu.
func (f *follower) stays(err error) error {
	u := &unread{err, time.Now()}
	if was, ok := errors.AsType[*unread](f.err); ok {
		u.since = was.since
	}
	f.err = u
	return u
}

// unread is a kubeconfig that has become no way to the API server.
type unread struct {
	error
	since time.Time
}

// Unwrap is why.
func (u *unread) Unwrap() error { return u.error }

// RoundTrip sends a request to the server that the kubeconfig names now.
func (f *follower) RoundTrip(r *http.Request) (*http.Response, error) {
	w, _ := f.now()
	return w.RoundTrip(r)
}
