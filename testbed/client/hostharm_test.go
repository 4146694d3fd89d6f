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

// draining brings a host to where it drains and cannot end: a pod of its own refuses to go. The returned function tells when
// the last eviction was sent.
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
	// It is at work: what comes is evicted at once.
	h.pod("first")
	until(t, "an eviction of what is new", func() bool { return !h.hasPod("first") })
	return h, blocked
}

// evictsNothing fails if a pod that comes to the node now is evicted.
func (h *host) evictsNothing(why string) {
	h.t.Helper()
	h.pod("late")
	never(h.t, "evicted although "+why, 3*time.Second, func() bool { return !h.hasPod("late") })
}

// goesOn fails unless the pod of evictsNothing is evicted in the end.
func (h *host) goesOn() {
	h.t.Helper()
	until(h.t, "the drain to go on", func() bool { return !h.hasPod("late") })
}

func TestStopEndsADrain(t *testing.T) {
	h, _ := draining(t)
	stop(t)
	stopped := time.Now()
	h.says("Stopped")
	looks := h.w.requests("GET lease")
	if took := looks[len(looks)-1].at.Sub(stopped); took > looksEvery {
		t.Errorf("it looked at the Lease after %v", took)
	}
	h.evictsNothing("the cluster is stopped")
	goOn(t)
	h.goesOn()
}

// No one knows whether there is a stop: the drain rests.
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
	until(t, "a look that is refused", refused.Load)
	h.says("Forbidden")
	h.evictsNothing("the Lease cannot be read")
	h.w.on(blocked)
	h.goesOn()
}

// The loop repeats a write whose answer was lost, and looks at nothing meanwhile: nothing may continue that needs a look.
func TestUnknownWriteEndsADrain(t *testing.T) {
	h, blocked := draining(t)
	var lost atomic.Int32
	h.w.on(func(ctx context.Context, r request, forward func() (*http.Response, error)) (*http.Response, error) {
		if r.kind == "PATCH node "+h.name {
			lost.Add(1)
			return nil, errCut // it never arrives, again and again
		}
		return blocked(ctx, r, forward)
	})
	must(t, h.sim.WriteFile("/run/reboot-needed", "")) // something to write
	until(t, "a write that is lost", func() bool { return lost.Load() > 0 })
	h.says("writing node")
	h.evictsNothing("the outcome of a write is not known")
	h.w.on(blocked)
	h.goesOn()
}

func TestTurnedRoundEndsADrain(t *testing.T) {
	h, _ := draining(t)
	h.promote("before-uncordon", nil)
	until(t, "the new state to be seen", func() bool { return h.status().State == "before-uncordon" })
	h.evictsNothing("the turn was backed out")
}

func TestPauseEndsADrain(t *testing.T) {
	h, _ := draining(t)
	patchNode(t, h.name, `{"metadata":{"annotations":{"lockkeeper.dev/paused":"a look at this"}}}`)
	h.says("Paused")
	h.evictsNothing("the node is paused")
	patchNode(t, h.name, `{"metadata":{"annotations":{"lockkeeper.dev/paused":null}}}`)
	h.goesOn()
}

// Whoever uncordons during the drain wants the node; and the process that is stopped evicts nothing more.
func TestUncordonAndTheEndOfTheProcessEndADrain(t *testing.T) {
	h, _ := draining(t)
	h.stop()
	h.evictsNothing("lockkeeper does not run")
	h.run()
	h.goesOn()
	patchNode(t, h.name, `{"spec":{"unschedulable":false}}`)
	h.acks("draining/refused:Uncordoned")
	if _, mark := h.node().Annotations["lockkeeper.dev/cordon"]; mark {
		t.Error("the mark is left without the cordon")
	}
	h.evictsNothing("somebody uncordoned")
}

// A host whose writes are refused does not try again with every event.
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
					continue // with a Node that changes it might be true
				}
				patchNode(t, h.name, fmt.Sprintf(`{"metadata":{"annotations":{"example.org/count":"%d"}}}`, i))
			}
			if n, took := writes(), time.Since(began); n < 2 || n > 2+int(took/time.Second) {
				t.Errorf("%d writes in %v, want at most one a second", n, took)
			}
			h.says(c.word)
			h.w.on(nil)
			h.wants("reboot")
		})
	}
}

