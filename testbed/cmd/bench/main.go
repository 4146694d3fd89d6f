// Command bench measures what lockkeeper costs, on this machine and against
// peers that are measured in the same run: how fast it starts, how large it
// is, what it takes while it is idle, what a turn asks of the API server, and
// how long a decision takes. `make bench` runs it.
//
// It asserts nothing: each figure stands beside a peer's or a bound's, so that
// it means something on another machine. It fails only when something could
// not be measured. The parts are a real control plane, the real binary on
// simulated hosts, and a small program with the same client library (peer/).
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// within bounds the whole run, builds aside.
const within = 8 * time.Minute

// The main goroutine starts all of bench's own children, from one thread: the
// kernel ends them with it.
func init() { runtime.LockOSThread() }

func main() { os.Exit(run()) }

func run() int {
	binary := flag.String("binary", "", "the lockkeeper `FILE` to measure, built as it is released")
	window := flag.Duration("idle", time.Minute, "how long the idle processes are watched, 10s to 1h")
	flag.Parse()
	if flag.NArg() > 0 || *binary == "" || *window < 10*time.Second || *window > time.Hour {
		fmt.Fprintln(os.Stderr, "bench: usage: bench -binary FILE [-idle 1m]")
		return 64
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := benchmark(ctx, *binary, *window)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "bench: interrupted; everything is stopped")
		return 130
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

// A bench is one run.
type bench struct {
	dir    string // of its own, removed at the end
	binary string // lockkeeper's
	peer   string // the peer's
	window time.Duration
	audit  string // the API server's audit log
	cp     *controlplane.ControlPlane
	fleet  *simhost.Fleet
}

func benchmark(ctx context.Context, binary string, window time.Duration) (err error) {
	began := time.Now()
	bins, err := controlplane.Build(ctx, os.Stderr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, within+window)
	defer cancel()
	b := &bench{window: window}
	if b.binary, err = filepath.Abs(binary); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "lockkeeper-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	b.peer = filepath.Join(b.dir, "peer")
	b.audit = filepath.Join(b.dir, "audit.log")
	if err := goCommand(ctx, ".", "build", "-trimpath", "-ldflags", "-s -w", "-o", b.peer, "./cmd/bench/peer"); err != nil {
		return fmt.Errorf("building the peer: %w", err)
	}
	fmt.Printf("%s, %d CPUs, load %s. Ratios are to what was measured in this same run.\n", runtime.Version(), runtime.NumCPU(), load())

	if err := b.sizes(ctx, bins); err != nil {
		return err
	}
	if err := b.decisions(ctx); err != nil {
		return err
	}
	if err := b.start(ctx, bins); err != nil {
		return err
	}
	defer b.stop()
	for _, part := range []func(context.Context) error{b.starts, b.idle, b.turn, b.nodes} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	fmt.Printf("\nbench: %v, load %s at the end\n", time.Since(began).Round(time.Second), load())
	return nil
}

// start starts the control plane, with an audit log, and the fleet.
func (b *bench) start(ctx context.Context, bins controlplane.Binaries) (err error) {
	policy := filepath.Join(b.dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return err
	}
	b.cp, err = controlplane.Start(ctx, controlplane.Options{
		Binaries: bins, Log: io.Discard,
		APIServerFlags:   []string{"--audit-policy-file=" + policy, "--audit-log-path=" + b.audit},
		NodeMonitorGrace: time.Hour, // the many Nodes have no kubelet
	})
	if err != nil {
		return err
	}
	b.fleet, err = simhost.StartFleet(ctx, b.cp, simhost.FleetOptions{
		Hosts: 3, Coordinators: 2,
		Host: simhost.Options{Binary: b.binary, Config: likeReal, Uptime: time.Hour},
	})
	if err != nil {
		b.stop()
	}
	return err
}

func (b *bench) stop() {
	if b.fleet != nil {
		b.fleet.Close()
	}
	b.cp.Stop()
}

// likeReal gives a host the product's own periods and log level back, which
// simulated hosts cut short.
func likeReal(c simhost.Config) {
	c.Set("", "log_level", "info")
	delete(c, "lease")
	delete(c, "sources")
}

// goCommand runs go where a package of this repository is, CGO off.
func goCommand(ctx context.Context, dir string, args ...string) error {
	_, err := goOutput(ctx, dir, args...)
	return err
}

func goOutput(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	inGroup(cmd)
	out, err := cmd.Output()
	if exit, ok := err.(*exec.ExitError); ok {
		err = fmt.Errorf("go %s: %w\n%s%s", args[0], err, out, exit.Stderr)
	}
	return out, err
}

// inGroup puts a command into a group that ends with ctx and with bench.
func inGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
}

// load is the machine's load average over the last minute.
func load() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	var one string
	fmt.Sscan(string(data), &one)
	return one
}
