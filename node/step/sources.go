package step

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// Reports is what the sources of changes on this host report, each for itself.
type Reports struct {
	// Engine is the update that waits for a reboot. EngineError is why the update engine
	// did not confirm that now, or "". Then Engine is what this boot has published.
	Engine      []v1alpha1.Change
	EngineError string
	// Sentinels are the sentinel files that exist. SentinelsRead is false before the first
	// read, and so is FilesRead.
	Sentinels     []string
	SentinelsRead bool
	// Files are the files and units that differ from what is in effect. FilesError is
	// which of them cannot be read, or "". What this boot has published of those is in
	// Files.
	Files      []v1alpha1.Change
	FilesRead  bool
	FilesError string
	// HookStages are the stages for which the host has hook units. HooksRead is false
	// before systemd has answered.
	HookStages []v1alpha1.State
	HooksRead  bool

	// Unread is why the reads before a commit have failed for some time, or "". They read
	// more than these reports depend on: the engine has to answer also if it has reported
	// no update, and it has to be known which other reboot managers are active.
	Unread string

	// Permission is what the FleetLock client has asked this process for.
	Permission Permission

	Policies Policies
}

// Published returns the record that the host has published in this boot, or nil.
func Published(n *turn.Node, bootID string) *v1alpha1.Host {
	if n.Host == nil || n.Host.NodeUID != n.UID || n.Host.BootID != bootID {
		return nil
	}
	return n.Host
}

// Combine sets what the host wants, and the stages with hook units, from the reports. Node
// and Self.BootID are set before.
//
// A source that cannot be read keeps its last report, which is what this boot has
// published. A source that was never read in this boot makes Sources incomplete.
func (o *Observation) Combine(r *Reports) {
	n := &o.Node
	published := Published(n, o.Self.BootID)
	o.Self.HookStages = r.HookStages
	if !r.HooksRead && published != nil {
		o.Self.HookStages = published.HookStages
	}
	s := Sources{Missing: r.missing(n, published != nil), Unreadable: cmp.Or(r.FilesError, r.Unread)}
	s.Complete = s.Missing == ""

	changes := slices.Clone(r.Engine)
	for _, path := range r.Sentinels {
		changes = append(changes, v1alpha1.Change{Source: v1alpha1.SourceSentinel, Name: path})
	}
	if n.Request != nil {
		changes = append(changes, v1alpha1.Change{Source: v1alpha1.SourceRequest})
	}
	o.Permission = r.Permission.Since(published)
	if o.Permission.Asked {
		changes = append(changes, v1alpha1.Change{Source: v1alpha1.SourceFleetLock})
	}
	changes = append(changes, r.Files...)
	match := r.Policies.Match
	plan := match.Plan(changes)
	if !v1alpha1.Has(plan.Changes(), v1alpha1.SourceFleetLock) {
		o.Permission = Permission{} // a rule says that it costs nothing, so the client gets none
	}
	s.Changes, s.HeldBack, s.Plan, s.Steps = plan.Changes(), heldBack(&plan), planLines(&plan, n.Request), plan.Actions()
	s.Wants, s.Drains, s.Veto = plan.Wants, plan.Drains, plan.Veto
	switch {
	case s.Veto != "":
		s.VetoDetail = "its plan would boot a version that a policy holds back"
	case len(v1alpha1.FormatRecord(s.Steps)) > v1alpha1.MaxSteps:
		s.Veto, s.VetoDetail = v1alpha1.ReasonInvalidRecord, fmt.Sprintf("the %d steps of its plan take more than the %d bytes that its record has room for", len(s.Steps), v1alpha1.MaxSteps)
	}
	veto := func(text string) {
		if s.Veto == "" && s.Wants.Something() {
			s.Veto, s.VetoDetail = v1alpha1.ReasonSourceUnreadable, text
		}
	}
	if p := &r.Policies; p.Invalid != "" && !n.InTurn() && s.Veto == "" && s.Wants.Something() {
		// The plan is by the rules of other policies, or by those from before. What holds a
		// version back, or costs nothing, may be in this one.
		s.Veto, s.VetoDetail = v1alpha1.ReasonInvalidPolicy, p.Invalid
	}
	if r.FilesError != "" {
		veto(r.FilesError) // a commit reads everything, so no turn may begin that would wait for it
	}
	if p := &r.Policies; p.Listed && p.Unread != "" {
		s.Unconfirmed, s.Passing = p.Unread, !p.UnreadLasts
		if p.UnreadVeto {
			veto(p.Unread)
		}
	}
	if r.Unread != "" {
		veto(r.Unread) // as above
	}
	if r.EngineError != "" && s.Unconfirmed == "" {
		// If the plan is the same without the update, no commit waits for an engine that
		// does not run.
		rest := match.Plan(changes[len(r.Engine):])
		if rest.Wants != s.Wants || rest.Drains != s.Drains {
			s.Unconfirmed = "update_engine: it reported an update that waits for a reboot, and does not confirm it now"
		}
	}
	o.Sources = s
}

// missing returns which source was not read in this boot, or "". published reports whether
// the host has published something in this boot: then its sources were read before.
func (r *Reports) missing(n *turn.Node, published bool) string {
	p := &r.Policies
	switch {
	case !p.Listed:
		return "policies: " + cmp.Or(p.Error, "not read yet")
	case p.Match.Reason != "" && n.InTurn() && published:
		// This process has not seen valid policies. What the changes cost is unknown: it
		// has neither vanished nor grown.
		return "policies: " + p.Match.Detail
	case p.Match.Reason == "" && !r.FilesRead:
		return "watched files: not read yet"
	case !r.HooksRead && !published:
		return "hook units: systemd has not answered yet"
	case !r.SentinelsRead:
		return cmp.Or(r.Unread, "sentinels: not read yet") // one that has never been read may never be
	case r.EngineError != "" && !published:
		return "update_engine: " + r.EngineError
	}
	return ""
}

func heldBack(p *policy.Plan) []v1alpha1.Change {
	var all []v1alpha1.Change
	for _, h := range p.HeldBack {
		all = append(all, h.Change)
	}
	return all
}

// The host publishes at most maxPlanLines lines of a plan, each of at most maxPlanLine
// bytes.
const (
	maxPlanLines = 16
	maxPlanLine  = 200
)

// planLines describes a plan for people, with a line for each step and for each change that
// costs nothing: "Restart a.service: File /etc/a, by File /etc/a of lockkeeper-default".
// A line about a request says who asked for it and why.
func planLines(p *policy.Plan, request *v1alpha1.Request) []string {
	var lines []string
	add := func(what string, because ...policy.Cause) {
		causes := make([]string, 0, len(because))
		for _, c := range because {
			causes = append(causes, c.String()+request.Note(c.Change))
		}
		line := what + ": " + strings.Join(causes, "; ")
		if len(line) > maxPlanLine {
			line = strings.ToValidUTF8(line[:maxPlanLine-len("…")], "") + "…"
		}
		lines = append(lines, line)
	}
	for _, s := range p.Steps {
		add(s.Action.String(), s.Because...)
	}
	for _, held := range p.HeldBack {
		add("held back by "+held.Pattern, held.Cause)
	}
	for _, c := range p.Nothing {
		add(string(v1alpha1.ActionNone), c)
	}
	if len(lines) > maxPlanLines {
		lines = append(slices.Clip(lines[:maxPlanLines-1]), fmt.Sprintf("and %d more", len(lines)-maxPlanLines+1))
	}
	return lines
}
