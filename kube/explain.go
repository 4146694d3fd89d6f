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

// Trouble is a request's failure in words for whoever has to mend it: which
// file or server it is about, what is wrong, and what to do. The failure
// itself is below it.
type Trouble struct {
	// Reason is Forbidden where the API server does not let this identity do
	// what it has to, or "".
	Reason v1alpha1.Reason
	Text   string
	// GoesOn: nothing has failed yet.
	GoesOn bool
	// Own: it is the kubeconfig, or the credential plugin that it names, that is
	// at fault, whatever the API server does.
	Own bool
	// RefusedBy is the admission webhook or policy that refused the request, "" if
	// none did.
	RefusedBy string
	err       error
}

// Error is the text.
func (t *Trouble) Error() string { return t.Text }

// Unwrap is the failure as it came.
func (t *Trouble) Unwrap() error { return t.err }

// Explain says of a failed request of this client what is wrong. What it has
// no better words for is told as it is. nil stays nil.
func (c *Client) Explain(err error) *Trouble {
	if err == nil {
		return nil
	}
	if t, ok := errors.AsType[*Trouble](err); ok {
		return t
	}
	w, unread := c.way()
	t := w.explain(err)
	if unread != nil {
		// Somebody may have mended what is wrong, and made another mistake.
		t.Text, t.Own = before(unread, t.Text), true
	}
	return t
}

// before is what is wrong with what a kubeconfig said before it became unread.
func before(unread error, text string) string {
	return unread.Error() + "; what it said before: " + text
}

// ExplainSetup is Explain for what kept a client from being made.
func ExplainSetup(err error) *Trouble {
	if err == nil {
		return nil
	}
	_, own := errors.AsType[*PluginError](err)
	return &Trouble{Text: err.Error(), Own: own, err: err}
}

func (w *way) explain(err error) *Trouble {
	if p, ok := errors.AsType[*PluginError](err); ok {
		return &Trouble{Text: w.named("%v", p), Own: true, err: err}
	}
	if name, text := webhook(err); text != "" {
		return &Trouble{Reason: v1alpha1.ReasonForbidden, Text: text, RefusedBy: name, err: err}
	}
	status := apierrors.APIStatus(nil)
	if errors.As(err, &status) {
		switch s := status.Status(); s.Code {
		case http.StatusUnauthorized:
			return &Trouble{Reason: v1alpha1.ReasonForbidden, Text: w.refused(), err: err}
		case http.StatusForbidden:
			by := ""
			if m := policyRefuses.FindStringSubmatch(s.Message); m != nil {
				by = m[1]
			}
			return &Trouble{Reason: v1alpha1.ReasonForbidden, Text: forbidden(err, s.Message), RefusedBy: by, err: err}
		}
		return &Trouble{Text: err.Error(), err: err}
	}
	if text := w.unreachable(err); text != "" {
		if about := writeOf(err); about != "" {
			text += " (" + about[1:] + ")"
		}
		return &Trouble{Text: text, err: err}
	}
	return &Trouble{Text: err.Error(), err: err}
}

// server is the API server as the kubeconfig names it.
func (w *way) server() string { return w.base.Scheme + "://" + w.base.Host }

// named begins a text with the kubeconfig's path, if there is one: what is too
// long for a status is cut at its end.
func (w *way) named(format string, args ...any) string {
	text := fmt.Sprintf(format, args...)
	if w.file != "" {
		text = w.file + ": " + text
	}
	return text
}

// refused is what a 401 means.
func (w *way) refused() string {
	if w.cert != nil && time.Now().After(w.cert.NotAfter) {
		return fmt.Sprintf("the client certificate in %s expired on %s; its kubelet renews it: systemctl status kubelet",
			w.certFile, w.cert.NotAfter.UTC().Format("2006-01-02 15:04 UTC"))
	}
	if w.plugin != nil {
		return w.named("%s refuses what credential plugin %s gives (401); is it this cluster's?", w.server(), w.plugin.name)
	}
	return w.named("%s refuses its credential (401); is it this cluster's, and valid? systemctl status kubelet", w.server())
}

// unreachable says why nobody answers, or not the one who should; "" for what
// it does not know.
func (w *way) unreachable(err error) string {
	if authority, ok := errors.AsType[x509.UnknownAuthorityError](err); ok && authority.Cert != nil {
		return w.named("%s is certified by an authority (%s) that is not its certificate-authority", w.server(), authority.Cert.Issuer.CommonName)
	}
	if host, ok := errors.AsType[x509.HostnameError](err); ok {
		return w.named("%s is certified under another name than %s; see its server", w.server(), host.Host)
	}
	if invalid, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return w.named("the certificate of %s is not valid: %v", w.server(), invalid.Err)
	}
	if name, ok := errors.AsType[*net.DNSError](err); ok {
		return w.named("cannot reach %s: no address for its name (%s); see its server", w.server(), name.Err)
	}
	for _, cause := range []error{
		syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ETIMEDOUT, syscall.ECONNRESET, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF,
	} {
		if errors.Is(err, cause) {
			return w.named("cannot reach %s: %v; see its server, and that one", w.server(), cause)
		}
	}
	if timeout := net.Error(nil); errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return w.named("%s does not answer in time", w.server())
	}
	return ""
}

var (
	webhookRefuses = regexp.MustCompile(`admission webhook "([^"]+)" denied the request:? ?(.*)`)
	webhookAway    = regexp.MustCompile(`failed calling webhook "([^"]+)": (.*)`)
	policyRefuses  = regexp.MustCompile(`ValidatingAdmissionPolicy '([^']+)' .*?denied request: (.*)`)
	rbacRefuses    = regexp.MustCompile(`User "([^"]+)" cannot (\S+) resource "([^"]+)" in API group "([^"]*)"(?: in the namespace "([^"]+)")?`)
)

// webhook returns the name of the admission webhook that refused a request or did
// not answer, and what it said; "" for other errors.
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

// writeOf is what the error's write was about, as far as the error tells.
func writeOf(err error) string {
	if about, _, ok := strings.Cut(err.Error(), ": "); ok && strings.HasPrefix(about, "writing ") {
		return " " + about
	}
	return ""
}

// forbidden is what a 403 means.
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
			// That is Kubernetes' own to grant; the manifests give hosts nothing of it.
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
