// Command lockkeeper rolls host updates through a Kubernetes cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
	_ "time/tzdata" // windows have time zones, and a host may lack their database

	"github.com/urfave/cli/v2"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/credential"
	"lockkeeper.dev/lockkeeper/coordinator/forecast"
	"lockkeeper.dev/lockkeeper/coordinator/instance"
	"lockkeeper.dev/lockkeeper/coordinator/report"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/config"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/node/object"
	"lockkeeper.dev/lockkeeper/packaging/manifests"
)

// version is set at build time: -ldflags '-X main.version=v1.2.3'.
var version string

func main() { os.Exit(run(os.Args, os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := newApp(stdout, stderr).RunContext(ctx, args)
	if err == nil {
		return 0
	}
	if status, ok := errors.AsType[exitStatus](err); ok {
		return int(status) // everything has been said
	}
	code := report.ExitError
	var errs config.Errors
	switch {
	case errors.As(err, &errs):
		code = report.ExitConfig
		for _, e := range errs {
			fmt.Fprintf(stderr, "lockkeeper: %v\n", e)
		}
		err = notStarted(len(errs))
	case errors.Is(err, errUsage):
		code = report.ExitUsage
	}
	fmt.Fprintf(stderr, "lockkeeper: %v\n", err)
	return code
}

// exitStatus ends the process with a status and without a word.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// notStarted says what comes of mistakes in the configuration.
func notStarted(mistakes int) error {
	if mistakes == 1 {
		return errors.New("1 mistake in the configuration: nothing was started, nothing changed")
	}
	return fmt.Errorf("%d mistakes in the configuration: nothing was started, nothing changed", mistakes)
}

var errUsage = errors.New("usage")

// usage is a mistake in how lockkeeper was called.
func usage(format string, args ...any) error { return usageError(fmt.Sprintf(format, args...)) }

type usageError string

func (e usageError) Error() string        { return string(e) }
func (e usageError) Is(target error) bool { return target == errUsage }

const helpTemplate = `lockkeeper rolls host updates through a Kubernetes cluster, one host at a time.

Usage: lockkeeper COMMAND [FLAG…] [ARGUMENT…]

{{range .VisibleCommands}}  {{.Name}} {{.ArgsUsage}}{{"\t"}}{{.Usage}}
{{end}}
lockkeeper help COMMAND tells more of each. Flags go before arguments.
`

const commandTemplate = `lockkeeper {{.Name}}{{if .VisibleFlags}} [FLAG…]{{end}}{{if .ArgsUsage}} {{.ArgsUsage}}{{end}}

{{.Usage}}.
{{if .Description}}
{{.Description}}
{{end}}{{if .VisibleFlags}}
Flags:
{{range .VisibleFlags}}  {{.}}
{{end}}{{end}}`

func newApp(stdout, stderr io.Writer) *cli.App {
	cli.HelpFlag = nil // help is a flag of ours: theirs takes a node's name for a topic
	app := &cli.App{
		Name: "lockkeeper", Writer: stdout, ErrWriter: stderr,
		HideHelp: true, HideHelpCommand: true, HideVersion: true, UseShortOptionHandling: true,
		DisableSliceFlagSeparator: true, // a path may have a comma
		CustomAppHelpTemplate:     helpTemplate,
		Flags:                     []cli.Flag{helpFlag(), &cli.BoolFlag{Name: "version", Hidden: true}},
		Before: func(c *cli.Context) error {
			if (c.Bool("help") || c.Bool("version")) && c.Args().Present() {
				return usage("--help and --version go without a command; `lockkeeper help %s` tells of it", c.Args().First())
			}
			return nil
		},
		// No command, or none that is known; cli would exit with 3.
		Action: func(c *cli.Context) error {
			switch {
			case c.Bool("version"):
				return printVersion(c)
			case c.Args().Present():
				return usage("unknown command %q; `lockkeeper help` lists them", c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
		OnUsageError:   onUsageError,
		ExitErrHandler: func(*cli.Context, error) {}, // nobody exits but main
	}
	for _, cmd := range commands() {
		app.Commands = append(app.Commands, finish(cmd))
	}
	return app
}

func helpFlag() cli.Flag {
	return &cli.BoolFlag{Name: "help", Aliases: []string{"h"}, Usage: "show this", DisableDefaultText: true}
}

func onUsageError(c *cli.Context, err error, _ bool) error {
	text := strings.Replace(err.Error(), "flag provided but not defined: ", "unknown flag ", 1)
	help := "lockkeeper help"
	if c.Command != nil && c.Command.Name != "" && c.Command.Name != "lockkeeper" {
		help += " " + c.Command.Name
	}
	return usage("%s; see `%s`", text, help)
}

// finish gives a command what all have: help, and strict arguments.
func finish(cmd *cli.Command) *cli.Command {
	cmd.Flags = append(cmd.Flags, helpFlag())
	cmd.HideHelp, cmd.HideHelpCommand = true, true
	cmd.CustomHelpTemplate = commandTemplate
	cmd.OnUsageError = onUsageError
	do := cmd.Action
	least, most := argsIn(cmd.ArgsUsage)
	cmd.Action = func(c *cli.Context) error {
		if c.Bool("help") {
			cli.HelpPrinter(c.App.Writer, commandTemplate, c.Command)
			return nil
		}
		args := c.Args().Slice()
		for i, a := range args {
			if i > 0 && len(a) > 1 && a[0] == '-' {
				order := append([]string{"lockkeeper", cmd.Name}, append(args[i:len(args):len(args)], args[:i]...)...)
				return usage("%s after an argument would be ignored, so nothing was done; flags go first: %s", a, strings.Join(order, " "))
			}
		}
		if len(args) > most {
			return usage("%s takes %s, not %q; see `lockkeeper help %s`", cmd.Name, takes(cmd.ArgsUsage), args, cmd.Name)
		}
		if len(args) < least {
			return usage("%s needs %s; see `lockkeeper help %s`", cmd.Name, cmd.ArgsUsage, cmd.Name)
		}
		return do(c)
	}
	return cmd
}

// argsIn is how many arguments a usage such as "NODE HOOK", "[NODE]" or "[REASON…]" needs and allows.
func argsIn(usage string) (least, most int) {
	for word := range strings.FieldsSeq(usage) {
		if most++; word[0] != '[' {
			least++
		}
		if strings.Contains(word, "…") {
			most = 1000
		}
	}
	return least, most
}

func takes(usage string) string {
	if usage == "" {
		return "no arguments"
	}
	return usage
}

func commands() []*cli.Command {
	configFlag := func() cli.Flag {
		return &cli.StringFlag{Name: "config", Usage: "the host's `FILE`, instead of " + config.DefaultFile}
	}
	kubeconfig := func() cli.Flag {
		return &cli.StringFlag{Name: "kubeconfig", Usage: "your credential's `FILE`, instead of KUBECONFIG or ~/.kube/config"}
	}
	exitCodeFlag := func() cli.Flag {
		return &cli.BoolFlag{Name: "exit-code", Usage: "say what the report says by the exit status too", DisableDefaultText: true}
	}
	root := &cli.StringFlag{Name: "root", Hidden: true}
	return []*cli.Command{
		{
			Name: "run", Usage: "Look after this host; what the systemd unit starts", Action: runCommand,
			Description: "Exit status: 0 when it was stopped, 78 when the configuration is bad, 1 on errors.",
			Flags:       []cli.Flag{configFlag(), root},
		},
		{
			Name: "status", ArgsUsage: "[NODE]", Usage: "Show how the rollout stands, or one node", Action: statusCommand,
			Description: "Reads the cluster with your own credential. On a host without one, or with the API server away, it shows\n" +
				"this host's own view.\n\n" +
				"Exit status: 0 when the report could be made, 1 on errors. With --exit-code: 0 up to date, 1 error, 2 rolling,\n" +
				"3 held, halted or stopped.",
			Flags: []cli.Flag{
				&cli.BoolFlag{Name: "all", Aliases: []string{"A"}, Usage: "all nodes, not only those that are not idle and content", DisableDefaultText: true},
				&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "go on showing what changes, until interrupted", DisableDefaultText: true},
				&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT`: text or json", Value: "text"},
				exitCodeFlag(),
				kubeconfig(), configFlag(), root,
			},
		},
		{
			Name: "history", ArgsUsage: "[NODE]", Usage: "Show the turns that are over, and how long each stage took", Action: historyCommand,
			Description: "Each host keeps its last ten turns in its HostUpdate. This reads them with your own credential, which needs leave\n" +
				"to list hostupdates.lockkeeper.dev, or to get the one of NODE.",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT`: text or json", Value: "text"},
				kubeconfig(),
			},
		},
		{
			Name: "wait", ArgsUsage: "[NODE]", Usage: "Wait until the fleet or a node is up to date, idle or held", Action: waitCommand,
			Description: "For scripts. Reads the cluster with your own credential and then watches it; an API server that is away for a while\n" +
				"does not end the wait. It prints to standard error what it waits for, whenever that has changed.\n\n" +
				"up-to-date: no node wants anything or is in a turn, as the hosts last reported. idle: no node is in a turn. held: the\n" +
				"rollout is held, halted or stopped; or the node is held. An emergency stop or a halt ends no other wait.\n\n" +
				"Exit status: 0 when it is reached, 1 on errors, 4 when the time is over.",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "for", Usage: "what to wait for, a `GOAL`: up-to-date, idle or held"},
				&cli.StringFlag{Name: "timeout", Usage: "how long to wait, a `DURATION` of 1s to 720h, such as 90m; without it there is no limit"},
				kubeconfig(), configFlag(),
			},
		},
		{
			Name: "plan", ArgsUsage: "[NODE]", Usage: "Show what changes would cost and when, before they happen", Action: planCommand,
			Description: "For each node which rule says what the change costs and why, the plan, which pods would be evicted and which budgets\n" +
				"would block that now, the stages of the turn, what would hold the node now and how many are ahead of it. Nodes of which\n" +
				"the same is to be said are one paragraph. Without --change it is about the changes that are pending now; with it, about\n" +
				"those and the changes named, as if they came to all of these nodes.\n\n" +
				"It reads with your own credential and changes nothing. It needs leave to list nodes and disruptionpolicies.lockkeeper.dev;\n" +
				"with leave to list pods and poddisruptionbudgets.policy, and to get lockkeeper's Lease, it says more.\n\n" +
				"Exit status: 0 when the plan could be made, 1 on errors. With --exit-code also 3: a node would be held.",
			Flags: []cli.Flag{
				&cli.StringSliceFlag{Name: "change", Usage: "a `CHANGE` that is to come, may be repeated; one of file:/etc/…, unit:NAME, sentinel:/run/…, os, os:VERSION and request"},
				&cli.StringFlag{Name: "selector", Aliases: []string{"l"}, Usage: "the nodes whose labels `SELECTOR` selects, as kubectl has it, instead of all"},
				&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT`: text or json", Value: "text"},
				exitCodeFlag(),
				kubeconfig(), configFlag(),
			},
		},
		{
			Name: "check-config", Usage: "Check this host's configuration", Action: checkConfigCommand,
			Description: "Exit status: 0 when it is valid, 78 when it is not.",
			Flags: []cli.Flag{configFlag(),
				&cli.BoolFlag{Name: "effective", Usage: "print every value in effect and where it comes from", DisableDefaultText: true}},
		},
		{
			Name: "retry", ArgsUsage: "NODE", Usage: "Forgive a node's failed turn", Flags: []cli.Flag{kubeconfig(), configFlag()},
			Description: "A node that failed gets no turn for the same changes, and stops the line, until its turn is forgiven. A node that was\n" +
				"turned back need not wait any longer.",
			Action: say(func(c *cli.Context, s *report.Source) (string, error) { return s.Retry(c.Context, c.Args().First()) }),
		},
		{
			Name: "confirm", ArgsUsage: "NODE HOOK", Usage: "Confirm a hook that a node's turn waits for", Flags: []cli.Flag{kubeconfig(), configFlag()},
			Description: "For hooks whose work a person does, or did for a hook that is broken. The turn has to be in the hook's stage; what is\n" +
				"confirmed holds for this turn alone.",
			Action: say(func(c *cli.Context, s *report.Source) (string, error) {
				return s.Confirm(c.Context, c.Args().Get(0), c.Args().Get(1))
			}),
		},
		{
			Name: "stop", ArgsUsage: "[REASON…]", Usage: "Emergency stop: nothing is promoted, no host commits", Flags: []cli.Flag{kubeconfig(), configFlag()},
			Description: "What was committed before goes on: a reboot that was called cannot be called back. Hosts that drain stop evicting\n" +
				"within seconds. `lockkeeper go` ends it.",
			Action: say(func(c *cli.Context, s *report.Source) (string, error) {
				return s.Stop(c.Context, strings.Join(c.Args().Slice(), " "))
			}),
		},
		{
			Name: "go", Usage: "End the emergency stop", Flags: []cli.Flag{kubeconfig(), configFlag()},
			Action: say(func(c *cli.Context, s *report.Source) (string, error) { return s.Go(c.Context) }),
		},
		{
			Name: "manifests", Usage: "Print what a cluster needs, for kubectl apply -f -", Action: manifestsCommand,
			Description: "The kinds DisruptionPolicy and HostUpdate, a namespace, the Lease that coordinators are elected by, and the rights of hosts and of\n" +
				"the coordinator. Nothing runs. Each grant says why it is there. Hosts whose Lease has another name have it at [lease] in\n" +
				"their file.\n\n" +
				"With --policy it prints the policy lockkeeper-default, for all nodes that have no other. It is apart because kubectl\n" +
				"can apply no policy before the API server knows the kind, and because policies are yours: no upgrade touches them.",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "namespace", Usage: "the `NAME` of lockkeeper's namespace", Value: v1alpha1.DefaultLeaseNamespace},
				&cli.StringFlag{Name: "lease", Usage: "the `NAME` of the Lease in it", Value: v1alpha1.DefaultLeaseName},
				&cli.BoolFlag{Name: "no-renewal", Usage: "leave out the coordinator's leave to renew its own token: you mint each one", DisableDefaultText: true},
				&cli.StringSliceFlag{Name: "audience", Usage: "an audience `URL` that the coordinator may request when it renews its token; repeatable (default: those of https://kubernetes.default.svc)"},
				&cli.BoolFlag{Name: "policy", Usage: "print the policy lockkeeper-default, and nothing else", DisableDefaultText: true},
			},
		},
		{
			Name: "kubeconfig", Usage: "Mint the coordinator's kubeconfig, from your own credential", Action: kubeconfigCommand,
			Description: "The kubeconfig needs nothing beside it and is a secret. Hosts that are to stand for election have it at\n" +
				"/etc/lockkeeper/coordinator.kubeconfig. The manifests have to be applied before.\n\n" +
				"It holds a token of the coordinator's service account, which each host renews for itself. This command tests\n" +
				"whether the token can be renewed, and says what to do if it cannot. With --csr it holds a client certificate,\n" +
				"which no host renews. If your own credential may approve the request, this command does so. Otherwise it says\n" +
				"how another user can approve it, and waits.",
			Flags: []cli.Flag{
				kubeconfig(),
				&cli.StringFlag{Name: "context", Usage: "the `NAME` of a context in your kubeconfig, instead of its current one"},
				&cli.StringFlag{Name: "namespace", Usage: "the `NAME` of lockkeeper's namespace", Value: v1alpha1.DefaultLeaseNamespace},
				&cli.StringFlag{Name: "lifetime", Usage: "how long it is to be valid, a `DURATION` of 1h to 365d", Value: "90d"},
				&cli.BoolFlag{Name: "csr", Usage: "have a client certificate signed, instead of asking for a token", DisableDefaultText: true},
				&cli.StringFlag{Name: "server", Usage: "the API server's `URL` as hosts reach it, instead of your kubeconfig's"},
				&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write it to `FILE`, readable for its owner alone, instead of printing it"},
			},
		},
		{Name: "version", Usage: "Show the version", Action: printVersion},
		{Name: "help", ArgsUsage: "[COMMAND]", Usage: "Show the commands, or one of them", Action: helpCommand},
	}
}

func helpCommand(c *cli.Context) error {
	name := c.Args().First()
	if name == "" {
		return cli.ShowAppHelp(c)
	}
	cmd := c.App.Command(name)
	if cmd == nil {
		return usage("unknown command %q; `lockkeeper help` lists them", name)
	}
	cli.HelpPrinter(c.App.Writer, commandTemplate, cmd)
	return nil
}

func printVersion(c *cli.Context) error {
	_, err := fmt.Fprintf(c.App.Writer, "lockkeeper %s (%s, %s/%s)\n", versionText(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

func versionText() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

func manifestsCommand(c *cli.Context) error {
	if c.Bool("policy") {
		_, err := c.App.Writer.Write(manifests.Policy())
		return err
	}
	text, err := manifests.Render(manifests.Options{
		Namespace: c.String("namespace"), Lease: c.String("lease"), NoRenewal: c.Bool("no-renewal"),
		Audiences: c.StringSlice("audience"),
	})
	if err != nil {
		return usage("%v", err)
	}
	_, err = c.App.Writer.Write(text)
	return err
}

func kubeconfigCommand(c *cli.Context) error {
	lifetime, err := credential.ParseLifetime(c.String("lifetime"))
	if err != nil {
		return usage("--lifetime %v", err)
	}
	minted, err := credential.Mint(c.Context, credential.Options{
		Kubeconfig: c.String("kubeconfig"), Context: c.String("context"), Namespace: c.String("namespace"),
		Lifetime: lifetime, Server: c.String("server"), Version: versionText(),
		Certificate: c.Bool("csr"), Tell: func(what string) { fmt.Fprintln(c.App.ErrWriter, "lockkeeper: "+what) },
	})
	if err != nil {
		return err
	}
	if file := c.String("output"); file != "" {
		err = kube.WriteFile(file, minted.Kubeconfig)
	} else {
		_, err = c.App.Writer.Write(minted.Kubeconfig)
	}
	if err != nil {
		return err
	}
	for _, note := range minted.Notes(time.Now()) {
		fmt.Fprintln(c.App.ErrWriter, "lockkeeper: "+note)
	}
	return nil
}

func runCommand(c *cli.Context) error {
	signal.Ignore(syscall.SIGPIPE) // a journal that goes away must not take the service with it
	root, testbed := c.String("root"), c.String("root") != ""
	if !testbed {
		root = "/"
	}
	load := func() (*config.Config, []config.Warning, error) {
		return config.Load(config.Options{File: c.String("config"), Testbed: testbed})
	}
	cfg, warnings, err := load()
	for _, w := range warnings {
		fmt.Fprintf(c.App.ErrWriter, "lockkeeper: %v\n", w)
	}
	if err != nil {
		return err
	}
	release, err := local.Acquire(stateDir(c))
	if err != nil {
		return err
	}
	defer release()
	return instance.Run(c.Context, cfg, instance.Options{
		Version: versionText(), Load: load, Root: root, StateDir: stateDir(c),
	})
}

func stateDir(c *cli.Context) string { return filepath.Join(c.String("root"), local.Dir) }

func checkConfigCommand(c *cli.Context) error {
	cfg, warnings, err := config.Load(config.Options{File: c.String("config")})
	for _, w := range warnings {
		fmt.Fprintf(c.App.ErrWriter, "lockkeeper: %v\n", w)
	}
	if err != nil {
		return err
	}
	for _, finding := range kube.Exposed(cfg.Coordinator.Kubeconfig, "") {
		fmt.Fprintf(c.App.ErrWriter, "lockkeeper: coordinator.kubeconfig: %s\n", finding)
	}
	if c.Bool("effective") {
		return cfg.WriteEffective(c.App.Writer)
	}
	read := "no file; every default holds"
	if files := cfg.Files(); len(files) > 0 {
		read = strings.Join(files, ", ")
	}
	_, err = fmt.Fprintln(c.App.Writer, "valid: "+read)
	return err
}

// source is the caller's cluster. The host's file, where there is one, names
// the Lease; an admin's machine has none, and needs none.
func source(c *cli.Context) (*report.Source, error) {
	klog.LogToStderr(false) // client-go's own words; ours say what is wrong
	klog.SetOutput(io.Discard)
	cfg, _, err := config.Load(config.Options{File: c.String("config")})
	if err != nil {
		if c.IsSet("config") {
			return nil, err
		}
		fmt.Fprintf(c.App.ErrWriter, "lockkeeper: this host's configuration is not valid (`lockkeeper check-config`); taking the Lease's default name\n")
		cfg = config.Default()
	}
	client, err := kube.ConnectCaller(c.String("kubeconfig"), versionText())
	if err != nil {
		return nil, err
	}
	return &report.Source{
		Client: client, Skew: client.Skew, Namespace: cfg.Lease.Namespace, LeaseName: cfg.Lease.Name,
		ReadPolicies:  func(ctx context.Context) (report.PolicyView, error) { return object.ReadPolicies(ctx, client) },
		WatchPolicies: func(notify func()) report.PolicyView { return object.NewPolicies(client, notify) },
		ReadUpdate: func(ctx context.Context, node string) (*v1alpha1.HostUpdate, error) {
			return object.ReadHostUpdate(ctx, client, node)
		},
		Node: c.Args().First(),
	}, nil
}

// say is a command that writes something and says what it did.
func say(do func(*cli.Context, *report.Source) (string, error)) cli.ActionFunc {
	return func(c *cli.Context) error {
		s, err := source(c)
		if err != nil {
			return err
		}
		text, err := do(c, s)
		if err != nil {
			return err
		}
		_, err = io.WriteString(c.App.Writer, text)
		return err
	}
}

func statusCommand(c *cli.Context) error {
	form := report.Form{All: c.Bool("all"), Node: c.Args().First(), JSON: c.String("output") == "json"}
	form.Width, _ = terminalSize(c.App.Writer)
	if o := c.String("output"); o != "json" && o != "text" {
		return usage("-o %q, expected text or json", o)
	}
	if form.All && form.Node != "" {
		return usage("-A shows all nodes and %s is one; leave one of them out", form.Node)
	}
	s, err := source(c)
	if errors.Is(err, kube.ErrNoKubeconfig) {
		return hostStatus(c, form, err)
	}
	if err != nil {
		return err
	}
	r, err := s.Read(c.Context)
	if report.Away(err) {
		return hostStatus(c, form, err)
	}
	if err != nil {
		return err
	}
	if c.Bool("watch") {
		p := &report.Printer{Form: form, W: c.App.Writer}
		if form.Width > 0 {
			p.Size = func() (columns, rows int) { return terminalSize(c.App.Writer) }
		}
		if err := p.Show(r, nil); err != nil {
			return err
		}
		if err := s.Follow(c.Context, p.Show); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		return asStatus(c, p.Exit(), nil)
	}
	exit, err := form.Print(c.App.Writer, &r)
	return asStatus(c, exit, err)
}

func historyCommand(c *cli.Context) error {
	format := c.String("output")
	if format != "json" && format != "text" {
		return usage("-o %q, expected text or json", format)
	}
	client, err := kube.ConnectCaller(c.String("kubeconfig"), versionText())
	if err != nil {
		return err
	}
	var all []v1alpha1.HostUpdate
	if name := c.Args().First(); name == "" {
		var undecodable []error
		all, undecodable, err = object.ListHostUpdates(c.Context, client)
		for _, err := range undecodable {
			fmt.Fprintf(c.App.ErrWriter, "lockkeeper: %v\n", err)
		}
	} else {
		var u *v1alpha1.HostUpdate
		if u, err = object.ReadHostUpdate(c.Context, client, name); err == nil && u == nil {
			err = fmt.Errorf("there is no HostUpdate %q: no host of that name has published one", name)
		}
		if u != nil {
			all = []v1alpha1.HostUpdate{*u}
		}
	}
	if err != nil {
		return err
	}
	form := report.Form{JSON: format == "json"}
	form.Width, _ = terminalSize(c.App.Writer)
	return report.WriteHistory(c.App.Writer, report.History(all), time.Now(), form)
}

// Bounds of wait's --timeout.
const (
	minWait = time.Second
	maxWait = 720 * time.Hour
)

func waitCommand(c *cli.Context) error {
	goal, err := report.ParseGoal(c.String("for"))
	if err != nil {
		return usage("--for %v", err)
	}
	ctx := c.Context
	if text := c.String("timeout"); c.IsSet("timeout") {
		d, err := time.ParseDuration(text)
		if err != nil || d < minWait || d > maxWait {
			return usage("--timeout %q, expected 1s to 720h, such as 90m", text)
		}
		bounded, cancel := context.WithTimeoutCause(ctx, d, report.ErrTimeout)
		defer cancel()
		ctx = bounded
	}
	s, err := source(c)
	if err != nil {
		return err
	}
	err = s.Wait(ctx, goal, c.Args().First(), func(line string) { fmt.Fprintln(c.App.ErrWriter, line) })
	switch {
	case errors.Is(err, report.ErrTimeout):
		fmt.Fprintf(c.App.ErrWriter, "lockkeeper: after %s it is not %s\n", c.String("timeout"), goal)
		return exitStatus(report.ExitTimeout)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted; it is not %s yet", goal)
	}
	return err
}

func planCommand(c *cli.Context) error {
	o := report.PlanOptions{Node: c.Args().First()}
	format := c.String("output")
	if format != "json" && format != "text" {
		return usage("-o %q, expected text or json", format)
	}
	for _, text := range c.StringSlice("change") {
		change, err := forecast.ParseChange(text)
		if err != nil {
			return usage("--change %v", err)
		}
		if slices.ContainsFunc(o.Changes, func(other v1alpha1.Change) bool {
			return other.Source == change.Source && other.Name == change.Name
		}) {
			return usage("--change %q, expected each change once, and one version of the OS", text)
		}
		o.Changes = append(o.Changes, change)
	}
	if c.IsSet("selector") {
		if o.Node != "" {
			return usage("-l selects nodes and %s is one; leave one of them out", o.Node)
		}
		var err error
		if o.Selector, err = labels.Parse(c.String("selector")); err != nil {
			return usage("-l %v", err)
		}
	}
	form := report.Form{JSON: format == "json"}
	form.Width, _ = terminalSize(c.App.Writer)
	s, err := source(c)
	if err != nil {
		return err
	}
	f, err := s.Plan(c.Context, o)
	if err != nil {
		return err
	}
	exit, err := report.PrintPlan(c.App.Writer, &f, form)
	return asStatus(c, exit, err)
}

// hostStatus is the local view; why is why the cluster cannot be shown.
func hostStatus(c *cli.Context, form report.Form, why error) error {
	running, err := local.Running(stateDir(c))
	if err != nil {
		return err
	}
	s, err := local.Read(stateDir(c))
	switch {
	case err != nil && running:
		return fmt.Errorf("%w; lockkeeper runs on this host and has said nothing yet", why)
	case err != nil:
		return fmt.Errorf("%w; and lockkeeper has not run on this host since it booted", why)
	case form.Node != "" && form.Node != s.Node:
		return fmt.Errorf("%w; and this host is not %s", why, form.Node)
	}
	h := report.BuildHost(time.Now(), s, running, why.Error())
	exit, err := h.Print(c.App.Writer, form)
	return asStatus(c, exit, err)
}

// asStatus makes exit the exit status of the process if --exit-code asks for it.
func asStatus(c *cli.Context, exit int, err error) error {
	if err == nil && exit != 0 && c.Bool("exit-code") {
		err = exitStatus(exit)
	}
	return err
}

// terminalSize returns how many columns and rows the terminal has that w is, and
// zeros if w is no terminal that text can be drawn on.
func terminalSize(w io.Writer) (columns, rows int) {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" || os.Getenv("TERM") == "" {
		return 0, 0
	}
	columns, rows, err := term.GetSize(int(f.Fd()))
	switch {
	case err != nil:
		return 0, 0
	case columns == 0: // a terminal that was given no size, such as a serial line
		return 80, 24
	}
	return columns, rows
}
