// Command bench measures the costs of lockkeeper on this machine, relative to peers that it measures in the same run:
// the start time, the size, the resources when idle, the requests of a turn to the API server, and the time of a
// decision. `make bench` runs it.
//
// The command asserts nothing. It prints each figure next to a peer's figure or a bound, so that the figure is
// meaningful on other machines. It fails only if it cannot measure something. It uses a real control plane, the real
// binary on simulated hosts, and a small program with the same client library (peer/).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// within limits the whole run, except builds.
const within = time.Hour

// idleWithin limits the wait until a leader manages the fleet and the fleet is idle.
const idleWithin = time.Minute

// The main goroutine starts all child processes of bench from one thread, because the kernel ends the children with
// that thread.
func init() { runtime.LockOSThread() }

func main() { os.Exit(run()) }

func run() int {
	binary := flag.String("binary", "", "the lockkeeper `FILE` to measure, built as it is released")
	window := flag.Duration("idle", 2*time.Minute, "how long the idle processes are watched, 10s to 1h")
	only := flag.String("only", "", "measure these `PARTS` alone: "+names(func(part) bool { return true })+"; \"all\" measures all of them; without it, "+
		names(func(p part) bool { return p.extra })+" are left out")
	record := flag.String("history", "", "append the ratios to this `FILE`, and compare them with those in it")
	commit := flag.String("commit", "unknown", "the `COMMIT` of the binary, for the history")
	base := flag.String("base", "", "another `COMMIT` to build, and to measure in turn with the binary")
	flag.Parse()
	chosen, err := choose(*only)
	if flag.NArg() > 0 || *binary == "" || *window < 10*time.Second || *window > time.Hour || err != nil {
		fmt.Fprintln(os.Stderr, "bench: usage: bench -binary FILE [-idle 1m] [-only PARTS] [-base COMMIT]", err)
		return 64
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // the watches of the testbed's own clients are sometimes cut
	if err = measureAll(ctx, *binary, *commit, *base, *window, chosen); err == nil && *record != "" {
		err = keep(*record, *commit)
	}
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

// measureAll measures the binary, and the base in turn with it if that is not "".
func measureAll(ctx context.Context, binary, commit, base string, window time.Duration, chosen []part) error {
	root, err := filepath.Abs("..")
	if err != nil {
		return err
	}
	if binary, err = filepath.Abs(binary); err != nil {
		return err
	}
	head := subject{"commit " + commit, binary, root}
	if base == "" {
		return benchmark(ctx, head, window, chosen)
	}
	dir, err := os.MkdirTemp("", "bench-base-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	was, remove, err := checkOut(ctx, root, base, dir)
	defer remove()
	if err != nil {
		return fmt.Errorf("building %s: %w", base, err)
	}
	return compare(ctx, was, head, window, chosen)
}

// part is a set of measurements.
type part struct {
	name    string
	cluster bool // needs the control plane and the fleet
	extra   bool // measured only if named
	measure func(*bench, context.Context) error
}

var parts = []part{
	{"size", false, false, (*bench).sizes},
	{"decide", false, false, (*bench).decisions},
	{"start", true, false, (*bench).starts},
	{"idle", true, false, (*bench).idle},
	{"turn", true, false, (*bench).turn},
	{"many", true, true, (*bench).many},
	{"scale", true, true, (*bench).scale},
	{"drain", true, true, (*bench).drain},
}

// names returns the names of the parts for which is is true.
func names(is func(part) bool) string {
	var all []string
	for _, p := range parts {
		if is(p) {
			all = append(all, p.name)
		}
	}
	return strings.Join(all, ",")
}

// choose returns the parts with these names; "" means all parts that are not extra.
func choose(named string) (chosen []part, err error) {
	switch named {
	case "":
		return slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return p.extra }), nil
	case "all":
		return parts, nil
	}
	names := strings.Split(named, ",")
	for _, name := range names {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return nil, fmt.Errorf("(unknown part %q)", name)
		}
	}
	return slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return !slices.Contains(names, p.name) }), nil
}

// bench is one run.
type bench struct {
	subject
	dir    string // a temporary directory, removed at the end
	peer   string // path of the peer
	floor  string // path of the peer with the build tag host
	window time.Duration
	began  time.Time
	audit  string   // the API server's audit log
	uids   []string // of the many Nodes
	bins   controlplane.Binaries
	cp     *controlplane.ControlPlane
	fleet  *simhost.Fleet
}

