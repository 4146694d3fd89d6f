package client

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// draining starts a host and a drain that cannot finish, because the API server refuses to evict one of its pods.
// blocked is the fault that refuses.
func draining(t *testing.T) (h *host, blocked fault) {
	t.Helper()
	h = startHost(t, nil)
	h.pod("stuck")
	blocked = func(_ context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
		if r.kind == "POST eviction" && strings.Contains(r.body, "stuck") {
			return says(http.StatusTooManyRequests, "TooManyRequests"), nil
		}
		return nil, nil
	}
	h.w.on(blocked)
	h.want()
	h.promote("draining", nil)
	h.acks("draining/committed")
	until(t, "an eviction", func() bool { return h.w.count("POST eviction") > 0 })
	// The drain is active: it evicts a new pod at once.
	h.pod("first")
	until(t, "the eviction of the new pod", func() bool { return !h.hasPod("first") })
	return h, blocked
}

// evictsNothing fails the test if a new pod on the node is evicted.
func (h *host) evictsNothing(why string) {
	h.t.Helper()
	h.pod("late")
	never(h.t, "a pod was evicted although "+why, 3*time.Second, func() bool { return !h.hasPod("late") })
}

// continues fails the test unless the pod of evictsNothing is evicted.
func (h *host) continues() {
	h.t.Helper()
	until(h.t, "the drain to continue", func() bool { return !h.hasPod("late") })
}

func TestStopEndsADrain(t *testing.T) {
	h, _ := draining(t)
	stop(t)
	stopped := time.Now()
	h.says("Stopped")
	looks := h.w.requests("GET lease")
	if took := looks[len(looks)-1].at.Sub(stopped); took > looksEvery {
		t.Errorf("the host read the Lease %v after the stop", took)
	}
	h.evictsNothing("the cluster is stopped")
	goOn(t)
	h.continues()
}

// TestUnreadableLeaseEndsADrain checks that a drain pauses while the host cannot know whether there is a stop.
func TestUnreadableLeaseEndsADrain(t *testing.T) {
	h, blocked := draining(t)
	var refused atomic.Bool
	h.w.on(func(ctx context.Context, r request, forward func() (*http.Response, error)) (*http.Response, error) {
		if r.kind == "GET lease lockkeeper" {
			refused.Store(true)
			return says(http.StatusForbidden, "Forbidden"), nil
		}
		return blocked(ctx, r, forward)
	})
	until(t, "a refused read of the Lease", refused.Load)
	h.says("Forbidden")
	h.evictsNothing("the Lease cannot be read")
	h.w.on(blocked)
	h.continues()
}

// TestUnknownWriteEndsADrain checks that a host that repeats a write with a lost answer does nothing that needs a read
// of the Lease, because it reads nothing in the meantime.
func TestUnknownWriteEndsADrain(t *testing.T) {
	h, blocked := draining(t)
	var lost atomic.Int32
	h.w.on(func(ctx context.Context, r request, forward func() (*http.Response, error)) (*http.Response, error) {
		if r.kind == "PATCH node "+h.name {
			lost.Add(1)
			return nil, errCut // no try ever arrives
		}
		return blocked(ctx, r, forward)
	})
	must(t, h.sim.WriteFile("/run/reboot-needed", "")) // gives the host something to write
	until(t, "a write that is lost", func() bool { return lost.Load() > 0 })
	h.says("writing node")
	h.evictsNothing("the outcome of a write is unknown")
	h.w.on(blocked)
	h.continues()
}

func TestTurnedRoundEndsADrain(t *testing.T) {
	h, _ := draining(t)
	h.promote("before-uncordon", nil)
	until(t, "the host to see the new state", func() bool { return h.status().State == "before-uncordon" })
	h.evictsNothing("the turn was backed out")
}

func TestPauseEndsADrain(t *testing.T) {
	h, _ := draining(t)
	patchNode(t, h.name, `{"metadata":{"annotations":{"lockkeeper.dev/paused":"a look at this"}}}`)
	h.says("Paused")
	h.evictsNothing("the node is paused")
	patchNode(t, h.name, `{"metadata":{"annotations":{"lockkeeper.dev/paused":null}}}`)
	h.continues()
}

