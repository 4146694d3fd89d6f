package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Trouble explains a failed request, or a problem with the credential, to the person who
// has to fix it: which file or server is affected, what is wrong, and what to do. It wraps
// the error.
type Trouble struct {
	// Reason is Forbidden if the API server does not permit what this identity has to do,
	// otherwise "".
	Reason v1alpha1.Reason
	Text   string
	// Usable is whether the client still works: no request has failed yet.
	Usable bool
	// Local is whether the cause is the kubeconfig, or the credential plugin that it names,
	// and not the API server.
	Local bool
	// RefusedBy is the admission webhook or policy that refused the request; "" if there
	// is none.
	RefusedBy string
	err       error
}

// Error returns the explanation.
func (t *Trouble) Error() string { return t.Text }

// Unwrap returns the error.
func (t *Trouble) Unwrap() error { return t.err }

// Explain explains the failure of a request of this client. If it does not know the error,
// it keeps the error's text. It returns nil for nil.
func (c *Client) Explain(err error) *Trouble {
	if err == nil {
		return nil
	}
	if t, ok := errors.AsType[*Trouble](err); ok {
		return t
	}
	t := c.conn.Load().explain(err)
	if p := c.problem(); p.err != nil {
		// A user may have fixed the first problem and caused another.
		t.Text, t.Local = before(p, t.Text), true
	}
	return t
}

// Check returns a problem with the client's credential that has not made a request fail
// yet: the credential has expired, but requests that began before may continue; or the
// kubeconfig has become unusable, but its previous content still works.
func (c *Client) Check() error {
	conn, p := c.conn.Load(), c.problem()
	lasts := p.err != nil && time.Since(p.since) >= lasting
	switch expired := conn.cert != nil && time.Now().After(conn.cert.NotAfter); {
	case expired && lasts:
		return &Trouble{Reason: v1alpha1.ReasonForbidden, Text: before(p, conn.refused()), Local: true, err: p.err}
	case expired:
		return &Trouble{Reason: v1alpha1.ReasonForbidden, Text: conn.refused()}
	case lasts:
		return &Trouble{Text: p.err.Error() + "; its previous content is still in use", Usable: true, Local: true, err: p.err}
	}
	return nil
}

// problem returns the current problem with the files.
func (c *Client) problem() problem {
	if c.credential == nil {
		return problem{}
	}
	c.credential.mu.Lock()
	defer c.credential.mu.Unlock()
	return c.credential.problem
}

// before adds a problem with the previous content of a kubeconfig that has become unusable.
func before(p problem, text string) string {
	return p.err.Error() + "; with its previous content: " + text
}

// ExplainSetup explains why there is no client. It returns nil for nil.
func ExplainSetup(err error) *Trouble {
	if err == nil {
		return nil
	}
	_, own := errors.AsType[*PluginError](err)
	return &Trouble{Text: err.Error(), Local: own, err: err}
}

func (c *connection) explain(err error) *Trouble {
	if p, ok := errors.AsType[*PluginError](err); ok {
		return &Trouble{Text: c.named("%v", p), Local: true, err: err}
	}
	if name, text := webhook(err); text != "" {
		return &Trouble{Reason: v1alpha1.ReasonForbidden, Text: text, RefusedBy: name, err: err}
	}
	status := apierrors.APIStatus(nil)
	if errors.As(err, &status) {
		switch s := status.Status(); s.Code {
		case http.StatusUnauthorized:
			return &Trouble{Reason: v1alpha1.ReasonForbidden, Text: c.refused(), err: err}
		case http.StatusForbidden:
			by := ""
			if m := policyRefuses.FindStringSubmatch(s.Message); m != nil {
				by = m[1]
			}
			return &Trouble{Reason: v1alpha1.ReasonForbidden, Text: forbidden(err, s.Message), RefusedBy: by, err: err}
		}
		return &Trouble{Text: err.Error(), err: err}
	}
	if text := c.unreachable(err); text != "" {
		if about := writeOf(err); about != "" {
			text += " (" + about[1:] + ")"
		}
		return &Trouble{Text: text, err: err}
	}
	return &Trouble{Text: err.Error(), err: err}
}

// server returns the API server's address in the kubeconfig.
func (c *connection) server() string { return c.base.Scheme + "://" + c.base.Host }

// named puts the kubeconfig's path, if there is one, at the beginning of a text, because a
// status cuts long texts at the end.
func (c *connection) named(format string, args ...any) string {
	text := fmt.Sprintf(format, args...)
	if c.file != "" {
		text = c.file + ": " + text
	}
	return text
}

