package simulate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
)

// Report is the result of a run.
type Report struct {
	Start      time.Time
	Resolution time.Duration
	Nodes      int
	// All covers all nodes. Policies has one part for each policy, with the nodes that the policy selects.
	All      Part
	Policies []Part
	// Turns lists the turns that ended, in order.
	Turns []Turn
	// Left groups the nodes that want something or are in a turn at the end by the reason that holds them. ReasonNone
	// is for a turn in progress.
	Left map[v1alpha1.Reason]Left
	// Timeline lists notable moments.
	Timeline []Line
	// Decisions counts the decisions of the leader, and Events the events.
	Decisions, Events int
	// Failures is the number of turns that failed or that wait after a failure.
	Failures int
}

// Part is the result for a set of nodes.
type Part struct {
	Name  string
	Nodes int
	// Wanting counts the nodes that wanted something at any time. UpToDate counts those of them that want nothing at
	// the end and are not in a turn.
	Wanting, UpToDate int
	// Allowed is the number of nodes that may be unavailable at once; -1 means no limit of its own. Most is the
	// largest number that were, first at MostAt.
	Allowed, Most int
	MostAt        time.Time
	// First is the time of the first grant, and Last the time of the last end of a turn; zero if there was none.
	First, Last time.Time
	// Results counts the turns that ended.
	Results map[v1alpha1.Result]int
}

// Turn is a turn that ended.
type Turn struct {
	Node, Policy string
	Began, Ended time.Time
	Result       v1alpha1.Result
	Reason       v1alpha1.Reason
}

// Left is a group of nodes that are not up to date at the end.
type Left struct {
	Nodes  int
	Detail string // the detail of the reason of one of them
}

// Line is one line of the timeline.
type Line struct {
	At   time.Time
	Text string
}

// book is the data that a run collects for its report.
type book struct {
	decisions, failures int
	ends                []Turn
	lines               []Line
	hidden              int
	holds               []v1alpha1.Reason // by policy: the reason that holds all of its nodes
	tenths              int
	due                 int // nodes that still get a change
	outcome             []rollout.Verdict
}

// mostLines limits the timeline.
const mostLines = 400

func (s *sim) note(rank int, format string, args ...any) {
	if len(s.lines) >= mostLines {
		s.hidden++
		return
	}
	text := fmt.Sprintf(format, args...)
	if rank >= 0 {
		text = s.Policies[rank].Name + ": " + text
	}
	s.lines = append(s.lines, Line{s.now, text})
}

// expect counts the nodes of each policy.
func (s *sim) expect() {
	s.holds = make([]v1alpha1.Reason, len(s.Policies))
	for _, h := range s.hosts {
		s.all.nodes++
		if len(h.group.Changes) > 0 {
			s.due++
		}
		if h.rank >= 0 {
			s.tally[h.rank].nodes++
		}
	}
}

// ended records the end of a turn.
func (s *sim) ended(h *host, l *v1alpha1.Last) {
	t := Turn{Node: h.node.Name, Began: h.began, Ended: s.now, Result: l.Result, Reason: l.Reason}
	s.all.ended(&t)
	if h.rank >= 0 {
		t.Policy = s.Policies[h.rank].Name
		s.tally[h.rank].ended(&t)
	}
	s.ends = append(s.ends, t)
	if l.Result == v1alpha1.ResultFailed {
		s.failed(h, l.Turn, "the turn failed: "+string(l.Reason))
	}
	s.progress()
}

// progress adds a line to the timeline for each tenth of the nodes with changes that are done.
func (s *sim) progress() {
	if tenth := 10 * s.all.results[v1alpha1.ResultDone] / max(1, s.due); tenth > s.tenths {
		s.tenths = tenth
		s.note(-1, "%d turns done, %d unavailable", s.all.results[v1alpha1.ResultDone], s.all.gone)
	}
}

// tell adds a line when a reason starts or stops holding all nodes of a policy.
func (s *sim) tell(out *rollout.Outcome) {
	s.outcome = out.Verdicts
	for i := range out.Policies {
		f := &out.Policies[i]
		now, detail := v1alpha1.ReasonNone, ""
		for _, r := range []v1alpha1.Reason{
			v1alpha1.ReasonInvalidPolicy, v1alpha1.ReasonHalted, v1alpha1.ReasonPaused, v1alpha1.ReasonCanary, v1alpha1.ReasonWindow, v1alpha1.ReasonGateClosed, v1alpha1.ReasonWouldGrant,
		} {
			if f.Held[r] > 0 {
				now, detail = r, f.Details[r]
				break
			}
		}
		switch before := s.holds[i]; {
		case now == before:
		case now != v1alpha1.ReasonNone:
			s.note(i, "%s (%s)", now, strings.TrimPrefix(detail, "policy "+f.Name+": "))
		case f.Wanting > 0:
			s.note(i, "continues")
		}
		s.holds[i] = now
	}
}

