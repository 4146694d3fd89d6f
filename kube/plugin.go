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
	// service answers in milliseconds; one that is down is no reason to wait
	// longer than for the API server itself.
	pluginBound = 30 * time.Second
	// pluginPause is how long after one run of a plugin, at least, the next
	// begins: it is asked again and again while it fails.
	pluginPause = 5 * time.Second

	maxPluginSays  = 1 << 20  // bytes of its credential
	maxPluginWords = 16 << 10 // bytes of its complaints that are read
	maxPluginTold  = 300      // bytes of them that are told
)

const pluginExpired = "the credential it gave has expired already"

// A PluginError is a credential plugin that gave no credential.
type PluginError struct {
	Command string // as the kubeconfig names it
	How     string // how it failed
	Words   string // what it said, in one line of at most 300 bytes; may be ""
}

// Error names the plugin, how it failed and its words.
func (e *PluginError) Error() string {
	text := "credential plugin " + e.Command + ": " + e.How
	if e.Words != "" {
		text += ": " + e.Words
	}
	return text
}

// plugin is the program that a kubeconfig names for a credential, spoken to as
// client.authentication.k8s.io says. client-go runs such programs as well, but
// waits for one without an end, holding every request up, and passes its words
// to nobody but the standard error: here each run has a bound, and what the
// plugin says when it fails goes into the status.
type plugin struct {
	command    string // as it is called
	name       string // as it is told of
	args, env  []string
	group      schema.GroupVersion
	hint       string
	bound, gap time.Duration
	renewed    func() // is called when there is another certificate
	changed    func() // is called after each run

	mu      sync.Mutex
	have    *minted
	stale   bool          // the API server has refused what it has
	running chan struct{} // closed when the present run ends; nil between runs
	failed  problem       // of the last runs
	ran     time.Time     // when the last run ended
}

// minted is a credential.
type minted struct {
	token  string
	cert   *tls.Certificate
	expiry time.Time // as it says or its certificate does, the earlier; zero: neither does
}

func (m *minted) valid() bool { return m != nil && (m.expiry.IsZero() || time.Now().Before(m.expiry)) }

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
	if err != nil || group.Group != clientauthentication.GroupName || !pluginKnows(group) {
		return nil, &PluginError{Command: name, How: fmt.Sprintf("its apiVersion is %q, expected client.authentication.k8s.io/v1 or v1beta1", e.APIVersion)}
	}
	if e.InteractiveMode == clientcmdapi.AlwaysExecInteractiveMode {
		return nil, &PluginError{Command: name, How: "it wants to ask somebody (interactiveMode: Always), and a service has nobody to ask"}
	}
	said := &clientauthentication.ExecCredential{}
	if e.ProvideClusterInfo {
		if said.Spec.Cluster, err = rest.ConfigToExecCluster(cfg); err != nil {
			return nil, &PluginError{Command: name, How: err.Error()}
		}
	}
	info, err := runtime.Encode(pluginCodecs().LegacyCodec(group), said)
	if err != nil {
		return nil, &PluginError{Command: name, How: err.Error()}
	}
	p := &plugin{
		command: e.Command, name: name, args: e.Args, group: group, hint: e.InstallHint,
		bound: pluginBound, gap: pluginPause, renewed: func() {}, changed: func() {},
	}
	for _, v := range e.Env {
		p.env = append(p.env, v.Name+"="+v.Value)
	}
	p.env = append(p.env, "KUBERNETES_EXEC_INFO="+string(bytes.TrimSpace(info)))
	return p, nil
}

func pluginKnows(group schema.GroupVersion) bool {
	return group.Version == "v1" || group.Version == "v1beta1"
}

// credential returns a credential that is valid, running the plugin if need be.
// Whoever comes while it runs waits for the same run, until ctx ends; the run
// goes on, for the next one who asks.
func (p *plugin) credential(ctx context.Context) (*minted, error) {
	for asked := false; ; asked = true {
		p.mu.Lock()
		have, failed := p.have, p.failed.err
		switch {
		case p.running != nil: // what it gave is nobody's yet, see run
		case have.valid() && !p.stale:
			p.mu.Unlock()
			return have, nil
		case failed != nil && (asked || time.Since(p.ran) < p.gap):
			p.mu.Unlock()
			return nil, failed
		case asked:
			p.mu.Unlock()
			return nil, p.fails(pluginExpired, "") // meanwhile
		default:
			p.running = make(chan struct{})
			go p.run()
		}
		running := p.running
		p.mu.Unlock()
		began := time.Now()
		select {
		case <-running:
		case <-ctx.Done():
			return nil, p.fails(fmt.Sprintf("it has not answered for %v", time.Since(began).Round(time.Second)), "")
		}
	}
}

