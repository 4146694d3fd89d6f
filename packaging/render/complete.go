package render

import (
	"fmt"
	"strings"
)

// The completions know the commands, their flags, files where a flag takes one,
// and the words of a flag whose usage lists them. They ask no cluster.

// words returns what a flag's value can be: the words of "FORMAT: text or json" or
// of "GOAL: up-to-date, idle or held".
func (f Flag) words() []string {
	_, list, ok := strings.Cut(f.Usage, f.Value+": ")
	if !ok {
		return nil
	}
	list, _, _ = strings.Cut(list, " (")
	return strings.Split(strings.ReplaceAll(list, " or ", ", "), ", ")
}

func (f Flag) file() bool { return f.Value == "FILE" }

func names(commands []Command) string {
	var out []string
	for _, c := range commands {
		out = append(out, c.Name)
	}
	return strings.Join(out, " ")
}

func typed(flags []Flag) []string {
	var out []string
	for _, f := range flags {
		for _, n := range f.Names {
			out = append(out, dashed(n))
		}
	}
	return out
}

// Bash renders bash's completion of a program.
func Bash(program string, commands []Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Rendered from code. Do not edit: make docs\n\n_%s() {\n", program)
	b.WriteString("\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]-}\n\tCOMPREPLY=()\n")
	fmt.Fprintf(&b, "\tif ((COMP_CWORD == 1)); then\n\t\tmapfile -t COMPREPLY < <(compgen -W '%s --help --version' -- \"$cur\")\n\t\treturn\n\tfi\n", names(commands))
	b.WriteString("\tcase $command:$prev in\n")
	for _, c := range commands {
		for _, f := range c.Flags {
			if f.Value == "" {
				continue
			}
			var at []string
			for _, n := range f.Names {
				at = append(at, c.Name+":"+dashed(n))
			}
			switch {
			case f.file():
				fmt.Fprintf(&b, "\t%s)\n\t\tmapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n\t\ttype compopt &>/dev/null && compopt -o filenames 2>/dev/null\n\t\treturn\n\t\t;;\n", strings.Join(at, " | "))
			default:
				fmt.Fprintf(&b, "\t%s)\n\t\tmapfile -t COMPREPLY < <(compgen -W '%s' -- \"$cur\")\n\t\treturn\n\t\t;;\n", strings.Join(at, " | "), strings.Join(f.words(), " "))
			}
		}
	}
	b.WriteString("\tesac\n\tcase $command in\n")
	for _, c := range commands {
		words := strings.Join(typed(c.Flags), " ")
		if c.Args == "[COMMAND]" {
			words += " " + names(commands)
		}
		fmt.Fprintf(&b, "\t%s) mapfile -t COMPREPLY < <(compgen -W '%s' -- \"$cur\") ;;\n", c.Name, words)
	}
	fmt.Fprintf(&b, "\tesac\n} &&\n\tcomplete -F _%s %s\n", program, program)
	return b.String()
}

// Zsh renders zsh's completion of a program.
func Zsh(program string, commands []Command) string {
	quote := strings.NewReplacer("'", `'\''`, "[", `\[`, "]", `\]`, ":", `\:`)
	var b strings.Builder
	fmt.Fprintf(&b, "#compdef %s\n# Rendered from code. Do not edit: make docs\n\n_%s_commands() {\n\tlocal -a commands=(\n", program, program)
	for _, c := range commands {
		fmt.Fprintf(&b, "\t\t'%s:%s'\n", c.Name, strings.ReplaceAll(c.Usage, "'", `'\''`))
	}
	fmt.Fprintf(&b, "\t)\n\t_describe -t commands command commands\n}\n\n_%s() {\n\tlocal curcontext=$curcontext state line\n\ttypeset -A opt_args\n", program)
	fmt.Fprintf(&b, "\t_arguments -C '(- : *)--help[show the commands]' '(- : *)--version[show the version]' '1: :_%s_commands' '*:: :->arguments' && return\n", program)
	b.WriteString("\t[[ $state == arguments ]] || return 1\n\tcase $line[1] in\n")
	for _, c := range commands {
		fmt.Fprintf(&b, "\t%s)\n\t\t_arguments -s", c.Name)
		for _, f := range c.Flags {
			all := typed([]Flag{f})
			for _, name := range all {
				spec := name + "[" + quote.Replace(f.Usage) + "]"
				switch {
				case f.file():
					spec += ":file:_files"
				case f.Value != "":
					spec += ":" + strings.ToLower(f.Value) + ":(" + strings.Join(f.words(), " ") + ")"
				}
				if len(all) > 1 {
					spec = "(" + strings.Join(all, " ") + ")" + spec
				}
				fmt.Fprintf(&b, " \\\n\t\t\t'%s'", spec)
			}
		}
		switch {
		case c.Args == "[COMMAND]":
			fmt.Fprintf(&b, " \\\n\t\t\t'1: :_%s_commands'", program)
		case strings.Contains(c.Args, "…"):
			fmt.Fprintf(&b, " \\\n\t\t\t'*:%s: '", strings.ToLower(strings.Trim(c.Args, "[…]")))
		default:
			for i, arg := range strings.Fields(c.Args) {
				fmt.Fprintf(&b, " \\\n\t\t\t'%d:%s: '", i+1, strings.ToLower(strings.Trim(arg, "[]")))
			}
		}
		b.WriteString("\n\t\t;;\n")
	}
	fmt.Fprintf(&b, "\tesac\n}\n\nif [[ $funcstack[1] == _%s ]]; then\n\t_%s \"$@\"\nelse\n\tcompdef _%s %s\nfi\n", program, program, program, program)
	return b.String()
}

// Fish renders fish's completion of a program.
func Fish(program string, commands []Command) string {
	quote := strings.NewReplacer(`\`, `\\`, "'", `\'`)
	var b strings.Builder
	fmt.Fprintf(&b, "# Rendered from code. Do not edit: make docs\n\ncomplete -c %s -f\n", program)
	fmt.Fprintf(&b, "complete -c %s -n __fish_use_subcommand -l help -d 'show the commands'\ncomplete -c %s -n __fish_use_subcommand -l version -d 'show the version'\n", program, program)
	for _, c := range commands {
		fmt.Fprintf(&b, "\ncomplete -c %s -n __fish_use_subcommand -a %s -d '%s'\n", program, c.Name, quote.Replace(c.Usage))
		in := fmt.Sprintf("complete -c %s -n '__fish_seen_subcommand_from %s'", program, c.Name)
		for _, f := range c.Flags {
			b.WriteString(in)
			for _, n := range f.Names {
				if len(n) == 1 {
					b.WriteString(" -s " + n)
				} else {
					b.WriteString(" -l " + n)
				}
			}
			switch {
			case f.file():
				b.WriteString(" -rF")
			case f.Value != "":
				b.WriteString(" -x -a '" + strings.Join(f.words(), " ") + "'")
			}
			fmt.Fprintf(&b, " -d '%s'\n", quote.Replace(f.Usage))
		}
		if c.Args == "[COMMAND]" {
			b.WriteString(in + " -a '" + names(commands) + "'\n")
		}
	}
	return b.String()
}
