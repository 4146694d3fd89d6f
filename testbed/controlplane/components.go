package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Component names a process of the control plane.
type Component string

// The components in the order in which they start. The last four are optional, see [Options].
const (
	Etcd              Component = "etcd"
	APIServer         Component = "kube-apiserver"
	ControllerManager Component = "kube-controller-manager"
	Scheduler         Component = "kube-scheduler"
	Ballast           Component = "kwok-ballast" // simulates nodes with BallastAnnotation
	Pods              Component = "kwok-pods"    // simulates the pods of nodes with PodsLabel
)

// controllers are the controllers that the testbed's workloads and nodes need. The others would only cost memory and watches.
var controllers = []string{
	"certificatesigningrequest-signing-controller", "daemonset-controller", "deployment-controller", "disruption-controller",
	"garbage-collector-controller", "job-controller", "namespace-controller", "node-lifecycle-controller", "pod-garbage-collector-controller", "replicaset-controller",
	"root-ca-certificate-publisher-controller", "serviceaccount-controller", "serviceaccount-token-controller",
	"statefulset-controller", "taint-eviction-controller", "validatingadmissionpolicy-status-controller",
}

const (
	etcdSocket   = "etcd.sock" // in the control plane's directory
	bindAttempts = 5
)

func (cp *ControlPlane) startEtcd(ctx context.Context) error {
	socket, err := cp.dir.Socket(etcdSocket)
	if err != nil {
		return err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing etcd's old socket: %w", err)
	}
	p, err := cp.launch(Etcd, cp.bins.Etcd,
		"--data-dir="+cp.dir.Join("etcd"),
		"--unsafe-no-fsync", // after a crash of the machine the data is not needed
		"--listen-client-urls=unix://"+socket,
		"--listen-peer-urls=http://127.0.0.1:0", // there are no peers; the kernel picks a free port
		"--advertise-client-urls=http://127.0.0.1:0",
		"--log-level=warn",
	)
	if err != nil {
		return err
	}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
	defer transport.CloseIdleConnections()
	return p.waitReady(ctx, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://etcd/health", nil)
		if err != nil {
			return err
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
			return fmt.Errorf("%s: %s", resp.Status, body)
		}
		return nil
	})
}

// startFirstAPIServer picks a port. Another process may bind the port first; startFirstAPIServer then tries the next one.
func (cp *ControlPlane) startFirstAPIServer(ctx context.Context) error {
	var err error
	for range bindAttempts {
		if cp.port, err = freePort(); err != nil {
			return err
		}
		if err = cp.useAddress(); err != nil {
			return err
		}
		if err = cp.startAPIServer(ctx); err == nil {
			return nil
		}
		if !errors.Is(err, errDied) || !strings.Contains(err.Error(), "address already in use") {
			return err
		}
		cp.log.printf("port %d was taken by another process; trying the next one", cp.port)
	}
	return err
}

