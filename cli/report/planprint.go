package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/coordinator/forecast"
)

const (
	maxNames = 8  // nodes of a group, in its head
	maxPods  = 20 // pods in a line
	maxLines = 10 // obstacles of a kind in a group
)

// PrintPlan prints a Forecast and returns the exit status of `lockkeeper plan --exit-code`.
// It ignores All and Node of the form.
func PrintPlan(w io.Writer, f *forecast.Forecast, form Form) (exit int, err error) {
	if f.Held {
		exit = ExitHeld
	}
	out := page.New(form.Width)
	switch {
	case form.isData():
		return exit, form.writeData(w, f, "  ")
	case form.Output == Table:
		planTable(out, f, form)
		_, err = io.WriteString(w, out.String())
		return exit, err
	}
	out.Line(planHead(f))
	for _, what := range f.Unseen {
		out.Line("Not readable: " + what + ".")
	}
	held := map[v1alpha1.Reason]bool{}
	for i := range f.Groups {
		out.WriteString("\n")
		p := planned{Forecast: f, Group: &f.Groups[i]}
		p.write(out)
		held[p.Answer.Held] = true
	}
	reasons(out, held)
	_, err = io.WriteString(w, out.String())
	return exit, err
}

// planTable writes a row for each node.
func planTable(out *page.Page, f *forecast.Forecast, form Form) {
	var rows [][]string
	for i := range f.Groups {
		g := &f.Groups[i]
		for j := range g.Nodes {
			n := &g.Nodes[j]
			ahead, begins := "-", "-"
			if n.Ahead != nil {
				ahead = fmt.Sprint(*n.Ahead)
			}
			if n.BeginsIn != nil {
				begins = page.Span(n.BeginsIn.Duration)
			}
			rows = append(rows, []string{n.Name, string(g.Outcome), page.Dash(string(g.Answer.Held)), page.Dash(string(g.Wants)), page.Dash(g.Policy), ahead, begins, page.Cell(g.Why)})
		}
	}
	if len(rows) > 0 {
		out.Table("", form.header("NODE", "OUTCOME", "HELD", "WANTS", "POLICY", "AHEAD", "BEGINS-IN", "WHY"), rows)
	}
}

func planHead(f *forecast.Forecast) string {
	nodes := 0
	for i := range f.Groups {
		nodes += len(f.Groups[i].Nodes)
	}
	if len(f.Asked) == 0 {
		return "Plan for " + page.Plural(nodes, "node") + " with the pending changes. Nothing was changed."
	}
	return "Plan for " + page.Plural(nodes, "node") + " if this arrived: " + changes(f.Asked, nil) + ". Nothing was changed."
}

// planned is one group as text.
type planned struct {
	*forecast.Forecast
	*forecast.Group
	line page.Label
}

func (p *planned) write(out *page.Page) {
	var names []string
	for i := range p.Nodes {
		names = append(names, p.Nodes[i].Name)
	}
	head := page.Named(names, maxNames)
	if len(p.Nodes) > 1 {
		head = page.Plural(len(p.Nodes), "node") + ": " + head
	}
	out.Line(head)
	var write func()
	p.line, write = out.Labels()
	p.line("now", "%s", p.now())
	p.rules()
	p.steps()
	p.pods()
	for _, s := range p.Stages {
		p.line("stage", "%s", stageWords(&s))
	}
	p.rollout()
	for _, n := range p.Notes {
		p.line("note", "%s", n)
	}
	write()
}

func (p *planned) now() string {
	because := func(text string) string {
		if p.Why != "" {
			text += ": " + p.Why
		}
		return text
	}
	switch p.Outcome {
	case forecast.Goes:
		if n := &p.Nodes[0]; len(p.Nodes) == 1 && (n.Ahead == nil || *n.Ahead == 0) {
			return "would be granted now"
		}
		return "not held, would be granted in the order of the queue"
	case forecast.Held:
		return because("would be held (" + string(p.Answer.Held) + ")")
	case forecast.InTurn:
		text := "already in a turn, in " + p.State.String()
		if p.Answer.Held != "" {
			text += ", held (" + string(p.Answer.Held) + ")"
		}
		return because(text)
	case forecast.NotManaged:
		return because("not managed, nothing would be done")
	}
	return "nothing to do"
}

