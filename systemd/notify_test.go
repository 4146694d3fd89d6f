package systemd

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/coreos/go-systemd/v22/daemon"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// notifySocket listens like the service manager.
func notifySocket(t *testing.T) (next func() string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return func() string {
		t.Helper()
		buf := make([]byte, 64<<10)
		must(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		n, err := conn.Read(buf)
		must(t, err)
		return string(buf[:n])
	}
}

func TestNotify(t *testing.T) {
	next := notifySocket(t)
	n := NewNotifier(nil)
	expect := func(want string) {
		t.Helper()
		if got := next(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	n.Ready()
	expect("READY=1")
	n.Status("idle, nothing wanted")
	expect("STATUS=idle, nothing wanted")
	n.Status("idle, nothing wanted") // not sent again: the next message is a different one
	n.Status("draining\nREADY=0\t 3 pods\x1b[0m")
	expect("STATUS=draining READY=0  3 pods [0m")
	n.Status("")
	expect("STATUS=")
	n.Stopping()
	expect("STOPPING=1")
}

func TestNotifyReloading(t *testing.T) {
	next := notifySocket(t)
	NewNotifier(nil).Reloading()
	got := next()
	m := regexp.MustCompile(`^RELOADING=1\nMONOTONIC_USEC=(\d+)$`).FindStringSubmatch(got)
	if m == nil {
		t.Fatalf("got %q", got)
	}
	micros := func(s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		must(t, err)
		return n
	}
	now := strings.TrimSuffix(strings.TrimPrefix(daemon.SdNotifyMonotonicUsec(), "MONOTONIC_USEC="), "\n")
	if d := micros(now) - micros(m[1]); d < 0 || d > 60e6 {
		t.Errorf("MONOTONIC_USEC is %d µs off", d)
	}
}

func TestStatusIsBounded(t *testing.T) {
	for _, text := range []string{strings.Repeat("x", 1000), strings.Repeat("é", 1000), strings.Repeat("\xffy", 1000), strings.Repeat("x", 256)} {
		got := v1alpha1.OneLine(text, maxStatus)
		if len(got) > maxStatus || !utf8.ValidString(got) || len(got) < maxStatus/2 {
			t.Errorf("%d bytes, %q", len(got), got)
		}
	}
}

func TestNotUnderSystemd(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "")
	var log bytes.Buffer
	n := NewNotifier(slog.New(slog.NewTextHandler(&log, nil)))
	n.Ready()
	n.Status("x")
	n.Reloading()
	n.Stopping()
	n.Watchdog(t.Context(), NewLiveness()) // returns, or the test times out
	if log.Len() > 0 {
		t.Errorf("logged %s", log.String())
	}
}

func TestNotifySocketGoesAndComesBack(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/nonexistent/notify")
	var log bytes.Buffer
	n := NewNotifier(slog.New(slog.NewTextHandler(&log, nil)))
	n.Status("one")
	n.Status("one")
	if c := strings.Count(log.String(), "cannot notify"); c != 1 {
		t.Errorf("logged %d times: %s", c, log.String())
	}
	next := notifySocket(t)
	n.Status("one") // was not received before, so it is not a repetition
	if got := next(); got != "STATUS=one" {
		t.Errorf("got %q", got)
	}
}

func TestWatchdogOnARealSocket(t *testing.T) {
	next := notifySocket(t)
	t.Setenv("WATCHDOG_USEC", "20000")
	t.Setenv("WATCHDOG_PID", "")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { NewNotifier(nil).Watchdog(ctx, NewLiveness()) })
	defer wg.Wait()
	defer cancel()
	for range 3 {
		if got := next(); got != "WATCHDOG=1" {
			t.Errorf("got %q", got)
		}
	}
}

func TestWatchdogIsForAnotherProcess(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/nonexistent/notify")
	t.Setenv("WATCHDOG_USEC", "20000")
	t.Setenv("WATCHDOG_PID", "1")
	NewNotifier(nil).Watchdog(t.Context(), NewLiveness()) // returns, or the test times out
}

func TestWatchdogStarvesWhenALoopIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		n, l := NewNotifier(slog.New(slog.NewTextHandler(&log, nil))), NewLiveness()
		good, bad := l.Beat("source", 20*time.Second), l.Beat("node", 20*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var fed atomic.Int64
		time.Sleep(Aligned(10 * time.Second)) // the checks come every ten seconds from now on
		good.Alive()
		bad.Alive()
		go n.feed(ctx, 10*time.Second, l, func() { fed.Add(1) })
		after := func(d time.Duration, wantFed int64, wantLate string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if late := strings.Join(l.Late(), ","); fed.Load() != wantFed || late != wantLate {
				t.Errorf("fed %d times, late %q; want %d, %q", fed.Load(), late, wantFed, wantLate)
			}
		}
		after(time.Second, 1, "") // 1 s
		after(10*time.Second, 2, "")
		good.Alive()
		after(10*time.Second, 3, "node (silent for 21s)") // 21 s; the check at 20 s was just in time
		after(10*time.Second, 3, "node (silent for 31s)") // the check at 30 s found it
		good.Alive()
		after(10*time.Second, 3, "node (silent for 41s)")
		good.Alive()
		if n := strings.Count(log.String(), "is stuck"); n != 1 || !strings.Contains(log.String(), `loop="node (silent for 30s)"`) {
			t.Errorf("%d lines about the stuck loop:\n%s", n, log.String())
		}
		bad.Alive()
		after(10*time.Second, 4, "")
		if n := strings.Count(log.String(), "was stuck continues"); n != 1 {
			t.Errorf("logged %d times that the loop continues:\n%s", n, log.String())
		}
		good.Alive()
		bad.Stop()
		bad.Alive() // no effect, and no panic
		after(15*time.Second, 5, "")
		good.Stop()
		after(time.Hour, 5+360, "")
		(*Beat)(nil).Alive()
		(*Beat)(nil).Stop()
	})
}
