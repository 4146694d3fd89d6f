package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/testbed/workdir"
)

// Options configure a control plane. The zero value is a complete control plane with Kubernetes' defaults.
type Options struct {
	// Binaries are the programs to run. The zero value means the binaries of [Build], which are built if necessary.
	Binaries Binaries

	// Dir is the directory for data, keys and logs. It must be new or empty, and stays after Stop. "" means a temporary directory, which
	// Stop removes.
	Dir string

	// Log receives progress messages. It may be nil.
	Log io.Writer

	// Without lists components to leave out. Etcd and APIServer are required.
	Without []Component

	// Addresses are further addresses of this machine, in addition to 127.0.0.1. Hosts in their own network namespaces reach the API server
	// at them. If there are any, the API server listens on all addresses of the machine, and its certificate names these. See
	// [ControlPlane.KubeconfigAt].
	Addresses []netip.Addr

	// APIServerFlags are added to the API server's command line. They override the testbed's own flags.
	APIServerFlags []string

	// Audit makes the API server log every request, without bodies, as a line of JSON; see [ControlPlane.Requests].
	Audit bool

	// NodeMonitorGrace is how long a kubelet may be silent before its Node is no longer Ready; 0 means Kubernetes' default of 50 s. The
	// smallest useful value is about 1 s. The controller manager checks at one fifth of this interval.
	NodeMonitorGrace time.Duration

	// BallastLease is the duration of a ballast node's Lease in kube-node-lease; 0 means 40 s, the kubelet's default. KWOK renews the Lease
	// four times in this duration. Use a longer duration, and a longer NodeMonitorGrace, for thousands of nodes.
	BallastLease time.Duration

	// StartTimeout limits the start of all components together, without builds; 0 means 5 minutes.
	StartTimeout time.Duration
}

// ControlPlane is a running control plane. Its methods are safe for concurrent use.
type ControlPlane struct {
	opts        Options
	bins        Binaries
	log         *progress
	dir         *workdir.Dir
	ca          *authority
	port        int
	adminConfig *rest.Config
	admin       *kubernetes.Clientset

	credMu sync.Mutex
	pairs  map[string]keyPair // by file name of the kubeconfig

	writers       sync.Map   // of kubernetes.Interface, by node; "" is the coordinator's
	lastApplied   sync.Map   // of applied, by kind, namespace and name
	coordinatorMu sync.Mutex // held while the coordinator's kubeconfig is created

	life    context.Context // ends when Stop begins
	end     context.CancelFunc
	faultMu sync.Mutex // held while components are stopped or started
	// moreFlags are further flags of the API server. faultMu guards them.
	moreFlags []string

	mu    sync.Mutex
	procs map[Component]*process // the current or last run of each component that was ever started

	stopOnce sync.Once
	stopErr  error
}

// Start starts a control plane and returns when it is usable: the API server is ready and, unless they are left out, the controller manager
// works and the other components have been started. This takes about ten seconds on two cores.
//
// The control plane is stopped when ctx ends, even after Start has returned: a program that ends its context at Ctrl-C must only wait for
// [ControlPlane.Stop] before it exits. The processes end with this process in any case.
func Start(ctx context.Context, opts Options) (*ControlPlane, error) {
	for _, c := range opts.Without {
		if c == Etcd || c == APIServer {
			return nil, fmt.Errorf("a control plane needs %s", c)
		}
		if !slices.Contains([]Component{ControllerManager, Scheduler, Ballast, Pods}, c) {
			return nil, fmt.Errorf("unknown component %q in Without", c)
		}
	}
	if opts.Binaries == (Binaries{}) {
		bins, err := Build(ctx, opts.Log)
		if err != nil {
			return nil, err
		}
		opts.Binaries = bins
	}
	begin := time.Now()
	dir, err := newDir(opts.Dir)
	if err != nil {
		return nil, err
	}
	cp := &ControlPlane{
		opts:  opts,
		bins:  opts.Binaries,
		log:   newProgress(opts.Log),
		dir:   dir,
		pairs: map[string]keyPair{},
		procs: map[Component]*process{},
	}
	cp.life, cp.end = context.WithCancel(context.Background())
	living.Store(cp, nil)
	timeout := opts.StartTimeout
	if timeout == 0 {
		timeout = 5 * time.Minute
	}
	starting, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it took more than %s", timeout))
	defer cancel()
	if err := cp.alone(starting, cp.start); err != nil {
		_ = cp.Stop() // err already describes the failure
		return nil, fmt.Errorf("starting the control plane: %w", err)
	}
	unhook := context.AfterFunc(ctx, func() { _ = cp.Stop() })
	context.AfterFunc(cp.life, func() { unhook() })
	cp.log.printf("ready at %s after %.1f s; everything is in %s", cp.URL(), time.Since(begin).Seconds(), dir.Path())
	return cp, nil
}

func (cp *ControlPlane) start(ctx context.Context) error {
	for _, name := range []string{"logs", "kubeconfigs"} {
		if err := os.Mkdir(cp.dir.Join(name), 0o700); err != nil {
			return err
		}
	}
	var err error
	if cp.ca, err = newAuthority(); err != nil {
		return err
	}
	if err := cp.ca.writePKI(cp.dir, cp.opts.Addresses); err != nil {
		return err
	}
	if err := cp.startEtcd(ctx); err != nil {
		return err
	}
	if err := cp.startFirstAPIServer(ctx); err != nil {
		return err
	}
	return cp.startOthers(ctx)
}

// useAddress creates the testbed's own client for the chosen port.
func (cp *ControlPlane) useAddress() error {
	config, err := cp.ConfigFor("testbed:admin", "system:masters")
	if err != nil {
		return err
	}
	admin, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating the testbed's client: %w", err)
	}
	cp.adminConfig, cp.admin = config, admin
	return nil
}

// Stop asks all components to end, waits for them and removes the temporary directory. It returns when nothing is left. It may be called
// more than once. Its error names the components that had ended unexpectedly, with the end of their logs, or says that Stop could not
// remove the directory.
func (cp *ControlPlane) Stop() error {
	cp.stopOnce.Do(func() {
		cp.end()
		cp.faultMu.Lock()
		defer cp.faultMu.Unlock()
		cp.stopErr = errors.Join(cp.stopAll(), cp.dir.Remove())
		living.Delete(cp)
	})
	return cp.stopErr
}

// living are the control planes that are not cleaned up yet. The keys have the type *ControlPlane.
var living sync.Map

// stopLiving stops all control planes of this process before it exits on a signal.
func stopLiving() {
	var wg sync.WaitGroup
	living.Range(func(cp, _ any) bool {
		wg.Go(func() { _ = cp.(*ControlPlane).Stop() })
		return true
	})
	wg.Wait()
}

// dirKind is the kind of a control plane's temporary directory.
const dirKind = "testbed"

// newDir creates the control plane's directory. One that the caller names has to be new or empty.
func newDir(named string) (*workdir.Dir, error) {
	dir, err := workdir.New(dirKind, named)
	if err != nil || named == "" {
		return dir, err
	}
	entries, err := os.ReadDir(dir.Path())
	if err != nil {
		return nil, fmt.Errorf("reading the control plane's directory: %w", err)
	}
	if len(entries) > 0 {
		return nil, fmt.Errorf("the control plane's directory %s is not empty", dir.Path())
	}
	return dir, nil
}
