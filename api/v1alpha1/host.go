package v1alpha1

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"sort"
	"strings"
	"time"
	"unicode"
)

// Protocol is the version of what hosts and coordinators write to a Node
// for each other. A coordinator grants to its own and the previous one. A
// new field of [Action] needs a new one too: the coordinator's [StepsDigest]
// is that of the fields that it knows.
const Protocol = 1

const (
	// maxRecord bounds the JSON annotations, in bytes. A Node's annotations may
	// hold 256 KiB in all.
	maxRecord = 32 << 10
	// maxGrant bounds a Grant when it is written, in bytes. It has room for 12 KiB of
	// changes, the most that a host watches for, and 16 KiB of a policy's terms. It is
	// less than maxRecord, because the changes also go into Last, which has more fields.
	maxGrant = 29 << 10
	// MaxHost bounds AnnotationHost, in bytes. It is less than maxGrant, because most
	// of it goes into the grant as well, in addition to the policy's terms.
	MaxHost = 16 << 10
)

// Source is where a change comes from.
type Source string

// The sources.
const (
	// SourceOSUpdate: the update engine has staged another OS version.
	SourceOSUpdate Source = "OSUpdate"
	// SourceSentinel: a file says that a reboot is required.
	SourceSentinel Source = "Sentinel"
	// SourceFile: a watched file or directory differs.
	SourceFile Source = "File"
	// SourceUnit: a watched systemd unit differs.
	SourceUnit Source = "Unit"
	// SourceRequest: an admin requests a reboot, by AnnotationRequest.
	SourceRequest Source = "Request"
	// SourceFleetLock: a FleetLock client on the host, such as Zincati, asks for permission to
	// reboot.
	SourceFleetLock Source = "FleetLock"
)

// Change is something on a host that calls for a disruption. The version of a file or unit is
// [VersionAbsent] or a digest, see [DigestKey]. [Change.Same] compares versions.
type Change struct {
	// Source is where the change comes from: OSUpdate, Sentinel, File, Unit, Request or FleetLock.
	Source Source `json:"source"`
	// Name distinguishes changes from one source: a path, or the name of a unit. It is missing for
	// OSUpdate, Request and FleetLock.
	Name string `json:"name,omitempty"`
	// Version is what the change leads to: an OS version or, for File and Unit, a digest or
	// "absent". It is missing if the source does not say.
	Version string `json:"version,omitempty"`
}

// String returns the change as "Source", "Source name" or "Source name@version".
func (c Change) String() string {
	s := string(c.Source)
	if c.Name != "" {
		s += " " + c.Name
	}
	if c.Version != "" {
		s += "@" + c.Version
	}
	return s
}

// Has reports whether one of the changes comes from the source.
func Has(changes []Change, source Source) bool {
	return slices.ContainsFunc(changes, func(c Change) bool { return c.Source == source })
}

// Host is what a host publishes about itself, the value of [AnnotationHost]. It
// is written together with LabelWants, and both count only while BootID is
// the Node's status.nodeInfo.bootID and NodeUID its metadata.uid.
type Host struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"` // lockkeeper's

	NodeUID string `json:"nodeUID"`
	BootID  string `json:"bootID"`
	// BootTime is when the host booted, and Started when the process of lockkeeper
	// started that wrote the record, by the host's clock. A process that starts while
	// the node is in no turn writes nothing if only Started differs.
	BootTime time.Time `json:"bootTime"`
	Started  time.Time `json:"started"`

	// Managed is what holds on this host with LabelManaged and the host's
	// file taken together.
	Managed bool `json:"managed"`
	// Veto is why this host commits nothing at present, even in a
	// turn: its file, its window, observe, min_uptime, another
	// reboot manager. Empty: no veto.
	Veto Reason `json:"veto,omitempty"`

	// BlockedSince is since when the host has had pods that its policy's drain must not
	// evict, by the API server's clock; zero if it has none, or its plan does not drain.
	BlockedSince time.Time `json:"blockedSince,omitzero"`
	// BlockOff: they have blocked for longer than the policy allows, so they are no veto,
	// and the next turn's drain evicts them. In a turn it stays as it was.
	BlockOff bool `json:"blockOff,omitempty"`

	// Drains reports whether the plan needs the node drained.
	Drains bool `json:"drains,omitempty"`
	// Changes are what the plan is made of: all that cost something.
	Changes []Change `json:"changes,omitempty"`
	// PendingSince is when the host first published one of these changes, by its
	// clock; zero if there are none.
	PendingSince time.Time `json:"pendingSince,omitzero"`
	// HeldBack are changes to OS versions that a policy holds back. They cost
	// nothing, and nothing that the node would boot into one is done.
	HeldBack []Change `json:"heldBack,omitempty"`
	// Plan is, for people, what the changes cost and which rule of which policy
	// says so: a line for each step, at most 16 of at most 200 bytes.
	Plan []string `json:"plan,omitempty"`
	// Steps are the plan's actions, in order. While a turn is in applying, they stay as
	// they were when it got there, and so do Changes, HeldBack, Drains, Plan and
	// LabelWants; see [StepsDigest].
	Steps []Action `json:"steps,omitempty"`
	// OSVersion is os-release's OSTREE_VERSION or, without one, its VERSION_ID, as it is.
	OSVersion string `json:"osVersion,omitempty"`
	// HookStages are the hook stages for which the host has units of its
	// own: before-drain, before-reboot, before-uncordon.
	HookStages []State `json:"hookStages,omitempty"`
	// TakesPart is the ID of the turn that the host takes part in: it wanted
	// what the turn needed of it, or its own cordon was on the Node. A host that
	// does not take part runs no hook units of before-uncordon. Empty outside of
	// a turn.
	TakesPart string `json:"takesPart,omitempty"`
	// Permits is the ID of the turn in which the host has committed to let its FleetLock client
	// reboot it, written together with the commit. From then on the client may reboot at any
	// time, so the host neither reboots by itself nor refuses.
	Permits string `json:"permits,omitempty"`
	// HookFailed is, for people, which of its own hook units failed in the
	// present stage, how, and where to look: at most 256 bytes.
	HookFailed string `json:"hookFailed,omitempty"`
	// ApplyFailed is, for people, which unit of its plan could not be reloaded or
	// restarted, how, and where to look; or which change is still there after its turn: at
	// most 256 bytes. It is there until the turn that failed is cleared, or
	// another one begins.
	ApplyFailed string `json:"applyFailed,omitempty"`
}

