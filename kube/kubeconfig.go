package kube

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// maxFile bounds what is read of a kubeconfig, or of a file that it names, in bytes.
const maxFile = 1 << 20

// kubeconfig is what a kubeconfig and the PEM files that it names said at one moment.
type kubeconfig struct {
	file  string
	bytes string   // SHA-256 of the kubeconfig alone, in hexadecimal digits
	names []string // the PEM files, and the token file, that it names

	cluster *clientcmdapi.Cluster  // with the content of its PEM file
	user    *clientcmdapi.AuthInfo // with the content of its PEM files
	config  *rest.Config           // the same for client-go

	certFile string            // the client certificate's path, or the kubeconfig's if it is in there
	cert     *x509.Certificate // nil: the credential is not a client certificate
	info     info
}

// readKubeconfig reads a kubeconfig and the PEM files that it names. A certificate
// and a key that do not belong together are an error, as is half a file: the caller
// keeps what it has until the writer is done. client-go can read PEM files again by
// itself, but only every five minutes, and it fails requests while a file is half
// written. It does follow a token in a file of its own.
//
// renewed is Options.Renewed, "" if there is none.
func readKubeconfig(file, renewed string) (*kubeconfig, error) {
	k := &kubeconfig{file: file, certFile: file}
	if err := k.read(renewed); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", file, err)
	}
	return k, nil
}

func (k *kubeconfig) read(renewed string) error {
	text, err := readBounded(k.file)
	if err != nil {
		return err
	}
	k.bytes = hex.EncodeToString(sum(text))
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
	k.inspect()
	if renewed != "" {
		k.useRenewed(renewed)
	}
	k.config, err = clientcmd.NewDefaultClientConfig(*config, &clientcmd.ConfigOverrides{}).ClientConfig()
	return err
}

// flatten replaces the names of PEM files by what they hold.
func (k *kubeconfig) flatten() error {
	if k.user.ClientCertificate != "" && len(k.user.ClientCertificateData) == 0 {
		k.certFile = k.user.ClientCertificate
	}
	for _, f := range []struct {
		what string
		name *string
		data *[]byte
	}{
		{"certificate authority", &k.cluster.CertificateAuthority, &k.cluster.CertificateAuthorityData},
		{"client certificate", &k.user.ClientCertificate, &k.user.ClientCertificateData},
		{"client key", &k.user.ClientKey, &k.user.ClientKeyData},
	} {
		if *f.name != "" && len(*f.data) == 0 {
			text, err := readBounded(*f.name)
			if err != nil {
				return fmt.Errorf("its %s: %w", f.what, err)
			}
			if len(text) == 0 {
				return fmt.Errorf("its %s: %s is empty", f.what, *f.name)
			}
			k.names, *f.data = append(k.names, *f.name), text
		}
		*f.name = ""
	}
	if k.user.TokenFile != "" {
		k.names = append(k.names, k.user.TokenFile)
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
	if k.info.kind == KindToken && k.info.user != "" {
		user.Token = k.info.user
	}
	if k.cert != nil {
		user.ClientCertificateData, user.ClientKeyData = []byte(k.cert.Subject.String()), nil
	}
	return identify(k.cluster, user)
}

func identify(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) string {
	text, err := json.Marshal([]any{cluster, user})
	if err != nil {
		panic(err) // they were read from JSON
	}
	return string(sum(text))
}

func sum(text []byte) []byte {
	s := sha256.Sum256(text)
	return s[:]
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
