package walkthrough

import (
	"fmt"
	"regexp"
	"strings"
)

// A Step is one block of commands.
type Step struct {
	Title string // the heading above it
	Text  string // the commands, with a newline at the end
}

var assignment = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)

// sets reports whether the step only assigns variables.
func (s Step) sets() bool {
	for line := range strings.Lines(s.Text) {
		if !assignment.MatchString(line) {
			return false
		}
	}
	return true
}

// Steps returns a document's blocks of commands in their order. The error is about a block that does not end.
func Steps(markdown string) ([]Step, error) {
	var steps []Step
	title, in, commands := "", false, false
	for line := range strings.Lines(markdown) {
		fence := strings.HasPrefix(line, "```")
		switch {
		case !in && fence:
			in, commands = true, strings.TrimSpace(line) == "```sh"
			if commands {
				steps = append(steps, Step{Title: title})
			}
		case in && fence:
			in = false
		case in && commands:
			steps[len(steps)-1].Text += line
		case !in && strings.HasPrefix(line, "#"):
			title = strings.TrimSpace(strings.TrimLeft(line, "#"))
		}
	}
	if in {
		return nil, fmt.Errorf("the last block below %q has no end", title)
	}
	return steps, nil
}
