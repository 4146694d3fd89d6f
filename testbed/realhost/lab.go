package realhost

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

const (
	labPrefix = "lkr"                      // with its number, the tag of a lab: the name of its bridge and of its cgroups, and the prefix of its machines' names
	dirPrefix = "lockkeeper-realhost-"     // of a lab's directory in the temporary directory
	locksDir  = "/run/lockkeeper-realhost" // contains a file for each lab on the machine, locked while the lab has a janitor
	maxLabs   = 99

	// The janitor waits 10 s for processes to die and 5 s for cgroups. To remove the directory of a few hosts takes
	// little time.
	janitorTimeout = time.Minute
)

//go:embed janitor.sh
var janitorScript string

// Lab is the part of the machine that belongs to a set of hosts: a bridge with a network, cgroups, a directory. Several
// labs can exist at once. Its methods are safe for concurrent use.
type Lab struct {
	tag string
	n   int
	dir string
	log io.Writer

	janitor  *exec.Cmd
	let      io.Closer // closing it makes the janitor start
	said     *bytes.Buffer
	mu       sync.Mutex
	hosts    map[*Host]bool
	used     int // assigned addresses
	closing  bool
	stopOnce sync.Once
	stopErr  error
}

// NewLab first removes the remains of labs whose owner and janitor were both killed, and then creates a lab. Its
// gateway must be one of the addresses of the control plane that its hosts use. log receives lines for users; it may be
// nil. NewLab fails with the error of [Missing] if this machine cannot run hosts.
func NewLab(ctx context.Context, log io.Writer) (*Lab, error) {
	if err := Missing(); err != nil {
		return nil, err
	}
	if log == nil {
		log = io.Discard
	}
	if err := Sweep(ctx); err != nil {
		return nil, err
	}
	for n := 1; n <= maxLabs; n++ {
		lock, err := claim(n)
		if err != nil {
			return nil, fmt.Errorf("creating a lab for hosts: %w", err)
		}
		if lock == nil {
			continue
		}
		defer lock.Close() // the janitor has its own descriptor
		l := &Lab{tag: fmt.Sprint(labPrefix, n), n: n, log: log, hosts: map[*Host]bool{}, said: &bytes.Buffer{}}
		if err := l.make(ctx, lock); err != nil {
			_ = l.Close() // err already describes the failure
			return nil, fmt.Errorf("creating a lab for hosts: %w", err)
		}
		return l, nil
	}
	return nil, fmt.Errorf("creating a lab for hosts: %d labs exist on this machine already", maxLabs)
}

// claim takes the lock of lab n, or returns nil if that lab exists.
func claim(n int) (*os.File, error) {
	if err := os.MkdirAll(locksDir, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(locksDir, fmt.Sprint(n))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	locked, err := tryLock(f)
	if locked {
		// A janitor may have removed the file between the open and the lock; or the lab is one that Sweep has to
		// remove.
		mine, statErr := f.Stat()
		there, thereErr := os.Stat(path)
		if statErr == nil && thereErr == nil && os.SameFile(mine, there) && mine.Size() == 0 {
			return f, nil
		}
	}
	f.Close()
	return nil, err
}

func (l *Lab) make(ctx context.Context, lock *os.File) (err error) {
	if l.dir, err = os.MkdirTemp("", dirPrefix); err != nil {
		return err
	}
	if _, err := lock.WriteString(l.dir); err != nil {
		return err
	}
	if l.janitor, l.let, err = startJanitor(l.tag, l.dir, lock, l.said); err != nil {
		return err
	}
	if _, err = makeCgroups(l.tag); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"link", "add", l.tag, "type", "bridge"},
		{"address", "add", netip.PrefixFrom(l.Gateway(), 24).String(), "dev", l.tag},
		{"link", "set", l.tag, "up"},
	} {
		if err := tell(ctx, "ip", args...); err != nil {
			return err
		}
	}
	return nil
}

