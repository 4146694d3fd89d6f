package v1alpha1

import (
	"fmt"
	"strings"
)

// Report is what a host says of the state it is in; see [Ack].
type Report string

// The words.
const (
	// ReportSeen: the host knows of the turn. It says so at once in a turn's
	// first state; a host that does not is silent.
	ReportSeen Report = "seen"
	// ReportCommitted: the host's last step before a disturbance. In rebooting
	// and applying nobody backs the turn out after it.
	ReportCommitted Report = "committed"
	// ReportDone: the host has done what the state asks of it.
	ReportDone Report = "done"
	// ReportRefused: the host will not do it, and has not; a reason follows.
	ReportRefused Report = "refused"
	// ReportFailed: the host did it and it did not work; a reason follows.
	ReportFailed Report = "failed"
)

// Ack is a host's word on the state it is in, the value of [AnnotationAck]:
//
//	<turn>/<boot id>/<state>/<word>
//
// where word is "seen", "committed", "done", "refused:<Reason>" or
// "failed:<Reason>". It is tied to the turn and to the boot it was said in:
// a word of another turn, or of a boot that is not the Node's
// status.nodeInfo.bootID, does not let a turn go on.
type Ack struct {
	Turn   string // the turn's id
	BootID string // the boot in which the host said it
	State  State  // the state it speaks of
	Report Report
	Reason Reason // with ReportRefused and ReportFailed only
}

// String returns the annotation's value, or "" for the zero Ack.
func (a Ack) String() string {
	if a == (Ack{}) {
		return ""
	}
	s := a.Turn + "/" + a.BootID + "/" + string(a.State) + "/" + string(a.Report)
	if a.Report == ReportRefused || a.Report == ReportFailed {
		s += ":" + string(a.Reason)
	}
	return s
}

// ParseAck reads the annotation's value. "" is the zero Ack. The error names
// the part that is wrong; the caller goes on as if nothing had been said.
func ParseAck(s string) (Ack, error) {
	if s == "" {
		return Ack{}, nil
	}
	parts := strings.Split(s, "/")
	if len(parts) != 4 {
		return Ack{}, fmt.Errorf("%d parts in %q, expected <turn>/<boot id>/<state>/<word>", len(parts), clip(s))
	}
	word, reason, hasReason := strings.Cut(parts[3], ":")
	a := Ack{Turn: parts[0], BootID: parts[1], State: State(parts[2]), Report: Report(word), Reason: Reason(reason)}
	if err := ValidateID(a.Turn); err != nil {
		return Ack{}, fmt.Errorf("turn: %w", err)
	}
	if err := ValidateID(a.BootID); err != nil {
		return Ack{}, fmt.Errorf("boot id: %w", err)
	}
	if !a.State.Known() || !a.State.InTurn() {
		return Ack{}, fmt.Errorf("%q is not a state of a turn", clip(parts[2]))
	}
	switch a.Report {
	case ReportSeen, ReportCommitted, ReportDone:
		if hasReason {
			return Ack{}, fmt.Errorf("word %q takes no reason", a.Report)
		}
	case ReportRefused, ReportFailed:
		if !a.Reason.Valid() {
			return Ack{}, fmt.Errorf("word %q needs a CamelCase reason, not %q", a.Report, clip(reason))
		}
	default:
		return Ack{}, fmt.Errorf("%q is not a word; expected seen, committed, done, refused:<Reason> or failed:<Reason>", clip(word))
	}
	return a, nil
}

// maxIDLength bounds a turn's id, a boot id, a Node UID and an epoch, in bytes.
// An epoch begins with a Node's name, of up to 253.
const maxIDLength = 320

// ValidateID says what is wrong with an id (a turn's, a boot's, a Node's UID,
// an epoch), or nil: 1 to 320 of [A-Za-z0-9_.-].
func ValidateID(id string) error {
	if id == "" {
		return fmt.Errorf("empty, expected an id")
	}
	if len(id) > maxIDLength {
		return fmt.Errorf("%d bytes, expected at most %d", len(id), maxIDLength)
	}
	for i := range len(id) {
		if c := id[i]; !alphanumeric(c) && c != '-' && c != '_' && c != '.' {
			return fmt.Errorf("%q holds %q, expected letters, digits, '-', '_' and '.'", id, c)
		}
	}
	return nil
}

// clip keeps hostile or broken input out of messages: at most 80 bytes of it.
func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "…"
	}
	return s
}