// TestUncordonAndTheEndOfTheProcessEndADrain checks that a drain ends when a user uncordons the node, who wants to use
// it, and when the process stops.
func TestUncordonAndTheEndOfTheProcessEndADrain(t *testing.T) {
	h, _ := draining(t)
	h.stop()
	h.evictsNothing("lockkeeper does not run")
	h.run()
	h.continues()
	patchNode(t, h.name, `{"spec":{"unschedulable":false}}`)
	h.acks("draining/refused:Uncordoned")
	if _, mark := h.node().Annotations["lockkeeper.dev/cordon"]; mark {
		t.Error("the mark is left without the cordon")
	}
	h.evictsNothing("somebody uncordoned")
}

// TestRefusedHostIsNoHotLoop checks that a host whose writes are refused does not retry on every event.
func TestRefusedHostIsNoHotLoop(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code   int
		reason string
		word   string
	}{
		"forbidden":               {403, "Forbidden", "Forbidden"},
		"invalid":                 {422, "Invalid", "by the test"},
		"a conflict that is none": {409, "Conflict", "by the test"},
	} {
		t.Run(name, func(t *testing.T) {
			h := startHost(t, nil)
			h.wants("nothing")
			h.w.on(func(_ context.Context, r request, _ func() (*http.Response, error)) (*http.Response, error) {
				if r.kind == "PATCH node "+h.name {
					return says(c.code, c.reason), nil
				}
				return nil, nil
			})
			before := h.w.count("PATCH")
			must(t, h.sim.WriteFile(sentinel, ""))
			began := time.Now()
			writes := func() int { return h.w.count("PATCH") - before }
			for i := 0; time.Since(began) < 5*time.Second || writes() < 2 && time.Since(began) < patience; i++ {
				if c.code == http.StatusConflict {
					time.Sleep(100 * time.Millisecond)
					continue // if the Node changed, the conflict could be real
				}
				patchNode(t, h.name, fmt.Sprintf(`{"metadata":{"annotations":{"example.org/count":"%d"}}}`, i))
			}
			if n, took := writes(), time.Since(began); n < 2 || n > 2+int(took/time.Second) {
				t.Errorf("%d writes in %v, expected at most one a second", n, took)
			}
			h.says(c.word)
			h.w.on(nil)
			h.wants("reboot")
		})
	}
}

// login is a fake logind for cases that the one of simhost does not support. Tests set its fields before it starts.
type login struct {
	reboots atomic.Int32
	answer  func() *dbus.Error // to a reboot
	slow    func()             // called for each list of inhibitors, and of sessions
	asked   func()             // called for each query whether a shutdown is in progress; may be nil
}

type inhibitorRow struct {
	What, Who, Why, Mode string
	UID, PID             uint32
}

type sessionRow struct {
	ID   string
	UID  uint32
	User string
	Seat string
	Path dbus.ObjectPath
}

// replaceLogind connects the fake to the host's bus and returns its connection.
func (h *host) replaceLogind(l *login) *dbus.Conn {
	h.t.Helper()
	h.sim.Logind().Stop()
	conn, err := dbus.Connect("unix:path=" + h.sim.Dir() + "/bus")
	must(h.t, err)
	h.t.Cleanup(func() { conn.Close() })
	const path, iface = "/org/freedesktop/login1", "org.freedesktop.login1.Manager"
	must(h.t, conn.ExportMethodTable(map[string]any{
		"RebootWithFlags": func(uint64) *dbus.Error {
			l.reboots.Add(1)
			return l.answer()
		},
		"ListInhibitors": func() ([]inhibitorRow, *dbus.Error) {
			if l.slow != nil {
				l.slow()
			}
			return nil, nil
		},
		"ListSessions": func() ([]sessionRow, *dbus.Error) {
			if l.slow != nil {
				l.slow()
			}
			return nil, nil
		},
	}, path, iface))
	must(h.t, conn.ExportMethodTable(map[string]any{
		"Get": func(_, name string) (dbus.Variant, *dbus.Error) {
			if l.asked != nil {
				l.asked()
			}
			return dbus.MakeVariant(false), nil // PreparingForShutdown
		},
	}, path, "org.freedesktop.DBus.Properties"))
	reply, err := conn.RequestName("org.freedesktop.login1", dbus.NameFlagDoNotQueue)
	if err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		h.t.Fatalf("owning logind's name: %v, %v", reply, err)
	}
	return conn
}

