package memhost

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lockkeeper.dev/lockkeeper/systemd"
	"lockkeeper.dev/lockkeeper/testbed/engine"
	"lockkeeper.dev/lockkeeper/testbed/membus"
	"lockkeeper.dev/lockkeeper/testbed/referee"
	"lockkeeper.dev/lockkeeper/updateengine"
)

// world is a host with the real clients of lockkeeper.
type world struct {
	*Host
	t      *testing.T
	bus    *systemd.Bus
	logind systemd.Logind
	units  systemd.Units

	onEvent func(referee.HostEvent)

	mu     sync.Mutex
	events []referee.HostEvent
	faults func(membus.Transit) membus.Verdict
}

// play runs f in a bubble with a booted host.
func play(t *testing.T, o Options, f func(*testing.T, *world)) {
	o.Name, o.Root = "n1", t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t}
		o.Event = func(e referee.HostEvent) {
			w.mu.Lock()
			w.events = append(w.events, e)
			w.mu.Unlock()
			if w.onEvent != nil {
				w.onEvent(e)
			}
		}
		o.Fault = func(m membus.Transit) membus.Verdict {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.faults == nil {
				return membus.Verdict{}
			}
			return w.faults(m)
		}
		if o.Rebooted == nil {
			o.Rebooted = func(string) { must(t, w.Boot()) }
		}
		w.Host = New(o)
		must(t, w.Boot())
		w.bus = &systemd.Bus{Dial: w.Dial}
		w.logind, w.units = systemd.Logind{Bus: w.bus}, systemd.Units{Bus: w.bus}
		f(t, w)
		w.bus.Close()
		w.Crash()
	})
}

// kinds returns the kinds of the events since the last call.
func (w *world) kinds() (kinds []referee.Kind) {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		kinds = append(kinds, e.Kind)
	}
	w.events = nil
	return kinds
}

func (w *world) wantKinds(want ...referee.Kind) {
	w.t.Helper()
	if got := w.kinds(); !slices.Equal(got, want) {
		w.t.Errorf("events %v, want %v", got, want)
	}
}

// fault sets what happens to messages from now on.
func (w *world) fault(f func(membus.Transit) membus.Verdict) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = f
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) file(name string) string {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.o.Root, name))
	must(w.t, err)
	return string(text)
}

func TestReboot(t *testing.T) {
	play(t, Options{ShutdownTakes: time.Minute, BootTakes: 2 * time.Minute}, func(t *testing.T, w *world) {
		w.wantKinds(Booted)
		old := w.BootID()
		must(t, w.Engine().Stage("4.2.0"))
		if w.file("proc/sys/kernel/random/boot_id") != old+"\n" || !strings.Contains(w.file("etc/os-release"), "VERSION_ID=4.1.0\n") {
			t.Errorf("the files of the first boot %s: %s", old, w.file("etc/os-release"))
		}
		began := time.Now()
		must(t, w.logind.Reboot(t.Context()))
		if underway, err := w.logind.RebootUnderway(t.Context()); !underway || err != nil || time.Since(began) > 0 {
			t.Errorf("after the call: under way %t, %v, after %v", underway, err, time.Since(began))
		}
		w.wantKinds(referee.RebootCalled)
		err := w.logind.Reboot(t.Context())
		if e, ok := errors.AsType[*systemd.CallError](err); !ok || e.Name != "org.freedesktop.login1.OperationInProgress" {
			t.Errorf("the second call: %v", err)
		}
		w.wantKinds(referee.RebootRefused)
		time.Sleep(time.Minute + time.Second)
		if w.BootID() != "" || w.Bus() != nil {
			t.Error("the host is not down")
		}
		if _, err := w.logind.RebootUnderway(t.Context()); err == nil {
			t.Error("a service of the host answers while the host is down")
		}
		time.Sleep(2 * time.Minute)
		w.wantKinds(ShutdownDone, Booted)
		if id := w.BootID(); id == old || id == "" || w.file("proc/sys/kernel/random/boot_id") != id+"\n" {
			t.Errorf("the boot ID was %s and is %s", old, id)
		}
		if w.Version() != "4.2.0" || !strings.Contains(w.file("etc/os-release"), "VERSION_ID=4.2.0\n") || w.Reboots() != 1 || w.Boots() != 2 {
			t.Errorf("version %s, %d reboots, %d boots", w.Version(), w.Reboots(), w.Boots())
		}
		if s, running := w.Engine().Status(); !running || s.Operation != engine.OpIdle {
			t.Errorf("the engine after the boot: %+v, running %t", s, running)
		}
		if underway, err := w.logind.RebootUnderway(t.Context()); underway || err != nil {
			t.Errorf("after the boot: under way %t, %v", underway, err)
		}
	})
}

