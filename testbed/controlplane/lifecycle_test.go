package controlplane

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"lockkeeper.dev/lockkeeper/testbed/workdir"
)

// bare lists the components to leave out for the fastest start, with only etcd and the API server.
var bare = []Component{ControllerManager, Scheduler, Ballast, Pods}

func TestAllComponentsRun(t *testing.T) {
	got := map[Component]bool{}
	for _, p := range shared.Processes() {
		got[p.Component] = true
	}
	for _, want := range []Component{Etcd, APIServer, ControllerManager, Scheduler, Ballast, Pods} {
		if !got[want] {
			t.Errorf("%s does not run", want)
		}
	}
	if got, want := len(processesOf(t, shared.Dir())), 6; got != want {
		t.Errorf("%d processes have the directory on their command line, expected %d: the tests below find them that way", got, want)
	}
}

func TestStopLeavesNothing(t *testing.T) {
	t.Parallel()
	cp := must(Start(t.Context(), Options{Log: t.Output()}))(t)
	left := processesOf(t, cp.Dir())
	if len(left) != 6 {
		t.Fatalf("%d processes run, want 6", len(left))
	}
	for range 2 {
		if err := cp.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	for _, pid := range left {
		if alive(pid) {
			t.Errorf("process %d is still there", pid)
		}
	}
	if _, err := os.Stat(cp.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory: %v, expected it to be gone", err)
	}
	if err := cp.StartAPIServer(t.Context()); !errors.Is(err, errStopped) {
		t.Errorf("starting the API server of a stopped control plane: %v, want %v", err, errStopped)
	}
}

// TestContextEndsIt checks that the end of the context has the same effect as Stop.
func TestContextEndsIt(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cp := must(Start(ctx, Options{Without: bare}))(t)
	left := processesOf(t, cp.Dir())
	cancel()
	if err := cp.Stop(); err != nil { // waits for the Stop that is already running
		t.Error(err)
	}
	for _, pid := range left {
		if alive(pid) {
			t.Errorf("process %d is still there", pid)
		}
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	cp := must(Start(t.Context(), Options{Without: bare}))(t)
	t.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			t.Error(err)
		}
	})
	ctx := soon(t)
	must(cp.CreateNode(ctx, NodeSpec{Name: "n"}))(t)
	url := cp.URL()
	get := func() error {
		_, err := cp.Client().CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
		return err
	}

	// A watcher must survive all of this.
	seen := make(chan error, 1)
	go func() {
		_, err := cp.WaitNode(ctx, "n", "to be labelled", func(n *corev1.Node) bool { return n != nil && n.Labels["after"] == "faults" })
		seen <- err
	}()
	for range 2 {
		if err := cp.StopAPIServer(); err != nil {
			t.Fatal(err)
		}
	}
	if err := get(); err == nil {
		t.Error("an API server that was stopped answers")
	}
	if err := cp.RestartEtcd(ctx); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := cp.StartAPIServer(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if cp.URL() != url {
		t.Errorf("the address is %s now, was %s", cp.URL(), url)
	}
	if err := get(); err != nil {
		t.Errorf("after the API server's restart: %v", err)
	}
	before := processesOf(t, cp.Dir())
	if err := cp.RestartEtcd(ctx); err != nil {
		t.Fatal(err)
	}
	after := processesOf(t, cp.Dir())
	if len(after) != 2 || after[0] == before[0] && after[1] == before[1] {
		t.Errorf("processes %v before etcd's restart, %v after it; want one of two to be another", before, after)
	}
	if _, err := cp.Client().CoreV1().Nodes().Patch(ctx, "n", "application/merge-patch+json",
		[]byte(`{"metadata":{"labels":{"after":"faults"}}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("writing after etcd's restart: %v", err)
	}
	if err := <-seen; err != nil {
		t.Error(err)
	}
}

func TestDeathIsReported(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	cp := must(Start(t.Context(), Options{Without: []Component{ControllerManager, Ballast, Pods}, Log: &said}))(t)
	defer cp.Stop()
	p := cp.process(Scheduler)
	if err := syscall.Kill(p.cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.gone
	err := cp.Stop()
	if err == nil || !strings.Contains(err.Error(), "kube-scheduler ended unexpectedly (signal: killed)") {
		t.Errorf("Stop after the scheduler was killed: %v", err)
	}
}

func TestStartThatFails(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	cp, err := Start(t.Context(), Options{APIServerFlags: []string{"--no-such-flag"}, Without: bare})
	if err == nil {
		cp.Stop()
		t.Fatal("an API server with an unknown flag has started")
	}
	for _, want := range []string{"kube-apiserver ended unexpectedly", "unknown flag: --no-such-flag"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
	wantEmpty(t, temp)

	// One control plane never gets ready: the time limit holds, and the error says what Start waited for.
	_, err = Start(t.Context(), Options{StartTimeout: time.Second, Without: bare})
	if err == nil || !strings.Contains(err.Error(), "it took more than 1s") {
		t.Errorf("a start that may take a second: %v", err)
	}
	wantEmpty(t, temp)

	for name, opts := range map[string]Options{
		"etcd left out":     {Without: []Component{Etcd}},
		"unknown component": {Without: []Component{"kube-proxy"}},
		"folder too deep":   {Dir: filepath.Join(temp, strings.Repeat("d", 100))},
	} {
		if cp, err := Start(t.Context(), opts); err == nil {
			cp.Stop()
			t.Errorf("%s: started", name)
		}
	}
}

func TestNamedDirStays(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "cp")
	cp := must(Start(t.Context(), Options{Dir: dir, Without: bare}))(t)
	if err := cp.Stop(); err != nil {
		t.Fatal(err)
	}
	if log, err := os.ReadFile(filepath.Join(dir, "logs", "kube-apiserver.log")); err != nil || len(log) == 0 {
		t.Errorf("the API server's log: %d bytes, %v", len(log), err)
	}
	if cp, err := Start(t.Context(), Options{Dir: dir, Without: bare}); err == nil {
		cp.Stop()
		t.Error("started in a directory that is not empty")
	}
}

// TestOwnerDies checks that no process remains, however and whenever the owner ends. A SIGKILL leaves the directory, which the next Start
// removes.
func TestOwnerDies(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		signal    syscall.Signal
		processes int  // number of processes when the signal is sent
		amidStart bool // send the signal as soon as they exist
		tests     bool // the owner is a TestMain with RunTests, and a test has a second control plane
		dirStays  bool
	}{
		{name: "killed", signal: syscall.SIGKILL, processes: 6, dirStays: true},
		{name: "killed amid its start", signal: syscall.SIGKILL, processes: 2, amidStart: true, dirStays: true},
		{name: "interrupted", signal: syscall.SIGINT, processes: 6},
		{name: "interrupted amid its start", signal: syscall.SIGINT, processes: 2, amidStart: true},
		{name: "tests interrupted", signal: syscall.SIGINT, tests: true, processes: 4},
		{name: "tests interrupted amid a start", signal: syscall.SIGINT, tests: true, processes: 3, amidStart: true},
		{name: "quit by a test's timeout", signal: syscall.SIGQUIT, processes: 6, dirStays: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			temp, err := os.MkdirTemp("", "owner") // the path of t.TempDir is too long for etcd's socket
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(temp)
			owner := exec.Command(os.Args[0])
			owner.Env = append(os.Environ(), ownerEnv+"=yes", "TMPDIR="+temp)
			if test.tests {
				owner.Env = append(owner.Env, ownerEnv+"=tests")
			}
			stdout := must(owner.StdoutPipe())(t)
			if err := owner.Start(); err != nil {
				t.Fatal(err)
			}
			defer owner.Wait()
			defer owner.Process.Kill()
			if !test.amidStart && !bufio.NewScanner(stdout).Scan() {
				t.Fatal("the owner did not get its control plane")
			}
			var children []int
			for deadline := time.Now().Add(2 * time.Minute); len(children) < test.processes; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%d processes of the owner's, want %d", len(children), test.processes)
				}
				children = processesOf(t, temp)
			}
			if err := owner.Process.Signal(test.signal); err != nil {
				t.Fatal(err)
			}
			for _, pid := range children {
				waitGone(t, pid)
			}
			owner.Wait()
			if left := processesOf(t, temp); len(left) > 0 {
				t.Errorf("processes %v are left", left)
			}
			dirs := must(filepath.Glob(filepath.Join(temp, "lockkeeper-"+dirKind+"-*")))(t)
			if (len(dirs) == 1) != test.dirStays || len(dirs) > 1 {
				t.Errorf("directories left: %v, expected one: %t", dirs, test.dirStays)
			}
			for _, dir := range dirs {
				makeOld(t, dir)
			}
			workdir.RemoveStale(temp, dirKind)
			wantEmpty(t, temp)
		})
	}
}

// TestKeep checks that LOCKKEEPER_KEEP keeps the control plane of failed tests until an interrupt. Without it, nothing remains.
func TestKeep(t *testing.T) {
	for _, kept := range []bool{true, false} {
		t.Run(fmt.Sprint(kept), func(t *testing.T) {
			t.Parallel()
			temp, err := os.MkdirTemp("", "keep") // the path of t.TempDir is too long for etcd's socket
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(temp)
			owner := exec.CommandContext(soon(t), os.Args[0])
			owner.Env = append(os.Environ(), ownerEnv+"=failing", "TMPDIR="+temp, "LOCKKEEPER_KEEP=")
			if kept {
				owner.Env = append(owner.Env, "LOCKKEEPER_KEEP=1")
			}
			stdout := must(owner.StdoutPipe())(t)
			if err := owner.Start(); err != nil {
				t.Fatal(err)
			}
			kubeconfig := ""
			for lines := bufio.NewScanner(stdout); kubeconfig == "" && lines.Scan(); {
				if path, ok := strings.CutPrefix(lines.Text(), "export KUBECONFIG="); ok {
					kubeconfig = path
				}
			}
			if (kubeconfig != "") != kept {
				t.Errorf("printed the kubeconfig %q, expected one: %t", kubeconfig, kept)
			}
			if kubeconfig != "" {
				config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
				if _, err := clientFor(t, config, err).CoreV1().Namespaces().Get(soon(t), "default", metav1.GetOptions{}); err != nil {
					t.Error(err)
				}
				if err := owner.Process.Signal(syscall.SIGINT); err != nil {
					t.Error(err)
				}
			}
			if err := owner.Wait(); err == nil {
				t.Error("its exit status is 0, and its tests have failed")
			}
			if left := processesOf(t, temp); len(left) > 0 {
				t.Errorf("processes %v are left", left)
			}
		})
	}
}

// makeOld makes a directory an hour old.
func makeOld(t *testing.T, dir string) {
	t.Helper()
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(dir, long, long); err != nil {
		t.Fatal(err)
	}
}

// processesOf finds processes by a directory on their command line, not by what the code under test remembers. It returns them in the order
// of their PIDs.
func processesOf(t *testing.T, dir string) []int {
	t.Helper()
	var pids []int
	for _, e := range must(os.ReadDir("/proc"))(t) {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.Contains(cmdline, []byte(dir)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// waitGone waits for the end of a process that is not a child of this process.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 90_000)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			t.Fatal(err)
		case n == 0:
			t.Fatalf("process %d is still there after 90 s", pid)
		default:
			return
		}
	}
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	for _, e := range must(os.ReadDir(dir))(t) {
		t.Errorf("%s is left in %s", e.Name(), dir)
	}
}
