package cli

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	urfave "github.com/urfave/cli/v2"
	"github.com/xrash/smetrics"
	"k8s.io/klog/v2"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/config"
)

// connection is the category of the flags that [ConnectionFlags] returns.
const connection = "connection"

// The bound of --request-timeout, and its default. A list of five thousand Nodes is about 50 MB,
// which may arrive over a slow connection.
const (
	maxRequestTimeout     = 10 * time.Minute
	defaultRequestTimeout = 30 * time.Second
)

// minTimeout is the least value of every flag that is a duration.
const minTimeout = time.Second

// maxVerbosity bounds -v. From 8 on, client-go logs bodies, and with them tokens.
const maxVerbosity = 7

// ConnectionFlags returns the flags of every command that talks to the cluster. They may also come
// before the command. Their names and meanings are kubectl's, except --lease.
func ConnectionFlags() []urfave.Flag {
	return append([]urfave.Flag{
		&urfave.StringFlag{Name: "kubeconfig", Category: connection, Usage: "your kubeconfig `FILE`, default $KUBECONFIG or ~/.kube/config"},
		&urfave.StringFlag{Name: "context", Category: connection, Usage: "`NAME` of a context in it, default the current one"},
		&urfave.StringFlag{Name: "request-timeout", Category: connection, Usage: "how long to wait for an answer, a `DURATION` from 1s to 10m, default " + v1alpha1.ShortDuration(defaultRequestTimeout)},
		&urfave.StringFlag{Name: "v", Category: connection, Usage: "log requests to standard error, `LEVEL` 0 to 7 as in kubectl"},
	}, leaseFlags()...)
}

// leaseFlags returns the flags that name lockkeeper's Lease.
func leaseFlags() []urfave.Flag {
	return []urfave.Flag{
		&urfave.StringFlag{Name: "namespace", Aliases: []string{"n"}, Category: connection, Usage: "`NAME` of lockkeeper's namespace, default this host's or " + v1alpha1.DefaultLeaseNamespace},
		&urfave.StringFlag{Name: "lease", Category: connection, Usage: "`NAME` of the Lease in it, default this host's or " + v1alpha1.DefaultLeaseName},
	}
}

// leaseNames returns the namespace and the name of lockkeeper's Lease: those of the flags,
// otherwise those in this host's configuration. An admin's machine usually has none, and then they
// are the defaults.
func leaseNames(c *urfave.Context) (namespace, name string) {
	namespace, name = c.String("namespace"), c.String("lease")
	if namespace != "" && name != "" {
		return namespace, name
	}
	cfg, _, err := config.Load(config.Options{})
	if err != nil {
		fmt.Fprintln(c.App.ErrWriter, "lockkeeper: this host's configuration is invalid, using the default name of the Lease; run `lockkeeper check-config`")
		cfg = config.Default()
	}
	return cmp.Or(namespace, cfg.Lease.Namespace), cmp.Or(name, cfg.Lease.Name)
}

// caller returns what the connection flags say, and stores it for [NameCluster].
func caller(c *urfave.Context) (kube.Caller, error) {
	timeout, err := defaultRequestTimeout, error(nil)
	if c.IsSet("request-timeout") {
		timeout, err = parseDuration(c, "request-timeout", maxRequestTimeout)
	}
	if err != nil {
		return kube.Caller{}, err
	}
	level, err := strconv.Atoi(cmp.Or(c.String("v"), "0"))
	if err != nil || level < 0 || level > maxVerbosity {
		return kube.Caller{}, UsageError("-v %q, expected 0 to %d", c.String("v"), maxVerbosity)
	}
	logRequests(c.App.ErrWriter, level)
	from := kube.Caller{
		Kubeconfig: c.String("kubeconfig"), Context: c.String("context"), RequestTimeout: timeout, Version: c.App.Version,
	}
	c.App.Metadata[connection] = from
	return from, nil
}

// logRequests makes client-go log to w; at level 0 it logs nothing, because our own errors say what
// is wrong.
func logRequests(w io.Writer, level int) {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(flags)
	_ = flags.Set("v", strconv.Itoa(level)) // a number is valid
	klog.LogToStderr(false)
	if level == 0 {
		w = io.Discard
	}
	klog.SetOutput(w)
}

// connect connects to the caller's cluster.
func connect(c *urfave.Context) (*kube.Client, error) {
	from, err := caller(c)
	if err != nil {
		return nil, err
	}
	return from.Connect()
}

// NameCluster adds the cluster that a command talked to, if it talked to one, to its error.
func NameCluster(c *urfave.Context, err error) error {
	from, talked := c.App.Metadata[connection].(kube.Caller)
	switch err.(type) {
	case nil, exitStatus, usageError:
		return err
	}
	if !talked || from.Cluster() == "" {
		return err
	}
	return fmt.Errorf("%w (%s)", err, from.Cluster())
}

// parseDuration returns the value of a flag that is a duration with a unit, from minTimeout to most.
func parseDuration(c *urfave.Context, name string, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(c.String(name))
	if err != nil || d < minTimeout || d > most {
		return 0, UsageError("--%s %q, expected %s to %s, such as 90s", name, c.String(name), v1alpha1.ShortDuration(minTimeout), v1alpha1.ShortDuration(most))
	}
	return d, nil
}

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
	if name == "run" && service == nil {
		return UsageError("this is the command line alone, without the service; the packages for Linux hosts have it")
	}
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
