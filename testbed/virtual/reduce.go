package virtual

import (
	"slices"
	"strings"
	"time"
)

// Reduction bounds the search for a smaller plan.
type Reduction struct {
	// Repeats is how often a plan is tried before it counts as passing, because the scheduling of goroutines differs between runs; 0 means 1.
	Repeats int
	// Tries bounds the number of runs, and Within their time, in real time; 0 is no bound.
	Tries  int
	Within time.Duration
}

// ruleOf returns the rule in a description of what failed: the text before the first colon.
func ruleOf(why string) string {
	rule, _, _ := strings.Cut(why, ":")
	return rule
}

// Reduce returns a smaller plan that fails with the same rule as p does, why it fails, and how many runs it took. It removes faults, more at a
// time at first, until no fault that is left can be removed, or until a bound is reached. failed runs a plan, and returns whether it failed and
// why: the rule, a colon and a text. Reduce returns p and "" if p itself does not fail.
func Reduce(p Plan, failed func(Plan) (bool, string), o Reduction) (smaller Plan, why string, runs int) {
	r := &reducer{failed: failed, o: o, start: time.Now()}
	why, ok := r.fails(p, "")
	if !ok {
		return p, "", r.runs
	}
	rule := ruleOf(why)
	try := func(candidate Plan) bool {
		text, ok := r.fails(candidate, rule)
		if ok {
			p, why = candidate, text
		}
		return ok
	}
	with := func(faults []Fault) Plan { return Plan{Seed: p.Seed, Length: p.Length, Faults: faults} }
	for parts := 2; len(p.Faults) > 0 && !r.over(); {
		size := (len(p.Faults) + parts - 1) / parts
		removed := false
		// From the end: what happens after the violation makes no difference, and is most of a plan.
		for last := len(p.Faults); last > 0 && !r.over(); last -= size {
			first := max(last-size, 0)
			if try(with(slices.Concat(p.Faults[:first], p.Faults[last:]))) {
				removed = true
			}
		}
		if !removed {
			if size == 1 {
				break
			}
			parts = min(2*parts, len(p.Faults))
		} else {
			parts = max(min(parts, len(p.Faults)), 2)
		}
	}
	for i, f := range p.Faults {
		if f.Times > 1 && !r.over() {
			faults := slices.Clone(p.Faults)
			faults[i].Times = 0
			try(with(faults))
		}
	}
	return p, why, r.runs
}

type reducer struct {
	failed func(Plan) (bool, string)
	o      Reduction
	start  time.Time
	runs   int
}

// over reports whether a bound is reached.
func (r *reducer) over() bool {
	return r.o.Tries > 0 && r.runs >= r.o.Tries || r.o.Within > 0 && time.Since(r.start) >= r.o.Within
}

// fails runs the plan until it fails with the rule, or with any rule if it is "".
func (r *reducer) fails(p Plan, rule string) (why string, ok bool) {
	for i := 0; i < max(r.o.Repeats, 1) && (i == 0 || !r.over()); i++ {
		r.runs++
		if failed, why := r.failed(p); failed && (rule == "" || ruleOf(why) == rule) {
			return why, true
		}
	}
	return "", false
}
