package local

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

func TestMain(m *testing.M) {
	// The same binary is the other process of TestLock.
	if dir := os.Getenv("LOCK_DIR"); dir != "" {
		lock, err := Acquire(dir)
		if err != nil {
			os.Stdout.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Stdout.WriteString("locked\n")
		bufio.NewReader(os.Stdin).ReadString('\n')
		lock.Release()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// other is a process that takes the lock in dir and keeps it.
type other struct {
	cmd   *exec.Cmd
	stdin interface{ Close() error }
	said  string
}

func start(t *testing.T, dir string) *other {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LOCK_DIR="+dir)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return &other{cmd, stdin, strings.TrimSpace(line)}
}

func running(t *testing.T, dir string) bool {
	t.Helper()
	is, err := Running(dir)
	if err != nil {
		t.Fatal(err)
	}
	return is
}

func TestLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "lockkeeper")
	if running(t, dir) {
		t.Fatal("something runs in a directory that is not there")
	}
	first := start(t, dir)
	if first.said != "locked" {
		t.Fatalf("the first process says %q", first.said)
	}
	if !running(t, dir) {
		t.Error("a process that holds the lock is not seen")
	}
	if _, err := Acquire(dir); !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), "another lockkeeper runs on this host (process ") {
		t.Errorf("a second one gets %v, expected ErrRunning with the process's id", err)
	}
	if second := start(t, dir); !strings.Contains(second.said, ErrRunning.Error()) {
		t.Errorf("a second process says %q", second.said)
	}
	if !running(t, dir) {
		t.Error("a failed attempt has freed the lock")
	}
	// Killed, not released.
	first.cmd.Process.Kill()
	first.cmd.Wait()
	if running(t, dir) {
		t.Error("a process that was killed still counts as running")
	}
	lock, err := Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !running(t, dir) {
		t.Error("this process's own lock is not seen")
	}
	if err := lock.Release(); err != nil || running(t, dir) {
		t.Errorf("released: %v, running %v", err, running(t, dir))
	}
}

// TestLockWithoutRoom: the lock is taken where nothing can be written, as on a full disk.
func TestLockWithoutRoom(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/dev/full", filepath.Join(dir, "lock")); err != nil {
		t.Fatal(err)
	}
	lock, err := Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	if running, err := Running(dir); !running || err != nil {
		t.Errorf("running %t, %v; expected true", running, err)
	}
	if err := lock.Release(); err != nil {
		t.Error(err)
	}
}

// Whoever looks never keeps a service from starting.
func TestLookingTakesNothing(t *testing.T) {
	dir := t.TempDir()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					Running(dir)
				}
			}
		})
	}
	for range 500 {
		lock, err := Acquire(dir)
		if err != nil {
			t.Error(err)
			break
		}
		lock.Release()
	}
	close(stop)
	wg.Wait()
}

func TestStatusIsReadAsWritten(t *testing.T) {
	dir := t.TempDir()
	if _, err := Read(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v, expected fs.ErrNotExist", err)
	}
	now := time.Date(2026, 11, 21, 13, 0, 0, 0, time.UTC)
	want := Status{
		Time: now, PID: 7, Version: "v1", Line: "waits", Coordinator: Coordinator{Role: v1alpha1.RoleLeader},
		Host: Host{
			Node: "n1", BootID: "b", State: v1alpha1.StateDraining, Turn: "t", TurnSince: now, StageSince: now,
			Wants: v1alpha1.WantsReboot, Changes: []v1alpha1.Change{{Source: v1alpha1.SourceSentinel, Name: "/x"}},
			Waits: v1alpha1.ReasonStopped, Detail: "maintenance", Activity: ActivityWorking, Since: now,
			API: &Failure{Error: "refused", Since: now, Local: true},
		},
	}
	for range 2 { // the second time over the first
		if err := Write(dir, want); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Read(dir)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v\nexpected %+v", got, err, want)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%d files are left, expected 1 (%v)", len(entries), err)
	}
	info, err := os.Stat(filepath.Join(dir, "status.json"))
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, expected -rw-r--r-- (%v)", info.Mode(), err)
	}
}

// TestTroubleNamesWhatToLookAt checks that the line blames the API server only for what is not this host's own kubeconfig.
func TestTroubleNamesWhatToLookAt(t *testing.T) {
	for own, want := range map[bool]string{
		false: "idle; trouble with the API server since 2026-11-21 13:00:00 UTC: refused",
		true:  "idle; trouble with this host's kubeconfig since 2026-11-21 13:00:00 UTC: refused",
	} {
		h := Host{Node: "n1", State: v1alpha1.StateIdle, Since: time.Date(2026, 11, 21, 13, 0, 0, 0, time.UTC), API: &Failure{Error: "refused", Local: own}}
		if is := h.Text(); is != want {
			t.Errorf("local %t: %q, expected %q", own, is, want)
		}
	}
}

// A reader never meets half a file.
func TestStatusIsNeverTorn(t *testing.T) {
	dir := t.TempDir()
	long := Status{Line: strings.Repeat("x", 100_000)}
	if err := Write(dir, Status{}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 200 {
			s := Status{}
			if i%2 == 0 {
				s = long
			}
			if err := Write(dir, s); err != nil {
				t.Error(err)
			}
		}
	})
	for range 200 {
		if s, err := Read(dir); err != nil || s.Line != "" && s.Line != long.Line {
			t.Errorf("read %d bytes of a line, %v", len(s.Line), err)
			break
		}
	}
	wg.Wait()
}

func TestWriteSaysWhy(t *testing.T) {
	err := Write(filepath.Join(t.TempDir(), "none"), Status{})
	if !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), "writing the local status: ") {
		t.Error(err)
	}
}

// TestOfflineKeepsTheNewest checks that of too many events the newest ones are read, and that a file without events is removed.
func TestOfflineKeepsTheNewest(t *testing.T) {
	dir := t.TempDir()
	var all []v1alpha1.OfflineEvent
	for i := range v1alpha1.MaxUpdateOffline + 3 {
		all = append(all, v1alpha1.OfflineEvent{Message: v1alpha1.UpdateText(strconv.Itoa(i))})
	}
	if err := WriteOffline(dir, all); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadOffline(dir); err != nil || len(got) != v1alpha1.MaxUpdateOffline || got[0].Message != "3" {
		t.Errorf("read %v, %v", got, err)
	}
	if err := WriteOffline(dir, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadOffline(dir); err != nil || got != nil {
		t.Errorf("read %v, %v", got, err)
	}
}

// TestLongTexts reads a status with the longest reason that a pause or a stop can have. An object has at most 256 KiB of annotations, and
// another user writes them. A host whose status cannot be read does not leave when its package is removed.
func TestLongTexts(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []string{"x", "<", "\x1b"} {
		text := strings.Repeat(c, 256<<10)
		s := Status{Line: text, Host: Host{Detail: text}}
		must(t, Write(dir, s))
		if got, err := Read(dir); err != nil || got.Detail != text || got.Line != text {
			t.Errorf("%q: %d bytes, %d bytes, %v", c, len(got.Detail), len(got.Line), err)
		}
	}
}
