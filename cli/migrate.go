package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	urfave "github.com/urfave/cli/v2"

	"lockkeeper.dev/lockkeeper/cli/cluster"
	"lockkeeper.dev/lockkeeper/cli/migrate"
)

// migration is `lockkeeper migrate`.
func migration() *urfave.Command {
	return &urfave.Command{
		Name: "migrate", Usage: "Migrate from FLUO, kured or locksmith", Action: migrateCommand,
		Description: "Reads what the other reboot manager has: the labels and annotations of Nodes, its lock, the flags and the environment of its " +
			"Deployment and DaemonSet; for locksmith, update.conf and the unit's drop-ins of this host. Prints the DisruptionPolicies and the host's file that " +
			"come closest, what cannot be carried over and why, and the steps in order. A restriction that cannot be carried over pauses the policy or the " +
			"host until you decide. -o yaml prints only the policies, for kubectl apply -f -, and -o toml only the host's file.\n\n" +
			"With --apply it pauses the nodes that FLUO's reboot-paused pauses, and removes the tool's annotations, labels, taints, and the cordons that the " +
			"tool's own record says are the tool's. It names what it leaves. It refuses while the tool is active: while one of its pods exists, a turn of it " +
			"is under way, or its lock is held.\n\n" +
			"Your credential must be allowed to list nodes, pods, daemonsets and deployments, for FLUO also leases and configmaps, in all namespaces; with " +
			"--apply also to patch nodes, and it needs the verb pause on nodes.lockkeeper.dev if nodes are paused.",
		Flags: append([]urfave.Flag{
			&urfave.StringFlag{Name: "from", Usage: "required: the `TOOL`: fluo, kured or locksmith"},
			&urfave.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "output `FORMAT`: text, yaml or toml", Value: "text"},
			&urfave.BoolFlag{Name: "apply", Usage: "carry over paused nodes and remove what the tool left on Nodes", DisableDefaultText: true},
			dryRunFlag(),
			&urfave.BoolFlag{Name: "yes", Usage: "change several nodes without asking", DisableDefaultText: true},
			rootFlag(),
		}, ConnectionFlags()...),
	}
}

func migrateCommand(c *urfave.Context) error {
	tool := migrate.Tool(c.String("from"))
	switch output := c.String("output"); {
	case !slices.Contains(migrate.Tools(), tool):
		return UsageError("--from %q, expected fluo, kured or locksmith", tool)
	case output != "text" && output != "yaml" && output != "toml":
		return UsageError("-o %q, expected text, yaml or toml", output)
	case c.Bool("apply") && output != "text":
		return UsageError("--apply and -o cannot be combined")
	case !c.Bool("apply") && (c.Bool("dry-run") || c.Bool("yes")):
		return UsageError("--dry-run and --yes belong to --apply; without it nothing is changed")
	case c.Bool("apply") && tool == migrate.Locksmith:
		return UsageError("--apply has nothing to do for locksmith, which leaves nothing in the cluster; `systemctl mask --now locksmithd` stops it on a host")
	}
	in, err := &migrate.Input{Now: time.Now(), Zones: time.LoadLocation}, error(nil)
	if tool == migrate.Locksmith {
		err = readHost(in, c.String("root"))
	} else {
		var s *cluster.Source
		if s, err = source(c); err != nil {
			return err
		}
		if c.Bool("apply") {
			return s.Migrate(c.Context, cluster.Migration{
				Tool: tool, DryRun: c.Bool("dry-run"), Out: c.App.Writer, Err: c.App.ErrWriter,
				Confirm: func(nodes []string) error { return ask(c, "migrate", nodes) },
			})
		}
		in, err = s.ReadMigration(c.Context, tool)
	}
	if err != nil {
		return err
	}
	text, err := migrationText(tool, in, c.String("output"))
	if err != nil {
		return err
	}
	_, err = io.WriteString(c.App.Writer, text)
	return err
}

func migrationText(tool migrate.Tool, in *migrate.Input, output string) (string, error) {
	r, err := migrate.From(tool, in)
	if err != nil {
		return "", err
	}
	switch {
	case output == "text":
		return r.Text()
	case len(r.Policies) == 0:
		return "", fmt.Errorf("no workload of %s was found, so there are no settings to carry over", tool)
	case output == "toml":
		return r.HostFile, nil
	}
	var all []string
	for i := range r.Policies {
		text, err := r.Policies[i].YAML()
		if err != nil {
			return "", err
		}
		all = append(all, text)
	}
	return strings.Join(all, "---\n"), nil
}

// readHost reads locksmith's configuration from this host. root is "" except in tests.
func readHost(in *migrate.Input, root string) error {
	in.Files = map[string]string{}
	names := []string{migrate.VendorUpdateConf, migrate.UpdateConf}
	for _, dir := range migrate.LocksmithDropIns() {
		found, err := filepath.Glob(filepath.Join(root, dir, "*.conf"))
		if err != nil {
			return err
		}
		for _, name := range found {
			names = append(names, filepath.Join(dir, filepath.Base(name)))
		}
	}
	for _, name := range names {
		text, err := readStart(filepath.Join(root, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return fmt.Errorf("reading locksmith's configuration: %w", err)
		default:
			in.Files[name] = text
		}
	}
	if len(in.Files) == 0 {
		return fmt.Errorf("neither %s nor %s exists: run the command on a Flatcar host", migrate.UpdateConf, migrate.VendorUpdateConf)
	}
	target, err := os.Readlink(filepath.Join(root, "/etc/localtime"))
	if _, zone, ok := strings.Cut(target, "zoneinfo/"); ok {
		in.HostZone = zone
	} else if errors.Is(err, fs.ErrNotExist) {
		in.HostZone = "UTC" // localtime(5): without the link it is UTC
	}
	return nil
}

// readStart reads a file, of which [migrate.MaxFile] bytes and one more at most.
func readStart(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, migrate.MaxFile+1))
	return string(text), err
}
