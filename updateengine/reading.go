package updateengine

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Presence is whether the update engine answered.
type Presence string

// The three presences. Only Present and Absent are facts about the host.
const (
	// Unknown: the bus or the engine did not answer, or the answer was not understood. What was known before may still be
	// true.
	Unknown Presence = ""
	// Absent: the bus answers, and no process owns the engine's name. On Flatcar this is a host with /usr/.noupdate, a masked
	// unit, a container, or the moment between two starts of the engine. On other systems it is always so.
	Absent Presence = "absent"
	// Present: the engine has answered.
	Present Presence = "present"
)

// Operation is the engine's current operation as GetStatus reports it, without the prefix UPDATE_STATUS_. An unknown operation
// is kept as the engine's own text, prefix included, as one line of at most 64 bytes.
type Operation string

// The operations that decide whether a reboot is pending. [v1alpha1.UpdateOperations] has all of Flatcar's update_engine.
const (
	Idle              Operation = "IDLE"
	UpdatedNeedReboot Operation = "UPDATED_NEED_REBOOT"
)

// Known reports whether the operation is one of Flatcar's update_engine.
func (o Operation) Known() bool { return slices.Contains(v1alpha1.UpdateOperations(), string(o)) }

// Reading is one answer of the engine, or the lack of one. It can be copied.
type Reading struct {
	// Presence decides whether the other fields are set: unless it is Present, they are zero, except Err and At.
	Presence Presence
	// Operation is what the engine is doing.
	Operation Operation
	// Version is the version that the operation is about, as one line of at most 128 bytes; "" if there is none. The engine's
	// "0.0.0" means none. While a reboot is pending, a version that this process has read is kept, although an engine that was
	// restarted no longer reports it.
	Version string
	// VersionUnknown: a reboot is pending, and neither the engine nor this process knows for which version. It is the same
	// change as before the engine's restart, not a new one; the caller knows what this boot has published.
	VersionUnknown bool
	// LastChecked is when the engine last asked its server successfully; zero if it has not since its start.
	LastChecked time.Time
	// Progress of a download, 0 to 1.
	Progress float64
	// Err is why Presence is Unknown; nil otherwise.
	Err error
	// At is when the answer came, by this process's clock.
	At time.Time
}

// RebootPending reports whether an update is staged and waits for a reboot, and whether that is known. It is known if the
// engine answered with an operation that this package knows; otherwise what was published before stays valid. An engine with
// a pending reboot leaves that state only by ResetStatus or a reboot, so any other known operation means that none is pending.
func (r Reading) RebootPending() (pending, known bool) {
	if r.Presence != Present || !r.Operation.Known() {
		return false, false
	}
	return r.Operation == UpdatedNeedReboot, true
}

// same reports whether two readings have the same content, except for their time.
func (r Reading) same(o Reading) bool {
	sameErr := r.Err == nil && o.Err == nil || r.Err != nil && o.Err != nil && r.Err.Error() == o.Err.Error()
	sameTime := r.LastChecked.Equal(o.LastChecked)
	r.Err, r.At, r.LastChecked = o.Err, o.At, o.LastChecked
	return sameErr && sameTime && r == o
}

const (
	operationPrefix = "UPDATE_STATUS_"
	versionNone     = "0.0.0" // what the engine reports if it does not know, for example after its restart

	maxOperation = 64  // bytes
	maxVersion   = 128 // bytes
)

// errMalformed marks an answer whose shape is not the documented one.
var errMalformed = errors.New("malformed answer")

// decode decodes the body of GetStatus's answer (signature xdssx). It does not panic, whatever the body, and the texts that it
// returns are bounded and fit for logs, annotations and status.
func decode(body []any) (Reading, error) {
	if len(body) != 5 {
		return Reading{}, fmt.Errorf("%w: %d values instead of 5 (xdssx)", errMalformed, len(body))
	}
	checked, ok0 := body[0].(int64)
	progress, ok1 := body[1].(float64)
	operation, ok2 := body[2].(string)
	version, ok3 := body[3].(string)
	_, ok4 := body[4].(int64) // the size of the payload
	if !ok0 || !ok1 || !ok2 || !ok3 || !ok4 {
		return Reading{}, fmt.Errorf("%w: the types are %T, %T, %T, %T and %T (expected xdssx)", errMalformed, body[0], body[1], body[2], body[3], body[4])
	}
	if operation == "" {
		return Reading{}, fmt.Errorf("%w: no operation", errMalformed)
	}
	r := Reading{
		Presence:    Present,
		Operation:   operationOf(operation),
		Version:     v1alpha1.OneLine(version, maxVersion),
		LastChecked: checkedTime(checked),
		Progress:    fraction(progress),
	}
	if r.Version == versionNone {
		r.Version = ""
	}
	return r, nil
}

// operationOf removes the prefix only from documented names. "IDLE" without the prefix is not documented, and remains
// distinguishable from the real operation.
func operationOf(text string) Operation {
	name, found := strings.CutPrefix(text, operationPrefix)
	if op := Operation(name); found && op.Known() {
		return op
	}
	text = v1alpha1.OneLine(text, maxOperation)
	if Operation(text).Known() {
		return Operation("?" + text)
	}
	return Operation(text)
}

// checkedTime accepts only times that can be marshaled, 1970 to 9999.
func checkedTime(seconds int64) time.Time {
	const year10000 = 253402300800
	if seconds <= 0 || seconds >= year10000 {
		return time.Time{}
	}
	return time.Unix(seconds, 0)
}

// fraction clamps to 0..1. The engine divides received bytes by all bytes, so NaN is possible.
func fraction(f float64) float64 {
	if math.IsNaN(f) {
		return 0
	}
	return min(max(f, 0), 1)
}
