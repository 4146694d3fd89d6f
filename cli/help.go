package cli

import (
	"context"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	urfave "github.com/urfave/cli/v2"

	"lockkeeper.dev/lockkeeper/cli/cluster"
	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/cli/report"
)

// helpWidth is the width of all help texts, in columns.
const helpWidth = 80

// AppHelp writes the list of all commands.
func AppHelp(c *urfave.Context) error {
	p := page.New(helpWidth)
	p.Line("lockkeeper rolls host updates through a Kubernetes cluster.")
	p.WriteString("\nUsage: " + c.App.Name + " COMMAND [FLAG…] [ARGUMENT…]\n\n")
	var rows [][]string
	for _, cmd := range c.App.VisibleCommands() {
		rows = append(rows, []string{strings.TrimSpace(cmd.Name + " " + cmd.ArgsUsage), cmd.Usage})
	}
	p.Table("  ", nil, rows)
	p.WriteString(asTyped(c.App, "\n`lockkeeper help COMMAND` describes a command. Flags may follow arguments.\n`lockkeeper help "+ExitStatusTopic+"` lists the exit statuses.\n"))
	_, err := io.WriteString(c.App.Writer, p.String())
	return err
}

// The names of the program as a plugin of kubectl. kubectl runs kubectl-lockkeeper for
// `kubectl lockkeeper`, and kubectl_complete-lockkeeper to complete it.
const (
	pluginName      = "kubectl lockkeeper"
	pluginFile      = "kubectl-lockkeeper"
	pluginCompletes = "kubectl_complete-lockkeeper"
)

// AsPlugin makes app a plugin of kubectl if args, whose first is the program, say that kubectl
// started it. It returns the arguments to run app with.
func AsPlugin(app *urfave.App, args []string) []string {
	switch filepath.Base(args[0]) {
	case pluginFile:
		app.Name = pluginName
	case pluginCompletes:
		app.Name = pluginName
		return append([]string{args[0], CompleteCommand}, args[1:]...)
	}
	return args
}

// asTyped returns text with the commands in it as the user types them: a plugin's begin with kubectl.
func asTyped(app *urfave.App, text string) string {
	return strings.ReplaceAll(text, "`lockkeeper ", "`"+app.Name+" ")
}

// ExitStatusTopic is the name of the help topic that [ExitStatusHelp] writes.
const ExitStatusTopic = "exit-status"

// seeExitStatus ends the description of a command that has exit statuses of its own.
const seeExitStatus = "\n\nExit statuses: `lockkeeper help " + ExitStatusTopic + "`."

// ExitStatusHelp writes the list of all exit statuses.
func ExitStatusHelp(c *urfave.Context) error {
	p := page.New(helpWidth)
	p.WriteString("Exit statuses of lockkeeper:\n\n")
	var rows [][]string
	for _, s := range report.ExitStatuses() {
		rows = append(rows, []string{strconv.Itoa(s.Status), s.Means})
	}
	p.Table("  ", nil, rows)
	_, err := io.WriteString(c.App.Writer, p.String())
	return err
}

// CommandHelp writes the help of one command.
func CommandHelp(c *urfave.Context, cmd *urfave.Command) error {
	p := page.New(helpWidth)
	p.Line(strings.TrimSpace("Usage: " + c.App.Name + " " + cmd.Name + " [FLAG…] " + cmd.ArgsUsage))
	p.WriteString("\n" + cmd.Usage + ".\n")
	for paragraph := range strings.SplitSeq(cmd.Description, "\n\n") {
		if paragraph != "" {
			p.WriteByte('\n')
			p.Block("", asTyped(c.App, paragraph))
		}
	}
	for _, group := range []struct{ title, category string }{{"Flags", ""}, {"Connection", connection}} {
		var rows [][]string
		for _, f := range cmd.VisibleFlags() {
			if of, ok := f.(urfave.CategorizableFlag); !ok || of.GetCategory() != group.category {
				continue
			}
			names := dashed(f)
			slices.Reverse(names) // the short one first
			form := strings.Join(names, ", ")
			if flag, ok := f.(urfave.DocGenerationFlag); ok && flag.TakesValue() {
				_, value, _ := strings.Cut(flag.GetUsage(), "`")
				value, _, _ = strings.Cut(value, "`")
				form += " " + value
			}
			_, usage, _ := strings.Cut(f.String(), "\t")
			rows = append(rows, []string{form, usage})
		}
		if len(rows) > 0 {
			p.WriteString("\n" + group.title + ":\n")
			p.Table("  ", nil, rows)
		}
	}
	_, err := io.WriteString(c.App.Writer, p.String())
	return err
}

// CompleteCommand is the hidden command whose action is [Complete].
const CompleteCommand = "__complete"

// Complete is what the shells' completions call with the words of a command line up to the
// cursor. It prints what the last word can be, one candidate a line, with its description
// after a tab; and ":files" where a file's name is expected. The shell drops the candidates
// that do not begin with the word. For kubectl, the last line is a directive of cobra instead: 4 for
// no files, 0 for files.
func Complete(c *urfave.Context) error {
	last := ""
	switch files := offerCandidates(c); {
	case c.App.Name == pluginName && files:
		last = ":0\n"
	case c.App.Name == pluginName:
		last = ":4\n"
	case files:
		last = ":files\n"
	}
	_, err := io.WriteString(c.App.Writer, last)
	return err
}

