package cli

import (
	"fmt"
	"slices"
	"strings"

	urfave "github.com/urfave/cli/v2"
	"github.com/xrash/smetrics"
)

// Arrange rewrites a command line such that urfave, which ends flags at the first argument, accepts
// what kubectl accepts: flags anywhere after the command, the app's flags before it, and combined
// short flags such as -Ao json and -ojson. A lone -- ends the flags. args[0] is the program. The
// result has the command first, then the flags, --, and the arguments.
func Arrange(app *urfave.App, args []string) ([]string, error) {
	program, rest := args[0], args[1:]
	at, err := commandAt(app.Flags, rest)
	if err != nil {
		return nil, err
	}
	out, table, name := []string{program}, app.Flags, ""
	if at < len(rest) {
		cmd := app.Command(rest[at])
		if cmd == nil {
			return nil, UnknownCommand(app, rest[at])
		}
		if cmd.SkipFlagParsing {
			return args, nil
		}
		out, table, name = append(out, cmd.Name), cmd.Flags, " "+cmd.Name
		rest = slices.Delete(slices.Clone(rest), at, at+1)
	}
	flags, words, err := split(table, rest)
	if err != nil {
		return nil, UsageError("%v; see `lockkeeper help%s`", err, name)
	}
	return append(append(append(out, flags...), "--"), words...), nil
}

// UnknownCommand returns the error for a command that does not exist.
func UnknownCommand(app *urfave.App, name string) error {
	var known []string
	for _, cmd := range app.Commands {
		if !cmd.Hidden {
			known = append(known, cmd.Name)
		}
	}
	return UsageError("unknown command %q%s; see `lockkeeper help`", name, didYouMean(name, known))
}

// commandAt returns where the command is: the first word that is not a flag or a flag's value.
// It returns len(args) if there is none.
func commandAt(table []urfave.Flag, args []string) (int, error) {
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "--":
			continue
		case !isFlag(args[i]):
			return i, nil
		}
		_, takesNext, err := expand(table, args[i])
		if err != nil {
			return 0, UsageError("%v before the command; see `lockkeeper help`", err)
		}
		if takesNext {
			i++
		}
	}
	return len(args), nil
}

// split separates flags, each with its value, from arguments.
func split(table []urfave.Flag, args []string) (flags, words []string, err error) {
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "--":
			return flags, append(words, args[i+1:]...), nil
		case !isFlag(args[i]):
			words = append(words, args[i])
			continue
		}
		some, takesNext, err := expand(table, args[i])
		if err != nil {
			return nil, nil, err
		}
		flags = append(flags, some...)
		if takesNext {
			if i++; i == len(args) {
				return nil, nil, fmt.Errorf("%s requires a value", args[i-1])
			}
			flags = append(flags, args[i])
		}
	}
	return flags, words, nil
}

// isFlag reports whether a word is a flag; "-" alone is an argument.
func isFlag(word string) bool { return len(word) > 1 && word[0] == '-' }

// expand returns a word as flags that urfave understands, and whether the last one takes the next
// word as its value.
func expand(table []urfave.Flag, word string) (flags []string, takesNext bool, err error) {
	if long, ok := strings.CutPrefix(word, "--"); ok {
		name, _, hasValue := strings.Cut(long, "=")
		takes, err := takesValue(table, name)
		return []string{word}, takes && !hasValue, err
	}
	for i, letter := range word[1:] {
		rest := word[1+i+len(string(letter)):]
		takes, err := takesValue(table, string(letter))
		switch {
		case err != nil:
			return nil, false, fmt.Errorf("unknown flag %s", word)
		case takes && rest != "" || strings.HasPrefix(rest, "="):
			return append(flags, "-"+string(letter)+"="+strings.TrimPrefix(rest, "=")), false, nil
		}
		flags, takesNext = append(flags, "-"+string(letter)), takes
	}
	return flags, takesNext, nil
}

// takesValue reports whether the flag of this name takes a value.
func takesValue(table []urfave.Flag, name string) (bool, error) {
	var known []string
	for _, f := range table {
		if slices.Contains(f.Names(), name) {
			doc, ok := f.(urfave.DocGenerationFlag)
			return ok && doc.TakesValue(), nil
		}
		if visible, ok := f.(urfave.VisibleFlag); ok && visible.IsVisible() {
			known = append(known, dashed(f)...)
		}
	}
	return false, fmt.Errorf("unknown flag %s%s", dash(name), didYouMean(dash(name), known))
}

// didYouMean suggests the known name that is most similar to one that a user mistyped. It returns
// "" if none is similar.
func didYouMean(name string, known []string) string {
	best, similarity := "", 0.85
	for _, k := range known {
		if s := smetrics.JaroWinkler(strings.TrimLeft(k, "-"), strings.TrimLeft(name, "-"), 0.7, 4); s > similarity {
			best, similarity = k, s
		}
	}
	if best == "" {
		return ""
	}
	return " (did you mean " + best + "?)"
}