func TestInhibitors(t *testing.T) {
	play(t, Options{}, func(t *testing.T, w *world) {
		w.kinds()
		release := w.Logind().Hold(Inhibitor{What: "sleep:shutdown", Who: "apt", Why: "upgrade", Mode: "block", PID: 7})
		w.Logind().Hold(Inhibitor{What: "idle", Who: "film", Mode: "block"})
		held, err := w.logind.BlockingInhibitors(t.Context())
		if err != nil || len(held) != 1 || held[0].Who != "apt" || held[0].PID != 7 {
			t.Errorf("inhibitors %+v, %v", held, err)
		}
		if err := w.logind.Reboot(t.Context()); !systemd.Inhibited(err) {
			t.Errorf("with a block inhibitor: %v", err)
		}
		w.wantKinds(referee.RebootRefused)
		release()
		// A delay inhibitor delays the shutdown for at most InhibitDelayMax.
		w.Logind().Hold(Inhibitor{What: "shutdown", Who: "kubelet", Mode: "delay"})
		old := w.BootID()
		must(t, w.logind.Reboot(t.Context()))
		time.Sleep(5*time.Second - time.Millisecond)
		if w.BootID() != old {
			t.Error("the delay was not respected")
		}
		time.Sleep(time.Second)
		if w.BootID() == old || len(w.Logind().Inhibitors()) != 0 {
			t.Errorf("boot %s, inhibitors %v", w.BootID(), w.Logind().Inhibitors())
		}
	})
}

func TestModes(t *testing.T) {
	for mode, want := range map[RebootMode]struct {
		kind          referee.Kind
		fails         bool
		refused, boot bool
		takes         time.Duration
	}{
		Obey:   {referee.RebootCalled, false, false, true, 0},
		Deny:   {referee.RebootRefused, true, true, false, 0},
		Hang:   {referee.RebootRefused, true, false, false, 10 * time.Second},
		Lose:   {referee.RebootCalled, true, false, true, 10 * time.Second},
		Ignore: {referee.RebootRefused, false, false, false, 0},
	} {
		play(t, Options{ShutdownTakes: time.Minute}, func(t *testing.T, w *world) {
			w.kinds()
			w.Logind().OnReboot(mode)
			began := time.Now()
			err := w.logind.Reboot(t.Context())
			e, _ := errors.AsType[*systemd.CallError](err)
			if (err != nil) != want.fails || e != nil && e.Refused() != want.refused || time.Since(began) != want.takes {
				t.Errorf("mode %d: %v after %v", mode, err, time.Since(began))
			}
			w.wantKinds(want.kind)
			time.Sleep(2 * time.Minute)
			if booted := w.Boots() == 2; booted != want.boot {
				t.Errorf("mode %d: %d boots", mode, w.Boots())
			}
		})
	}
}

// TestLateReboot delays the call on the bus. Logind.Reboot closes its connection after 10 s, so a later call reaches no service.
func TestLateReboot(t *testing.T) {
	for _, c := range []struct {
		delay time.Duration
		want  referee.Kind
	}{{9 * time.Second, referee.RebootCalled}, {11 * time.Second, CallerGone}} {
		play(t, Options{ShutdownTakes: time.Minute}, func(t *testing.T, w *world) {
			w.kinds()
			w.fault(func(m membus.Transit) (v membus.Verdict) {
				if !m.ToClient && m.Method == loginIface+".RebootWithFlags" {
					v.Delay = c.delay
				}
				return v
			})
			err := w.logind.Reboot(t.Context())
			e, _ := errors.AsType[*systemd.CallError](err)
			if (err == nil) != (c.want == referee.RebootCalled) || e != nil && e.Refused() {
				t.Errorf("late by %v: %v", c.delay, err)
			}
			time.Sleep(2 * time.Second)
			w.wantKinds(c.want)
			time.Sleep(2 * time.Minute)
			if booted := w.Boots() == 2; booted != (c.want == referee.RebootCalled) {
				t.Errorf("late by %v: %d boots", c.delay, w.Boots())
			}
		})
	}
}

