package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"time"

	urfave "github.com/urfave/cli/v2"
	"k8s.io/apimachinery/pkg/labels"
	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/cluster"
	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/node/local"
)

// leaveWithin is the default of --timeout. A turn whose host has committed to its reboot takes
// about half an hour at most.
const leaveWithin = time.Hour

// leave is `lockkeeper leave`.
func leave() *urfave.Command {
	return &urfave.Command{
		Name: "leave", ArgsUsage: "[NODE…]", Usage: "Take nodes out for good, before lockkeeper is removed from them", Action: leaveCommand,
		Description: "Sets the label lockkeeper.dev/managed=false and waits for each node: its turn is backed out, or finished if a reboot or an apply " +
			"is committed, lockkeeper's own cordon is undone, and the coordinator releases the node. The command then removes what is left of " +
			"lockkeeper's on the Node, and the HostUpdate. Only the label stays, because a host that still runs lockkeeper would join again. Remove " +
			"the package next, and then the label.\n\n" +
			"Several nodes are listed and confirmed first. You can interrupt the command and run it again. Your credential must be allowed to get, " +
			"list, watch and patch nodes, and to delete hostupdates.lockkeeper.dev, and needs the verb manage on nodes.lockkeeper.dev, and the " +
			"verb of every other intent that is set on the nodes.\n\n" +
			"If no instance coordinates, or during an emergency stop, no node is released: the command ends after 1m and says so. With " +
			"--without-coordinator it removes everything itself. That requires the verb override.\n\n" +
			"With --this-host it makes lockkeeper on this host give up its own node, with the host's credential and as root. The removal of the " +
			"package does the same. What a host cannot remove stays: the label held, and the record of its last turn.\n\n" +
			"Exit status: 0 if all nodes have left, 1 on errors, 4 if the timeout expires.",
		Flags: append([]urfave.Flag{
			selectorFlag(),
			&urfave.BoolFlag{Name: "all", Usage: "all nodes", DisableDefaultText: true},
			&urfave.BoolFlag{Name: "this-host", Usage: "only the node of the host on which the command runs", DisableDefaultText: true},
			&urfave.BoolFlag{Name: "without-coordinator", Usage: "do not wait for a release; only if no instance releases nodes", DisableDefaultText: true},
			&urfave.StringFlag{Name: "timeout", Usage: "how long to wait, a `DURATION` from 1s to 720h; default 1h, and 2m with --this-host"},
			dryRunFlag(),
			&urfave.BoolFlag{Name: "yes", Usage: "do not ask", DisableDefaultText: true},
			rootFlag(),
		}, ConnectionFlags()...),
	}
}

func leaveCommand(c *urfave.Context) error {
	timeout, host := leaveWithin, c.Bool("this-host")
	if host {
		timeout = hostLeaves
	}
	if c.IsSet("timeout") {
		var err error
		if timeout, err = parseDuration(c, "timeout", maxWait); err != nil {
			return err
		}
	}
	if host {
		if c.Args().Present() || c.IsSet("selector") || c.Bool("all") || c.Bool("without-coordinator") || c.Bool("dry-run") {
			return UsageError("--this-host can be combined with --timeout only; nothing was done")
		}
		return leaveThisHost(c, timeout)
	}
	o, err := leaveOptions(c)
	if err != nil {
		return err
	}
	s, err := source(c)
	if err != nil {
		return err
	}
	var pending []string
	o.Selected = func(names []string) { pending = slices.Clone(names) }
	if err := s.Apply(c.Context, o); err != nil || o.DryRun {
		return err
	}
	all := pending
	if c.Bool("without-coordinator") {
		pending, err = s.LeaveAllUnreleased(c.Context, pending, func(line string) { fmt.Fprintln(c.App.ErrWriter, "lockkeeper: "+line) })
	} else {
		ctx, cancel := context.WithTimeoutCause(c.Context, timeout, cluster.ErrTimeout)
		defer cancel()
		pending, err = s.WaitLeft(ctx, pending, func(line string) { fmt.Fprintln(c.App.ErrWriter, line) })
	}
	if err != nil {
		return notLeft(c, pending, timeout, err)
	}
	left := "1 node has left"
	if len(all) != 1 {
		left = fmt.Sprintf("%d nodes have left", len(all))
	}
	fmt.Fprintf(c.App.Writer, "%s. Next, remove lockkeeper from these hosts. After that, remove the label:\n  kubectl%s label node %s %s-\n",
		left, o.Kubectl, strings.Join(all, " "), v1alpha1.LabelManaged)
	return nil
}

// leaveOptions reads which nodes are to leave.
func leaveOptions(c *urfave.Context) (o cluster.Options, err error) {
	o = cluster.Options{
		Intent: &cluster.Leave, Names: c.Args().Slice(), DryRun: c.Bool("dry-run"), Printer: printer(c),
		Confirm: func(names []string) error { return ask(c, "leave", names) },
	}
	if o.Selector, err = selector(c); err != nil {
		return o, err
	}
	targets := 0
	for _, given := range []bool{len(o.Names) > 0, o.Selector != nil, c.Bool("all")} {
		if given {
			targets++
		}
	}
	if targets != 1 {
		return o, UsageError("leave requires exactly one of: node names, -l SELECTOR, --all or --this-host; nothing was done")
	}
	if c.Bool("all") {
		o.Selector = labels.Everything()
	}
	return o, nil
}

