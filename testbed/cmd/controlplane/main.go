// Command controlplane runs the testbed's control plane in the foreground until Ctrl-C, for manual experiments.
//
//	go run ./cmd/controlplane
//
// It prints the path of an administrator's kubeconfig, and the path of the kubectl that was built with the control
// plane.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

func main() { os.Exit(run()) }

func run() int {
	dir := flag.String("dir", "", "directory for data, keys and logs, which is kept; default: a temporary directory, which is removed")
	hosts := flag.Int("hosts", 0, "number of Nodes to create whose pods KWOK simulates, and which are marked Ready once")
	ballast := flag.Int("ballast", 0, "number of Nodes to create that KWOK simulates completely")
	grace := flag.Duration("node-monitor-grace", 0, "time without a heartbeat after which a Node is not Ready; default: the default of Kubernetes")
	buildOnly := flag.Bool("build-only", false, "build the components unless they are in the cache, and stop")
	realHosts := flag.Bool("real-hosts", false, "with -build-only: also build the parts of real hosts, if this machine can run them")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "controlplane: unexpected argument %q\n", flag.Arg(0))
		return 64
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *buildOnly {
		if err := build(ctx, *realHosts); err != nil {
			return failed(ctx, err)
		}
		return 0
	}
	cp, err := controlplane.Start(ctx, controlplane.Options{Dir: *dir, Log: os.Stderr, NodeMonitorGrace: *grace})
	if err != nil {
		return failed(ctx, err)
	}
	defer cp.Stop()
	if err := populate(ctx, cp, *hosts, *ballast); err != nil {
		return failed(ctx, err)
	}
	admin, err := cp.Kubeconfig("testbed:admin", "system:masters")
	if err != nil {
		return failed(ctx, err)
	}
	fmt.Printf("export KUBECONFIG=%s\nalias kubectl=%s\n", admin, cp.Binaries().Kubectl)
	<-ctx.Done()
	if err := cp.Stop(); err != nil {
		return failed(context.Background(), err)
	}
	return 0
}

// build builds the components and, if requested, the parts of real hosts. It downloads the operating systems of the
// hosts while it compiles the components. It compiles the kubelet after the components, which share most packages with
// it.
func build(ctx context.Context, realHosts bool) error {
	if realHosts && realhost.Missing() != nil {
		realHosts = false // the tests with real hosts report the reason
	}
	var trees sync.WaitGroup
	if realHosts {
		trees.Go(func() {
			for _, release := range realhost.Releases {
				// The tests decide whether a release that cannot be downloaded is an error.
				if _, err := realhost.Tree(ctx, os.Stderr, release); err != nil {
					fmt.Fprintln(os.Stderr, "controlplane:", err)
				}
			}
		})
	}
	_, err := controlplane.Build(ctx, os.Stderr)
	trees.Wait()
	if err != nil || !realHosts {
		return err
	}
	return realhost.Prepare(ctx, os.Stderr)
}

// populate creates what an empty cluster lacks for experiments.
func populate(ctx context.Context, cp *controlplane.ControlPlane, hosts, ballast int) error {
	if err := cp.ApplyLockkeeper(ctx); err != nil {
		return err
	}
	for i := range hosts {
		name := fmt.Sprintf("host-%d", i+1)
		if _, err := cp.CreateNode(ctx, controlplane.NodeSpec{Name: name}); err != nil {
			return err
		}
		if err := cp.SetNodeReady(ctx, name, fmt.Sprintf("boot-%d", time.Now().UnixNano()), true); err != nil {
			return err
		}
	}
	for i := range ballast {
		if _, err := cp.CreateNode(ctx, controlplane.NodeSpec{Name: fmt.Sprintf("ballast-%d", i+1), Ballast: true}); err != nil {
			return err
		}
	}
	return nil
}

// failed reports an error. An error that Ctrl-C caused does not count.
func failed(ctx context.Context, err error) int {
	if ctx.Err() != nil {
		return 130
	}
	fmt.Fprintln(os.Stderr, "controlplane:", err)
	return 1
}
