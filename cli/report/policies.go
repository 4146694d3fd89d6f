package report

import (
	"fmt"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
)

// Policy is one DisruptionPolicy and the nodes whose rollout it decides.
type Policy struct {
	rollout.PolicyFigures
	// Problems lists what is wrong with the policy, one entry for each field. A policy with problems
	// is invalid.
	Problems []string `json:"problems,omitempty"`
	// End says when the policy's nodes are expected to be up to date. It is missing if none of them
	// wants anything or is in a turn.
	End *End `json:"end,omitempty"`
}

func policies(figures []rollout.PolicyFigures) []Policy {
	all := make([]Policy, len(figures))
	for i := range figures {
		all[i].PolicyFigures = figures[i]
		for _, problem := range figures[i].Problems {
			all[i].Problems = append(all[i].Problems, problem.String())
		}
	}
	return all
}

// settling reports whether the policy waits for its settle time.
func (r *Report) settling(name string) bool {
	for i := range r.Policies {
		if r.Policies[i].Name == name {
			return !r.Policies[i].Settling.IsZero()
		}
	}
	return false
}

// policyLines returns what is wrong with the policies.
func (r *Report) policyLines() []string {
	var lines []string
	if r.PoliciesError != "" {
		return []string{"The policies could not be read, so budgets are unknown, and HELD is what the coordinator last reported: " + page.Cell(r.PoliciesError) + "."}
	}
	if len(r.Policies) == 0 {
		return []string{"No DisruptionPolicy exists, so nothing is granted."}
	}
	for i := range r.Policies {
		p := &r.Policies[i]
		if len(p.Problems) > 0 {
			line := fmt.Sprintf("Policy %s is INVALID, so nodes that it selects are not granted: %s", p.Name, page.Cell(p.Problems[0]))
			if more := len(p.Problems) - 1; more > 0 {
				line += fmt.Sprintf("; and %d more, see `kubectl describe dp %s`", more, p.Name)
			}
			lines = append(lines, line+".")
		}
	}
	return lines
}

// row is the row of the policy in the table of the progress.
func (p *Policy) row(now time.Time) []string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if p.RulesOnly {
		return []string{p.Name, "", "rules only", ""}
	}
	if p.Observe {
		add("Observe mode")
	}
	if p.Paused {
		add("paused")
	}
	if p.Selected == 0 && p.InTurn == 0 {
		return []string{p.Name, "", "no nodes", strings.Join(parts, "; ")}
	}
	if p.End != nil {
		add("%s", p.End.words(now))
	}
	if p.InTurn > 0 {
		add("%d in a turn", p.InTurn)
	}
	add("%d unavailable, %d allowed", p.Unavailable, p.Allowed)
	if p.Failed > 0 {
		add("%d failed, %d allowed", p.Failed, p.MaxFailed)
	}
	if !p.Settling.IsZero() {
		add("settling until %s", page.Clock(now, p.Settling))
	}
	return []string{p.Name, bar(p.UpToDate, p.Selected), fmt.Sprintf("%d of %d", p.UpToDate, p.Selected), strings.Join(parts, "; ")}
}

// halted returns the names of the policies that are halted.
func (r *Report) halted() []string {
	var names []string
	for i := range r.Policies {
		if r.Policies[i].Halted {
			names = append(names, r.Policies[i].Name)
		}
	}
	return names
}

// slotText says why a node that is in no turn takes a slot; "" if it takes none.
func (n *Node) slotText(now time.Time) string {
	if n.Slot == nil || n.State.InTurn() {
		return ""
	}
	text := "takes a slot: it " + n.Slot.Means()
	if !n.Slot.Since.IsZero() {
		text += ", for " + page.Since(now, &n.Slot.Since)
	}
	return text
}