// auditPolicy logs each request once, and a watch when it begins and when it ends.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
`

func (cp *ControlPlane) startAPIServer(ctx context.Context) error {
	pki := func(name string) string { return cp.dir.Join("pki", name) }
	bind := "127.0.0.1"
	if len(cp.opts.Addresses) > 0 {
		bind = "0.0.0.0"
	}
	args := []string{
		"--etcd-servers=" + cp.EtcdEndpoint(),
		"--bind-address=" + bind,
		"--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", cp.port),
		"--cert-dir=" + cp.dir.Join("pki"),
		"--tls-cert-file=" + pki("apiserver.crt"),
		"--tls-private-key-file=" + pki("apiserver.key"),
		"--client-ca-file=" + pki("ca.crt"),
		"--anonymous-auth=false",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + pki("sa.pub"),
		"--service-account-signing-key-file=" + pki("sa.key"),
		"--service-cluster-ip-range=10.32.0.0/24",
		"--endpoint-reconciler-type=none", // no pod connects to the API server
		"--profiling=false",
		"--v=1",
	}
	if cp.opts.Audit {
		policy := cp.dir.Join("audit-policy.yaml")
		if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
			return fmt.Errorf("writing the audit policy: %w", err)
		}
		args = append(args, "--audit-policy-file="+policy, "--audit-log-path="+cp.AuditLog())
	}
	flags := cp.flags()
	args = slices.DeleteFunc(args, func(arg string) bool { // a list flag given twice would be merged
		name, _, _ := strings.Cut(arg, "=")
		return slices.ContainsFunc(flags, func(f string) bool { return strings.HasPrefix(f, name+"=") })
	})
	p, err := cp.launch(APIServer, cp.bins.APIServer, append(args, flags...)...)
	if err != nil {
		return err
	}
	return p.waitReady(ctx, cp.readyz)
}

func (cp *ControlPlane) readyz(ctx context.Context) error {
	return cp.admin.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

// startOthers starts the components that depend on the API server, in parallel.
func (cp *ControlPlane) startOthers(ctx context.Context) error {
	start := func(name Component, path string, args func() ([]string, error)) error {
		if slices.Contains(cp.opts.Without, name) {
			return nil
		}
		a, err := args()
		if err != nil {
			return err
		}
		_, err = cp.launch(name, path, a...)
		return err
	}
	if err := errors.Join(
		start(ControllerManager, cp.bins.ControllerManager, cp.controllerManagerArgs),
		start(Scheduler, cp.bins.Scheduler, cp.schedulerArgs),
		start(Ballast, cp.bins.Kwok, func() ([]string, error) { return cp.kwokArgs(Ballast) }),
		start(Pods, cp.bins.Kwok, func() ([]string, error) { return cp.kwokArgs(Pods) }),
	); err != nil {
		return err
	}
	if p := cp.process(ControllerManager); p != nil {
		// The controller manager has no port to probe here. It is ready when its first results are visible: pods cannot be created before.
		return p.waitReady(ctx, func(ctx context.Context) error {
			_, err := cp.admin.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
			return err
		})
	}
	return nil
}

func (cp *ControlPlane) controllerManagerArgs() ([]string, error) {
	kubeconfig, err := cp.Kubeconfig("system:kube-controller-manager")
	if err != nil {
		return nil, err
	}
	args := []string{
		"--kubeconfig=" + kubeconfig,
		"--secure-port=0",
		"--leader-elect=false",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + cp.dir.Join("pki", "sa.key"),
		"--root-ca-file=" + cp.dir.Join("pki", "ca.crt"),
		"--cluster-signing-cert-file=" + cp.dir.Join("pki", "ca.crt"), "--cluster-signing-key-file=" + cp.dir.Join("pki", "ca.key"),
		"--controllers=" + strings.Join(controllers, ","),
		"--kube-api-qps=200", "--kube-api-burst=400",
		"--profiling=false",
		"--v=1",
	}
	if grace := cp.opts.NodeMonitorGrace; grace > 0 {
		args = append(args, "--node-monitor-grace-period="+grace.String(),
			"--node-monitor-period="+min(5*time.Second, max(grace/5, 100*time.Millisecond)).String())
	}
	return args, nil
}

func (cp *ControlPlane) schedulerArgs() ([]string, error) {
	kubeconfig, err := cp.Kubeconfig("system:kube-scheduler")
	if err != nil {
		return nil, err
	}
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--secure-port=0",
		"--leader-elect=false",
		"--kube-api-qps=200", "--kube-api-burst=400",
		"--profiling=false",
		"--v=1",
	}, nil
}

// launch starts a component and watches its process. If the process ends unexpectedly, launch logs that at once, and Stop returns it as an
// error.
func (cp *ControlPlane) launch(name Component, path string, args ...string) (*process, error) {
	env := []string{"HOME=" + cp.dir.Path(), "TMPDIR=" + cp.dir.Path(), "PATH=" + os.Getenv("PATH"),
		"GOGC=400"} // a fifth of the API server's time went into garbage collection
	p, err := startProcess(name, env, cp.dir.Join("logs", string(name)+".log"), filepath.Clean(path), args...)
	if err != nil {
		return nil, err
	}
	cp.mu.Lock()
	cp.procs[name] = p
	cp.mu.Unlock()
	go func() {
		<-p.gone
		if !p.unwanted.Load() {
			cp.log.printf("%s ended unexpectedly: %v (its log: %s)", name, p.err, p.log)
		}
	}()
	return p, nil
}

// freePort searches below the kernel's range for outgoing connections, so that no other process gets the port by chance.
func freePort() (int, error) {
	var last error
	for range 50 {
		port := 20000 + rand.IntN(12000)
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			last = err
			continue
		}
		l.Close()
		return port, nil
	}
	return 0, fmt.Errorf("finding a free port: %w", last)
}
