package controlplane

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/credential"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/kube/secret"
)

const (
	mintWithin          = 90 * time.Second
	coordinatorLifetime = 30 * 24 * time.Hour
)

// URL returns the API server's address. It stays the same when the API server is stopped and started.
func (cp *ControlPlane) URL() string { return fmt.Sprintf("https://127.0.0.1:%d", cp.port) }

// CA returns the PEM certificate of the authority that signs the certificates of the API server and of its users.
func (cp *ControlPlane) CA() []byte { return cp.ca.certPEM }

// Dir returns the directory with all files of this control plane. The logs of the components are in it, as logs/NAME.log.
func (cp *ControlPlane) Dir() string { return cp.dir.Path() }

// AdminConfig returns a client configuration with all rights. The caller may modify it.
func (cp *ControlPlane) AdminConfig() *rest.Config { return rest.CopyConfig(cp.adminConfig) }

// AuditLog returns the path of the API server's audit log. The log exists if [Options.Audit] is set; see [ControlPlane.Requests].
func (cp *ControlPlane) AuditLog() string { return cp.dir.Join("audit.log") }

// Client returns the testbed's own client for [ControlPlane.AdminConfig].
func (cp *ControlPlane) Client() kubernetes.Interface { return cp.admin }

// ConfigFor returns a client configuration with a client certificate for a user and its groups. The API server adds the group
// "system:authenticated". The client has no rate limit. A second call for the same user returns the same certificate.
func (cp *ControlPlane) ConfigFor(user string, groups ...string) (*rest.Config, error) {
	pair, err := cp.pairFor(user, groups)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host:            cp.URL(),
		TLSClientConfig: rest.TLSClientConfig{CAData: cp.ca.certPEM, CertData: pair.cert, KeyData: pair.key},
		QPS:             -1,
		UserAgent:       "lockkeeper-testbed/" + user,
	}, nil
}

// Kubeconfig writes a kubeconfig with an inlined client certificate for a user and its groups, and returns its path. The file is in the
// control plane's directory. It is written once for each user and set of groups.
func (cp *ControlPlane) Kubeconfig(user string, groups ...string) (string, error) {
	pair, err := cp.pairFor(user, groups)
	if err != nil {
		return "", err
	}
	path := cp.dir.Join("kubeconfigs", fileName(user, groups))
	cp.credMu.Lock()
	defer cp.credMu.Unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := clientcmd.WriteToFile(*cp.kubeconfig(cp.URL(), user, pair), path); err != nil {
		return "", fmt.Errorf("writing the kubeconfig of %s: %w", user, err)
	}
	return path, nil
}

// KubeconfigAt returns the same kubeconfig, but with one of [Options.Addresses] as the API server's address, for a host in its own network
// namespace.
func (cp *ControlPlane) KubeconfigAt(addr netip.Addr, user string, groups ...string) ([]byte, error) {
	if !slices.Contains(cp.opts.Addresses, addr) {
		return nil, fmt.Errorf("the API server's certificate does not name %s: Options.Addresses are %v", addr, cp.opts.Addresses)
	}
	pair, err := cp.pairFor(user, groups)
	if err != nil {
		return nil, err
	}
	server := "https://" + netip.AddrPortFrom(addr, uint16(cp.port)).String()
	data, err := clientcmd.Write(*cp.kubeconfig(server, user, pair))
	if err != nil {
		return nil, fmt.Errorf("writing the kubeconfig of %s: %w", user, err)
	}
	return data, nil
}

func (cp *ControlPlane) kubeconfig(server, user string, pair keyPair) *clientcmdapi.Config {
	config := clientcmdapi.NewConfig()
	config.Clusters["testbed"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: cp.ca.certPEM}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.cert, ClientKeyData: pair.key}
	config.Contexts["testbed"] = &clientcmdapi.Context{Cluster: "testbed", AuthInfo: user}
	config.CurrentContext = "testbed"
	return config
}

// NodeKubeconfig returns the path of the kubeconfig of a node's kubelet: user system:node:NAME, group system:nodes.
func (cp *ControlPlane) NodeKubeconfig(node string) (string, error) {
	return cp.Kubeconfig(nodeUser(node), NodesGroup)
}