// startJanitor starts the janitor. The janitor does not get Ctrl-C, and its input ends when this process ends in any
// way.
func startJanitor(tag, dir string, lock *os.File, said io.Writer) (*exec.Cmd, io.Closer, error) {
	cmd := exec.Command("sh", "-c", janitorScript, "janitor", tag, dir, lock.Name())
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.ExtraFiles = []*os.File{lock}
	cmd.Stdout, cmd.Stderr = said, said
	cmd.WaitDelay = time.Second
	let, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("starting the janitor: %w", err)
	}
	return cmd, let, nil
}

// Sweep removes the remains of labs whose owner and janitor were both killed.
func Sweep(ctx context.Context) error {
	paths, err := filepath.Glob(filepath.Join(locksDir, "*"))
	if err != nil {
		return fmt.Errorf("finding the remains of other labs: %w", err)
	}
	for _, path := range paths {
		if err := sweep(ctx, path); err != nil {
			return fmt.Errorf("removing the remains of another lab: %w", err)
		}
	}
	return nil
}

func sweep(ctx context.Context, path string) error {
	lock, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if locked, err := tryLock(lock); !locked {
		return err
	}
	dir, err := io.ReadAll(lock)
	if err != nil || len(dir) == 0 {
		return err // a lab that is just being created
	}
	var said bytes.Buffer
	cmd, let, err := startJanitor(labPrefix+filepath.Base(path), string(dir), lock, &said)
	if err != nil {
		return err
	}
	return waitJanitor(ctx, cmd, let, &said)
}

func waitJanitor(ctx context.Context, cmd *exec.Cmd, let io.Closer, said *bytes.Buffer) error {
	ctx, cancel := context.WithTimeoutCause(ctx, janitorTimeout, fmt.Errorf("it took more than %s", janitorTimeout))
	defer cancel()
	done := make(chan error, 1)
	go func() {
		let.Close()
		done <- cmd.Wait()
	}()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("the janitor: %w: %s", err, said)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the janitor: %w", context.Cause(ctx))
	}
}

// Gateway returns the machine's address in the hosts' network. Their control plane must listen at this address.
func (l *Lab) Gateway() netip.Addr { return netip.AddrFrom4([4]byte{10, 213, byte(l.n), 1}) }

// Dir returns the lab's directory. It contains a directory for each host, with its changes to the operating system (up)
// and its console (console.log).
func (l *Lab) Dir() string { return l.dir }

// Close closes the lab's hosts and removes everything of the lab from the machine. It may be called more than once and
// returns when nothing is left.
func (l *Lab) Close() error {
	l.stopOnce.Do(func() {
		l.mu.Lock()
		l.closing = true
		l.mu.Unlock()
		var wg sync.WaitGroup
		for _, h := range l.living() {
			wg.Go(h.stop)
		}
		wg.Wait()
		if l.janitor != nil {
			l.stopErr = waitJanitor(context.Background(), l.janitor, l.let, l.said)
		} else if l.dir != "" {
			l.stopErr = os.RemoveAll(l.dir)
		}
	})
	return l.stopErr
}

func (l *Lab) living() []*Host {
	l.mu.Lock()
	defer l.mu.Unlock()
	var hosts []*Host
	for h := range l.hosts {
		hosts = append(hosts, h)
	}
	return hosts
}

// add assigns a number in the lab to a new host, from 1.
func (l *Lab) add(h *Host) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return 0, errors.New("the lab is closed")
	}
	if l.used == 200 {
		return 0, errors.New("the lab has no address left")
	}
	l.used++
	l.hosts[h] = true
	return l.used, nil
}

func (l *Lab) printf(format string, args ...any) {
	fmt.Fprintf(l.log, "realhost: "+format+"\n", args...)
}

// tell runs a command that prints nothing on success.
func tell(ctx context.Context, name string, args ...string) error {
	if out, err := groupCommand(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), cause(ctx, err), controlplane.LastLines(string(out), 5))
	}
	return nil
}