// Names reports whether one of the host's changes has the source and name of c, whatever
// its version.
func (h *Host) Names(c Change) bool {
	return slices.ContainsFunc(h.Changes, func(o Change) bool { return o.Source == c.Source && o.Name == c.Name })
}

// ParseHost reads the annotation's value; "" is no Host and no error. It
// ignores fields that a newer lockkeeper added.
func ParseHost(s string) (*Host, error) {
	if len(s) > MaxHost {
		return nil, fmt.Errorf("%d bytes, expected at most %d", len(s), MaxHost)
	}
	h, err := parseRecord[Host](s)
	if h == nil || err != nil {
		return nil, err
	}
	if err := ValidateID(h.BootID); err != nil {
		return nil, fmt.Errorf("bootID: %w", err)
	}
	if err := ValidateID(h.NodeUID); err != nil {
		return nil, fmt.Errorf("nodeUID: %w", err)
	}
	if h.Veto != "" && !h.Veto.Valid() {
		return nil, fmt.Errorf("veto: %q is not a reason", clip(string(h.Veto)))
	}
	if h.Protocol < 1 {
		return nil, fmt.Errorf("protocol: %d, expected 1 or more", h.Protocol)
	}
	for _, t := range []struct {
		field string
		at    time.Time
	}{{"bootTime", h.BootTime}, {"started", h.Started}, {"blockedSince", h.BlockedSince}, {"pendingSince", h.PendingSince}} {
		if !Encodable(t.at) {
			return nil, fmt.Errorf("%s: %d, expected a year from 0 to 9999 in UTC", t.field, t.at.UTC().Year())
		}
	}
	return h, nil
}

// Encodable reports whether JSON can hold the time in UTC. A host can write others: 9999-12-31T23:59:59-01:00 is in the year
// 10000, and without this check the reports about all nodes could not be encoded.
func Encodable(t time.Time) bool {
	year := t.UTC().Year()
	return year >= 0 && year <= 9999
}

// parseRecord decodes one JSON annotation.
func parseRecord[T any](s string) (*T, error) {
	if s == "" {
		return nil, nil
	}
	if len(s) > maxRecord {
		return nil, fmt.Errorf("%d bytes, expected at most %d", len(s), maxRecord)
	}
	v := new(T)
	if err := json.Unmarshal([]byte(s), v); err != nil {
		return nil, fmt.Errorf("not the JSON expected: %w", err)
	}
	return v, nil
}

// Fits reports whether the Grant, and the Last at the end of its turn, are small
// enough for a reader. It measures the text itself, because JSON may take six bytes
// for a character that a host wrote as one.
func (g *Grant) Fits() bool { return len(FormatRecord(g)) <= maxGrant }

// MaxSteps bounds Host.Steps as JSON, in bytes. A host does not commit to a plan with
// more.
const MaxSteps = 8 << 10