// rules writes the changes, each with the rule that decides its cost, and why that one.
func (p *planned) rules() {
	if p.Policy != "" {
		p.line("policy", "%s", p.Policy)
	}
	for _, c := range p.Changes {
		what := page.Cell(c.Change.String() + c.Request.Note(c.Change))
		if c.Pending {
			what += " (pending)"
		}
		switch {
		case c.Rule != nil:
			p.line("rule", "%s: %s", what, ruleWords(c.Rule))
		case c.Unwatched:
			p.line("rule", "%s: no rule names it, so hosts do not watch it and nothing would be done", what)
		default:
			p.line("rule", "%s: no rule names it, so the node would be drained and rebooted", what)
		}
		for _, r := range c.Wider {
			p.line("", "its path is longer than in %s", ruleWords(&r))
		}
		for _, r := range c.Replaced {
			p.line("", "it replaces %s", ruleWords(&r))
		}
	}
}

func ruleWords(r *forecast.Rule) string {
	return fmt.Sprintf("%s of policy %s: %s", r.Key, r.Policy, strings.Join(r.Costs, ", "))
}

// steps writes the plan.
func (p *planned) steps() {
	if len(p.Changes) == 0 {
		return
	}
	word := string(p.Wants)
	switch {
	case p.Drains:
		word += ", with a drain"
	case p.Wants.Something():
		word += ", without a drain"
	}
	p.line("wants", "%s", word)
	for i, s := range p.Steps {
		p.line(fmt.Sprintf("step %d", i+1), "%s: %s", s.Action, strings.Join(s.Because, "; "))
	}
	for _, c := range p.HeldBack {
		p.line("held back", "%s: no node would boot into it", page.Cell(c.String()))
	}
}

// pods writes what a drain does, and what blocks it.
func (p *planned) pods() {
	if !p.Drains || p.NoPods {
		return
	}
	kind := func(label, none string, of func(*forecast.Node) []forecast.Pod, reasons bool) {
		total, counts := 0, make([]int, 0, len(p.Nodes))
		why := map[string]int{}
		for i := range p.Nodes {
			pods := of(&p.Nodes[i])
			total, counts = total+len(pods), append(counts, len(pods))
			for _, pod := range pods {
				why[pod.Reason]++
			}
		}
		switch {
		case total == 0:
			p.line(label, "%s", none)
		case len(p.Nodes) == 1:
			p.line(label, "%s: %s", page.Plural(total, "pod"), podNames(of(&p.Nodes[0]), reasons))
		default:
			text := page.Plural(total, "pod")
			if reasons {
				var words []string
				for _, reason := range slices.Sorted(maps.Keys(why)) {
					words = append(words, fmt.Sprintf("%d %s", why[reason], reason))
				}
				text += " (" + strings.Join(words, ", ") + ")"
			}
			p.line(label, "%s, %s on each node", text, between(counts))
		}
	}
	kind("evicts", "no pod", func(n *forecast.Node) []forecast.Pod { return n.Evict }, false)
	kind("leaves", "", func(n *forecast.Node) []forecast.Pod { return n.Leave }, true)
	kind("waits for", "", func(n *forecast.Node) []forecast.Pod { return n.Wait }, true)
	kind("blocks", "", func(n *forecast.Node) []forecast.Pod { return n.Block }, true)
	p.blockLimits()
	p.obstacles("blocked", func(n *forecast.Node) []forecast.Obstacle { return n.Blocking })
	p.obstacles("slowed", func(n *forecast.Node) []forecast.Obstacle { return n.Slowing })
}

func podNames(pods []forecast.Pod, reasons bool) string {
	names := make([]string, 0, len(pods))
	for _, pod := range pods {
		name := pod.Name
		if reasons {
			name += " (" + pod.Reason + ")"
		}
		names = append(names, name)
	}
	return page.Named(names, maxPods)
}

