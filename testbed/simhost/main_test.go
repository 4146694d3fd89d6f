package simhost

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// cp serves all tests of the package. Each test uses host names of its own.
var cp *controlplane.ControlPlane

// fakeEnv makes this test binary act as lockkeeper: "polite" exits on SIGTERM, "stubborn" does not, "broken" exits at once with status 78.
const fakeEnv = "SIMHOST_TEST_FAKE"

func TestMain(m *testing.M) {
	if how := os.Getenv(fakeEnv); how != "" {
		os.Exit(fakeLockkeeper(how))
	}
	// A crash and the boot after it must finish within the grace period minus one heartbeat interval.
	os.Exit(controlplane.RunTests(m, controlplane.Options{NodeMonitorGrace: 15 * time.Second},
		func(c *controlplane.ControlPlane) { cp = c }))
}

func fakeLockkeeper(how string) int {
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	fmt.Fprintf(os.Stderr, "called with %q\n", os.Args[1:])
	if how == "broken" {
		return 78
	}
	conn, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintf(conn, "READY=1\nSTATUS=pid %d", os.Getpid())
	for range terms {
		fmt.Fprintln(os.Stderr, "terminated")
		if how == "polite" {
			fmt.Fprint(conn, "STOPPING=1")
			return 0
		}
	}
	return 1
}

// soon returns a context for operations that take a moment.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// record collects a host's events.
type record struct {
	mu     sync.Mutex
	events []Event
	hook   func(Event)
}

func (r *record) add(e Event) {
	r.mu.Lock()
	hook := r.hook
	r.mu.Unlock()
	if hook != nil {
		hook(e)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// before sets a function that is called with each event before the event is recorded.
func (r *record) before(f func(Event)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hook = f
}

// kinds returns the kinds of the events up to now, in order and without lockkeeper's own.
func (r *record) kinds() []Kind {
	r.mu.Lock()
	defer r.mu.Unlock()
	var kinds []Kind
	for _, e := range r.events {
		if e.Kind != LockkeeperStarted && e.Kind != LockkeeperExited {
			kinds = append(kinds, e.Kind)
		}
	}
	return kinds
}

func (r *record) last(kind Kind) (Event, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var last Event
	n := 0
	for _, e := range r.events {
		if e.Kind == kind {
			last, n = e, n+1
		}
	}
	return last, n
}

// waitFor waits until count events of a kind have been recorded.
func (r *record) waitFor(t *testing.T, kind Kind, count int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d events %s", count, kind), func() bool { _, n := r.last(kind); return n >= count })
}

// startHost starts a host with a polite fake of lockkeeper, and closes it after the test.
func startHost(t *testing.T, name string, change ...func(*Options)) (*Host, *record) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &record{}
	o := Options{Name: name, Binary: self, Env: []string{fakeEnv + "=polite"}, Events: r.add, DownTime: 50 * time.Millisecond}
	for _, f := range change {
		f(&o)
	}
	h, err := Start(t.Context(), cp, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of %s:\n%s", name, h.LogTail(50))
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h, r
}

func stubborn(o *Options) { o.Env = []string{fakeEnv + "=stubborn"} }

// connect returns a connection to the host's bus.
func connect(t *testing.T, h *Host) *dbus.Conn {
	t.Helper()
	conn, err := h.current().theBus().connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func login(conn *dbus.Conn) dbus.BusObject { return conn.Object(loginName, loginPath) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func ready(t *testing.T, h *Host) *corev1.Node {
	t.Helper()
	n, err := h.WaitNodeReady(soon(t))
	must(t, err)
	return n
}

// eventually polls until cond returns true.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx := soon(t)
	for tick := time.Millisecond; !cond(); tick = min(2*tick, 50*time.Millisecond) {
		if !pause(ctx, tick) {
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}

func equal(t *testing.T, what string, got, want []Kind) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}