// TestOperationInProgressIsNoRefusal checks the case that logind is busy with another operation, for example a suspend.
// That is not a refusal of the reboot, and the host must not retry as fast as logind answers.
func TestOperationInProgressIsNoRefusal(t *testing.T) {
	h := startHost(t, nil)
	var over atomic.Bool
	l := &login{answer: func() *dbus.Error {
		if over.Load() {
			return nil
		}
		return dbus.NewError("org.freedesktop.login1.OperationInProgress", []any{"There's already a shutdown or sleep operation in progress"})
	}}
	h.replaceLogind(l)
	h.want()
	h.promote("rebooting", onlyNode)
	began := time.Now()
	h.acks("rebooting/committed")
	h.says("already a shutdown or sleep operation")
	never(t, "a report other than committed", 5*time.Second, func() bool {
		return !strings.HasSuffix(h.node().Annotations["lockkeeper.dev/ack"], "/rebooting/committed")
	})
	until(t, "a second call", func() bool { return l.reboots.Load() >= 2 })
	if n, took := l.reboots.Load(), time.Since(began); n > 2+int32(took/time.Second) {
		t.Errorf("asked %d times within %v; expected only a few", n, took)
	}
	if s := h.status(); s.API != nil {
		t.Errorf("the status blames the API server: %s", s.API.Error)
	}
	over.Store(true)
	asked := l.reboots.Load()
	until(t, "another call", func() bool { return l.reboots.Load() > asked })
	h.says("the reboot that is under way")
}

// TestInhibitorBetweenReadsAndCallIsNoRefusal checks that the host waits for a block inhibitor that appears between the
// list of inhibitors and the call, like for any other inhibitor. The error from logind does not refuse the turn.
func TestInhibitorBetweenReadsAndCallIsNoRefusal(t *testing.T) {
	h := startHost(t, nil)
	var over atomic.Bool
	l := &login{answer: func() *dbus.Error {
		if over.Load() {
			return nil
		}
		return dbus.NewError("org.freedesktop.DBus.Error.AccessDenied", []any{"Access denied to root due to active block inhibitor"})
	}}
	h.replaceLogind(l)
	h.want()
	h.promote("rebooting", onlyNode)
	h.acks("rebooting/committed")
	h.says("active block inhibitor")
	never(t, "a report other than committed", 5*time.Second, func() bool {
		return !strings.HasSuffix(h.node().Annotations["lockkeeper.dev/ack"], "/rebooting/committed")
	})
	over.Store(true)
	asked := l.reboots.Load()
	until(t, "another call", func() bool { return l.reboots.Load() > asked })
	h.says("the reboot that is under way")
}

// TestLogindGoneAtTheCallIsNoRefusal checks that a logind that stops between its last answer and the call has not
// refused the reboot. The turn waits, reports the reason, and continues when logind runs again.
func TestLogindGoneAtTheCallIsNoRefusal(t *testing.T) {
	t.Parallel()
	// logind has to stop between the last query and the call. The host may query once more in between, and then does
	// not call.
	var called atomic.Int32
	t.Run("scenes", func(t *testing.T) {
		for range 4 {
			t.Run("scene", func(t *testing.T) {
				if logindGoesAtTheCall(t) {
					called.Add(1)
				}
			})
		}
	})
	if called.Load() == 0 {
		t.Error("no host called logind right after it stopped: the test proves nothing")
	}
}

