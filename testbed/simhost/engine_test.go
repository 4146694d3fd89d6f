package simhost

import (
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/testbed/engine"
)

func engineObject(conn *dbus.Conn) dbus.BusObject { return conn.Object(engine.BusName, engine.Path) }

// status calls GetStatus over the bus.
func status(t *testing.T, conn *dbus.Conn) (s EngineStatus) {
	t.Helper()
	must(t, engineObject(conn).Call(engine.Interface+".GetStatus", 0).Store(&s.LastChecked, &s.Progress, &s.Operation, &s.NewVersion, &s.NewSize))
	return s
}

// follow records the operations that the engine broadcasts. sync returns the operations since its last call. It waits until the expected
// number has arrived, and then a moment for further ones.
func follow(t *testing.T, h *Host) (sync func(expected int) []string) {
	t.Helper()
	conn := connect(t, h)
	signals := make(chan *dbus.Signal, 64)
	conn.Signal(signals)
	must(t, conn.AddMatchSignal(dbus.WithMatchInterface(engine.Interface), dbus.WithMatchMember("StatusUpdate")))
	return func(expected int) []string {
		// The engine answers after the signals that it sent before, and the bus keeps the order.
		engineObject(conn).Call(engine.Interface+".GetStatus", dbus.FlagNoAutoStart)
		var ops []string
		for {
			// godbus hands received messages on in its own goroutine.
			wait := 100 * time.Millisecond
			if len(ops) < expected {
				wait = 90 * time.Second
			}
			select {
			case s := <-signals:
				if s.Name != engine.Interface+".StatusUpdate" {
					continue // from the bus itself
				}
				if sig := dbus.SignatureOf(s.Body...).String(); sig != "xdssx" {
					t.Errorf("a signal with signature %s", sig)
				}
				ops = append(ops, strings.TrimPrefix(s.Body[2].(string), "UPDATE_STATUS_"))
			case <-time.After(wait):
				return ops
			}
		}
	}
}

func TestStageUpdateAndSilentReset(t *testing.T) {
	h, _ := startHost(t, "engine")
	conn := connect(t, h)
	if s := status(t, conn); s != (EngineStatus{Operation: OpIdle, NewVersion: "0.0.0"}) {
		t.Errorf("initial status %+v", s)
	}
	signals := follow(t, h)
	must(t, h.StageUpdate("4.2.0"))
	got := strings.Join(signals(9), " ")
	want := "CHECKING_FOR_UPDATE UPDATE_AVAILABLE DOWNLOADING DOWNLOADING DOWNLOADING DOWNLOADING DOWNLOADING FINALIZING UPDATED_NEED_REBOOT"
	if got != want {
		t.Errorf("signals %s, want %s", got, want)
	}
	if s := status(t, conn); s.Operation != OpNeedReboot || s.NewVersion != "4.2.0" || s.NewSize == 0 || s.LastChecked == 0 || !h.exists("var/run/update_engine_autoupdate_completed") {
		t.Errorf("staged: %+v, marker there: %t", s, h.exists(engine.Marker))
	}
	if err := h.StageUpdate("4.3.0"); err == nil {
		t.Error("a second update was staged")
	}
	must(t, engineObject(conn).Call(engine.Interface+".ResetStatus", 0).Err)
	if got := signals(0); len(got) > 0 {
		t.Errorf("ResetStatus was followed by signals %v", got)
	}
	if s := status(t, conn); s.Operation != OpIdle || h.exists(engine.Marker) || h.Staged() != "4.2.0" {
		t.Errorf("reset: %+v, marker there: %t, staged %q", s, h.exists(engine.Marker), h.Staged())
	}
	must(t, engineObject(conn).Call(engine.Interface+".AttemptUpdate", 0).Err)
	if got := strings.Join(signals(2), " "); got != "CHECKING_FOR_UPDATE IDLE" {
		t.Errorf("a check that finds nothing was followed by %s", got)
	}
	// ResetStatus does not revert the switch of the partition.
	must(t, h.Crash(CrashOptions{ComesUpUpdated: true}))
	if h.Version() != "4.2.0" {
		t.Errorf("booted %s", h.Version())
	}
}

func TestEngineForgetsTheVersion(t *testing.T) {
	h, _ := startHost(t, "forget")
	conn := connect(t, h)
	must(t, h.StageUpdate("4.2.0"))
	h.Engine().Stop()
	err := engineObject(conn).Call(engine.Interface+".GetStatus", dbus.FlagNoAutoStart).Err
	if e, ok := err.(dbus.Error); !ok || e.Name != "org.freedesktop.DBus.Error.NameHasNoOwner" {
		t.Errorf("a stopped engine: %v", err)
	}
	if err := h.StageUpdate("4.3.0"); err == nil {
		t.Error("a stopped engine staged an update")
	}
	signals := follow(t, h)
	must(t, h.Engine().Start())
	if s := status(t, conn); s != (EngineStatus{Operation: OpNeedReboot, NewVersion: "0.0.0"}) {
		t.Errorf("restarted: %+v", s)
	}
	if got := strings.Join(signals(1), " "); got != "UPDATED_NEED_REBOOT" {
		t.Errorf("the start was followed by %s", got)
	}
	must(t, h.ResetStatus())
	h.Engine().Stop()
	must(t, h.Engine().Start())
	if s := status(t, conn); s.Operation != OpIdle {
		t.Errorf("restarted after a reset: %+v", s)
	}
}

func TestOddEngine(t *testing.T) {
	h, _ := startHost(t, "odd")
	conn := connect(t, h)
	for _, body := range [][]any{{}, {"what?"}, {int64(1), 0.5, OpIdle, "1", "big"}, {int64(1), 0.5, OpIdle, "1", int64(1), int64(2)}} {
		must(t, h.Engine().Answer(body...))
		call := engineObject(conn).Call(engine.Interface+".GetStatus", 0)
		must(t, call.Err)
		if got, want := dbus.SignatureOf(call.Body...), dbus.SignatureOf(body...); got != want {
			t.Errorf("signature %s, want %s", got, want)
		}
	}
	must(t, h.Engine().AnswerTruth())
	signals := follow(t, h)
	must(t, h.Engine().Say(EngineStatus{Operation: "UPDATE_STATUS_DISCO", NewVersion: "9"}, true))
	if got := signals(1); len(got) != 1 || got[0] != "DISCO" || status(t, conn).Operation != "UPDATE_STATUS_DISCO" {
		t.Errorf("signals %v, status %+v", got, status(t, conn))
	}
	must(t, h.Engine().Forge(EngineStatus{Operation: OpNeedReboot, NewVersion: "6.6.6"}))
	if got := signals(1); len(got) != 1 || got[0] != "UPDATED_NEED_REBOOT" || status(t, conn).Operation != "UPDATE_STATUS_DISCO" {
		t.Errorf("signals %v, status %+v", got, status(t, conn))
	}
	before := h.Engine().Calls()
	h.Engine().Hang(true)
	answered := make(chan error, 1)
	go func() { answered <- engineObject(conn).Call(engine.Interface+".GetStatus", 0).Err }()
	eventually(t, "the call to arrive", func() bool { return h.Engine().Calls() == before+1 })
	select {
	case err := <-answered:
		t.Errorf("the hanging engine answered: %v", err)
	default:
	}
	h.Engine().Hang(false)
	must(t, <-answered)
}
