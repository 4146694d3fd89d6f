package simhost

import "time"

// Kind is what an [Event] is about.
type Kind string

// The kinds. Between RebootCalled and Booted, and between Crashed and Booted, come ShutdownDone and nothing else of the old
// boot.
const (
	// RebootCalled: logind took an order to reboot, and nothing has been done about it yet. The callback is made before logind
	// answers and before PrepareForShutdown is sent; the reboot waits for its return. Detail is who called: the D-Bus method and the pid.
	RebootCalled Kind = "RebootCalled"
	// RebootRefused: logind was asked and did not obey, by a knob or because a shutdown was under way. Detail says which.
	RebootRefused Kind = "RebootRefused"
	// Crashed: the power is gone without a word; the callback is made before it goes.
	Crashed Kind = "Crashed"
	// ShutdownDone: nothing of the boot runs any more.
	ShutdownDone Kind = "ShutdownDone"
	// Booted: the new boot's id is decided and nothing of it runs yet. Detail is the version.
	Booted Kind = "Booted"
	// NodeReady: the kubelet's status write with this boot id and Ready=True has been accepted.
	NodeReady Kind = "NodeReady"
	// LockkeeperStarted and LockkeeperExited: Detail is the pid, or how it ended and whether that was asked for.
	LockkeeperStarted Kind = "LockkeeperStarted"
	LockkeeperExited  Kind = "LockkeeperExited"
)

// Event is something that happened to a host, as only the host itself can tell.
type Event struct {
	Time   time.Time
	Host   string
	Kind   Kind
	BootID string // of the boot that it happened in; of Booted and NodeReady: the new one
	Detail string
}

func (h *Host) emit(kind Kind, bootID, detail string) {
	if h.opts.Events != nil {
		h.eventMu.Lock()
		defer h.eventMu.Unlock()
		h.opts.Events(Event{Time: time.Now(), Host: h.opts.Name, Kind: kind, BootID: bootID, Detail: detail})
	}
}
