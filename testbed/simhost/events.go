package simhost

import "time"

// Kind is the kind of an [Event].
type Kind string

// The kinds of events. Between RebootCalled or Crashed and the next Booted, the only event of the old boot is ShutdownDone.
const (
	// RebootCalled is the event that logind accepted a call to reboot and has not acted on it yet. The callback runs
	// before logind answers and before it sends PrepareForShutdown, and the reboot waits until the callback returns.
	// Detail names the caller: the D-Bus method and the PID.
	RebootCalled Kind = "RebootCalled"
	// RebootRefused is the event that logind refused a call to reboot. Detail names the reason: a setting of the test,
	// or a shutdown that was already running.
	RebootRefused Kind = "RebootRefused"
	// Crashed is the event that the host loses power without notice. The callback runs before the power is lost.
	Crashed Kind = "Crashed"
	// ShutdownDone is the event that no process of the boot runs any more.
	ShutdownDone Kind = "ShutdownDone"
	// Booted is the event that the new boot has its boot ID, while none of its processes runs yet. Detail is the
	// version.
	Booted Kind = "Booted"
	// NodeReady is the event that the API server accepted the kubelet's status write with this boot ID and Ready=True.
	NodeReady Kind = "NodeReady"
	// The Detail of LockkeeperStarted is the PID. The Detail of LockkeeperExited is how the process ended, and whether
	// the exit was requested.
	LockkeeperStarted Kind = "LockkeeperStarted"
	LockkeeperExited  Kind = "LockkeeperExited"
)

// Event is something that happened to a host.
type Event struct {
	Time   time.Time
	Host   string
	Kind   Kind
	BootID string // the boot in which it happened; for Booted and NodeReady the new boot
	Detail string
}

func (h *Host) emit(kind Kind, bootID, detail string) {
	if h.opts.Events != nil {
		h.eventMu.Lock()
		defer h.eventMu.Unlock()
		h.opts.Events(Event{Time: time.Now(), Host: h.opts.Name, Kind: kind, BootID: bootID, Detail: detail})
	}
}