// logindGoesAtTheCall stops logind right after the last query of a host that has committed. It reports whether the host
// called logind after that.
func logindGoesAtTheCall(t *testing.T) bool {
	h := startHost(t, nil)
	must(t, h.sim.Units().Set("kubelet.service", simhost.Unit{Load: "loaded", Active: "active"})) // systemd is on the bus
	var conn *dbus.Conn
	var asked, gone atomic.Bool
	l := &login{answer: func() *dbus.Error { return nil }}
	l.asked = func() {
		if strings.HasSuffix(h.node().Annotations["lockkeeper.dev/ack"], "/rebooting/committed") {
			asked.Store(true)
		}
	}
	l.slow = func() { // the last query before the call
		if asked.Load() && gone.CompareAndSwap(false, true) {
			if _, err := conn.ReleaseName("org.freedesktop.login1"); err != nil {
				t.Error(err)
			}
		}
	}
	conn = h.replaceLogind(l)
	h.want()
	h.promote("rebooting", onlyNode)
	h.acks("rebooting/committed")
	h.says("logind does not say who inhibits a shutdown")
	h.mu.Lock()
	called := slices.ContainsFunc(h.statuses, func(s local.Host) bool {
		return strings.Contains(s.Text(), "asking logind to reboot")
	})
	h.mu.Unlock()
	if !gone.Load() || !called {
		return false
	}
	never(t, "a report other than committed", 3*time.Second, func() bool {
		return !strings.HasSuffix(h.node().Annotations["lockkeeper.dev/ack"], "/rebooting/committed")
	})
	must(t, h.sim.Logind().Start())
	until(t, "the reboot", func() bool { return len(h.reboots(simhost.RebootCalled)) == 1 })
	if n := l.reboots.Load(); n > 0 {
		t.Errorf("logind got %d calls after it stopped", n)
	}
	return true
}

// TestSlowLogindMakesTheReadsOld checks that a host repeats its reads if logind answers slowly between them and the
// commit, because the reads are then too old.
func TestSlowLogindMakesTheReadsOld(t *testing.T) {
	var h *host
	var once atomic.Int32
	l := &login{answer: func() *dbus.Error { return nil }}
	l.slow = func() {
		// The two queries after the list of pods.
		if h.w.count("LIST pods") > 0 && once.Add(1) <= 2 {
			time.Sleep(7 * time.Second)
		}
	}
	h = startHost(t, func(h *host) { h.opts.Settings.SessionDelay = time.Minute })
	h.replaceLogind(l)
	h.want()
	h.promote("rebooting", onlyNode)
	h.acks("rebooting/committed")
	if once.Load() < 2 {
		t.Fatal("logind was not slow: the test proves nothing")
	}
	commits := h.committed()
	if len(commits) != 1 {
		t.Fatalf("commits %+v", commits)
	}
	h.isCommit(commits[0])
	if n := h.w.count("LIST pods"); n < 2 {
		t.Errorf("%d lists of pods; expected another one after the slow answers", n)
	}
	until(t, "the reboot", func() bool { return l.reboots.Load() == 1 })
}

// TestRebootOfAnOldLookIsNotCalled checks that a bus that hangs between the reads and the call does not deliver the
// call when the reads are too old.
func TestRebootOfAnOldLookIsNotCalled(t *testing.T) {
	h := startHost(t, nil)
	h.sim.Logind().OnReboot(simhost.Hang)
	h.want()
	h.promote("rebooting", onlyNode)
	h.acks("rebooting/committed")
	// A missing answer is not a report: the host asks again after new reads each time, and reports neither refused nor
	// done.
	until(t, "a second call", func() bool { return len(h.reboots(simhost.RebootRefused)) >= 2 })
	calls := h.reboots(simhost.RebootRefused)
	var look request
	for _, r := range h.w.requests("GET node") {
		if r.at.Before(calls[1].Time) {
			look = r
		}
	}
	if age := calls[1].Time.Sub(look.at); age >= 10*time.Second || look.at.Before(calls[0].Time) {
		t.Errorf("called again %v after the reads", age)
	}
	if ack := h.node().Annotations["lockkeeper.dev/ack"]; !strings.HasSuffix(ack, "/rebooting/committed") {
		t.Errorf("the ack is %s", ack)
	}
}
