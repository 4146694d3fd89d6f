package report

import (
	"fmt"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/coordinator/rollout"
)

// Policy is one DisruptionPolicy and the nodes whose rollout it decides.
type Policy struct {
	Name       string `json:"name"`
	Generation int64  `json:"generation,omitempty"`
	// Problems are what is wrong with it, field by field; with any it is invalid.
	Problems []string `json:"problems,omitempty"`
	Observe  bool     `json:"observe,omitempty"`
	Paused   bool     `json:"paused,omitempty"`

	Selected    int `json:"selected"` // managed nodes
	UpToDate    int `json:"upToDate"`
	Wanting     int `json:"wanting"` // want something, or are in a turn
	InTurn      int `json:"inTurn"`
	Unavailable int `json:"unavailable"`
	Allowed     int `json:"allowed"` // of them to be unavailable
	Failed      int `json:"failed"`
	MaxFailed   int `json:"maxFailed"`

	Halted        bool       `json:"halted"`
	SettlingUntil *time.Time `json:"settlingUntil,omitempty"`
	// Held is how many of Selected the policy's own verdict holds, by reason.
	Held map[string]int `json:"held,omitempty"`
}

func policies(figures []rollout.PolicyFigures) []Policy {
	all := make([]Policy, 0, len(figures))
	for i := range figures {
		f := &figures[i]
		p := Policy{
			Name: f.Name, Generation: f.Generation, Observe: f.Observe, Paused: f.Paused,
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

// settling reports whether the nodes of the policy settle.
func (r *Report) settling(name string) bool {
	for i := range r.Policies {
		if r.Policies[i].Name == name {
			return r.Policies[i].SettlingUntil != nil
		}
	}
	return false
}

// policyLines are a line for each policy if there are several, and one for each
// that is invalid.
func (r *Report) policyLines() []string {
	var lines []string
	if r.PoliciesError != "" {
		return []string{"The policies could not be read, so what they allow is not known here, and what holds nodes is as the coordinator last said: " + cell(r.PoliciesError) + "."}
	}
	if len(r.Policies) == 0 {
		return []string{"There is no DisruptionPolicy: nothing is granted."}
	}
	for i := range r.Policies {
		p := &r.Policies[i]
		if len(p.Problems) > 0 {
			line := fmt.Sprintf("Policy %s is INVALID, and nothing is granted on nodes that it selects: %s", p.Name, cell(p.Problems[0]))
			if more := len(p.Problems) - 1; more > 0 {
				line += fmt.Sprintf("; and %d more, see kubectl describe dp %s", more, p.Name)
			}
			lines = append(lines, line+".")
			continue
		}
		if len(r.Policies) > 1 {
			lines = append(lines, p.line(r.Time)+".")
		}
	}
	return lines
}

// line is the policy in one line.
func (p *Policy) line(now time.Time) string {
	word := "Policy " + p.Name
	switch {
	case p.Observe && p.Paused:
		word += " (only observes, paused)"
	case p.Observe:
		word += " (only observes)"
	case p.Paused:
		word += " (paused)"
	}
	if p.Selected == 0 && p.InTurn == 0 {
		return word + ": no nodes"
	}
	parts := []string{fmt.Sprintf("%s: %d of %d nodes up to date", word, p.UpToDate, p.Selected)}
	if p.InTurn > 0 {
		parts = append(parts, fmt.Sprintf("%d in a turn", p.InTurn))
	}
	parts = append(parts, fmt.Sprintf("%d unavailable, %d allowed", p.Unavailable, p.Allowed))
	if p.Failed > 0 {
		parts = append(parts, fmt.Sprintf("%d failed, %d allowed", p.Failed, p.MaxFailed))
	}
	if p.SettlingUntil != nil {
		parts = append(parts, "settles until "+clock(now, *p.SettlingUntil))
	}
	return strings.Join(parts, "; ")
}

// halted names the policies whose line is stopped.
func (r *Report) halted() []string {
	var names []string
	for i := range r.Policies {
		if r.Policies[i].Halted {
			names = append(names, r.Policies[i].Name)
		}
	}
	return names
}
