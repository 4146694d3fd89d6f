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
)

const (
	labPrefix = "lkr"                      // a lab's tag is this and its number: the name of its bridge, of its cgroups, the start of its machines' names
	dirPrefix = "lockkeeper-realhost-"     // of a lab's folder in the temporary folder
	locksDir  = "/run/lockkeeper-realhost" // a file for each lab that there is on the machine, locked as long as it has a janitor
	maxLabs   = 99

	// The janitor waits 10 s for processes to die and 5 s for cgroups; a directory of some hosts goes quickly.
	janitorTimeout = time.Minute
)

//go:embed janitor.sh
var janitorScript string

// A Lab is the part of the machine that belongs to some hosts: a bridge with a network, cgroups, a directory. Several can be there
// at once. Its methods may be called by several goroutines.
type Lab struct {
	tag string
	n   int
	dir string
	log io.Writer

	janitor  *exec.Cmd
	let      io.Closer // closing it lets the janitor begin
	said     *bytes.Buffer
	cgroups  []string // one directory in each hierarchy
	mu       sync.Mutex
	hosts    map[*Host]bool
	used     int // addresses given out
	closing  bool
	stopOnce sync.Once
	stopErr  error
}

// NewLab first removes what labs have left whose owner and janitor were both killed, and then makes one. Its gateway has to be
// among the addresses of the control plane that its hosts are to use. log gets lines for people; it may be nil. It fails with
// [Missing]'s error where hosts cannot be.
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
			return nil, fmt.Errorf("making a lab for hosts: %w", err)
		}
		if lock == nil {
			continue
		}
		defer lock.Close() // the janitor has its own
		l := &Lab{tag: fmt.Sprint(labPrefix, n), n: n, log: log, hosts: map[*Host]bool{}, said: &bytes.Buffer{}}
		if err := l.make(ctx, lock); err != nil {
			_ = l.Close() // what went wrong is in err
			return nil, fmt.Errorf("making a lab for hosts: %w", err)
		}
		return l, nil
	}
	return nil, fmt.Errorf("making a lab for hosts: there are %d on this machine already", maxLabs)
}

// claim takes the lock of lab n, nil if there is such a lab.
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
		// A janitor may have removed the file between its opening and its locking; or the lab is one for Sweep.
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
	if l.cgroups, err = makeCgroups(l.tag); err != nil {
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

// startJanitor starts the janitor; it hears no Ctrl-C, and its input ends when this process does, however that ends.
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

// Sweep removes what labs have left on the machine whose owner and janitor were both killed.
func Sweep(ctx context.Context) error {
	paths, err := filepath.Glob(filepath.Join(locksDir, "*"))
	if err != nil {
		return fmt.Errorf("looking for the remains of other labs: %w", err)
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
		return err // one that is just being made
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

// Gateway is the machine's address in the hosts' network: what their control plane has to be reachable at.
func (l *Lab) Gateway() netip.Addr { return netip.AddrFrom4([4]byte{10, 213, byte(l.n), 1}) }

// Dir is the lab's directory, with one for each host: its changes to the operating system (up), its console (console.log).
func (l *Lab) Dir() string { return l.dir }

// Tag is the name of the lab's bridge and cgroups.
func (l *Lab) Tag() string { return l.tag }

// Close closes the lab's hosts and removes everything of it from the machine. It may be called any number of times and returns
// when nothing is left.
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

// add gives a new host its number in the lab, from 1.
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

// tell runs a command that says nothing when it has worked.
func tell(ctx context.Context, name string, args ...string) error {
	if out, err := groupCommand(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), cause(ctx, err), lastLines(string(out), 5))
	}
	return nil
}