// TestLostOnTheBus loses the call, or the answer, or breaks the connection.
func TestLostOnTheBus(t *testing.T) {
	for _, toClient := range []bool{false, true} {
		for _, verdict := range []membus.Verdict{{Drop: true}, {Break: true}} {
			play(t, Options{ShutdownTakes: time.Minute}, func(t *testing.T, w *world) {
				w.fault(func(m membus.Transit) (v membus.Verdict) {
					if m.ToClient == toClient && m.Method == loginIface+".RebootWithFlags" && m.Peer == loginName {
						return verdict
					}
					return v
				})
				began := time.Now()
				err := w.logind.Reboot(t.Context())
				if e, ok := errors.AsType[*systemd.CallError](err); !ok || e.Refused() {
					t.Errorf("to client %t, %+v: %v", toClient, verdict, err)
				}
				if d := time.Since(began); verdict.Drop != (d == 10*time.Second) {
					t.Errorf("to client %t, %+v: it took %v", toClient, verdict, d)
				}
				time.Sleep(2 * time.Minute)
				if booted := w.Boots() == 2; booted != toClient {
					t.Errorf("to client %t, %+v: %d boots", toClient, verdict, w.Boots())
				}
			})
		}
	}
}

// source runs the real source of update_engine until stop is called.
func (w *world) source(poll time.Duration) (s *updateengine.Source, stop func()) {
	s = updateengine.New(updateengine.Options{Object: w.bus.Object(updateengine.BusName, updateengine.ObjectPath), PollInterval: poll})
	ctx, cancel := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx, func() {}) })
	synctest.Wait()
	return s, func() { cancel(); running.Wait() }
}

func TestEngine(t *testing.T) {
	play(t, Options{}, func(t *testing.T, w *world) {
		const poll = time.Minute
		s, stop := w.source(poll)
		defer stop()
		pending := func(want bool) {
			t.Helper()
			synctest.Wait()
			if got, known := s.Latest().RebootPending(); got != want || !known {
				t.Errorf("pending %t, known %t: %+v", got, known, s.Latest())
			}
		}
		pending(false)
		time.Sleep(time.Second)
		must(t, w.Engine().Stage("4.2.0"))
		time.Sleep(time.Second) // the signal suffices
		pending(true)
		if s.Latest().Version != "4.2.0" {
			t.Errorf("version %q", s.Latest().Version)
		}
		must(t, w.Engine().Reset()) // without a signal
		time.Sleep(time.Second)
		pending(true)
		time.Sleep(poll)
		pending(false)

		w.Engine().Stop()
		time.Sleep(time.Second)
		if s.Latest().Presence != updateengine.Absent {
			t.Errorf("without the engine: %+v", s.Latest())
		}
		must(t, w.Engine().Start())
		time.Sleep(time.Second)
		pending(false)
	})
}

// TestBusRestarts checks that all clients work again after the bus was away, without a new signal or call of the test.
func TestBusRestarts(t *testing.T) {
	play(t, Options{ShutdownTakes: time.Minute}, func(t *testing.T, w *world) {
		s, stop := w.source(time.Hour)
		defer stop()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		shutdowns := make(chan bool, 10)
		go w.logind.WatchShutdown(ctx, func(active bool) { shutdowns <- active })
		must(t, w.Engine().Stage("4.2.0"))
		time.Sleep(time.Second)
		w.Logind().Hold(Inhibitor{What: "shutdown", Who: "apt", Mode: "block"})

		must(t, w.StopBus())
		time.Sleep(5 * time.Second)
		if s.Latest().Presence != updateengine.Unknown {
			t.Errorf("without a bus: %+v", s.Latest())
		}
		must(t, w.StartBus())
		time.Sleep(time.Minute)
		if r := s.Latest(); r.Operation != updateengine.UpdatedNeedReboot || r.Version != "4.2.0" {
			t.Errorf("after the restart of the bus: %+v", r)
		}
		if held, err := w.logind.BlockingInhibitors(t.Context()); len(held) != 1 || err != nil {
			t.Errorf("inhibitors after the restart: %v, %v", held, err)
		}
		w.Logind().Shutdown("admin")
		time.Sleep(time.Second)
		if len(shutdowns) != 1 || !<-shutdowns {
			t.Error("the shutdown was not seen on the new bus")
		}
		if !w.Logind().CancelShutdown() {
			t.Error("there was no shutdown")
		}
		time.Sleep(time.Second)
		if len(shutdowns) != 1 || <-shutdowns {
			t.Error("the end of the shutdown was not seen")
		}
		time.Sleep(time.Hour)
		if w.Boots() != 1 {
			t.Errorf("%d boots after a shutdown that was called off", w.Boots())
		}
	})
}