func (s *sim) report() *Report {
	r := &Report{
		Start: s.Start, Resolution: s.Resolution.Duration, Nodes: len(s.nodes), All: s.all.part("all", -1), Turns: s.ends,
		Left: map[v1alpha1.Reason]Left{}, Timeline: s.lines, Decisions: s.decisions, Events: s.events, Failures: s.failures,
	}
	if s.hidden > 0 {
		r.Timeline = append(r.Timeline, Line{s.now, fmt.Sprintf("%d lines more, left out", s.hidden)})
	}
	if most, by := s.total(); by != "" {
		r.All.Allowed = most
	}
	for i, t := range s.tally {
		r.Policies = append(r.Policies, t.part(s.Policies[i].Name, s.Policies[i].MaxUnavailable.Of(t.managed)))
	}
	for _, h := range s.hosts {
		if !h.wanted {
			continue
		}
		parts := []*Part{&r.All}
		if h.rank >= 0 {
			parts = append(parts, &r.Policies[h.rank])
		}
		upToDate := h.node.Wants == v1alpha1.WantsNothing && !h.node.InTurn()
		for _, p := range parts {
			p.Wanting++
			if upToDate {
				p.UpToDate++
			}
		}
	}
	for _, v := range s.outcome {
		if n := s.at[v.Node].node; n.InTurn() || n.Wants.Something() {
			left := r.Left[v.Held]
			if left.Nodes++; left.Nodes == 1 {
				left.Detail = v.Detail
			}
			r.Left[v.Held] = left
		}
	}
	return r
}

func (t *tally) part(name string, allowed int) Part {
	return Part{
		Name: name, Nodes: t.nodes, Allowed: allowed, Most: t.most, MostAt: t.mostAt,
		First: t.first, Last: t.last, Results: maps.Clone(t.results),
	}
}

// Took returns the time from the first grant to the end of the last turn.
func (p *Part) Took() time.Duration {
	if p.First.IsZero() || p.Last.Before(p.First) {
		return 0
	}
	return p.Last.Sub(p.First)
}

// Done reports whether every node that wanted something is up to date.
func (r *Report) Done() bool { return r.All.UpToDate == r.All.Wanting }

// String returns the report as text.
func (r *Report) String() string {
	var b strings.Builder
	a := &r.All
	fmt.Fprintf(&b, "%d nodes, of which %d want something. From %s, resolution %v; %d decisions, %d events.\n\n",
		r.Nodes, a.Wanting, date(r.Start), r.Resolution, r.Decisions, r.Events)
	switch {
	case a.Wanting == 0:
		b.WriteString("Nothing is to be done.\n")
	case a.First.IsZero():
		b.WriteString("No turn ever begins.\n")
	case a.Last.IsZero():
		fmt.Fprintf(&b, "The first turn begins at %s; none ends.\n", date(a.First))
	default:
		fmt.Fprintf(&b, "It takes %s, from the first grant at %s to the end of the last turn at %s.\n", span(a.Took()), date(a.First), date(a.Last))
	}
	if a.Wanting > 0 && r.Done() {
		b.WriteString("All of them are up to date.\n")
	} else if a.Wanting > 0 {
		fmt.Fprintf(&b, "IT STOPS: %d of %d are up to date. The others:\n", a.UpToDate, a.Wanting)
		for _, reason := range slices.Sorted(maps.Keys(r.Left)) {
			left := r.Left[reason]
			fmt.Fprintf(&b, "  %5d %s", left.Nodes, cmp.Or(string(reason), "under way"))
			if left.Detail != "" {
				fmt.Fprintf(&b, " (%s)", left.Detail)
			}
			b.WriteByte('\n')
		}
	}
	b.WriteString("\n")
	r.table(&b)
	if len(r.Timeline) > 0 {
		b.WriteString("\n")
	}
	for _, l := range r.Timeline {
		fmt.Fprintf(&b, "%s  +%-12s %s\n", l.At.UTC().Format(time.DateTime), span(l.At.Sub(r.Start)), l.Text)
	}
	return b.String()
}

// table writes a line for each policy, and one for all nodes.
func (r *Report) table(b *strings.Builder) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "POLICY\tNODES\tWANTING\tUP TO DATE\tALLOWED AT ONCE\tMOST AT ONCE\tREACHED AT\tTAKES\tTURNS\n")
	for _, p := range append(slices.Clone(r.Policies), r.All) {
		allowed, first, turns := "-", "-", []string{}
		if p.Allowed >= 0 {
			allowed = fmt.Sprint(p.Allowed)
		}
		if p.Most > 0 {
			first = "+" + span(p.MostAt.Sub(r.Start))
		}
		for _, result := range slices.Sorted(maps.Keys(p.Results)) {
			turns = append(turns, fmt.Sprintf("%d %s", p.Results[result], result))
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%d\t%s\t%s\t%s\n", p.Name, p.Nodes, p.Wanting, p.UpToDate, allowed, p.Most, first,
			span(p.Took()), cmp.Or(strings.Join(turns, ", "), "-"))
	}
	w.Flush()
}

func date(t time.Time) string { return t.UTC().Format("Mon "+time.DateTime) + " UTC" }

// span formats a duration for readers: 3d4h, 2h15m, 1m30s.
func span(d time.Duration) string {
	d = d.Round(time.Second)
	days, rest := d/(24*time.Hour), d%(24*time.Hour)
	switch {
	case days > 0 && rest == 0:
		return fmt.Sprintf("%dd", days)
	case days > 0:
		return fmt.Sprintf("%dd%s", days, v1alpha1.ShortDuration(rest))
	}
	return v1alpha1.ShortDuration(rest)
}