func benchmark(ctx context.Context, s subject, window time.Duration, chosen []part) (err error) {
	began := time.Now()
	b := &bench{subject: s, window: window, began: began}
	if b.bins, err = controlplane.Build(ctx, os.Stderr); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, within+window)
	defer cancel()
	if b.dir, err = os.MkdirTemp("/var/tmp", "bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	// Hosts watch the directories above their files. What other programs write in /tmp, and the API server next to them,
	// would wake them, as hardly anything does on a real host.
	hosts, audit := filepath.Join(b.dir, "tmp"), filepath.Join(b.dir, "audit")
	defer os.Setenv("TMPDIR", os.Getenv("TMPDIR"))
	if err := errors.Join(os.Mkdir(hosts, 0o755), os.Mkdir(audit, 0o700), os.Setenv("TMPDIR", hosts)); err != nil {
		return err
	}
	b.peer, b.floor = filepath.Join(b.dir, "peer"), filepath.Join(b.dir, "floor")
	b.audit = filepath.Join(audit, "audit.log")
	for path, tags := range map[string]string{b.peer: "urfave_cli_no_docs", b.floor: "urfave_cli_no_docs,host"} {
		if err := goCommand(ctx, ".", "build", "-trimpath", "-tags", tags, "-ldflags", "-s -w", "-o", path, "./cmd/bench/peer"); err != nil {
			return fmt.Errorf("building the peer: %w", err)
		}
	}
	fmt.Printf("%s, %d CPUs, load %s. Ratios are to what was measured in this same run.\n", runtime.Version(), runtime.NumCPU(), load())

	defer b.stop()
	for _, p := range chosen {
		if p.cluster && (b.cp == nil || p.extra) {
			b.stop() // an extra part leaves many Nodes behind
			if err := b.start(ctx); err != nil {
				return err
			}
		}
		if err := p.measure(b, ctx); err != nil {
			return err
		}
	}
	fmt.Printf("\nbench: %v, load %s at the end\n", time.Since(began).Round(time.Second), load())
	return nil
}

// start starts the control plane, with an audit log, and the fleet.
func (b *bench) start(ctx context.Context) (err error) {
	audit := filepath.Join(b.dir, "audit-policy.yaml")
	if err := os.WriteFile(audit, []byte(auditPolicy), 0o600); err != nil {
		return err
	}
	b.cp, err = controlplane.Start(ctx, controlplane.Options{
		Binaries: b.bins, Log: io.Discard,
		APIServerFlags:   []string{"--audit-policy-file=" + audit, "--audit-log-path=" + b.audit},
		NodeMonitorGrace: time.Hour,        // the many Nodes have no kubelet
		BallastLease:     10 * time.Minute, // and their Leases do not matter
	})
	if err != nil {
		return err
	}
	if err := b.cp.ApplyLockkeeper(ctx); err != nil {
		b.stop()
		return err
	}
	if _, err := b.cp.ApplyPolicy(ctx, controlplane.TestPolicy, fleetPolicy); err != nil {
		b.stop()
		return err
	}
	b.fleet, err = simhost.StartFleet(ctx, b.cp, simhost.FleetOptions{
		Hosts: 3, Coordinators: 2,
		Host: simhost.Options{Binary: b.binary, Config: likeReal, Uptime: booted, Kubelet: slowKubelet},
	})
	if err == nil {
		wait, cancel := context.WithTimeout(ctx, idleWithin)
		defer cancel()
		err = b.fleet.WaitIdle(wait)
	}
	if err != nil {
		b.stop()
	}
	return err
}

// stop ends what start has started, if anything.
func (b *bench) stop() {
	if b.fleet != nil {
		b.fleet.Close()
	}
	if b.cp != nil {
		b.cp.Stop()
	}
	b.fleet, b.cp, b.uids = nil, nil, nil
}

// fleetPolicy is the default policy, but turns need not wait for each other, nor for long after the creation of the
// Nodes.
const fleetPolicy = "rollout: {settle: 0s, maxUnavailable: 10}\n"

// booted is a host's uptime right after a reboot: more than min_uptime, with time left to prove its health.
const booted = 3 * time.Minute

// likeReal restores the product's own periods and log level, which simulated hosts override.
func likeReal(c simhost.Config) {
	c.Set("", "log_level", "info")
	delete(c, "lease")
	delete(c, "sources")
	delete(c, "health")
}

// goCommand runs go in the directory of a package of this repository, without CGO.
func goCommand(ctx context.Context, dir string, args ...string) error {
	_, err := goOutput(ctx, dir, args...)
	return err
}

func goOutput(ctx context.Context, dir string, args ...string) ([]byte, error) {
	return output(ctx, dir, "go", args...)
}

// command runs a command in a directory.
func command(ctx context.Context, dir, name string, args ...string) error {
	_, err := output(ctx, dir, name, args...)
	return err
}

func output(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	inGroup(cmd)
	out, err := cmd.Output()
	if exit, ok := err.(*exec.ExitError); ok {
		err = fmt.Errorf("%s %s: %w\n%s%s", name, args[0], err, out, exit.Stderr)
	}
	return out, err
}

// inGroup puts a command into a process group that ends with ctx and with bench.
func inGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
}

// load returns the machine's load average over the last minute.
func load() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	var one string
	fmt.Sscan(string(data), &one)
	return one
}
