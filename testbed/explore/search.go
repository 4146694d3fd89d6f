package explore

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Result is the result of an exploration.
type Result struct {
	Config      Config
	States      int
	Transitions int
	Depth       int
	Took        time.Duration
	// Whole is false if MaxStates ended the search early.
	Whole bool
	// Disposed is the number of late writes that did not fit into the model. Any number other than 0 is a gap in the
	// search.
	Disposed int
	// Ran is the number of states that were run on to their rest without further faults. Late is the number of these
	// that needed a timeout.
	Ran, Late int
	// Held counts the turns that were left at rest, by their cause; see Rests.
	Held map[string]int

	Violation *Violation // nil: no violation
}

// Violation is a broken property with a shortest script that leads to it.
type Violation struct {
	Property, Text string
	Script         []string
}

// String summarizes the exploration in one line.
func (r *Result) String() string {
	violations := 0
	if r.Violation != nil {
		violations = 1
	}
	text := fmt.Sprintf("explore: %s: %s states, %s transitions, depth %d, %.1f s, %d violations",
		r.Config, thousands(r.States), thousands(r.Transitions), r.Depth, r.Took.Seconds(), violations)
	if r.Ran > 0 {
		text += fmt.Sprintf("; %s run to rest, %s of them after a timeout", thousands(r.Ran), thousands(r.Late))
	}
	if !r.Whole {
		text += "; NOT WHOLE"
	}
	return text
}

func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// String returns the property, the violation and the script.
func (v *Violation) String() string {
	return fmt.Sprintf("%s: %s, after %d steps:\n%s", v.Property, v.Text, len(v.Script), strings.Join(v.Script, "\n"))
}

// explorer is a breadth-first search, so the first violation that it finds has a shortest script.
type explorer struct {
	*model
	found map[key]uint32
	keys  []key
	from  []uint32
}

// Explore searches every state that c allows. It runs one in every states on to its rest, to check progress; 0 means
// none.
func Explore(c Config, every int) *Result {
	x := &explorer{model: newModel(c), found: map[key]uint32{}}
	r := &Result{Config: c, Whole: true}
	began := time.Now()
	first := x.begin()
	x.add(x.pack(&first, c.Nodes), 0)
	p := newProgress(x.model)
	end := 1 // of the current depth
	for i := 0; i < len(x.keys) && r.Violation == nil; i++ {
		if i == end {
			r.Depth++
			end = len(x.keys)
		}
		if c.MaxStates > 0 && len(x.keys) > c.MaxStates {
			r.Whole = false
			break
		}
		s := x.unpack(x.keys[i], c.Nodes)
		x.next(&s, func(e *event, t *state) {
			r.Transitions++
			k := x.packed(t, &s, x.keys[i])
			if r.Violation == nil {
				if name, text := x.judge(e, &s, t); name != "" {
					r.Violation = &Violation{Property: name, Text: text, Script: x.script(uint32(i), &k)}
				}
			}
			x.add(k, uint32(i))
		})
		if every > 0 && i%every == 0 && r.Violation == nil {
			if text := p.run(x.keys[i], every == 1); text != "" {
				r.Violation = &Violation{Property: "progress", Text: text, Script: x.script(uint32(i), nil)}
			}
		}
	}
	r.Held = p.held
	r.States, r.Disposed, r.Ran, r.Late, r.Took = len(x.keys), x.disposed, p.ran, p.late, time.Since(began)
	return r
}

func (x *explorer) add(k key, from uint32) {
	if _, ok := x.found[k]; ok {
		return
	}
	x.found[k] = uint32(len(x.keys))
	x.keys = append(x.keys, k)
	x.from = append(x.from, from)
}

// script returns the steps to state i and then to the state of last, with names that stay the same from line to line.
func (x *explorer) script(i uint32, last *key) []string {
	var way []key
	for ; i != 0; i = x.from[i] {
		way = append(way, x.keys[i])
	}
	slices.Reverse(way)
	if last != nil {
		way = append(way, *last)
	}
	s := x.begin()
	var lines []string
	for _, k := range way {
		var line string
		var to state
		x.next(&s, func(e *event, t *state) {
			if line != "" || x.pack(t, x.Nodes) != k {
				return
			}
			// If several steps lead to the same state, the script takes the one that breaks a property.
			if name, _ := x.judge(e, &s, t); name == "" && last != nil && k == *last && len(lines) == len(way)-1 {
				return
			}
			line, to = x.line(e, &s, t), *t
		})
		if line == "" {
			return append(lines, "# no step leads on: the model is not symmetric")
		}
		lines = append(lines, line)
		s = x.tidy(to)
	}
	return lines
}

// tidy returns s with every node in its canonical form, in unchanged order.
func (x *model) tidy(s state) state {
	for i := range x.Nodes {
		s.n[i] = x.nodes[x.canonical(s.n[i])]
	}
	return s
}

// Replay runs the steps of a script from the beginning. It returns the property that the script breaks and a
// description, or "". A line that is not possible is an error.
func Replay(c Config, script []string) (property, text string, err error) {
	m := newModel(c)
	s := m.begin()
	for nr, line := range script {
		if l, _, _ := strings.Cut(line, "#"); strings.TrimSpace(l) == "" {
			continue
		}
		a, err := parseAction(line)
		if err != nil {
			return "", "", fmt.Errorf("line %d: %w", nr+1, err)
		}
		found := false
		var to state
		m.next(&s, func(e *event, t *state) {
			if found || e.action != a {
				return
			}
			found, to = true, *t
			property, text = m.judge(e, &s, t)
		})
		if !found {
			return "", "", fmt.Errorf("line %d: %q is not possible here", nr+1, line)
		}
		if property != "" {
			return property, text, nil
		}
		s = m.tidy(to)
	}
	return "", "", nil
}
