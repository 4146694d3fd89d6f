package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	urfave "github.com/urfave/cli/v2"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/labels"

	"lockkeeper.dev/lockkeeper/cli/cluster"
	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/kube"
)

// intentTexts are the help texts of the commands in [cluster.Intents].
var intentTexts = map[string]struct{ usage, about string }{
	"pause": {"Freeze nodes where they are, or stop the whole cluster", "A paused node gets no turn. During a turn, the turn goes no further: nothing is evicted or " +
		"rebooted, and the node keeps its slot. Nothing is undone. A reboot that the host has already committed continues.\n\n" +
		"--cluster is the emergency stop: no turn begins or advances, and hosts that drain stop evicting within seconds."},
	"resume": {"End a pause of nodes, or the emergency stop", "The turns of the nodes continue where they were. --cluster ends the emergency stop; paused nodes stay paused."},
	"detach": {"Hand nodes to another owner", "lockkeeper removes its labels and annotations from the nodes and does nothing there until they are attached again. During a " +
		"turn, the turn is first backed out, or finished if a reboot or an apply is committed. With --force lockkeeper releases the node " +
		"at once and leaves its cordon to the new owner, unless a reboot or an apply is committed."},
	"attach":   {"Take nodes back that were detached", "lockkeeper starts over from what it finds on the nodes."},
	"manage":   {"Let lockkeeper manage nodes", "Sets the label lockkeeper.dev/managed=true, which overrides managed_by_default in the host's file."},
	"unmanage": {"Keep lockkeeper from managing nodes", "Sets the label lockkeeper.dev/managed=false. During a turn, the turn is first backed out, or finished if a reboot or an apply is committed."},
	"request": {"Request a reboot of nodes", "The request is a change like any other: budget, windows and gates apply. It is over when the turn that carried it out ends.\n\n" +
		"With --now, the turn does not wait for the policy's windows, blackouts, gates and settle time. It still waits for a stop, a pause, the host's own " +
		"vetoes, failed nodes, the budget and the control plane. --now needs the verb request-now."},
	"retry": {"Clear the failed turn of nodes", "A node that failed gets no turn for the same changes, and counts against maxFailed, until its failed turn is " +
		"cleared. A node whose turn was backed out waits before its next turn; retry ends that wait."},
}

// intents returns a command for each [cluster.Intent], and confirm.
func intents() []*urfave.Command {
	var all []*urfave.Command
	for i := range cluster.Intents {
		all = append(all, intentCommand(&cluster.Intents[i]))
	}
	return append(all, confirm())
}

func intentCommand(i *cluster.Intent) *urfave.Command {
	text := intentTexts[i.Command]
	cmd := &urfave.Command{Name: i.Command, ArgsUsage: "[NODE…]", Usage: text.usage, Description: text.about}
	if i.Command == "request" {
		cmd.ArgsUsage = "reboot [NODE…]"
	}
	cmd.Description += "\n\nSeveral nodes are listed and confirmed first. The command prints what it changed, the kubectl command that does the " +
		"same, and how to undo it. Your credential must be allowed to get and patch nodes, and needs the verb " + i.Verb + " on nodes.lockkeeper.dev."
	if i.Cluster {
		cmd.Description += " With --cluster, it needs permission to get and patch the Lease instead."
	}
	if i.NamesOnly {
		cmd.ArgsUsage = "NODE…"
	} else {
		cmd.Flags = append(cmd.Flags, selectorFlag(), &urfave.StringFlag{Name: "policy", Usage: "only nodes whose rollout the policy `NAME` decides"})
	}
	if i.Cluster {
		cmd.Flags = append(cmd.Flags, &urfave.BoolFlag{Name: "cluster", Usage: "the emergency stop of the whole cluster", DisableDefaultText: true})
	}
	if i.HasReason {
		usage := "why, a `TEXT`"
		if i.NeedsReason {
			usage += "; required for more than one node"
		}
		cmd.Flags = append(cmd.Flags, &urfave.StringFlag{Name: "reason", Usage: usage})
	}
	if i.HasUntil {
		cmd.Flags = append(cmd.Flags, &urfave.StringFlag{Name: "until", Usage: "when it ends by itself, a `TIME` in RFC 3339 or a duration such as 2h or 7d"})
	}
	if i.Now != nil {
		cmd.Flags = append(cmd.Flags, &urfave.BoolFlag{Name: "now", Usage: "do not wait for windows, blackouts, gates and settle", DisableDefaultText: true})
	}
	if i.HasForce {
		cmd.Flags = append(cmd.Flags, &urfave.BoolFlag{Name: "force", Usage: "release the node at once", DisableDefaultText: true})
	}
	cmd.Flags = append(cmd.Flags, dryRunFlag(), &urfave.BoolFlag{Name: "yes", Usage: "change several nodes without asking", DisableDefaultText: true})
	cmd.Flags = append(cmd.Flags, ConnectionFlags()...)
	cmd.Action = func(c *urfave.Context) error {
		o, err := options(c, i)
		if err != nil {
			return err
		}
		s, err := source(c)
		if err != nil {
			return err
		}
		return s.Apply(c.Context, o)
	}
	return cmd
}

