package kube

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube/secret"
)

// maxFile bounds what is read of a kubeconfig, or of a file that it names, in bytes.
const maxFile = 1 << 20

// kubeconfig is what a kubeconfig and the PEM files that it names said at one moment.
type kubeconfig struct {
	file string
	hash string // SHA-256 of the kubeconfig alone, in hexadecimal digits
	// names are the PEM files and the token file that it names; secrets are those of them
	// that hold a secret.
	names, secrets []string

	cluster *clientcmdapi.Cluster  // with the content of its PEM file
	user    *clientcmdapi.AuthInfo // with the content of its PEM files
	config  *rest.Config           // the same for client-go

	certFile string            // the client certificate's path, or the kubeconfig's if it is in there
	cert     *x509.Certificate // nil: the credential is not a client certificate
	claims   claims

	// notUsed is why the renewed token is not used, "" if it is, or if there is none;
	// never is whether it will never be used again.
	notUsed string
	never   bool
}

// readKubeconfig reads a kubeconfig and the PEM files that it names. A certificate
// and a key that do not belong together are an error, as is half a file: the caller
// keeps what it has until the writer is done. client-go can read PEM files again by
// itself, but only every five minutes, and it fails requests while a file is half
// written. It does follow a token in a file of its own.
//
// renewed is Options.Renewed, "" if there is none. With an error, only the names of the
// files that were found are valid.
func readKubeconfig(file, renewed string) (*kubeconfig, error) {
	k := &kubeconfig{file: file, certFile: file}
	if err := k.read(renewed); err != nil {
		return k, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	return k, nil
}

func (k *kubeconfig) read(renewed string) error {
	text, err := readBounded(k.file)
	if err != nil {
		return err
	}
	k.hash = fmt.Sprintf("%x", sha256.Sum256(text))
	config, err := clientcmd.Load(text)
	if err != nil {
		return err
	}
	used := config.Contexts[config.CurrentContext]
	if used == nil || config.Clusters[used.Cluster] == nil || used.AuthInfo != "" && config.AuthInfos[used.AuthInfo] == nil {
		return fmt.Errorf("no current context with a cluster and a user (current-context %q)", config.CurrentContext)
	}
	if used.AuthInfo == "" {
		used.AuthInfo = "anonymous"
		config.AuthInfos[used.AuthInfo] = &clientcmdapi.AuthInfo{}
	}
	k.cluster, k.user = config.Clusters[used.Cluster], config.AuthInfos[used.AuthInfo]
	k.cluster.LocationOfOrigin, k.user.LocationOfOrigin = k.file, k.file
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return err
	}
	if err := k.flatten(); err != nil {
		return err
	}
	k.claims = k.inspect()
	if renewed != "" {
		k.useRenewed(renewed)
	}
	k.config, err = clientcmd.NewDefaultClientConfig(*config, &clientcmd.ConfigOverrides{}).ClientConfig()
	return err
}

// flatten replaces the names of PEM files by what they hold.
func (k *kubeconfig) flatten() error {
	u := k.user
	if u.ClientCertificate != "" && len(u.ClientCertificateData) == 0 {
		k.certFile = u.ClientCertificate
	}
	for _, path := range []string{u.ClientKey, u.TokenFile} {
		if path != "" {
			k.secrets = append(k.secrets, path)
		}
	}
	k.names = slices.Clone(k.secrets)
	for _, f := range []struct {
		what string
		name *string
		data *[]byte
	}{
		{"certificate authority", &k.cluster.CertificateAuthority, &k.cluster.CertificateAuthorityData},
		{"client certificate", &u.ClientCertificate, &u.ClientCertificateData},
		{"client key", &u.ClientKey, &u.ClientKeyData},
	} {
		if *f.name != "" && len(*f.data) == 0 {
			k.names = append(k.names, *f.name)
			text, err := readBounded(*f.name)
			if err == nil && len(text) == 0 {
				err = fmt.Errorf("%s is empty", *f.name)
			}
			if err != nil {
				return fmt.Errorf("its %s: %w", f.what, err)
			}
			*f.data = text
		}
		*f.name = ""
	}
	if len(k.user.ClientCertificateData) == 0 {
		return nil
	}
	pair, err := tls.X509KeyPair(k.user.ClientCertificateData, k.user.ClientKeyData)
	if err != nil {
		return fmt.Errorf("the client certificate in %s and its key: %w", k.certFile, err)
	}
	k.cert = pair.Leaf
	return nil
}

// content identifies everything that the kubeconfig and its PEM files say.
func (k *kubeconfig) content() string { return identify(k.cluster, k.user) }

// target identifies the server, how it is trusted, and the account. It stays the
// same when a token or a certificate of the same account takes another's place. A
// token that does not name its account is an account of its own.
func (k *kubeconfig) target() string {
	user := k.user.DeepCopy()
	if k.cert != nil {
		user.ClientCertificateData, user.ClientKeyData = []byte(k.cert.Subject.String()), nil
	} else if k.claims.user != "" {
		user.Token = k.claims.user
	}
	return identify(k.cluster, user)
}