// TestLogindRestarts has logind die while it holds a call, and while it waits for a delay inhibitor.
func TestLogindRestarts(t *testing.T) {
	play(t, Options{}, func(t *testing.T, w *world) {
		w.Logind().OnReboot(Hang)
		result := make(chan error)
		go func() { result <- w.logind.Reboot(t.Context()) }()
		time.Sleep(time.Second)
		w.Logind().Stop()
		err := <-result
		if e, ok := errors.AsType[*systemd.CallError](err); !ok || e.Refused() || e.Name != "org.freedesktop.DBus.Error.NoReply" {
			t.Errorf("logind died: %v", err)
		}
		w.Logind().OnReboot(Obey)
		if err := w.logind.Reboot(t.Context()); !errors.Is(err, systemd.ErrAbsent) {
			t.Errorf("without logind: %v", err)
		}
		if _, err := w.logind.BlockingInhibitors(t.Context()); err != nil { // starts logind
			t.Error(err)
		}
		w.Logind().Remove()
		if _, err := w.logind.BlockingInhibitors(t.Context()); !errors.Is(err, systemd.ErrAbsent) {
			t.Errorf("without logind: %v", err)
		}
		must(t, w.Logind().Start())
		w.Logind().Hold(Inhibitor{What: "shutdown", Who: "kubelet", Mode: "delay"})
		must(t, w.logind.Reboot(t.Context()))
		w.Logind().Stop() // forgets the shutdown
		must(t, w.Logind().Start())
		if underway, err := w.logind.RebootUnderway(t.Context()); underway || err != nil {
			t.Errorf("after logind's restart: under way %t, %v", underway, err)
		}
		time.Sleep(time.Hour)
		if w.Boots() != 1 || len(w.Logind().Inhibitors()) != 1 {
			t.Errorf("%d boots, inhibitors %v", w.Boots(), w.Logind().Inhibitors())
		}
	})
}

func TestSessions(t *testing.T) {
	play(t, Options{}, func(t *testing.T, w *world) {
		w.Logind().SetSessions(
			Session{ID: "1", User: "anna", UID: 1000, TTY: "pts/0"}, Session{ID: "2", User: "gdm", Class: "greeter", TTY: "tty1"},
			Session{ID: "3", User: "bert", State: "closing", TTY: "pts/1"})
		got, err := w.logind.Sessions(t.Context())
		if err != nil || len(got) != 1 || got[0].User != "anna" || got[0].TTY != "pts/0" {
			t.Errorf("sessions %+v, %v", got, err)
		}
	})
}

