package realhost

import "time"

// Kind is the kind of an [Event]. Simulated hosts use the same names.
type Kind string

// These are the kinds of events.
const (
	// RebootCalled is the event that logind has announced a shutdown and waits for its inhibitors. logind also waits
	// for the callback, because the testbed holds an inhibitor.
	RebootCalled Kind = "RebootCalled"
	// Crashed is the event that [Host.Crash] is about to cut the power.
	Crashed Kind = "Crashed"
	// ShutdownDone is the event that nothing of the boot runs any more. Detail is how it ended.
	ShutdownDone Kind = "ShutdownDone"
	// Booted is the event that systemd runs with the new boot id. Detail is the version.
	Booted Kind = "Booted"
)

// Event is something that happened to a host, as seen from outside.
type Event struct {
	Time   time.Time
	Host   string
	Kind   Kind
	BootID string // the boot in which it happened; for Booted the new boot
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