func identify(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) string {
	text, err := json.Marshal([]any{cluster, user})
	if err != nil {
		panic(err) // they were read from JSON
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s is larger than %d KiB", name, maxFile>>10)
	}
	return text, err
}

// AbsentError means that there is no kubeconfig. Its text says where it was expected.
type AbsentError string

func (e AbsentError) Error() string { return string(e) }

// find returns the first path at which there is a file. It opens nothing: a pipe would
// block. A directory, as a mount of a missing file leaves it, counts only if there is no
// file at any path.
func find(paths []string, absent string) (string, error) {
	err := error(AbsentError(absent))
	for _, path := range paths {
		info, failed := os.Stat(path)
		switch {
		case errors.Is(failed, os.ErrNotExist), errors.Is(failed, syscall.ENOTDIR):
		case failed != nil || info.Mode().IsRegular():
			return path, nil // what is wrong with it shows when it is read
		default:
			err = fmt.Errorf("kubeconfig %s: it is not a regular file", path)
		}
	}
	return "", err
}

// claims is what a credential says about itself. It is not verified.
type claims struct {
	user            string    // the account, "" if the credential does not name it
	issued, expires time.Time // zero if the credential does not say
	// notRenewed is why lockkeeper does not renew the credential: it renews only tokens
	// of the coordinator's service account. It is "" for one of those, whose namespace
	// is in namespace.
	notRenewed string
	namespace  string
}

func (i *claims) life() time.Duration {
	if i.issued.IsZero() || i.expires.IsZero() {
		return 0
	}
	return i.expires.Sub(i.issued)
}

const notMinted = "lockkeeper did not mint it"

// inspect returns what the credential says about itself.
func (k *kubeconfig) inspect() claims {
	user := k.user
	plain := user.AuthProvider == nil && user.Username == "" && user.Impersonate == ""
	switch {
	case user.Exec != nil:
		return claims{notRenewed: "its plugin " + user.Exec.Command + " renews it"}
	case user.TokenFile != "":
		return claims{notRenewed: "its token is in " + user.TokenFile + ", which another program renews"}
	case plain && k.cert != nil && user.Token == "":
		return claims{notRenewed: "it is a certificate, which an administrator has to approve",
			user: k.cert.Subject.CommonName, issued: k.cert.NotBefore.UTC(), expires: k.cert.NotAfter.UTC()}
	case plain && k.cert == nil && user.Token != "":
		return inspectToken(user.Token)
	}
	return claims{notRenewed: notMinted}
}

// inspectToken returns what a service account's token says about itself: it is a
// JSON web token (RFC 7519) with the claims of Kubernetes' TokenRequest.
func inspectToken(token string) claims {
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
		return claims{notRenewed: notMinted}
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(body, &c) != nil {
		return claims{notRenewed: notMinted}
	}
	i := claims{user: c.Subject, issued: unix(c.Issued), expires: unix(c.Expires)}
	account, isAccount := strings.CutPrefix(c.Subject, "system:serviceaccount:")
	namespace, name, _ := strings.Cut(account, ":")
	switch {
	case !isAccount || name != v1alpha1.CoordinatorServiceAccount || namespace == "":
		i.notRenewed = fmt.Sprintf("it is a token of %q, and lockkeeper renews only those of its own service account", c.Subject)
	case c.Kubernetes.Pod != nil || c.Kubernetes.Secret != nil:
		i.notRenewed = "it is bound to a pod or a secret, and ends with that"
	case i.life() <= 0:
		i.notRenewed = "it does not say how long it is valid"
	default:
		i.namespace = namespace
	}
	return i
}

// unix returns the time of a claim, zero for one that is absent or out of range. It is in the local status, and JSON has
// no time after the year 9999.
func unix(seconds float64) time.Time {
	const year10000 = 253402300800
	if seconds < 1 || seconds >= year10000 {
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
// the kubeconfig's content and expires later. A problem with it is not an error: see
// kubeconfig.notUsed.
func (k *kubeconfig) useRenewed(file string) {
	text, err := readBounded(file)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		k.notUsed = err.Error()
		return
	}
	var r renewedToken
	if json.Unmarshal(text, &r) != nil {
		r = renewedToken{}
	}
	k.never = true
	next := inspectToken(r.Token)
	switch {
	case r.Token == "":
		k.notUsed = "it is not a renewed token"
	case r.Kubeconfig != k.hash:
		k.notUsed = "it belongs to different content of " + k.file
	case k.claims.notRenewed != "" || next.notRenewed != "" || next.user != k.claims.user:
		k.notUsed = fmt.Sprintf("it is a token of %q, expected one of %q", next.user, k.claims.user)
	case !next.expires.After(k.claims.expires):
		k.notUsed = "it does not expire later than the token in " + k.file
	default:
		k.never, k.claims, k.user.Token = false, next, r.Token
	}
}

// Exposed returns how users other than root can read or change a kubeconfig, or the
// files with a key or a token that it names: see [secret.Exposed].
func Exposed(file string) []string {
	k, _ := readKubeconfig(file, "") // what names no files, names none that are exposed
	return secret.Exposed(append([]string{file}, k.secrets...)...)
}
