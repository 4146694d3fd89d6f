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
	Name       string `json:"name"`                 // of the object
	Generation int64  `json:"generation,omitempty"` // metadata.generation
	// Problems are what is wrong with it, field by field; with any it is invalid.
	Problems []string `json:"problems,omitempty"`
	// RulesOnly: the policy adds rules and decides no rollout.
	RulesOnly bool `json:"rulesOnly,omitempty"`
	Observe   bool `json:"observe,omitempty"` // its mode is Observe: it grants nothing
	Paused    bool `json:"paused,omitempty"`  // spec.paused

	Selected    int `json:"selected"`    // managed nodes whose rollout it decides
	UpToDate    int `json:"upToDate"`    // of them want nothing and are in no turn
	Wanting     int `json:"wanting"`     // want something, or are in a turn
	InTurn      int `json:"inTurn"`      // are in a turn
	Unavailable int `json:"unavailable"` // as its maxUnavailable counts them
	Allowed     int `json:"allowed"`     // maxUnavailable as a number of nodes
	Failed      int `json:"failed"`      // as its maxFailed counts them
	MaxFailed   int `json:"maxFailed"`   // how many may fail before it halts

	Halted        bool       `json:"halted"`                  // it grants nothing until failed turns are cleared
	SettlingUntil *time.Time `json:"settlingUntil,omitempty"` // the end of its settle time; missing if it is over
	// End is when its nodes are expected to be up to date; null if none of them wants
	// anything or is in a turn.
	End *End `json:"end,omitempty"`
	// Held is how many of Selected the policy's own verdict holds, by reason.
	Held map[string]int `json:"held,omitempty"`
}

func policies(figures []rollout.PolicyFigures) []Policy {
	all := make([]Policy, 0, len(figures))
	for i := range figures {
		f := &figures[i]
		p := Policy{
			Name: f.Name, Generation: f.Generation, RulesOnly: f.RulesOnly, Observe: f.Observe, Paused: f.Paused,
			Selected: f.Selected, UpToDate: f.UpToDate, Wanting: f.Wanting, InTurn: f.InTurn,
			Unavailable: f.Unavailable, Allowed: f.Allowed, Failed: f.Failed, MaxFailed: f.MaxFailed, Halted: f.Halted,
		}
		for _, problem := range f.Problems {
			p.Problems = append(p.Problems, problem.String())
		}
		if !f.Settling.IsZero() {
			p.SettlingUntil = &f.Settling
		}
		for reason, n := range f.Held {
			if p.Held == nil {
				p.Held = map[string]int{}
			}
			p.Held[string(reason)] = n
		}
		all = append(all, p)
	}
	return all
}

// settling reports whether the policy waits for its settle time.
func (r *Report) settling(name string) bool {
	for i := range r.Policies {
		if r.Policies[i].Name == name {
			return r.Policies[i].SettlingUntil != nil
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
	if p.SettlingUntil != nil {
		add("settling until %s", page.Clock(now, *p.SettlingUntil))
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
	text := "takes a slot: it " + n.Slot.Use.Means()
	if !n.Slot.Since.IsZero() {
		text += ", for " + page.Since(now, &n.Slot.Since)
	}
	return text
}