// notLeft returns the error of a wait that ended before all nodes had left, and prints what can be
// done.
func notLeft(c *urfave.Context, pending []string, timeout time.Duration, err error) error {
	names, p := strings.Join(pending, " "), printer(c)
	fmt.Fprintf(c.App.ErrWriter, "lockkeeper: not left yet: %s\nThe label %s=false stays, so they leave as soon as they can. Run the command again to wait and to remove what is left.\n",
		names, v1alpha1.LabelManaged)
	if _, ok := errors.AsType[*report.UnreleasedError](err); ok {
		fmt.Fprintf(c.App.ErrWriter, "To remove everything without a coordinator, with the verb override on nodes.lockkeeper.dev:\n  lockkeeper leave%s --without-coordinator %s\n", p.Own, names)
	}
	switch {
	case errors.Is(err, cluster.ErrTimeout):
		fmt.Fprintf(c.App.ErrWriter, "If lockkeeper no longer runs on the host of such a node, its turn does not end by itself. Then release the node, and run the command again:\n"+
			"  lockkeeper detach%s --force NODE\n  kubectl%s uncordon NODE\n", p.Own, p.Kubectl)
		fmt.Fprintf(c.App.ErrWriter, "lockkeeper: timed out after %s\n", v1alpha1.ShortDuration(timeout))
		return exitStatus(report.ExitTimeout)
	case errors.Is(err, context.Canceled):
		return errors.New("interrupted")
	}
	return err
}

// hostLeaves is the default of --timeout with --this-host. The removal of the package waits this
// long at most, and package managers show no progress meanwhile. readStatusEvery is how often the
// command reads what the service reports.
const (
	hostLeaves      = 2 * time.Minute
	readStatusEvery = 250 * time.Millisecond
)

// leaveThisHost has the service on this host give its node up, and waits until it has. It works
// with the host's own credential, which the service has. The service is asked by a file, so that
// it still leaves if it starts again, and by SIGHUP, so that it reads the file at once.
func leaveThisHost(c *urfave.Context, timeout time.Duration) error {
	dir := stateDir(c)
	running, err := local.Running(dir)
	if err != nil {
		return err
	}
	s, err := local.Read(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	elsewhere := fmt.Sprintf("if the cluster still has keys of lockkeeper on its Node, run `lockkeeper leave %s` where you have access to the cluster", cmp.Or(s.Node, "NODE"))
	switch {
	case !running:
		return fmt.Errorf("lockkeeper does not run on this host, so it cannot give its node up; %s", elsewhere)
	case s.UID == "":
		return fmt.Errorf("lockkeeper has not seen its Node since it started, so it cannot give it up; %s", elsewhere)
	}
	if err := local.Leave(dir); err != nil {
		return err
	}
	if err := syscall.Kill(s.PID, syscall.SIGHUP); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("asking process %d to leave: %w", s.PID, err)
	}
	fmt.Fprintf(c.App.ErrWriter, "lockkeeper: %s leaves; waiting up to %s until its turn is over and the coordinator has released it\n", s.Node, v1alpha1.ShortDuration(timeout))
	ctx, cancel := context.WithTimeout(c.Context, timeout)
	defer cancel()
	s, err = waitUntilLeft(ctx, dir, func(line string) { fmt.Fprintln(c.App.ErrWriter, "lockkeeper: "+line) })
	undo := "rm /run/lockkeeper/leaving && systemctl reload lockkeeper"
	switch {
	case err == nil:
		fmt.Fprintf(c.App.Writer, "%s has left. To undo while lockkeeper is installed: %s\n", s.Node, undo)
		return nil
	case ctx.Err() != nil && c.Context.Err() == nil:
		fmt.Fprintf(c.App.ErrWriter, "lockkeeper: timed out after %s; %s has not left: %s\nlockkeeper: %s\n", v1alpha1.ShortDuration(timeout), s.Node, page.Visible(s.Line), elsewhere)
		if s.Cordoned {
			fmt.Fprintf(c.App.ErrWriter, "lockkeeper: the node is cordoned; if lockkeeper cordoned it, it stays so until you run: kubectl uncordon %s\n", s.Node)
		}
		return exitStatus(report.ExitTimeout)
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted; the host still leaves. To undo: %s", undo)
	}
	return err
}

// waitUntilLeft reads what the service reports until it has left, and says what it waits for
// whenever that changes. It returns what it read last.
func waitUntilLeft(ctx context.Context, dir string, say func(line string)) (s local.Status, err error) {
	tick := time.NewTicker(readStatusEvery)
	defer tick.Stop()
	for last := ""; ; {
		if s, err = local.Read(dir); err != nil {
			return s, err
		}
		if s.Left {
			return s, nil
		}
		if s.Line != last {
			say(page.Visible(s.Line)) // with the reason of a pause, which another user wrote
			last = s.Line
		}
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-tick.C:
		}
	}
}