// login stands in for logind where simhost's is too well behaved. What a test sets is set before it starts.
type login struct {
	reboots atomic.Int32
	answer  func() *dbus.Error // to a reboot
	slow    func()             // called for each list of inhibitors, and of sessions
	asked   func()             // called when it is asked whether a shutdown is under way; nil for nothing
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

// replaceLogind puts the stand-in on the host's bus and returns its connection.
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

// Something else is in progress in logind, a suspend for one, and no reboot: that is no refusal, and no reason to ask as fast
// as it answers.
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
	never(t, "a word but committed", 5*time.Second, func() bool {
		return !strings.HasSuffix(h.node().Annotations["lockkeeper.dev/ack"], "/rebooting/committed")
	})
	until(t, "a second call", func() bool { return l.reboots.Load() >= 2 })
	if n, took := l.reboots.Load(), time.Since(began); n > 2+int32(took/time.Second) {
		t.Errorf("asked %d times within %v, want a few", n, took)
	}
	if s := h.status(); s.API != nil {
		t.Errorf("it blames the API server: %s", s.API.Error)
	}
	over.Store(true)
	asked := l.reboots.Load()
	until(t, "another call", func() bool { return l.reboots.Load() > asked })
	h.says("the reboot that is under way")
}

// A block inhibitor that was taken between the look at the list and the call is waited for like any other: logind's word is no
// refusal of the turn.
func TestInhibitorBetweenLookAndCallIsNoRefusal(t *testing.T) {
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
	never(t, "a word but committed", 5*time.Second, func() bool {
		return !strings.HasSuffix(h.node().Annotations["lockkeeper.dev/ack"], "/rebooting/committed")
	})
	over.Store(true)
	asked := l.reboots.Load()
	until(t, "another call", func() bool { return l.reboots.Load() > asked })
	h.says("the reboot that is under way")
}

// A logind that stops between its last answer and the call has not refused anything: the turn waits for it, says so, and continues
// when logind runs again.
func TestLogindGoneAtTheCallIsNoRefusal(t *testing.T) {
	t.Parallel()
	// logind has to go between the last question and the call. The host may ask once more in between, and then does not call.
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
		t.Error("no host called a logind that had just gone: this test could not fail")
	}
}

// logindGoesAtTheCall has logind go when a host that has committed has asked it for the last time. It reports whether the host called it
// after that.
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
	l.slow = func() { // the last question before the call
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
	never(t, "a word but committed", 3*time.Second, func() bool {
		return !strings.HasSuffix(h.node().Annotations["lockkeeper.dev/ack"], "/rebooting/committed")
	})
	must(t, h.sim.Logind().Start())
	until(t, "the reboot", func() bool { return len(h.reboots(simhost.RebootCalled)) == 1 })
	if n := l.reboots.Load(); n > 0 {
		t.Errorf("the logind that had gone got %d calls", n)
	}
	return true
}

// A logind that takes long to answer stands between the look and the commit: the look is old by then, whoever stopped the
// clock.
func TestSlowLogindMakesTheLookOld(t *testing.T) {
	var h *host
	var once atomic.Int32
	l := &login{answer: func() *dbus.Error { return nil }}
	l.slow = func() {
		// The two questions after the look at the pods.
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
		t.Fatal("logind was not slow: this test could not fail")
	}
	commits := h.committed()
	if len(commits) != 1 {
		t.Fatalf("commits %+v", commits)
	}
	h.isCommit(commits[0])
	if n := h.w.count("LIST pods"); n < 2 {
		t.Errorf("%d looks, want another after the slow answers", n)
	}
	until(t, "the reboot", func() bool { return l.reboots.Load() == 1 })
}

// A bus that hangs between the look and the call must not deliver the call when the look is old.
func TestRebootOfAnOldLookIsNotCalled(t *testing.T) {
	h := startHost(t, nil)
	h.sim.Logind().OnReboot(simhost.Hang)
	h.want()
	h.promote("rebooting", onlyNode)
	h.acks("rebooting/committed")
	// No answer is no word: it asks again, with a new look each time, and says neither refused nor done.
	until(t, "a second call", func() bool { return len(h.reboots(simhost.RebootRefused)) >= 2 })
	calls := h.reboots(simhost.RebootRefused)
	var look request
	for _, r := range h.w.requests("GET node") {
		if r.at.Before(calls[1].Time) {
			look = r
		}
	}
	if age := calls[1].Time.Sub(look.at); age >= 10*time.Second || look.at.Before(calls[0].Time) {
		t.Errorf("called again %v after the look", age)
	}
	if ack := h.node().Annotations["lockkeeper.dev/ack"]; !strings.HasSuffix(ack, "/rebooting/committed") {
		t.Errorf("it said %s", ack)
	}
}