// obstacles writes each budget that blocks evictions, with the pods and nodes concerned.
func (p *planned) obstacles(label string, of func(*forecast.Node) []forecast.Obstacle) {
	type found struct {
		pods, nodes []string
	}
	all := map[string]*found{}
	for i := range p.Nodes {
		for _, o := range of(&p.Nodes[i]) {
			what := "PodDisruptionBudget "
			if len(o.Budgets) > 1 {
				what = "PodDisruptionBudgets "
			}
			what += page.Joined(o.Budgets) + ": " + o.Why
			f := all[what]
			if f == nil {
				f = &found{}
				all[what] = f
			}
			f.nodes = append(f.nodes, p.Nodes[i].Name)
			f.pods = append(f.pods, o.Pods...)
		}
	}
	for i, what := range slices.Sorted(maps.Keys(all)) {
		if i == maxLines {
			p.line(label, "and by %d more, see -o json", len(all)-i)
			break
		}
		f := all[what]
		if len(p.Nodes) == 1 {
			p.line(label, "%s: %s", what, page.Named(f.pods, maxPods))
		} else {
			p.line(label, "%s: %s on %s: %s", what, page.Plural(len(f.pods), "pod"), page.Plural(len(f.nodes), "node"), page.Named(f.nodes, maxNames))
		}
	}
}

// blockLimits writes for how long pods that block keep nodes from their turns, and what happens
// then.
func (p *planned) blockLimits() {
	nodes := map[string][]string{}
	for i := range p.Nodes {
		if n := &p.Nodes[i]; len(n.Block) > 0 {
			text := blockWords(p.Time, n.BlockLimit)
			nodes[text] = append(nodes[text], n.Name)
		}
	}
	for i, text := range slices.Sorted(maps.Keys(nodes)) {
		switch {
		case i == maxLines:
			p.line("", "and %d more, see -o json", len(nodes)-i)
			return
		case len(p.Nodes) == 1:
			p.line("", "%s", text)
		default:
			p.line("", "%s: %s", page.Named(nodes[text], maxNames), text)
		}
	}
}

func blockWords(now time.Time, l *forecast.BlockLimit) string {
	const hold = "they keep the node from its turn until they are gone"
	switch {
	case l == nil:
		return "the drain waits until they are gone or its own time is over"
	case l.Off:
		return "drain.blockTimeout is over, so the node's next turn evicts them (drain.onBlockTimeout: Evict)"
	case l.Timeout.Duration == 0:
		return hold + "; drain.blockTimeout is not set"
	case l.Then != v1alpha1.OnBlockTimeoutEvict && l.Ends == nil:
		return fmt.Sprintf("%s; drain.blockTimeout (%s) changes nothing about that (drain.onBlockTimeout: Hold)", hold, page.Span(l.Timeout.Duration))
	case l.Then != v1alpha1.OnBlockTimeoutEvict && !l.Ends.After(now):
		return fmt.Sprintf("%s; drain.blockTimeout was over %s (drain.onBlockTimeout: Hold)", hold, page.Ago(now, *l.Ends))
	case l.Then != v1alpha1.OnBlockTimeoutEvict:
		return fmt.Sprintf("%s; drain.blockTimeout is over %s and changes nothing about that (drain.onBlockTimeout: Hold)", hold, page.Ago(now, *l.Ends))
	case l.Ends == nil:
		return fmt.Sprintf("they keep the node from its turn for at most %s from when it wants one; then its next turn evicts them (drain.onBlockTimeout: Evict)", page.Span(l.Timeout.Duration))
	case !l.Ends.After(now):
		return "drain.blockTimeout is over, and the node's next turn evicts them as soon as its host reports that (drain.onBlockTimeout: Evict)"
	}
	return fmt.Sprintf("they keep the node from its turn until drain.blockTimeout is over %s; then its next turn evicts them (drain.onBlockTimeout: Evict)", page.Ago(now, *l.Ends))
}

// after is what happens when a time limit is exceeded.
var after = map[v1alpha1.OnTimeout]string{
	v1alpha1.OnTimeoutWait:     "then it is Overdue and keeps waiting",
	v1alpha1.OnTimeoutContinue: "then the turn continues without it",
	v1alpha1.OnTimeoutAbort:    "then the turn is backed out",
	v1alpha1.OnTimeoutForce:    "then the remaining pods are deleted despite their budgets",
}

