package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/pkg/apis/clientauthentication"
	"k8s.io/client-go/pkg/apis/clientauthentication/install"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	// pluginBound is how long a credential plugin may take. A cloud's metadata
	// service answers in milliseconds. If it is down, waiting longer than for the API
	// server itself does not help.
	pluginBound = 30 * time.Second
	// pluginPause is the minimum time between two runs of a plugin: while it fails,
	// every request asks for a credential.
	pluginPause = 5 * time.Second

	maxPluginOutput  = 1 << 20  // bytes that are read of its standard output
	maxPluginErrors  = 16 << 10 // bytes that are read of its standard error
	maxPluginMessage = 300      // bytes of that which errors contain
)

const pluginExpired = "the credential that it provided has expired already"

// A PluginError means that a credential plugin provided no credential.
type PluginError struct {
	Command string // as the kubeconfig names it
	How     string // how it failed
	Message string // what it wrote to its standard error, in one line of at most 300 bytes; may be ""
}

// Error names the plugin, how it failed, and its message.
func (e *PluginError) Error() string {
	text := "credential plugin " + e.Command + ": " + e.How
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// plugin is the program that a kubeconfig names for a credential. It speaks
// client.authentication.k8s.io. client-go runs such programs as well, but waits for
// one indefinitely, which delays every request, and passes its error messages on to
// the standard error only. Here each run has a bound, and a plugin's message is part
// of the error and of the status.
type plugin struct {
	command    string // as it is called
	name       string // in errors
	args, env  []string
	group      schema.GroupVersion
	hint       string
	bound, gap time.Duration
	renewed    func() // is called when there is another certificate
	changed    func() // is called after each run

	mu      sync.Mutex
	have    minted
	again   bool          // there is no credential, or the API server has refused the one that there is
	running chan struct{} // closed when the present run ends; nil between runs
	failed  problem       // of the last runs
	ran     time.Time     // when the last run ended
}

// minted is a credential.
type minted struct {
	token  string
	cert   *tls.Certificate
	expiry time.Time // the earlier of its own and its certificate's; zero: it has neither
}

func (m *minted) valid() bool { return m.expiry.IsZero() || time.Now().Before(m.expiry) }

var pluginCodecs = sync.OnceValue(func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return serializer.NewCodecFactory(scheme)
})

// newPlugin returns the plugin that cfg names, nil if it names none.
func newPlugin(cfg *rest.Config) (*plugin, error) {
	e := cfg.ExecProvider
	if e == nil {
		return nil, nil
	}
	name := filepath.Base(e.Command)
	group, err := schema.ParseGroupVersion(e.APIVersion)
	if err != nil || group.Group != clientauthentication.GroupName || group.Version != "v1" && group.Version != "v1beta1" {
		return nil, &PluginError{Command: name, How: fmt.Sprintf("its apiVersion is %q, expected client.authentication.k8s.io/v1 or v1beta1", e.APIVersion)}
	}
	if e.InteractiveMode == clientcmdapi.AlwaysExecInteractiveMode {
		return nil, &PluginError{Command: name, How: "it has to ask a user (interactiveMode: Always), and a service has none"}
	}
	request := &clientauthentication.ExecCredential{}
	if e.ProvideClusterInfo {
		if request.Spec.Cluster, err = rest.ConfigToExecCluster(cfg); err != nil {
			return nil, &PluginError{Command: name, How: err.Error()}
		}
	}
	info, err := runtime.Encode(pluginCodecs().LegacyCodec(group), request)
	if err != nil {
		return nil, &PluginError{Command: name, How: err.Error()}
	}
	p := &plugin{
		command: e.Command, name: name, args: e.Args, group: group, hint: e.InstallHint,
		bound: pluginBound, gap: pluginPause, renewed: func() {}, changed: func() {}, again: true,
	}
	for _, v := range e.Env {
		p.env = append(p.env, v.Name+"="+v.Value)
	}
	p.env = append(p.env, "KUBERNETES_EXEC_INFO="+string(bytes.TrimSpace(info)))
	return p, nil
}

// credential returns a valid credential, and runs the plugin if it has none. Callers
// that come while it runs wait for the same run, until ctx ends; the run continues
// for the next caller.
func (p *plugin) credential(ctx context.Context) (minted, error) {
	p.mu.Lock()
	if p.running == nil { // otherwise no caller may have its credential yet, see run
		switch {
		case !p.again && p.have.valid():
			defer p.mu.Unlock()
			return p.have, nil
		case p.failed.err != nil && time.Since(p.ran) < p.gap:
			defer p.mu.Unlock()
			return minted{}, p.failed.err
		}
		p.running = make(chan struct{})
		go p.run()
	}
	running := p.running
	p.mu.Unlock()
	began := time.Now()
	select {
	case <-running:
	case <-ctx.Done():
		return minted{}, p.fails(fmt.Sprintf("it has not answered for %v", time.Since(began).Round(time.Second)), "")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.failed.err != nil:
		return minted{}, p.failed.err
	case !p.have.valid():
		return minted{}, p.fails(pluginExpired, "") // meanwhile
	}
	return p.have, nil
}

// refused records that the API server refused the credential. The plugin is asked for
// another one, but not more often than every pluginPause.
func (p *plugin) refused(m minted) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.have == m && time.Since(p.ran) >= p.gap {
		p.again = true
	}
}

