package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/coordinator/forecast"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
)

const (
	barColumns  = 20
	maxVersions = 4  // versions of a kind that a line names
	maxVersion  = 40 // columns of a version
)

// End is an estimate of when the rollout ends.
type End struct {
	// At is the expected time, rounded to the minute. It is missing if the time is unknown.
	At *time.Time `json:"at,omitempty"`
	// Unknown says why the time is unknown.
	Unknown string `json:"unknown,omitempty"`
	// NotBefore is the earliest time at which the rollout can end, if that is unknown and nodes wait
	// for canaries.
	NotBefore *time.Time `json:"notBefore,omitempty"`
	// Left is how many nodes want something or are in a turn.
	Left int `json:"left"`
	// Held is how many of these nodes are held for a reason of their own. The expected time does not
	// include them.
	Held int `json:"held,omitempty"`
	// Turn is how long a turn is expected to take. It is the median of the last turns, or the
	// policy's `expectedDuration` if `turnsSeen` is missing.
	Turn metav1.Duration `json:"turn,omitzero"`
	// TurnsSeen is the number of turns that the median is from.
	TurnsSeen int `json:"turnsSeen,omitempty"`
}

// Versions are what the hosts run, as they last reported it; those that most hosts
// run come first.
type Versions struct {
	// OS lists the versions of the operating systems.
	OS []Version `json:"os"`
	// Lockkeeper lists the versions of lockkeeper.
	Lockkeeper []Version `json:"lockkeeper"`
}

// Version is a version and how many nodes have it.
type Version struct {
	// Version is the version. For an operating system, it begins with the system's ID, as in
	// "flatcar 4230.2.0".
	Version string `json:"version"`
	// Nodes is how many nodes have the version.
	Nodes int `json:"nodes"`
}

// estimate computes when the rollout is expected to end.
func (r *Report) estimate(s rollout.Snapshot, out *rollout.Outcome) {
	held := make(map[string]v1alpha1.Reason, len(r.Nodes))
	for i := range r.Nodes {
		held[r.Nodes[i].Name] = r.Nodes[i].Held
	}
	fleet, policies := forecast.Ends(s, out, held)
	still := ""
	switch {
	case r.Stop != nil && r.Stop.NoLease:
		still = "the Lease does not exist"
	case r.Stop != nil:
		still = "the emergency stop is set"
	case r.PoliciesError != "":
		still = "the policies could not be read"
	case r.Coordinator.Error != "":
		still = "the Lease could not be read"
	case !r.Coordinator.Live:
		still = "there is no coordinator"
	}
	r.End = endOf(fleet, still)
	for i := range r.Policies {
		r.Policies[i].End = endOf(policies[r.Policies[i].Name], still)
	}
}

// endOf returns nil if no node is left. still is why nothing moves, or "".
func endOf(e forecast.End, still string) *End {
	if e.Left == 0 {
		return nil
	}
	end := &End{Unknown: cmp.Or(still, e.Unknown), Left: e.Left, Held: e.Held, Turn: metav1.Duration{Duration: e.Turn.Round(time.Second)}, TurnsSeen: e.Seen}
	switch {
	case end.Unknown == "":
		end.At = new(e.At.UTC().Round(time.Minute))
	case !e.NotBefore.IsZero():
		end.NotBefore = new(e.NotBefore.UTC().Truncate(time.Minute))
	}
	return end
}

// untimed is e without the time, which changes even if nothing happens.
func (e *End) untimed() *End {
	if e == nil {
		return nil
	}
	same := *e
	same.At, same.NotBefore = nil, nil
	return &same
}

// words is the estimate in one line.
func (e *End) words(now time.Time) string {
	if e == nil {
		return ""
	}
	switch {
	case e.At == nil && e.NotBefore != nil:
		return "end unknown, not before " + page.Clock(now, *e.NotBefore) + ": " + e.Unknown
	case e.At == nil:
		return "end unknown: " + e.Unknown
	}
	text := fmt.Sprintf("about %s left at an expected %s per turn", page.About(e.At.Sub(now)), page.Span(e.Turn.Duration))
	if e.TurnsSeen > 0 {
		text = fmt.Sprintf("about %s left at %s per turn (%d seen)", page.About(e.At.Sub(now)), page.Span(e.Turn.Duration), e.TurnsSeen)
	}
	if e.Held > 0 {
		text += ", not counting " + page.Plural(e.Held, "held node")
	}
	return text
}

// sentence is words as a sentence that follows another, or "".
func (e *End) sentence(now time.Time) string {
	text := e.words(now)
	if text == "" {
		return ""
	}
	return " " + strings.ToUpper(text[:1]) + text[1:] + "."
}

// progress is a table of the progress of the fleet, and of each policy if there are several;
// nil if no node is left.
func (r *Report) progress() [][]string {
	var rows [][]string
	if r.End != nil {
		rows = append(rows, []string{"fleet", bar(r.Figures.UpToDate, r.Figures.Managed),
			fmt.Sprintf("%d of %d", r.Figures.UpToDate, r.Figures.Managed), r.End.words(r.Time)})
	}
	if len(r.Policies) > 1 {
		for i := range r.Policies {
			if p := &r.Policies[i]; len(p.Problems) == 0 {
				rows = append(rows, p.row(r.Time))
			}
		}
	}
	return rows
}

// bar draws a progress bar. It is full only if all are done.
func bar(done, all int) string {
	full := 0
	if all > 0 {
		full = barColumns * done / all
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat("-", barColumns-full) + "]"
}

// versions counts what the hosts run.
func versions(nodes []turn.Node) Versions {
	systems, ours := map[string]int{}, map[string]int{}
	for i := range nodes {
		n := &nodes[i]
		if n.Host == nil {
			continue
		}
		if system := strings.TrimSpace(n.Labels[v1alpha1.LabelOS] + " " + n.Host.OSVersion); system != "" {
			systems[system]++
		}
		if n.Host.Version != "" {
			ours[n.Host.Version]++
		}
	}
	return Versions{OS: counted(systems), Lockkeeper: counted(ours)}
}

func counted(nodes map[string]int) []Version {
	all := make([]Version, 0, len(nodes))
	for _, version := range slices.Sorted(maps.Keys(nodes)) {
		all = append(all, Version{version, nodes[version]})
	}
	slices.SortStableFunc(all, func(a, b Version) int { return cmp.Compare(b.Nodes, a.Nodes) })
	return all
}

// line is the versions in one line, or "" if none is known.
func (v *Versions) line() string {
	var parts []string
	for _, kind := range []struct {
		name string
		all  []Version
	}{{"OS", v.OS}, {"lockkeeper", v.Lockkeeper}} {
		if len(kind.all) == 0 {
			continue
		}
		var words []string
		for _, version := range kind.all[:min(len(kind.all), maxVersions)] {
			words = append(words, fmt.Sprintf("%s (%d)", page.Clip(page.Visible(version.Version), maxVersion), version.Nodes))
		}
		text := kind.name + " " + strings.Join(words, ", ")
		if more := len(kind.all) - maxVersions; more > 0 {
			nodes := 0
			for _, version := range kind.all[maxVersions:] {
				nodes += version.Nodes
			}
			text += fmt.Sprintf(" and %s (%d)", page.Plural(more, "other version"), nodes)
		}
		parts = append(parts, text)
	}
	if parts == nil {
		return ""
	}
	return "Nodes by version: " + strings.Join(parts, "; ") + "."
}