// offerCandidates prints the candidates. It reports whether files' names are among them.
func offerCandidates(c *urfave.Context) (files bool) {
	offer := func(word, what string) { fmt.Fprintf(c.App.Writer, "%s\t%s\n", word, what) }
	words := c.Args().Slice()
	commands := func() {
		for _, cmd := range c.App.VisibleCommands() {
			offer(cmd.Name, cmd.Usage)
		}
	}
	if len(words) < 2 {
		commands()
		return files
	}
	cmd := c.App.Command(words[0])
	if cmd == nil {
		return files
	}
	for _, f := range cmd.VisibleFlags() {
		flag, ok := f.(urfave.DocGenerationFlag)
		if !ok || !flag.TakesValue() || !slices.Contains(dashed(f), words[len(words)-2]) {
			continue
		}
		if strings.Contains(flag.GetUsage(), "`FILE`") {
			files = true
		}
		values := valuesIn(flag.GetUsage())
		if f.Names()[0] == "policy" {
			values = policyNames(c, cmd, words[1:])
		}
		for _, value := range values {
			offer(value, "")
		}
		return files
	}
	if cmd.Name == "help" {
		commands()
		offer(ExitStatusTopic, "Show the exit statuses")
	}
	if names := argumentNames(c, cmd, words[1:]); len(names) > 0 {
		for _, name := range names {
			offer(name, "")
		}
		return files
	}
	for _, f := range cmd.VisibleFlags() {
		for _, name := range dashed(f) {
			_, usage, _ := strings.Cut(f.String(), "\t")
			offer(name, usage)
		}
	}
	return files
}

// dashed returns the names of a flag as a user types them.
func dashed(f urfave.Flag) []string {
	var names []string
	for _, n := range f.Names() {
		names = append(names, dash(n))
	}
	return names
}

// dash returns the name of a flag as a user types it.
func dash(name string) string { return "--"[:min(len(name), 2)] + name }

// valuesIn returns the values that a flag's usage lists: those of "`FORMAT`: text or json".
func valuesIn(usage string) []string {
	_, list, listed := strings.Cut(usage, "`: ")
	if !listed {
		return nil
	}
	return strings.Split(strings.ReplaceAll(list, " or ", ", "), ", ")
}

// completeTimeout bounds the time for which a shell waits for names from the cluster.
const completeTimeout = 2 * time.Second

// argumentNames returns what the last of the words can be, if the command takes an argument there:
// names of nodes or of hooks that a node's turn waits for, or a fixed word. words follow the command.
func argumentNames(c *urfave.Context, cmd *urfave.Command, words []string) []string {
	flags, args, err := split(cmd.Flags, words[:len(words)-1])
	usage := strings.Fields(cmd.ArgsUsage)
	if err != nil || len(usage) == 0 || isFlag(words[len(words)-1]) {
		return nil
	}
	expected := usage[min(len(args), len(usage)-1)]
	if len(args) >= len(usage) && !strings.Contains(expected, "…") {
		return nil
	}
	switch strings.Trim(expected, "[…]") {
	case "NODE":
		names := clusterNames(c, cmd, flags, func(ctx context.Context, s *cluster.Source) ([]string, error) { return s.NodeNames(ctx) })
		return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args, name) })
	case "HOOK":
		return clusterNames(c, cmd, flags, func(ctx context.Context, s *cluster.Source) ([]string, error) { return s.HookNames(ctx, args[0]) })
	}
	if strings.ToLower(expected) == expected && !strings.HasPrefix(expected, "[") {
		return []string{expected}
	}
	return nil
}

// policyNames returns the names of all policies. words follow the command.
func policyNames(c *urfave.Context, cmd *urfave.Command, words []string) []string {
	flags, _, err := split(cmd.Flags, words[:len(words)-2])
	if err != nil {
		return nil
	}
	return clusterNames(c, cmd, flags, func(ctx context.Context, s *cluster.Source) ([]string, error) { return s.PolicyNames(ctx) })
}

// clusterNames reads names from the cluster that the flags on the command line select. Without an
// answer in time it returns none, because a shell cannot show an error.
func clusterNames(c *urfave.Context, cmd *urfave.Command, flags []string, read func(context.Context, *cluster.Source) ([]string, error)) []string {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	for _, f := range cmd.Flags {
		if f.Apply(set) != nil {
			return nil
		}
	}
	if set.Parse(flags) != nil {
		return nil
	}
	app := *c.App
	app.ErrWriter = io.Discard
	ctx, cancel := context.WithTimeout(c.Context, completeTimeout)
	defer cancel()
	found := make(chan []string, 1)
	go func() { // a credential plugin may ignore the context
		defer close(found)
		s, err := source(urfave.NewContext(&app, set, nil))
		if err != nil {
			return
		}
		if names, err := read(ctx, s); err == nil {
			found <- names
		}
	}()
	select {
	case <-ctx.Done():
		return nil
	case names := <-found:
		return names
	}
}
