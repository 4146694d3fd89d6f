package kube

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Kind is how a kubeconfig proves its user's identity.
type Kind string

// The kinds.
const (
	KindToken       Kind = "token"       // a token in the kubeconfig, or the renewed one
	KindCertificate Kind = "certificate" // a client certificate, in the kubeconfig or in a file of its own
	KindOther       Kind = "other"       // a plugin, a token in a file of its own, a password, or nothing
)

// info is what a kubeconfig's credential says about itself. No one has verified it.
type info struct {
	kind            Kind
	user            string    // the account, "" if the credential does not name it
	issued, expires time.Time // zero if the credential does not say
	// foreign is why lockkeeper does not renew the credential: it renews only tokens
	// of the coordinator's service account. "" for one of those; its namespace is in
	// namespace.
	foreign   string
	namespace string

	// worthless is why the renewed token will never be used again; unread is why it
	// cannot be read. Both are "" if it is in use, or if there is none.
	worthless, unread string
}

func (i *info) life() time.Duration {
	if i.issued.IsZero() || i.expires.IsZero() {
		return 0
	}
	return i.expires.Sub(i.issued)
}

const notOurs = "lockkeeper did not mint it"

// inspect fills in what the credential says about itself.
func (k *kubeconfig) inspect() {
	user := k.user
	plain := user.Exec == nil && user.AuthProvider == nil && user.TokenFile == "" && user.Username == "" && user.Impersonate == ""
	switch {
	case user.Exec != nil:
		k.info = info{kind: KindOther, foreign: "its plugin " + user.Exec.Command + " renews it"}
	case user.TokenFile != "":
		k.info = info{kind: KindOther, foreign: "its token is in " + user.TokenFile + ", which another program renews"}
	case plain && k.cert != nil && user.Token == "":
		k.info = info{kind: KindCertificate, foreign: "it is a certificate, which an administrator has to approve",
			user: k.cert.Subject.CommonName, issued: k.cert.NotBefore.UTC(), expires: k.cert.NotAfter.UTC()}
	case plain && k.cert == nil && user.Token != "":
		k.info = inspectToken(user.Token)
	default:
		k.info = info{kind: KindOther, foreign: notOurs}
	}
}

// inspectToken returns what a service account's token says about itself: it is a
// JSON web token (RFC 7519) with the claims of Kubernetes' TokenRequest.
func inspectToken(token string) info {
	i := info{kind: KindToken}
	var c struct {
		Subject    string  `json:"sub"`
		Issued     float64 `json:"iat"` // seconds since the epoch
		Expires    float64 `json:"exp"`
		Kubernetes struct {
			Pod    any `json:"pod"`
			Secret any `json:"secret"`
		} `json:"kubernetes.io"`
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		i.foreign = notOurs
		return i
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(body, &c) != nil {
		i.foreign = notOurs
		return i
	}
	i.user, i.issued, i.expires = c.Subject, unix(c.Issued), unix(c.Expires)
	account, ours := strings.CutPrefix(c.Subject, "system:serviceaccount:")
	namespace, name, ok := strings.Cut(account, ":")
	switch {
	case !ours || !ok || name != v1alpha1.CoordinatorServiceAccount || namespace == "":
		i.foreign = fmt.Sprintf("it is a token of %q, and lockkeeper renews only those of its own service account", c.Subject)
	case c.Kubernetes.Pod != nil || c.Kubernetes.Secret != nil:
		i.foreign = "it is bound to a pod or a secret, and ends with that"
	case i.life() <= 0:
		i.foreign = "it does not say how long it is valid"
	default:
		i.namespace = namespace
	}
	return i
}

// unix returns the time of a claim, zero for one that is absent or out of range.
func unix(seconds float64) time.Time {
	if seconds < 1 || seconds > 1<<40 {
		return time.Time{}
	}
	return time.Unix(int64(seconds), 0).UTC()
}

// renewedToken is the content of the file with the renewed token, as JSON.
type renewedToken struct {
	// Kubeconfig is the SHA-256 of the kubeconfig that the token belongs to, in
	// hexadecimal digits.
	Kubeconfig string `json:"kubeconfig"`
	Token      string `json:"token"` // a secret
}

// useRenewed puts the renewed token in place of the kubeconfig's, if it belongs to
// the kubeconfig's content and expires later. A problem with it is not an error:
// see info.worthless.
func (k *kubeconfig) useRenewed(file string) {
	text, err := readBounded(file)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		k.info.unread = err.Error()
		return
	}
	var r renewedToken
	if json.Unmarshal(text, &r) != nil {
		r = renewedToken{}
	}
	next := inspectToken(r.Token)
	switch {
	case r.Token == "":
		k.info.worthless = "it is not a renewed token"
	case r.Kubeconfig != k.bytes:
		k.info.worthless = "it belongs to different content of " + k.file
	case k.info.foreign != "" || next.foreign != "" || next.user != k.info.user:
		k.info.worthless = fmt.Sprintf("it is a token of %q, expected one of %q", next.user, k.info.user)
	case !next.expires.After(k.info.expires):
		k.info.worthless = "it does not expire later than the token in " + k.file
	default:
		k.info, k.user.Token = next, r.Token
	}
}