// certificate is the credential's for a TLS handshake, which comes after the
// request that asked for the credential.
func (p *plugin) certificate() (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.have.cert, nil
}

// run runs the plugin once and records the result.
func (p *plugin) run() {
	m, err := p.mint()
	p.mu.Lock()
	other := err == nil && !sameCert(p.have.cert, m.cert)
	if p.failed.set(err, time.Now()); err == nil {
		p.have, p.again = m, false
	}
	p.mu.Unlock()
	if other {
		// Before a caller has the new one: its request would use a connection that was
		// opened with the old certificate.
		p.renewed()
	}
	p.mu.Lock()
	p.ran = time.Now()
	close(p.running)
	p.running = nil
	p.mu.Unlock()
	p.changed()
}

// problem is why the last runs have failed.
func (p *plugin) problem() problem {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

func sameCert(a, b *tls.Certificate) bool {
	if a == nil || b == nil {
		return a == b
	}
	return bytes.Equal(a.Certificate[0], b.Certificate[0])
}

// mint runs the plugin and reads the credential.
func (p *plugin) mint() (minted, error) {
	ctx, cancel := context.WithTimeout(context.Background(), p.bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.command, p.args...)
	cmd.Env = append(os.Environ(), p.env...)
	stdout, stderr := &bounded{most: maxPluginOutput}, &bounded{most: maxPluginErrors}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// A process group of its own: what it started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if cmd.Process != nil {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // usually nothing is left of it
	}
	if errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success() {
		err = nil // a process that it started held its output open; it had printed everything
	}
	message := oneLine(stderr.String())
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		how := fmt.Sprintf("there is no such program (%s; PATH=%s)", p.command, os.Getenv("PATH"))
		return minted{}, p.fails(how, oneLine(p.hint))
	case err != nil && ctx.Err() != nil:
		return minted{}, p.fails(fmt.Sprintf("it took more than %v and was killed", p.bound), message)
	case err != nil:
		return minted{}, p.fails(err.Error(), message)
	}
	return p.read(stdout.Bytes(), message)
}

// read reads what the plugin printed, which is a secret and is part of no error.
func (p *plugin) read(text []byte, message string) (minted, error) {
	obj, kind, err := pluginCodecs().UniversalDecoder(clientauthentication.SchemeGroupVersion).Decode(text, nil, nil)
	cred, ok := obj.(*clientauthentication.ExecCredential)
	if err != nil || !ok {
		return minted{}, p.fails(fmt.Sprintf("what it printed (%d bytes) is not an ExecCredential", len(text)), message)
	}
	if kind.GroupVersion() != p.group {
		return minted{}, p.fails(fmt.Sprintf("it uses %s, and the kubeconfig expects %s", kind.GroupVersion(), p.group), message)
	}
	s := cred.Status
	if s == nil || s.Token == "" && s.ClientCertificateData == "" || (s.ClientCertificateData == "") != (s.ClientKeyData == "") {
		return minted{}, p.fails("it provided neither a token nor a certificate with its key", message)
	}
	m := minted{token: s.Token}
	if s.ExpirationTimestamp != nil {
		m.expiry = s.ExpirationTimestamp.Time
	}
	if s.ClientCertificateData != "" {
		pair, err := tls.X509KeyPair([]byte(s.ClientCertificateData), []byte(s.ClientKeyData))
		if err != nil {
			return minted{}, p.fails("its certificate and key: "+err.Error(), message)
		}
		m.cert = &pair
		if c := pair.Leaf; m.expiry.IsZero() || c.NotAfter.Before(m.expiry) {
			m.expiry = c.NotAfter
		}
	}
	if !m.valid() {
		return minted{}, p.fails(pluginExpired, message)
	}
	return m, nil
}

func (p *plugin) fails(how, message string) error {
	return &PluginError{Command: p.name, How: how, Message: message}
}

// pluginTripper gives every request the plugin's credential.
type pluginTripper struct {
	next http.RoundTripper
	p    *plugin
}

// RoundTrip passes the request on.
func (t pluginTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	m, err := t.p.credential(r.Context())
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	if m.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+m.token)
	}
	resp, err := t.next.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		t.p.refused(m)
	}
	return resp, err
}

// WrappedRoundTripper is what apimachinery looks through.
func (t pluginTripper) WrappedRoundTripper() http.RoundTripper { return t.next }

// bounded keeps the first bytes that are written to it, and drops the others. It has
// no ReadFrom, which io.Copy would use instead of Write.
type bounded struct {
	kept []byte
	most int
}

// Write accepts all of it.
func (b *bounded) Write(text []byte) (int, error) {
	b.kept = append(b.kept, text[:min(len(text), b.most-len(b.kept))]...)
	return len(text), nil
}

// Bytes returns the bytes that it keeps.
func (b *bounded) Bytes() []byte { return b.kept }

// String returns the same as text.
func (b *bounded) String() string { return string(b.kept) }

// oneLine returns the text in one line, cut if it is long.
func oneLine(text string) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "?"), func(r rune) bool { return r <= ' ' || r == 0x7f }), " ")
	if len(text) > maxPluginMessage {
		text = strings.ToValidUTF8(text[:maxPluginMessage], "") + "…"
	}
	return text
}
