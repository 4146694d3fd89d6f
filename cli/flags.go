package cli

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	urfave "github.com/urfave/cli/v2"
	"k8s.io/klog/v2"

	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/config"
)

// connection is the category of the flags that [ConnectionFlags] returns.
const connection = "connection"

// Bounds of --request-timeout, and its default. A list of five thousand Nodes is about 50 MB,
// which may arrive over a slow connection.
const (
	minRequestTimeout     = time.Second
	maxRequestTimeout     = 10 * time.Minute
	defaultRequestTimeout = 30 * time.Second
)

// maxVerbosity bounds -v. From 8 on, client-go logs bodies, and with them tokens.
const maxVerbosity = 7

// ConnectionFlags returns the flags of every command that talks to the cluster. They may also come
// before the command. Their names and meanings are kubectl's, except --lease.
func ConnectionFlags() []urfave.Flag {
	return append([]urfave.Flag{
		&urfave.StringFlag{Name: "kubeconfig", Category: connection, Usage: "your kubeconfig `FILE`, default $KUBECONFIG or ~/.kube/config"},
		&urfave.StringFlag{Name: "context", Category: connection, Usage: "`NAME` of a context in it, default the current one"},
		&urfave.StringFlag{Name: "request-timeout", Category: connection, Usage: "how long to wait for an answer, a `DURATION` from 1s to 10m, default " + short(defaultRequestTimeout)},
		&urfave.StringFlag{Name: "v", Category: connection, Usage: "log requests to standard error, `LEVEL` 0 to 7 as in kubectl"},
	}, leaseFlags()...)
}

// leaseFlags returns the flags that name lockkeeper's Lease.
func leaseFlags() []urfave.Flag {
	of := config.Default().Lease
	return []urfave.Flag{
		&urfave.StringFlag{Name: "namespace", Aliases: []string{"n"}, Category: connection, Usage: "`NAME` of lockkeeper's namespace, default this host's or " + of.Namespace},
		&urfave.StringFlag{Name: "lease", Category: connection, Usage: "`NAME` of the Lease in it, default this host's or " + of.Name},
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
	if namespace == "" {
		namespace = cfg.Lease.Namespace
	}
	if name == "" {
		name = cfg.Lease.Name
	}
	return namespace, name
}

// caller returns what the connection flags say, and stores it for [NameCluster].
func caller(c *urfave.Context) (kube.Caller, error) {
	timeout, err := defaultRequestTimeout, error(nil)
	if c.IsSet("request-timeout") {
		timeout, err = parseDuration(c, "request-timeout", minRequestTimeout, maxRequestTimeout)
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

// short prints a duration without the units that are zero.
func short(d time.Duration) string {
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(d.String())
}

// parseDuration returns the value of a flag that is a duration with a unit, from least to most.
func parseDuration(c *urfave.Context, name string, least, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(c.String(name))
	if err != nil || d < least || d > most {
		return 0, UsageError("--%s %q, expected %s to %s, such as 90s", name, c.String(name), short(least), short(most))
	}
	return d, nil
}