// refused explains a 401.
func (c *connection) refused() string {
	if c.cert != nil && time.Now().After(c.cert.NotAfter) {
		return fmt.Sprintf("the client certificate in %s expired on %s; the kubelet renews it (systemctl status kubelet), or k3s and RKE2 when they are restarted",
			c.certFile, c.cert.NotAfter.UTC().Format("2006-01-02 15:04 UTC"))
	}
	if c.plugin != nil {
		return c.named("%s refuses the credential of plugin %s (401); is it for this cluster?", c.server(), c.plugin.name)
	}
	return c.named("%s refuses its credential (401); is it this cluster's, and valid? systemctl status kubelet", c.server())
}

// unreachable explains why the API server does not answer, or why another server does. It
// returns "" for an error that it does not know.
func (c *connection) unreachable(err error) string {
	if authority, ok := errors.AsType[x509.UnknownAuthorityError](err); ok && authority.Cert != nil {
		return c.named("the certificate of %s is from another authority (%s) than certificate-authority in this file", c.server(), authority.Cert.Issuer.CommonName)
	}
	if host, ok := errors.AsType[x509.HostnameError](err); ok {
		return c.named("the certificate of %s is not for the name %s; is server in this file correct?", c.server(), host.Host)
	}
	if invalid, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return c.named("the certificate of %s is not valid: %v", c.server(), invalid.Err)
	}
	if name, ok := errors.AsType[*net.DNSError](err); ok {
		return c.named("cannot reach %s: no address for its name (%s); does DNS work, and is server in this file correct?", c.server(), name.Err)
	}
	for _, cause := range []error{
		syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ETIMEDOUT, syscall.ECONNRESET, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF,
	} {
		if errors.Is(err, cause) {
			return c.named("cannot reach %s: %v; does the API server run there, and is server in this file correct?", c.server(), cause)
		}
	}
	if timeout := net.Error(nil); errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		text := c.named("%s does not answer in time", c.server())
		if writeOf(err) != "" {
			// The API server waits for a webhook for 10 s, or as long as the webhook's configuration says: up to 30 s.
			text += "; if it answers other requests, look for an admission webhook whose server is away"
		}
		return text
	}
	return ""
}

var (
	webhookRefuses = regexp.MustCompile(`admission webhook "([^"]+)" denied the request:? ?(.*)`)
	webhookAway    = regexp.MustCompile(`failed calling webhook "([^"]+)": (.*)`)
	policyRefuses  = regexp.MustCompile(`ValidatingAdmissionPolicy '([^']+)' .*?denied request: (.*)`)
	rbacRefuses    = regexp.MustCompile(`User "([^"]+)" cannot (\S+) resource "([^"]+)" in API group "([^"]*)"(?: in the namespace "([^"]+)")?`)
)

// webhook returns the name of the admission webhook that refused a request or did not
// answer, and an explanation. It returns "" for other errors.
func webhook(err error) (name, said string) {
	text := err.Error()
	if m := webhookRefuses.FindStringSubmatch(text); m != nil {
		return m[1], fmt.Sprintf("admission webhook %q refuses%s: %s", m[1], writeOf(err), oneLine(m[2]))
	}
	if m := webhookAway.FindStringSubmatch(text); m != nil {
		return m[1], fmt.Sprintf("admission webhook %q cannot be called, so the API server refuses%s: %s", m[1], writeOf(err), oneLine(m[2]))
	}
	return "", ""
}

// writeOf returns which write has failed, or "" if the error does not contain it.
func writeOf(err error) string {
	if about, _, ok := strings.Cut(err.Error(), ": "); ok && strings.HasPrefix(about, "writing ") {
		return " " + about
	}
	return ""
}

// forbidden explains a 403.
func forbidden(err error, message string) string {
	if m := policyRefuses.FindStringSubmatch(message); m != nil {
		return fmt.Sprintf("admission policy %s refuses%s: %s", m[1], writeOf(err), oneLine(m[2]))
	}
	if m := rbacRefuses.FindStringSubmatch(message); m != nil {
		what := m[3]
		if m[4] != "" {
			what += "." + m[4]
		}
		if m[5] != "" {
			what += " in namespace " + m[5]
		}
		text := fmt.Sprintf("%s may not %s %s", m[1], m[2], what)
		if kubelet := strings.HasPrefix(m[1], "system:node:"); kubelet && m[3] != "leases" && m[4] != v1alpha1.GroupVersion.Group {
			// Kubernetes itself grants this permission, not the manifests.
			_, why, _ := strings.Cut(message[strings.Index(message, m[0])+len(m[0]):], ": ")
			if why != "" {
				text += " (" + oneLine(why) + ")"
			}
			return text + "; is this the credential of this host's own kubelet, and node_name its Node?"
		}
		return text + "; apply the manifests: lockkeeper manifests | kubectl apply -f -"
	}
	return err.Error()
}