// options reads the flags and arguments of a command.
func options(c *urfave.Context, i *cluster.Intent) (cluster.Options, error) {
	o := cluster.Options{
		Intent: i, Names: c.Args().Slice(), Policy: c.String("policy"), Stop: c.Bool("cluster"),
		Reason: c.String("reason"), Until: c.String("until"), Force: c.Bool("force"), DryRun: c.Bool("dry-run"),
		Printer: printer(c),
	}
	if c.Bool("now") {
		o.Intent = i.Now
	}
	if i.Command == "request" {
		if o.Names[0] != "reboot" {
			return o, UsageError("request %q, expected reboot", o.Names[0])
		}
		o.Names = o.Names[1:]
	}
	var err error
	if o.Selector, err = selector(c); err != nil {
		return o, err
	}
	targets := 0
	for _, given := range []bool{len(o.Names) > 0, o.Selector != nil, c.IsSet("policy"), o.Stop} {
		if given {
			targets++
		}
	}
	if targets != 1 || c.IsSet("policy") && o.Policy == "" {
		expected := "node names, -l SELECTOR or --policy NAME"
		if i.Cluster {
			expected = "node names, -l SELECTOR, --policy NAME or --cluster"
		}
		return o, UsageError("%s requires exactly one of: %s; nothing was done", i.Command, expected)
	}
	if o.Until != "" && o.Stop {
		return o, UsageError("--until and --cluster cannot be combined: the emergency stop lasts until `lockkeeper resume --cluster`")
	}
	if c.IsSet("until") {
		if _, err := cluster.ParseUntil(o.Until, time.Now()); err != nil {
			return o, UsageError("--until %v", err)
		}
	}
	if len(o.Reason) > cluster.MaxReason {
		return o, UsageError("--reason has %d bytes, expected at most %d", len(o.Reason), cluster.MaxReason)
	}
	o.Confirm = func(names []string) error { return ask(c, i.Command, names) }
	return o, nil
}

// ask asks the user whether to change these nodes.
func ask(c *urfave.Context, command string, names []string) error {
	if c.Bool("yes") {
		return nil
	}
	columns, _ := terminalSize(c.App.ErrWriter)
	p := page.New(columns)
	p.Line(strings.Join(names, " "))
	of := page.Plural(len(names), "node")
	return confirmed(c, fmt.Sprintf("%s would change %s (%s)", command, of, page.Named(names, 10)), p.String()+command+" "+of)
}

// confirmed asks the user a question on the terminal. would says what the command would do, for a script, which has
// no terminal.
func confirmed(c *urfave.Context, would, question string) error {
	in, ok := c.App.Reader.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return UsageError("%s; add --yes, because there is no terminal to ask; nothing was changed", would)
	}
	from, _ := c.App.Metadata[connection].(kube.Caller)
	fmt.Fprintf(c.App.ErrWriter, "%s (%s)? [y/N] ", question, from.Cluster())
	answered := make(chan string, 1)
	go func() { // nothing else ends a read
		line, _ := bufio.NewReader(io.LimitReader(in, 1024)).ReadString('\n') // without an end, the answer is no
		answered <- line
	}()
	answer := ""
	select {
	case <-c.Context.Done():
		fmt.Fprintln(c.App.ErrWriter)
	case answer = <-answered:
	}
	if answer = strings.ToLower(answer); answer != "y\n" && answer != "yes\n" {
		return errors.New("not confirmed, nothing was changed")
	}
	return nil
}

// confirm is `lockkeeper confirm`.
func confirm() *urfave.Command {
	return &urfave.Command{
		Name: "confirm", ArgsUsage: "NODE HOOK", Usage: "Confirm a hook that a node's turn waits for",
		Description: "Use it if you do the hook's work by hand, or if the hook is broken and you have done its work. The turn must be " +
			"in the hook's stage. The confirmation is valid for this turn only.",
		Flags: append([]urfave.Flag{dryRunFlag()}, ConnectionFlags()...),
		Action: func(c *urfave.Context) error {
			s, err := source(c)
			if err != nil {
				return err
			}
			return s.Confirm(c.Context, c.Args().Get(0), c.Args().Get(1), c.Bool("dry-run"), printer(c))
		},
	}
}

// printer returns where a command prints, and the connection flags that the commands that it
// prints need.
func printer(c *urfave.Context) cluster.Printer {
	p := cluster.Printer{Out: c.App.Writer, Err: c.App.ErrWriter}
	for _, name := range []string{"kubeconfig", "context"} {
		if c.IsSet(name) {
			p.Kubectl += " --" + name + " " + cluster.Quote(c.String(name))
		}
	}
	p.Own = p.Kubectl
	for _, name := range []string{"namespace", "lease"} {
		if c.IsSet(name) {
			p.Own += " --" + name + " " + cluster.Quote(c.String(name))
		}
	}
	return p
}

func dryRunFlag() urfave.Flag {
	return &urfave.BoolFlag{Name: "dry-run", Usage: "have the API server check the change, and change nothing", DisableDefaultText: true}
}

func selectorFlag() urfave.Flag {
	return &urfave.StringFlag{Name: "selector", Aliases: []string{"l"}, Usage: "only nodes that match this label `SELECTOR`"}
}

// selector returns what -l selects, nil without -l. An empty selector, such as that of an empty
// variable in a script, is an error, because it would select all nodes.
func selector(c *urfave.Context) (labels.Selector, error) {
	if !c.IsSet("selector") {
		return nil, nil
	}
	s, err := labels.Parse(c.String("selector"))
	if err == nil && s.Empty() {
		err = fmt.Errorf("%q, expected a label selector", c.String("selector"))
	}
	if err != nil {
		return nil, UsageError("-l %v", err)
	}
	return s, nil
}
