package updateengine

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Presence says whether the update engine could be asked.
type Presence int

// The three presences. Only Present and Absent are facts about the host.
const (
	// Unknown: the bus or the engine could not be asked, or the answer was not understood. Whatever was known
	// before may still be so.
	Unknown Presence = iota
	// Absent: the bus answers, and nobody owns the engine's name. On Flatcar that is a host with /usr/.noupdate,
	// a masked unit, a container, or the moment between two lives of the daemon; elsewhere it is the rule.
	Absent
	// Present: the engine has answered.
	Present
)

// String gives the presence in lower case, for logs and status.
func (p Presence) String() string {
	switch p {
	case Unknown:
		return "unknown"
	case Absent:
		return "absent"
	case Present:
		return "present"
	}
	return fmt.Sprintf("presence(%d)", int(p))
}

// Operation is the engine's current operation as GetStatus names it, without the prefix UPDATE_STATUS_. One that
// this package does not know is kept as the engine's own text (whole, sanitised, at most 64 bytes).
type Operation string

// The operations of Flatcar's update_engine.
const (
	Idle                Operation = "IDLE"
	CheckingForUpdate   Operation = "CHECKING_FOR_UPDATE"
	UpdateAvailable     Operation = "UPDATE_AVAILABLE"
	Downloading         Operation = "DOWNLOADING"
	Verifying           Operation = "VERIFYING" // never set by the engine of 2026
	Finalizing          Operation = "FINALIZING"
	UpdatedNeedReboot   Operation = "UPDATED_NEED_REBOOT"
	ReportingErrorEvent Operation = "REPORTING_ERROR_EVENT"
)

// Known reports whether the operation is one of the constants above.
func (o Operation) Known() bool {
	switch o {
	case Idle, CheckingForUpdate, UpdateAvailable, Downloading, Verifying, Finalizing, UpdatedNeedReboot, ReportingErrorEvent:
		return true
	}
	return false
}

// Reading is one answer, or the lack of one. It is a value: copy it freely.
type Reading struct {
	// Presence tells whether the other fields mean anything: unless it is Present, they are zero (but for Err and At).
	Presence Presence
	// Operation is what the engine is doing.
	Operation Operation
	// Version is the version that the operation is about, at most 128 bytes of printable text; "" when there is
	// none. The engine's "0.0.0" means none. While a reboot is pending, a version once read by this process is
	// kept although the engine, restarted, has forgotten it.
	Version string
	// VersionUnknown: a reboot is pending, and neither the engine nor this process knows for which version. It is
	// the same change as before the engine's restart, not a new one; the caller remembers what this boot published.
	VersionUnknown bool
	// LastChecked is when the engine last asked its server with success; zero when it has not since its start.
	LastChecked time.Time
	// Progress of a download, 0 to 1.
	Progress float64
	// Size of the new version's payload in bytes, never negative.
	Size int64
	// Err says why Presence is Unknown; nil otherwise.
	Err error
	// At is when the answer came, by this process's clock.
	At time.Time
}

// RebootPending tells whether an update is staged and waits for a reboot, and whether that is known. known is
// false unless the engine answered with an operation that this package knows: what was published before then
// stands. An engine with a pending reboot leaves that state only by ResetStatus or a reboot, so any other known
// operation is its positive word that none is pending. For which version: see Version and VersionUnknown.
func (r Reading) RebootPending() (pending, known bool) {
	if r.Presence != Present || !r.Operation.Known() {
		return false, false
	}
	return r.Operation == UpdatedNeedReboot, true
}

// same reports whether two readings say the same thing, whenever they were taken.
func (r Reading) same(o Reading) bool {
	errText := func(e error) string {
		if e == nil {
			return ""
		}
		return e.Error()
	}
	return r.Presence == o.Presence && r.Operation == o.Operation && r.Version == o.Version &&
		r.VersionUnknown == o.VersionUnknown && r.LastChecked.Equal(o.LastChecked) &&
		r.Progress == o.Progress && r.Size == o.Size && errText(r.Err) == errText(o.Err)
}

const (
	operationPrefix = "UPDATE_STATUS_"
	versionNone     = "0.0.0" // what the engine says when it does not know, after a restart above all

	maxOperation = 64  // bytes
	maxVersion   = 128 // bytes
	maxErrorText = 256 // bytes
)

// errMalformed marks an answer whose shape is not the documented one.
var errMalformed = errors.New("malformed answer")

// decode turns GetStatus's body (signature xdssx) into a Reading. Whatever it is given it does not panic, and what
// it returns is bounded and printable: these texts end up in logs, annotations and status.
func decode(body []any) (Reading, error) {
	if len(body) != 5 {
		return Reading{}, fmt.Errorf("%w: %d values instead of 5 (xdssx)", errMalformed, len(body))
	}
	checked, ok0 := body[0].(int64)
	progress, ok1 := body[1].(float64)
	operation, ok2 := body[2].(string)
	version, ok3 := body[3].(string)
	size, ok4 := body[4].(int64)
	for i, ok := range []bool{ok0, ok1, ok2, ok3, ok4} {
		if !ok {
			return Reading{}, fmt.Errorf("%w: value %d is a %T (expected xdssx)", errMalformed, i, body[i])
		}
	}
	if operation == "" {
		return Reading{}, fmt.Errorf("%w: no operation", errMalformed)
	}
	r := Reading{
		Presence:    Present,
		Operation:   operationOf(operation),
		Version:     printable(version, maxVersion),
		LastChecked: checkedTime(checked),
		Progress:    fraction(progress),
		Size:        max(size, 0),
	}
	if r.Version == versionNone {
		r.Version = ""
	}
	return r, nil
}

// operationOf strips the prefix only from names that are known whole: "IDLE" without it is not documented and
// stays distinguishable from the real thing.
func operationOf(text string) Operation {
	name, found := strings.CutPrefix(text, operationPrefix)
	if op := Operation(name); found && op.Known() {
		return op
	}
	text = printable(text, maxOperation)
	if Operation(text).Known() {
		return Operation("?" + text)
	}
	return Operation(text)
}

// checkedTime accepts the seconds that a time.Time can be printed and marshalled for, 1970 to 9999.
func checkedTime(seconds int64) time.Time {
	const year10000 = 253402300800
	if seconds <= 0 || seconds >= year10000 {
		return time.Time{}
	}
	return time.Unix(seconds, 0)
}

// fraction clamps to 0..1. The engine divides received by total bytes, so NaN is possible without malice.
func fraction(f float64) float64 {
	if math.IsNaN(f) {
		return 0
	}
	return min(max(f, 0), 1)
}

// printable makes foreign text fit for a log line or an annotation: valid UTF-8 on one line, at most limit bytes.
func printable(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
		for range utf8.UTFMax - 1 { // do not leave half a rune behind
			if r, n := utf8.DecodeLastRuneInString(s); r != utf8.RuneError || n != 1 {
				break
			}
			s = s[:len(s)-1]
		}
	}
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
