package kube

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Kind is by what a kubeconfig proves who its bearer is.
type Kind string

// The kinds.
const (
	KindToken       Kind = "token"       // a token in the file itself, or in place of that one
	KindCertificate Kind = "certificate" // a client certificate, in the file or beside it
	KindOther       Kind = "other"       // a plugin, a token's file, a password, or nothing
)

// MaxFile is how much of a kubeconfig, or of a certificate, is read, in bytes.
const MaxFile = 1 << 20

// Info is what a kubeconfig says of its own credential. Nothing in it was
// verified by anybody.
type Info struct {
	Kind Kind
	// User is whom the API server will take the bearer for, "" if the file
	// does not tell.
	User string
	// Issued and Expires bound its life; zero where the file does not tell.
	Issued, Expires time.Time
	// Foreign says why lockkeeper leaves the credential alone: only tokens of
	// the coordinator's service account are renewed. "" for one of those.
	Foreign string
	// Namespace is that of the service account, where Foreign is "".
	Namespace string

	// Token is the token, for KindToken; a secret.
	Token string
	// Worthless is why the renewed token is not used and never will be again.
	// Unread is why it cannot be read. Both are "" if the renewed token is used,
	// or if there is none. See [Files.Read].
	Worthless, Unread string
	// Frame tells two kubeconfigs apart that differ in more than the token.
	Frame [sha256.Size]byte
}

// Life is how long the credential is valid in all, 0 where it is not known.
func (i *Info) Life() time.Duration {
	if i.Issued.IsZero() || i.Expires.IsZero() {
		return 0
	}
	return i.Expires.Sub(i.Issued)
}

// ReadFile reads a kubeconfig and says what it is. text is the file's content,
// a secret. The error is fs.ErrNotExist if there is no such file.
func ReadFile(path string) (info Info, text []byte, err error) {
	if text, err = readSome(path); err != nil {
		return Info{}, nil, err
	}
	info, err = inspect(path, text)
	return info, text, err
}

func readSome(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err == nil && len(text) > MaxFile {
		err = fmt.Errorf("%s is longer than %d bytes, which no kubeconfig is", path, MaxFile)
	}
	return text, err
}

// inspect reads a kubeconfig that came from path; what it names relatively is
// beside that.
func inspect(path string, text []byte) (Info, error) {
	config, err := clientcmd.Load(text)
	if err != nil {
		return Info{}, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	user, err := bearer(config)
	if err != nil {
		return Info{}, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	info := Info{Kind: KindOther}
	plain := user.Exec == nil && user.AuthProvider == nil && user.TokenFile == "" && user.Username == "" && user.Impersonate == ""
	certificate := len(user.ClientCertificateData) > 0 || user.ClientCertificate != ""
	switch {
	case user.Exec != nil:
		info.Foreign = "its plugin " + user.Exec.Command + " renews it"
	case user.TokenFile != "":
		info.Foreign = "its token is in " + user.TokenFile + ", which somebody else renews"
	case plain && certificate && user.Token == "":
		info.Kind, info.Foreign = KindCertificate, "it is a certificate, which somebody has to approve"
		if err := info.certificate(path, config, user); err != nil {
			return Info{}, err
		}
	case plain && !certificate && user.Token != "":
		info.Kind, info.Token = KindToken, user.Token
		info.token()
	default:
		info.Foreign = "it is none that lockkeeper minted"
	}
	// What is left without the token. A copy: nobody else sees it changed.
	user.Token = ""
	rest, err := clientcmd.Write(*config)
	if err != nil {
		return Info{}, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	info.Frame = sha256.Sum256(rest)
	return info, nil
}

// bearer is the user of the current context.
func bearer(config *clientcmdapi.Config) (*clientcmdapi.AuthInfo, error) {
	used := config.Contexts[config.CurrentContext]
	if used == nil || config.AuthInfos[used.AuthInfo] == nil {
		return nil, fmt.Errorf("no current context with a user (current-context %q)", config.CurrentContext)
	}
	return config.AuthInfos[used.AuthInfo], nil
}

// token fills in what a service account's token says of itself (JSON web
// token, RFC 7519; the claims are those of Kubernetes' TokenRequest).
func (i *Info) token() {
	claims, err := claimsOf(i.Token)
	if err != nil {
		i.Foreign = "it is none that lockkeeper minted"
		return
	}
	i.User, i.Issued, i.Expires = claims.Subject, unix(claims.Issued), unix(claims.Expires)
	account, ours := strings.CutPrefix(claims.Subject, "system:serviceaccount:")
	namespace, name, ok := strings.Cut(account, ":")
	switch {
	case !ours || !ok || name != v1alpha1.CoordinatorServiceAccount || namespace == "":
		i.Foreign = fmt.Sprintf("it is %q's, and lockkeeper renews its own service account's only", claims.Subject)
	case claims.Kubernetes.Pod != nil || claims.Kubernetes.Secret != nil:
		i.Foreign = "it is bound to a pod or a secret, and ends with that"
	case i.Life() <= 0:
		i.Foreign = "it does not say how long it is valid"
	default:
		i.Namespace = namespace
	}
}

type claims struct {
	Subject    string  `json:"sub"`
	Issued     float64 `json:"iat"` // seconds since the epoch
	Expires    float64 `json:"exp"`
	Kubernetes struct {
		Pod    any `json:"pod"`
		Secret any `json:"secret"`
	} `json:"kubernetes.io"`
}

var errNoClaims = errors.New("not a token with claims in it")

func claimsOf(token string) (c claims, err error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c, errNoClaims
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(body, &c)
	}
	if err != nil {
		return c, errNoClaims
	}
	return c, nil
}

// unix is the time of a claim, zero for one that is not there or out of reason.
func unix(seconds float64) time.Time {
	if seconds < 1 || seconds > 1<<40 {
		return time.Time{}
	}
	return time.Unix(int64(seconds), 0).UTC()
}

// certificate fills in what the client certificate says of itself.
func (i *Info) certificate(path string, config *clientcmdapi.Config, user *clientcmdapi.AuthInfo) error {
	data := user.ClientCertificateData
	if len(data) == 0 {
		resolved := *user
		resolved.LocationOfOrigin = path
		config = config.DeepCopy()
		config.AuthInfos = map[string]*clientcmdapi.AuthInfo{"": &resolved}
		config.Clusters = nil
		if err := clientcmd.ResolveLocalPaths(config); err != nil {
			return fmt.Errorf("kubeconfig %s: %w", path, err)
		}
		var err error
		if data, err = readSome(resolved.ClientCertificate); err != nil {
			return fmt.Errorf("kubeconfig %s: its client certificate: %w", path, err)
		}
	}
	// A rotating file of a kubelet has certificate and key in one.
	for block, rest := pem.Decode(bytes.TrimSpace(data)); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("kubeconfig %s: its client certificate: %w", path, err)
		}
		i.User, i.Issued, i.Expires = leaf.Subject.CommonName, leaf.NotBefore.UTC(), leaf.NotAfter.UTC()
		return nil
	}
	return fmt.Errorf("kubeconfig %s: its client certificate is none: no PEM block CERTIFICATE", path)
}
