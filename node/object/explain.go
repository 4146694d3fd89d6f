package object

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
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
	err    error
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
		t.Text += "; what is there now cannot be used: " + unread.Error()
	}
	return t
}

// ExplainSetup is Explain for what kept a client from being made.
func ExplainSetup(err error) *Trouble {
	if err == nil {
		return nil
	}
	return &Trouble{Text: err.Error(), err: err}
}

func (w *way) explain(err error) *Trouble {
	if p, ok := errors.AsType[*PluginError](err); ok {
		return &Trouble{Text: p.Error() + w.named("; named in ", ""), err: err}
	}
	if text := webhook(err); text != "" {
		return &Trouble{v1alpha1.ReasonForbidden, text, err}
	}
	status := apierrors.APIStatus(nil)
	if errors.As(err, &status) {
		switch s := status.Status(); s.Code {
		case http.StatusUnauthorized:
			return &Trouble{v1alpha1.ReasonForbidden, w.refused(), err}
		case http.StatusForbidden:
			return &Trouble{v1alpha1.ReasonForbidden, forbidden(err, s.Message), err}
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

// named is the kubeconfig between two texts, nothing if there is none.
func (w *way) named(before, after string) string {
	if w.file == "" {
		return ""
	}
	return before + w.file + after
}

// refused is what a 401 means.
func (w *way) refused() string {
	if w.cert != nil && time.Now().After(w.cert.NotAfter) {
		return fmt.Sprintf("the client certificate in %s expired on %s; its kubelet renews it: systemctl status kubelet",
			w.certFile, w.cert.NotAfter.UTC().Format("2006-01-02 15:04 UTC"))
	}
	if w.plugin != nil {
		return fmt.Sprintf("%s refuses (401) what credential plugin %s gives%s; see that it is for this cluster", w.server(), w.plugin.name, w.named(", named in ", ""))
	}
	return fmt.Sprintf("%s refuses the credential%s (401); see that it is this cluster's and still valid: systemctl status kubelet", w.server(), w.named(" in ", ""))
}

// unreachable says why nobody answers, or not the one who should; "" for what
// it does not know.
func (w *way) unreachable(err error) string {
	see := w.named("; see server in ", "")
	if authority, ok := errors.AsType[x509.UnknownAuthorityError](err); ok && authority.Cert != nil {
		return fmt.Sprintf("%s has a certificate of an authority (%s) that is not the kubeconfig's%s", w.server(), authority.Cert.Issuer.CommonName, w.named("; see server and certificate-authority in ", ""))
	}
	if host, ok := errors.AsType[x509.HostnameError](err); ok {
		return fmt.Sprintf("%s has a certificate of another name (expected %s)%s", w.server(), host.Host, see)
	}
	if invalid, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fmt.Sprintf("%s has a certificate that is not valid (%v)%s", w.server(), invalid.Err, see)
	}
	if name, ok := errors.AsType[*net.DNSError](err); ok {
		return fmt.Sprintf("cannot reach %s: no address for %s (%s)%s", w.server(), name.Name, name.Err, see)
	}
	for _, cause := range []syscall.Errno{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ETIMEDOUT} {
		if errors.Is(err, cause) {
			return fmt.Sprintf("cannot reach %s: %v%s", w.server(), cause, see)
		}
	}
	if timeout := net.Error(nil); errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Sprintf("%s does not answer in time%s", w.server(), see)
	}
	return ""
}

var (
	webhookRefuses = regexp.MustCompile(`admission webhook "([^"]+)" denied the request:? ?(.*)`)
	webhookAway    = regexp.MustCompile(`failed calling webhook "([^"]+)": (.*)`)
	policyRefuses  = regexp.MustCompile(`ValidatingAdmissionPolicy '([^']+)' .*?denied request: (.*)`)
	rbacRefuses    = regexp.MustCompile(`User "([^"]+)" cannot (\S+) resource "([^"]+)" in API group "([^"]*)"(?: in the namespace "([^"]+)")?`)
)

// webhook names the admission webhook that an error is of, refusing or not
// answering; "" for other errors.
func webhook(err error) string {
	text := err.Error()
	if m := webhookRefuses.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("admission webhook %q refuses%s: %s", m[1], writeOf(err), oneLine(m[2]))
	}
	if m := webhookAway.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("admission webhook %q cannot be called, so the API server refuses%s: %s", m[1], writeOf(err), oneLine(m[2]))
	}
	return ""
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
		return fmt.Sprintf("%s may not %s %s; apply the manifests: lockkeeper manifests | kubectl apply -f -", m[1], m[2], what)
	}
	return err.Error()
}
