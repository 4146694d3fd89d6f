package realhost

import "time"

// Kind is what an [Event] is about. The names are those that simulated hosts use.
type Kind string

// The kinds.
const (
	// RebootCalled: logind has announced that the host goes down, and waits for its inhibitors; it waits for the callback too,
	// by an inhibitor that the test bed holds.
	RebootCalled Kind = "RebootCalled"
	// Crashed: [Host.Crash] is about to take the power away.
	Crashed Kind = "Crashed"
	// ShutdownDone: nothing of the boot runs any more. Detail is how it ended.
	ShutdownDone Kind = "ShutdownDone"
	// Booted: systemd runs under the new boot id. Detail is the version.
	Booted Kind = "Booted"
)

// Event is something that happened to a host, as it was seen from outside.
type Event struct {
	Time   time.Time
	Host   string
	Kind   Kind
	BootID string // of the boot that it happened in; of Booted: the new one
	Detail string
}

func (h *Host) emit(kind Kind, bootID, detail string) {
	h.lab.printf("%s: %s %s", h.opts.Name, kind, detail)
	if h.opts.Events != nil {
		h.eventMu.Lock()
		defer h.eventMu.Unlock()
		h.opts.Events(Event{Time: time.Now(), Host: h.opts.Name, Kind: kind, BootID: bootID, Detail: detail})
	}
}
