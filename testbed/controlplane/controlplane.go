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
)

// Options say how to run a control plane. The zero value is a complete one with Kubernetes' own settings.
type Options struct {
	// Binaries are what to run; the zero value means those of [Build], built if need be.
	Binaries Binaries

	// Dir is the directory for data, keys and logs: a new or empty one, which stays after Stop. "" means a temporary directory,
	// which Stop removes.
	Dir string

	// Log gets lines for people about what is being done; nil for none.
	Log io.Writer

	// Without leaves components out: any but Etcd and APIServer.
	Without []Component

	// Addresses are this machine's, next to 127.0.0.1, under which hosts in network namespaces of their own reach the API server.
	// With any, it listens on all of the machine's addresses; its certificate names these. See [ControlPlane.KubeconfigAt].
	Addresses []netip.Addr

	// APIServerFlags are added to the API server's command line, and win over what the testbed sets.
	APIServerFlags []string

	// Audit has the API server log every request, without bodies, as a line of JSON: see [ControlPlane.Requests].
	Audit bool

	// NodeMonitorGrace is after how much silence of its kubelet a Node stops being Ready; 0 is Kubernetes' default of 50 s.
	// The shortest sensible one is about 1 s: it is checked every fifth of it.
	NodeMonitorGrace time.Duration

	// BallastLease is the length of a ballast node's Lease in kube-node-lease, which KWOK renews four times as often; 0 is 40 s,
	// as a kubelet's. Thousands of nodes do with a longer one, and a longer NodeMonitorGrace.
	BallastLease time.Duration

	// StartTimeout bounds the start of all components together, builds excluded; 0 is 5 minutes.
	StartTimeout time.Duration
}

// A ControlPlane is a running control plane. Its methods may be called by several goroutines.
type ControlPlane struct {
	opts        Options
	bins        Binaries
	log         *progress
	dir         *workDir
	ca          *authority
	port        int
	adminConfig *rest.Config
	admin       *kubernetes.Clientset

	credMu sync.Mutex
	pairs  map[string]keyPair // by file name of the kubeconfig

	writers       sync.Map   // of kubernetes.Interface, by node; "" is the coordinator's
	coordinatorMu sync.Mutex // held while the coordinator's kubeconfig is minted

	life    context.Context // ends when Stop begins
	end     context.CancelFunc
	faultMu sync.Mutex // held by whoever stops or starts components
	// moreFlags are the API server's for now; faultMu guards them.
	moreFlags []string

	mu    sync.Mutex
	procs map[Component]*process // the present or last run of each component that was ever started

	stopOnce sync.Once
	stopErr  error
}

// Start runs a control plane and returns when it can be used: the API server is ready and, unless they are left out, the
// controller manager works and the others were started. It takes some ten seconds on two cores.
//
// When ctx ends the control plane is stopped, also long after Start has returned: a program that ends its context at Ctrl-C
// needs only to wait for [ControlPlane.Stop] before it exits. The processes die with this one in any case.
func Start(ctx context.Context, opts Options) (*ControlPlane, error) {
	for _, c := range opts.Without {
		if c == Etcd || c == APIServer {
			return nil, fmt.Errorf("a control plane without %s is none", c)
		}
		if !slices.Contains([]Component{ControllerManager, Scheduler, Ballast, Pods}, c) {
			return nil, fmt.Errorf("there is no component %q to leave out", c)
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
	dir, err := newWorkDir(opts.Dir)
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
		_ = cp.Stop() // what went wrong is in err
		return nil, fmt.Errorf("starting the control plane: %w", err)
	}
	unhook := context.AfterFunc(ctx, func() { _ = cp.Stop() })
	context.AfterFunc(cp.life, func() { unhook() })
	cp.log.printf("ready at %s after %.1f s; everything is in %s", cp.URL(), time.Since(begin).Seconds(), dir.path)
	return cp, nil
}

func (cp *ControlPlane) start(ctx context.Context) error {
	for _, name := range []string{"logs", "kubeconfigs"} {
		if err := os.Mkdir(cp.dir.join(name), 0o700); err != nil {
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

// useAddress makes the testbed's own client for the port that was chosen.
func (cp *ControlPlane) useAddress() error {
	config, err := cp.ConfigFor("testbed:admin", "system:masters")
	if err != nil {
		return err
	}
	admin, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making the testbed's client: %w", err)
	}
	cp.adminConfig, cp.admin = config, admin
	return nil
}

// Stop ends all components, asking them first, and removes the temporary directory. It may be called any number of times and
// returns when nothing is left. Its error names the components that had ended by themselves before, with the end of their
// logs, or says that the directory could not be removed.
func (cp *ControlPlane) Stop() error {
	cp.stopOnce.Do(func() {
		cp.end()
		cp.faultMu.Lock()
		defer cp.faultMu.Unlock()
		cp.stopErr = errors.Join(cp.stopAll(), cp.dir.remove())
		living.Delete(cp)
	})
	return cp.stopErr
}

// living are the control planes that have something to clean up: keys of type *ControlPlane.
var living sync.Map

// stopLiving stops what there is in this process, before it exits on a signal.
func stopLiving() {
	var wg sync.WaitGroup
	living.Range(func(cp, _ any) bool {
		wg.Go(func() { _ = cp.(*ControlPlane).Stop() })
		return true
	})
	wg.Wait()
}