// Trim drops lines of the Plan, and then Changes, from the end, until readers accept
// the record. A later turn applies what is dropped. Steps have to be whole, so it drops
// all of them if they exceed MaxSteps.
func (h *Host) Trim() {
	if len(FormatRecord(h.Steps)) > MaxSteps {
		h.Steps = nil
	}
	for len(FormatRecord(h)) > MaxHost && len(h.Plan) > 0 {
		h.Plan = h.Plan[:len(h.Plan)-1]
	}
	all := h.Changes
	fits := func(n int) bool { h.Changes = all[:n]; return len(FormatRecord(h)) <= MaxHost }
	if !fits(len(all)) {
		fits(max(0, sort.Search(len(all), func(n int) bool { return !fits(n) })-1))
	}
}

// FormatRecord returns a Host, Grant or Last as its annotation's value.
func FormatRecord(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		// The records hold strings, numbers, booleans and times; a time out
		// of RFC 3339's years is the only way here, and a bug.
		panic(fmt.Sprintf("lockkeeper: encoding %T: %v", v, err))
	}
	return string(b)
}

// Digest returns a short digest of an annotation's value, 16 hexadecimal digits, to notice that the value changed. It need not
// be secure: a user who makes two values with the same digest hides only their own change.
func Digest(value string) string {
	h := fnv.New64a()
	h.Write([]byte(value))
	return fmt.Sprintf("%016x", h.Sum64())
}

// VersionAbsent is the version of a File or Unit change whose file is gone.
const VersionAbsent = "absent"

// The version of any other File or Unit change is a keyed digest, "KEYID-DIGEST", both
// in lower-case hexadecimal digits. Each host has its own key and never publishes it.
// KEYID tells the host's keys apart and says nothing else about them. A host that loses
// its key makes another one.
const (
	KeyIDLength  = 8  // digits, 32 bits
	DigestLength = 12 // digits, 48 bits
)

// DigestKey returns the ID of the key that a version was made with, or "" if the
// version is not a keyed digest.
func DigestKey(version string) string {
	id, digest, _ := strings.Cut(version, "-")
	if len(id) != KeyIDLength || len(digest) != DigestLength || strings.Trim(id+digest, "0123456789abcdef") != "" {
		return ""
	}
	return id
}

// Same reports whether two changes are the same: the source, the name and the version
// are equal. Two digests of a file or unit that were made with different keys cannot
// be compared. They count as the same version, because every caller uses Same to find
// out whether there is a new change: a new key alone must not end a hold or a delay,
// and must not look like another edit.
//
// Same is the only comparison of versions. It is not transitive.
func (c Change) Same(o Change) bool {
	if c == o {
		return true
	}
	if c.Source != o.Source || c.Name != o.Name || !c.Watched() {
		return false
	}
	key, other := DigestKey(c.Version), DigestKey(o.Version)
	return key != "" && other != "" && key != other
}

// Watched reports whether the change is of a file or unit. Each other content of one of those is
// another version, and another change.
func (c Change) Watched() bool { return c.Source == SourceFile || c.Source == SourceUnit }

// SameChanges reports whether two lists hold the same changes by [Change.Same], in any
// order.
func SameChanges(a, b []Change) bool {
	if len(a) != len(b) {
		return false
	}
	if slices.EqualFunc(a, b, Change.Same) {
		return true
	}
	// A list has each source and name once, so sorting pairs the changes up.
	sorted := func(changes []Change) []Change { return slices.SortedFunc(slices.Values(changes), CompareChanges) }
	return slices.EqualFunc(sorted(a), sorted(b), Change.Same)
}

// CompareChanges orders changes by source, name and version.
func CompareChanges(a, b Change) int {
	return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version))
}

// OneLine returns text as one line of at most limit bytes, which must be at least
// 3. Control and format characters (escape sequences, line feeds, marks that turn
// the direction of the text) become spaces, invalid UTF-8 becomes U+FFFD, and a text
// that was cut ends in "…". It is for the texts of others in messages for people.
func OneLine(text string, limit int) string {
	const cut = "…"
	long := len(text) > limit
	text = text[:min(len(text), limit)]
	if long { // a character may have been cut in two
		text = strings.ToValidUTF8(text, "")
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	if long || len(text) > limit {
		text = strings.ToValidUTF8(text[:min(len(text), limit-len(cut))], "") + cut
	}
	return text
}

// ShortDuration returns the duration without the zeros that its String has: 5m, not 5m0s.
func ShortDuration(d time.Duration) string {
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(d.String())
}

// StepsDigest returns the digest of a plan's steps, 32 hexadecimal digits, or "" if
// there are none. A plan is made once: the host publishes its steps in [Host], and the
// coordinator copies their digest into the [Grant] when it decides on them. A host
// applies only steps that it published itself, and only if the grant has their digest.
// So a user who can write grants does not choose which units restart.
func StepsDigest(steps []Action) string {
	if len(steps) == 0 {
		return ""
	}
	sum := sha256.Sum256([]byte(FormatRecord(steps)))
	return hex.EncodeToString(sum[:16])
}