// refused takes note that the API server did not take the credential. The
// plugin is asked for another one, but not again and again.
func (p *plugin) refused(m *minted) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.have == m && time.Since(p.ran) >= p.gap {
		p.stale = true // and not forgotten: run tells by it whether the certificate is another
	}
}

// certificate is the credential's for a TLS handshake, which comes after the
// request that asked for the credential.
func (p *plugin) certificate() (*tls.Certificate, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	m, err := p.credential(ctx)
	if err != nil {
		return nil, err
	}
	return m.cert, nil
}

// run runs the plugin once and takes in what came of it.
func (p *plugin) run() {
	m, err := p.mint()
	p.mu.Lock()
	other := err == nil && p.have != nil && !sameCert(p.have.cert, m.cert)
	if p.failed.set(err); err == nil {
		p.have, p.stale = m, false
	}
	p.mu.Unlock()
	if other {
		// Before anybody has the new one, whose request would go out on a
		// connection that the old certificate opened.
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
func (p *plugin) mint() (*minted, error) {
	ctx, cancel := context.WithTimeout(context.Background(), p.bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.command, p.args...)
	cmd.Env = append(os.Environ(), p.env...)
	says, words := &bounded{most: maxPluginSays}, &bounded{most: maxPluginWords}
	cmd.Stdout, cmd.Stderr = says, words
	// A group of its own: what it started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if cmd.Process != nil {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // mostly nothing is left of it
	}
	if errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success() {
		err = nil // what it started held its output open; it had printed all
	}
	told := oneLine(words.String())
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		how := fmt.Sprintf("there is no such program (%s; PATH=%s)", p.command, os.Getenv("PATH"))
		return nil, p.fails(how, oneLine(p.hint))
	case err != nil && ctx.Err() != nil:
		return nil, p.fails(fmt.Sprintf("it took more than %v and was ended", p.bound), told)
	case err != nil:
		return nil, p.fails(err.Error(), told)
	}
	return p.read(says.Bytes(), told)
}

// read reads what the plugin printed, which is a secret and goes into no error.
func (p *plugin) read(text []byte, told string) (*minted, error) {
	obj, kind, err := pluginCodecs().UniversalDecoder(clientauthentication.SchemeGroupVersion).Decode(text, nil, nil)
	cred, ok := obj.(*clientauthentication.ExecCredential)
	if err != nil || !ok {
		return nil, p.fails(fmt.Sprintf("what it printed (%d bytes) is no ExecCredential", len(text)), told)
	}
	if kind.GroupVersion() != p.group {
		return nil, p.fails(fmt.Sprintf("it speaks %s, and the kubeconfig says %s", kind.GroupVersion(), p.group), told)
	}
	s := cred.Status
	if s == nil || s.Token == "" && s.ClientCertificateData == "" || (s.ClientCertificateData == "") != (s.ClientKeyData == "") {
		return nil, p.fails("it gave neither a token nor a certificate with its key", told)
	}
	m := &minted{token: s.Token}
	if s.ExpirationTimestamp != nil {
		m.expiry = s.ExpirationTimestamp.Time
	}
	if s.ClientCertificateData != "" {
		pair, err := tls.X509KeyPair([]byte(s.ClientCertificateData), []byte(s.ClientKeyData))
		if err != nil {
			return nil, p.fails("its certificate and key: "+err.Error(), told)
		}
		m.cert = &pair
		if c := pair.Leaf; m.expiry.IsZero() || c.NotAfter.Before(m.expiry) {
			m.expiry = c.NotAfter
		}
	}
	if !m.valid() {
		return nil, p.fails(pluginExpired, told)
	}
	return m, nil
}

func (p *plugin) fails(how, words string) error {
	return &PluginError{Command: p.name, How: how, Words: words}
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

// bounded keeps the first bytes that are written to it, and takes the others.
// It has no other way in: io.Copy would pass Write by for a ReadFrom.
type bounded struct {
	kept []byte
	most int
}

// Write takes all of it.
func (b *bounded) Write(text []byte) (int, error) {
	b.kept = append(b.kept, text[:min(len(text), b.most-len(b.kept))]...)
	return len(text), nil
}

// Bytes are those that it keeps.
func (b *bounded) Bytes() []byte { return b.kept }

// String is the text that it keeps.
func (b *bounded) String() string { return string(b.kept) }

// oneLine is text in one line, its end left out where it is long.
func oneLine(text string) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "?"), func(r rune) bool { return r <= ' ' || r == 0x7f }), " ")
	if len(text) > maxPluginTold {
		text = strings.ToValidUTF8(text[:maxPluginTold], "") + "…"
	}
	return text
}