func TestCrash(t *testing.T) {
	play(t, Options{BootTakes: time.Minute}, func(t *testing.T, w *world) {
		w.kinds()
		w.Logind().OnReboot(Hang)
		result := make(chan error)
		go func() { result <- w.logind.Reboot(t.Context()) }()
		time.Sleep(time.Second)
		w.Crash()
		if e, ok := errors.AsType[*systemd.CallError](<-result); !ok || e.Refused() {
			t.Errorf("the host crashed during the call: %v", e)
		}
		w.wantKinds(referee.RebootRefused, Crashed)
		booted := make(chan error)
		go func() { booted <- w.Boot() }()
		time.Sleep(time.Second)
		w.Crash()
		began := time.Now()
		must(t, w.Boot())
		if err := <-booted; err == nil || time.Since(began) != time.Minute || w.Boots() != 2 {
			t.Errorf("the host crashed during its boot: %v, %d boots after %v", err, w.Boots(), time.Since(began))
		}
		if _, err := w.logind.BlockingInhibitors(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestCrashAtTheWorstMoment cuts the power when logind has accepted a reboot, and when the host would be down anyway.
func TestCrashAtTheWorstMoment(t *testing.T) {
	for _, after := range []time.Duration{0, time.Minute - time.Nanosecond, time.Minute, time.Minute + time.Nanosecond} {
		rebooted := 0
		o := Options{ShutdownTakes: time.Minute, Rebooted: func(string) { rebooted++ }}
		play(t, o, func(t *testing.T, w *world) {
			must(t, w.Engine().Stage("4.2.0"))
			must(t, w.logind.Reboot(t.Context()))
			time.Sleep(after)
			w.Crash()
			time.Sleep(time.Hour)
			synctest.Wait()
			if w.BootID() != "" || rebooted > 1 || rebooted == 1 && after < time.Minute {
				t.Errorf("a crash after %v: boot %q, Rebooted called %d times", after, w.BootID(), rebooted)
			}
			must(t, w.Boot())
			if w.Version() != "4.2.0" || w.Boots() != 2 {
				t.Errorf("a crash after %v: version %s, %d boots", after, w.Version(), w.Boots())
			}
		})
	}
	play(t, Options{Stopping: func() { t.Error("a crashed host stops services") }}, func(t *testing.T, w *world) {
		w.onEvent = func(e referee.HostEvent) {
			if e.Kind == referee.RebootCalled {
				w.Crash()
			}
		}
		if err := w.logind.Reboot(t.Context()); err == nil || w.BootID() != "" {
			t.Errorf("the host crashed when logind had accepted: %v, boot %q", err, w.BootID())
		}
		time.Sleep(time.Hour)
		w.onEvent = func(e referee.HostEvent) {
			if e.Kind == Booted {
				w.Crash()
			}
		}
		must(t, w.Boot())
		if w.BootID() != "" {
			t.Error("the host runs after a crash")
		}
		w.onEvent = nil
		must(t, w.Boot())
	})
}

// TestStopping checks that the owner has the time of the shutdown to stop lockkeeper.
func TestStopping(t *testing.T) {
	var stopping time.Time
	o := Options{ShutdownTakes: time.Minute, Stopping: func() { stopping = time.Now() }}
	play(t, o, func(t *testing.T, w *world) {
		w.Logind().Hold(Inhibitor{What: "shutdown", Who: "kubelet", Mode: "delay"})
		began := time.Now()
		must(t, w.logind.Reboot(t.Context()))
		must(t, w.WriteUptime())
		time.Sleep(time.Minute)
		synctest.Wait()
		if d := stopping.Sub(began); d != 5*time.Second || w.BootID() == "" {
			t.Errorf("services were stopped after %v, boot %q", d, w.BootID())
		}
		w.Logind().Stop() // systemd has the job
		if underway, err := w.logind.RebootUnderway(t.Context()); !underway || err != nil {
			t.Errorf("without logind: under way %t, %v", underway, err)
		}
		w.Units().Set("app.service", Unit{Active: "active"})
		if _, err := w.units.Restart(t.Context(), "app.service", time.Now().Add(time.Minute)); err == nil || !strings.Contains(err.Error(), "is destructive") {
			t.Errorf("a restart in a shutdown: %v", err)
		}
		time.Sleep(10 * time.Second)
		must(t, w.WriteUptime())
		if up := w.file("proc/uptime"); up != "5.00 10.00\n" {
			t.Errorf("uptime %q", up)
		}
	})
}

func BenchmarkCall(b *testing.B) {
	h := New(Options{Name: "n1", Root: b.TempDir()})
	if err := h.Boot(); err != nil {
		b.Fatal(err)
	}
	defer h.Crash()
	l := systemd.Logind{Bus: &systemd.Bus{Dial: h.Dial}}
	for b.Loop() {
		if _, err := l.BlockingInhibitors(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// TestCoreOS checks that a host with Fedora CoreOS names its image, has no update engine, and boots what is staged next.
func TestCoreOS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		h := New(Options{Name: "n1", Root: root, CoreOS: true})
		for _, version := range []string{"4.1.0", "44.20260101.3.0"} {
			if err := h.Boot(); err != nil {
				t.Fatal(err)
			}
			release, err := os.ReadFile(filepath.Join(root, "etc/os-release"))
			if _, engine := h.Engine().Status(); err != nil || !strings.Contains(string(release), "\nOSTREE_VERSION='"+version+"'\n") || engine {
				t.Errorf("%v, an engine: %t, os-release:\n%s\nexpected the image %s and no engine", err, engine, release, version)
			}
			h.StageNext("44.20260101.3.0")
			h.Crash()
		}
	})
}
