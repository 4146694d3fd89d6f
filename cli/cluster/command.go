package cluster

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printer prints what a command does.
type Printer struct {
	Out, Err io.Writer
	// Kubectl and Own are the flags with which kubectl and lockkeeper reach the same cluster,
	// quoted for a shell and each after a space; "" for none.
	Kubectl, Own string
}

// command is a command line for nodes: their names are between its head and its tail.
type command struct {
	head, tail string
	nodes      []string
}

// kubectl returns the command that sets the key of an edit to a value; nil removes the key.
func (p Printer) kubectl(e edit, value *string) command {
	verb := "annotate"
	if e.label {
		verb = "label"
	}
	return command{head: "kubectl" + p.Kubectl + " " + verb + " node", tail: " " + assignment(e.key, value)}
}

// assignment returns the last arguments of kubectl annotate and kubectl label.
func assignment(key string, value *string) string {
	if value == nil {
		return Quote(key + "-")
	}
	return "--overwrite " + Quote(key+"="+*value)
}

// commands are command lines, each for all nodes for which it is the same.
type commands []command

func (c *commands) add(line command, node string) {
	i := slices.IndexFunc(*c, func(other command) bool { return other.head == line.head && other.tail == line.tail })
	if i < 0 {
		i, *c = len(*c), append(*c, line)
	}
	(*c)[i].nodes = append((*c)[i].nodes, node)
}

func (c commands) print(w io.Writer, title string) {
	for _, line := range c {
		fmt.Fprintf(w, "%s%s %s%s\n", title, line.head, strings.Join(line.nodes, " "), line.tail)
	}
}

// Quote returns text as one word of a shell command line, without characters that a terminal
// does not show.
func Quote(text string) string {
	plain := func(r rune) bool {
		return r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r)) || strings.ContainsRune("-_./:=@%+,", r)
	}
	hidden := func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
	switch {
	case text != "" && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0:
		return text
	case strings.IndexFunc(text, hidden) < 0:
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	var b strings.Builder
	for i := range len(text) { // bash and zsh; an octal escape has exactly three digits
		switch c := text[i]; {
		case c == '\'' || c == '\\':
			b.WriteString(`\` + string(c))
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	return "$'" + b.String() + "'"
}
