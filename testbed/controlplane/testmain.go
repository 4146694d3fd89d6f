package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
)

// tests is the part of [testing.M] that RunTests uses.
type tests interface{ Run() int }

// RunTests is the body of a TestMain whose package's tests share one control plane:
//
//	var cp *controlplane.ControlPlane
//
//	func TestMain(m *testing.M) {
//		os.Exit(controlplane.RunTests(m, controlplane.Options{}, func(c *controlplane.ControlPlane) { cp = c }))
//	}
//
// It starts the control plane, passes it to use, runs the tests and stops the control plane. At Ctrl-C it stops all control planes of this
// process at once. It returns the tests' exit status, or 1 if the control plane did not start or one of its components died during the
// tests.
func RunTests(m tests, opts Options, use func(*ControlPlane)) int {
	return run(&opts, func(ctx context.Context) (int, error) {
		cp, err := Start(ctx, opts)
		if err != nil {
			return 1, err
		}
		use(cp)
		status := m.Run()
		keep(ctx, opts.Log, status, cp)
		return status, cp.Stop()
	})
}

// run runs tests until a signal ends the process, and prints what failed outside of the tests.
func run(opts *Options, all func(context.Context) (status int, err error)) int {
	if opts.Log == nil {
		opts.Log = os.Stderr
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A waiting test does not know about the signal, so the exit does not wait for the tests.
	defer context.AfterFunc(ctx, func() {
		stopLiving()
		os.Exit(130)
	})()
	status, err := all(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	return status
}

// keep keeps the control planes until Ctrl-C if their tests have failed and LOCKKEEPER_KEEP is set, so that a person can inspect them. The
// tests' hosts are gone by then. Their Nodes and everything else in the cluster remain as the tests left them.
func keep(ctx context.Context, log io.Writer, status int, all ...*ControlPlane) {
	if status == 0 || os.Getenv("LOCKKEEPER_KEEP") == "" {
		return
	}
	for _, cp := range all {
		admin, err := cp.Kubeconfig("testbed:admin", "system:masters")
		if err != nil {
			fmt.Fprintln(log, err)
			continue
		}
		fmt.Fprintf(log, "controlplane: LOCKKEEPER_KEEP keeps this one until Ctrl-C; its logs are in %s\nexport KUBECONFIG=%s\nalias kubectl=%s\n",
			cp.dir.Join("logs"), admin, cp.Binaries().Kubectl)
	}
	<-ctx.Done()
}

// Pool gives control planes to parallel tests. Each test has its own control plane, because some objects, such as the Lease, exist only
// once in a cluster. The Pool has as many control planes as tests have run at once.
type Pool struct {
	ctx      context.Context // ends with the tests
	opts     Options
	free     chan *ControlPlane
	starting chan struct{} // has an element while a control plane starts: the first test waits less if they start one after the other
	all      []*ControlPlane
	others   []*Pool // created by With
	shared   func() *ControlPlane
}

func newPool(ctx context.Context, opts Options) *Pool {
	p := &Pool{ctx: ctx, opts: opts, free: make(chan *ControlPlane, 1024), starting: make(chan struct{}, 1)}
	p.shared = sync.OnceValue(func() *ControlPlane {
		p.starting <- struct{}{}
		defer func() { <-p.starting }()
		cp, err := p.start()
		if err != nil {
			panic(err)
		}
		return cp
	})
	return p
}

// Shared returns a control plane of the pool that all callers share, and that [Pool.Take] never returns. The first call starts it. Shared
// panics if the start fails.
func (p *Pool) Shared() *ControlPlane { return p.shared() }

// With returns a second pool, whose control planes have other options, for a package whose tests need two kinds. It ends with p. Call it
// before the tests run.
func (p *Pool) With(opts Options) *Pool {
	opts.Log = p.opts.Log
	other := newPool(p.ctx, opts)
	p.others = append(p.others, other)
	return other
}

// started returns every control plane of the pool and of the pools that With created.
func (p *Pool) started() []*ControlPlane {
	all := slices.Clone(p.all)
	for _, other := range p.others {
		all = append(all, other.started()...)
	}
	return all
}

// RunTestsApart is like [RunTests], for parallel tests that each take a control plane from the pool. The flag -parallel of [testing] sets
// how many run at once. A package whose tests mostly wait sets a default above the number of cores:
//
//	var pool *controlplane.Pool
//
//	func TestMain(m *testing.M) {
//		flag.Set("test.parallel", "4")
//		flag.Parse()
//		os.Exit(controlplane.RunTestsApart(m, controlplane.Options{}, func(p *controlplane.Pool) { pool = p }))
//	}
func RunTestsApart(m tests, opts Options, use func(*Pool)) int {
	return run(&opts, func(ctx context.Context) (int, error) {
		p := newPool(ctx, opts)
		use(p)
		status := m.Run()
		all := p.started()
		keep(ctx, opts.Log, status, all...)
		var errs []error
		for _, cp := range all {
			errs = append(errs, cp.Stop())
		}
		return status, errors.Join(errs...)
	})
}

// Test is the part of [testing.T] that the pool uses.
type Test interface {
	Helper()
	Fatal(args ...any)
	Cleanup(f func())
}

// Take gives a test its own control plane until all cleanup functions that are registered later have run. The next test finds what this
// test leaves in it. A parallel test must call its Parallel method before.
func (p *Pool) Take(t Test) *ControlPlane {
	t.Helper()
	cp, err := p.get()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.free <- cp })
	return cp
}

func (p *Pool) get() (*ControlPlane, error) {
	select {
	case cp := <-p.free:
		return cp, nil
	default:
	}
	select {
	case cp := <-p.free:
		return cp, nil
	case p.starting <- struct{}{}:
	}
	defer func() { <-p.starting }()
	return p.start()
}

// start starts a control plane. Only one caller may call it at a time.
func (p *Pool) start() (*ControlPlane, error) {
	cp, err := Start(p.ctx, p.opts)
	if err != nil {
		return nil, err
	}
	p.all = append(p.all, cp)
	return cp, nil
}