func stageWords(s *forecast.Stage) string {
	var parts []string
	for _, h := range s.Hooks {
		parts = append(parts, fmt.Sprintf("hook %s %s, %s", h.Name, page.Span(h.Timeout.Duration), after[h.OnTimeout]))
	}
	if s.HostHooks.Duration > 0 {
		then := v1alpha1.OnTimeoutAbort
		if s.State == v1alpha1.StateBeforeUncordon {
			then = v1alpha1.OnTimeoutWait
		}
		parts = append(parts, fmt.Sprintf("the host's own hook units %s, %s", page.Span(s.HostHooks.Duration), after[then]))
	}
	if s.Volumes {
		parts = append(parts, "until no volume is attached")
	}
	if s.Limit.Duration > 0 {
		then := after[s.OnTimeout]
		if s.OnTimeout == v1alpha1.OnTimeoutAbort && s.State != v1alpha1.StateDraining {
			then += " if the host has not begun; otherwise it is Overdue and keeps waiting"
		}
		parts = append(parts, fmt.Sprintf("%s, %s", page.Span(s.Limit.Duration), then))
	}
	return s.State.String() + ": " + strings.Join(parts, "; ")
}

// rollout writes when the turn would be.
func (p *planned) rollout() {
	r := p.Rollout
	if r == nil {
		return
	}
	then := ""
	if r.OnClose == v1alpha1.OnCloseCancel {
		then = "; a turn that has not committed by then is backed out"
	}
	switch {
	case r.Blackout != "" && r.Closes == nil && r.Opens != nil:
		next := ""
		if r.BlackoutEnds.Before(*r.Opens) {
			next = "; the next turn may begin " + page.Ago(p.Time, *r.Opens)
		}
		p.line("window", "%s ends %s%s", r.Blackout, page.Ago(p.Time, *r.BlackoutEnds), next)
	case r.Blackout != "" && r.Closes != nil && r.Opens == nil && !r.NeverOpens:
		p.line("window", "open, closes %s, when %s begins%s", page.Ago(p.Time, *r.Closes), r.Blackout, then)
	case r.NeverOpens:
		p.line("window", "no window that fits a turn opens within eight days")
	case r.Opens != nil:
		p.line("window", "the next one that fits a turn opens %s%s", page.Ago(p.Time, *r.Opens), then)
	case r.Closes != nil:
		p.line("window", "open, closes %s%s", page.Ago(p.Time, *r.Closes), then)
	}
	if len(r.Gates) > 0 {
		text := ""
		if r.GateClosed {
			text = "; it holds nodes of the policy now because a gate is closed"
		}
		p.line("gates", "%s: checked only by the coordinator%s", page.Joined(r.Gates), text)
	}
	if text := p.queue(); text != "" {
		p.line("queue", "%s; %d unavailable, %d allowed", text, r.Unavailable, r.Allowed)
	}
}

// queue is how many nodes are ahead of the group's, and how long those take.
func (p *planned) queue() string {
	var ahead []int
	longest, notBefore := time.Duration(0), (*time.Time)(nil)
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Ahead == nil {
			continue
		}
		ahead = append(ahead, *n.Ahead)
		if n.BeginsIn != nil {
			longest = max(longest, n.BeginsIn.Duration)
		}
		if n.NotBefore != nil && (notBefore == nil || n.NotBefore.Before(*notBefore)) {
			notBefore = n.NotBefore
		}
	}
	if ahead == nil {
		return ""
	}
	text := between(ahead) + " ahead"
	if len(p.Nodes) == 1 {
		text += " of it"
	}
	switch {
	case notBefore != nil:
		text += "; when its turn begins is unknown, but not before " + page.Clock(p.Time, *notBefore)
	case longest == 0:
	case slices.Min(ahead) == slices.Max(ahead):
		text += "; its turn is expected in about " + page.Span(longest)
	default:
		text += "; the last turn is expected in about " + page.Span(longest)
	}
	return text
}

// between returns the range of the counts.
func between(counts []int) string {
	least, most := slices.Min(counts), slices.Max(counts)
	if least == most {
		return fmt.Sprint(least)
	}
	return fmt.Sprintf("%d to %d", least, most)
}