// NodeConfig returns the client configuration of a node's kubelet.
func (cp *ControlPlane) NodeConfig(node string) (*rest.Config, error) {
	return cp.ConfigFor(nodeUser(node), NodesGroup)
}

// CoordinatorKubeconfig returns the path of the coordinator's kubeconfig. The first call creates it as `lockkeeper kubeconfig` does, with a
// token that outlives any test, and applies lockkeeper's objects if that has not been done.
func (cp *ControlPlane) CoordinatorKubeconfig() (string, error) {
	admin, err := cp.Kubeconfig("testbed:admin", "system:masters")
	if err != nil {
		return "", err
	}
	path := cp.dir.Join("kubeconfigs", "lockkeeper-coordinator.kubeconfig")
	cp.coordinatorMu.Lock()
	defer cp.coordinatorMu.Unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	ctx, cancel := context.WithTimeout(cp.life, mintWithin)
	defer cancel()
	_, err = cp.Client().CoreV1().ServiceAccounts(LockkeeperNamespace).Get(ctx, v1alpha1.CoordinatorServiceAccount, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		err = cp.ApplyLockkeeper(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("minting the coordinator's kubeconfig: %w", err)
	}
	minted, err := credential.Mint(ctx, credential.Options{Caller: kube.Caller{Kubeconfig: admin, Version: "testbed"}, Lifetime: coordinatorLifetime})
	if err != nil {
		return "", fmt.Errorf("minting the coordinator's kubeconfig: %w", err)
	}
	return path, secret.WriteFile(path, minted.Kubeconfig)
}

// RenewCoordinator applies lockkeeper's objects and creates the coordinator's kubeconfig again. Use it in a test that has invalidated the
// old one.
func (cp *ControlPlane) RenewCoordinator(ctx context.Context) error {
	path, err := cp.CoordinatorKubeconfig()
	if err == nil {
		err = cp.ApplyLockkeeper(ctx)
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err == nil {
		cp.writers.Delete("")
		_, err = cp.CoordinatorKubeconfig()
	}
	return err
}

// CoordinatorConfig returns the client configuration of lockkeeper's coordinator. The client has no rate limit. By default it writes with
// the coordinator's field manager, which the admission policies require.
func (cp *ControlPlane) CoordinatorConfig() (*rest.Config, error) {
	path, err := cp.CoordinatorKubeconfig()
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("reading the coordinator's kubeconfig: %w", err)
	}
	config.QPS, config.UserAgent = -1, "lockkeeper-coordinator/testbed"
	return config, nil
}

// NodePEM returns a new client certificate of a node's kubelet and its key, both PEM. The certificate is valid until end, which may be in
// the past.
func (cp *ControlPlane) NodePEM(node string, end time.Time) (cert, key []byte, err error) {
	pair, err := cp.ca.clientUntil(nodeUser(node), []string{NodesGroup}, end)
	return pair.cert, pair.key, err
}

func nodeUser(node string) string { return "system:node:" + node }

// pairFor returns the certificate of a user. The first call signs it.
func (cp *ControlPlane) pairFor(user string, groups []string) (keyPair, error) {
	key := fileName(user, groups)
	cp.credMu.Lock()
	defer cp.credMu.Unlock()
	if pair, ok := cp.pairs[key]; ok {
		return pair, nil
	}
	pair, err := cp.ca.client(user, groups)
	if err == nil {
		cp.pairs[key] = pair
	}
	return pair, err
}

// fileName returns a readable name that is unique for the user and its groups.
func fileName(user string, groups []string) string {
	readable := strings.Map(func(r rune) rune {
		if r == '-' || r == '.' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '-'
	}, user)
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", user, groups))
	return readable[:min(len(readable), 100)] + "-" + hex.EncodeToString(sum[:4]) + ".kubeconfig"
}

// Binaries returns the programs that the control plane runs. Kubectl matches the release of this cluster.
func (cp *ControlPlane) Binaries() Binaries { return cp.bins }
