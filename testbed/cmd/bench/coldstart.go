package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	startRuns   = 10
	startWithin = 30 * time.Second // limits one start
)

// starts measures the time from exec to the first status of processes.
func (b *bench) starts(ctx context.Context) error {
	h := b.fleet.Hosts[2]
	// The processes start as under the host's service manager, except for the socket.
	args, env, err := commandOf(h.PID())
	if err != nil {
		return err
	}
	kubeconfig, err := b.cp.NodeKubeconfig(h.Name())
	if err != nil {
		return err
	}
	h.StopLockkeeper()
	kubectl := []string{b.cp.Binaries().Kubectl, "--kubeconfig", kubeconfig, "get", "node", h.Name(), "-o", "name"}
	var ready, looked, peer, kube []time.Duration
	for range startRuns {
		t, err := b.startup(ctx, args, env, "READY=1", "; up to date")
		if err != nil {
			return fmt.Errorf("starting lockkeeper: %w", err)
		}
		ready, looked = append(ready, t[0]), append(looked, t[1])
		if t, err = b.startup(ctx, []string{b.peer, kubeconfig, h.Name()}, nil, "READY=1"); err != nil {
			return fmt.Errorf("starting the peer: %w", err)
		}
		peer = append(peer, t[0])
		begin := time.Now()
		cmd := exec.CommandContext(ctx, kubectl[0], kubectl[1:]...)
		cmd.Env = []string{"HOME=" + b.dir}
		inGroup(cmd)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("kubectl get node: %w\n%s", err, out)
		}
		kube = append(kube, time.Since(begin))
	}
	if err := h.StartLockkeeper(); err != nil {
		return err
	}

	section("cold start", fmt.Sprintf(`From exec to a message of the process, median of %d starts in turn with the peers' (the file is in the page cache).
		READY=1 needs no API server. "knows": the status text says what its host wants, so it has read Node and sources.
		The peer says READY=1 after it has got its Node, through client-go.`, startRuns))
	rows := [][]string{{"what", "median", "least", "most", "to the peer"}}
	base := median(peer)
	for _, r := range []struct {
		name string
		all  []time.Duration
	}{{"lockkeeper, READY=1", ready}, {"lockkeeper, knows", looked}, {"peer, READY=1", peer}, {"kubectl get node, its end", kube}} {
		rows = append(rows, []string{r.name, millis(median(r.all)), millis(slices.Min(r.all)), millis(slices.Max(r.all)),
			times(float64(median(r.all)), float64(base))})
	}
	table(rows)
	return nil
}

func median(all []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(all))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// commandOf returns the command line and the environment of a process.
func commandOf(pid int) (args, env []string, err error) {
	read := func(name string) ([]string, error) {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00"), err
	}
	if args, err = read("cmdline"); err != nil {
		return nil, nil, err
	}
	if env, err = read("environ"); err != nil {
		return nil, nil, err
	}
	env = slices.DeleteFunc(env, func(s string) bool { return strings.HasPrefix(s, "NOTIFY_SOCKET=") })
	return args, env, nil
}

// startup starts a process, waits until it has sent all of the words to its service manager, in any order, and ends the
// process. It returns the time of each.
func (b *bench) startup(ctx context.Context, args, env []string, words ...string) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	p, err := b.launch(ctx, args, env)
	if err != nil {
		return nil, err
	}
	defer p.end()
	return p.hear(words...)
}

// child is a process that bench has started, with its notification socket.
type child struct {
	cmd    *exec.Cmd
	conn   *net.UnixConn
	began  time.Time
	output strings.Builder
	cancel func() bool
}

// launch starts a process. The end of ctx ends the process and its listener.
func (b *bench) launch(ctx context.Context, args, env []string) (*child, error) {
	f, err := os.CreateTemp(b.dir, "notify-")
	if err != nil {
		return nil, err
	}
	f.Close()
	os.Remove(f.Name())
	path := f.Name()
	p := &child{}
	if p.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}); err != nil {
		return nil, fmt.Errorf("opening %s: %w", filepath.Base(path), err)
	}
	p.cmd = exec.CommandContext(ctx, args[0], args[1:]...)
	p.cmd.Env = append(slices.Clone(env), "NOTIFY_SOCKET="+path)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	inGroup(p.cmd)
	p.began = time.Now()
	if err := p.cmd.Start(); err != nil {
		p.conn.Close()
		return nil, err
	}
	p.cancel = context.AfterFunc(ctx, func() { p.conn.Close() })
	return p, nil
}

// hear waits until the process has sent all of the words. It is called once: what the process sends later is dropped.
func (p *child) hear(words ...string) ([]time.Duration, error) {
	at := make([]time.Duration, len(words))
	buf := make([]byte, 64<<10)
	for slices.Contains(at, 0) {
		n, err := p.conn.Read(buf)
		if err != nil {
			p.end()
			return nil, fmt.Errorf("no message %q within %v; output:\n%s", words, time.Since(p.began).Round(time.Second), p.output.String())
		}
		for i, w := range words {
			if at[i] == 0 && strings.Contains(string(buf[:n]), w) {
				at[i] = time.Since(p.began)
			}
		}
	}
	go func() { // a full socket would block the process
		for {
			if _, err := p.conn.Read(buf); err != nil {
				return
			}
		}
	}()
	return at, nil
}

// end asks the process to exit and returns when the process is gone. Otherwise the end of ctx kills it.
func (p *child) end() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Wait()
	p.cancel()
	p.conn.Close()
}
