// Command demo rolls an update through three hosts with a real control plane: the real lockkeeper binary on each host,
// a real API server, scheduler and controllers, pods with a PodDisruptionBudget, and a referee that watches every
// write. `make demo` runs it.
//
// The last line is the referee's summary: how many hosts were updated, how many were disrupted at once, and whether a
// rule was broken. The exit status is 0 only if all hosts were updated and no rule was broken.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/referee"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

const (
	hosts      = 3
	from, to   = "4.1.0", "4.2.0"
	rollWithin = 3 * time.Minute

	// offender is the one of referee.Offenders that the demo can plant. The tests of package referee use all of them.
	offender = "budget"

	// policyText is the default policy with a shorter settle: one node at a time, two seconds after the previous one.
	policyText = "rollout: {settle: 2s}"
)

func main() { os.Exit(run()) }

func run() int {
	planted := flag.String("offender", "", "break a promise on purpose, to see the referee object: "+offender)
	flag.Parse()
	if flag.NArg() > 0 || *planted != "" && *planted != offender {
		fmt.Fprintf(os.Stderr, "demo: usage: demo [-offender %s]\n", offender)
		return 64
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := demo(ctx, *planted)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "demo: interrupted; everything is stopped")
		return 130
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 1
	}
	return 0
}

func demo(ctx context.Context, planted string) (err error) {
	say("building lockkeeper, and the control plane unless it is in the cache (about 6 minutes the first time)")
	bins, err := controlplane.Build(ctx, os.Stderr)
	if err != nil {
		return err
	}
	binary, err := simhost.BuildLockkeeper(ctx, os.Stderr)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "lockkeeper-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	say("starting etcd, kube-apiserver, controller manager, scheduler and KWOK")
	cp, err := controlplane.Start(ctx, controlplane.Options{Binaries: bins, Log: io.Discard})
	if err != nil {
		return err
	}
	defer cp.Stop()

	say("starting %d hosts with %s, each with its own D-Bus, update_engine, logind and kubelet; two may coordinate", hosts, from)
	r, err := rig.Start(ctx, cp, rig.Options{
		Policy: policyText, OnEvent: func(line string) { fmt.Println("  " + line) },
		Fleet: simhost.FleetOptions{
			Hosts: hosts, Coordinators: 2, Zones: []string{"zone-a", "zone-b", "zone-c"},
			Host: simhost.Options{Binary: binary, Version: from},
		},
	})
	if err != nil {
		return err
	}
	closed := false
	defer func() {
		if !closed {
			r.Close()
		}
	}()
	if err := workload(ctx, cp); err != nil {
		return err
	}
	kubeconfig, err := cp.Kubeconfig("demo:admin", "system:masters")
	if err != nil {
		return err
	}
	status(ctx, binary, kubeconfig)

	say("the update engine of each host stages %s; no manual action follows", to)
	began := time.Now()
	rolling, cancel := context.WithTimeout(ctx, rollWithin)
	defer cancel()
	var offending sync.WaitGroup
	defer offending.Wait()
	defer cancel()
	if planted != "" {
		o := referee.Offenders[planted]
		say("planted: a process that %s", o.Does)
		offending.Go(func() {
			if err := o.Run(rolling, world(cp, r)); err != nil && rolling.Err() == nil {
				fmt.Fprintf(os.Stderr, "demo: the offender: %v\n", err)
			}
		})
	}
	if err := r.Fleet.StageUpdate(to); err != nil {
		return err
	}
	rolled := r.Fleet.WaitUpdated(rolling, to)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if rolled == nil {
		say("all hosts run %s, %v after it was staged", to, time.Since(began).Round(time.Second))
		status(ctx, binary, kubeconfig)
	}
	closed = true
	report, verdict := r.Close()
	for _, v := range report.Violations {
		fmt.Println("  VIOLATION", v)
	}
	fmt.Printf("demo: %s\n", report.Summary(hosts))
	switch {
	case verdict != nil:
		return verdict
	case rolled != nil:
		return rolled
	case len(report.Updated) != hosts || report.Reboots != hosts:
		return fmt.Errorf("%d of %d hosts were updated with %d reboots", len(report.Updated), hosts, report.Reboots)
	}
	return nil
}

// world returns the cluster for an offender.
func world(cp *controlplane.ControlPlane, r *rig.Rig) referee.World {
	w := referee.World{Client: cp.Client(), Writer: cp.NodeWriter}
	for _, h := range r.Fleet.Hosts {
		w.Nodes = append(w.Nodes, h.Name())
	}
	return w
}

// workload creates the workload that the rollout must protect: three replicas, of which two must be available.
func workload(ctx context.Context, cp *controlplane.ControlPlane) error {
	one := intstr.FromInt32(1)
	say("a Deployment of 3 replicas with a PodDisruptionBudget of at most 1 unavailable")
	err := cp.CreateWorkload(ctx, controlplane.Workload{Namespace: "demo", Name: "web", Replicas: 3, MaxUnavailable: &one})
	if err != nil {
		return err
	}
	return cp.WaitWorkload(ctx, "demo", "web")
}

// status shows what an admin would run.
func status(ctx context.Context, binary, kubeconfig string) {
	fmt.Println("\n$ lockkeeper status -A")
	cmd := exec.CommandContext(ctx, binary, "status", "-A")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	out, err := cmd.CombinedOutput()
	fmt.Println(string(out))
	if err != nil {
		say("%v", err)
	}
}

func say(format string, args ...any) { fmt.Printf("demo: "+format+"\n", args...) }
