package config

import (
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Key is one key of the file.
type Key struct {
	Name    string // with its table, such as "lease.duration"
	Table   string // the table, such as "lease"; "" at the top level
	Last    string // the rest of the name, such as "duration"
	Type    string
	Bounds  string
	Default string // as TOML; "" if the key is required
	Means   string
	// About describes the whole table; it is set for the first of its keys.
	About string
	// List reports whether the key is one of each table of a list. Example is a value
	// for it, as TOML.
	List    bool
	Example string
	// Reload reports whether a reload applies a new value. Otherwise a restart does.
	Reload bool

	secret bool // an error does not repeat the value
	set    func(in target, raw any, testbed bool) (expected string)
	text   func(in target) string // the value as TOML
}

// target is what a key's value is a part of: the host's settings, or a window of theirs.
type target struct {
	*Config
	window *v1alpha1.Window
}

// Keys returns all keys, in the order of the documentation.
func Keys() []Key { return slices.Clone(keys) }

// Title returns the line that begins the key's table, and "" at the top level.
func (k *Key) Title() string {
	switch {
	case k.List:
		return "[[" + k.Table + "]]"
	case k.Table != "":
		return "[" + k.Table + "]"
	}
	return ""
}

const (
	reload  = true
	restart = false
)

// keys is the only definition of the keys. The defaults are read like every other value,
// so a default cannot be out of its own bounds.
var keys = []Key{
	key("mode", choice(ModeAct, ModeObserve), `"act"`, reload,
		"`act`: the host takes its turns. `observe`: the host publishes what it wants and its plan, and never cordons, evicts, applies or reboots.",
		func(c *Config) *Mode { return &c.Mode }),
	key("managed_by_default", boolean(), `true`, reload,
		"What a Node without the label `lockkeeper.dev/managed` means on this host. `false` turns a fleet into an allow-list.",
		func(c *Config) *bool { return &c.ManagedByDefault }),
	key("paused", text("string", "one line of at most 256 bytes", oneLine(256)), `""`, reload,
		"Any text is this host's own veto, and the reason for it: the host commits nothing while it is set. It remains if the Node object is deleted.",
		func(c *Config) *string { return &c.Paused }),
	key("node_name", text("string", "a DNS name of at most 253 bytes, or `\"\"`", or("the name in the host's credential", subdomain)), `""`, restart,
		"The name of this host's Node. `\"\"` takes it from the credential (`system:node:NAME`).",
		func(c *Config) *string { return &c.NodeName }),
	key("log_level", level(), `"info"`, reload,
		"The least severe level that is logged.",
		func(c *Config) *slog.Level { return &c.LogLevel }),
	key("lifecycle_conditions", boolean(), `false`, reload,
		"`true`: the host writes the lifecycle conditions of its Node, such as `Drained`. `false`: it writes none, and removes those that it wrote before. [hostupdate.md](hostupdate.md#the-nodes-lifecycle-conditions) says which, and when.",
		func(c *Config) *bool { return &c.LifecycleConditions }),

	key("kubernetes.kubeconfig", text("path", "absolute, or `\"\"`", or("the first kubelet's kubeconfig that exists", absolute)), `""`, restart,
		"The host's own credential. `\"\"`: the first of these that exists: "+codeList(HostKubeconfigs())+".",
		func(c *Config) *string { return &c.Kubernetes.Kubeconfig }),

	key("lease.namespace", text("string", "a DNS label of at most 63 bytes", label), `"`+v1alpha1.DefaultLeaseNamespace+`"`, restart,
		"The namespace of the Lease with which the coordinator is elected. All keys of `[lease]` have to be the same on every host.",
		func(c *Config) *string { return &c.Lease.Namespace }),
	key("lease.name", text("string", "a DNS name of at most 253 bytes", subdomain), `"`+v1alpha1.DefaultLeaseName+`"`, restart,
		"The name of that Lease.",
		func(c *Config) *string { return &c.Lease.Name }),
	key("lease.duration", duration(10*time.Second, 5*time.Minute, time.Second), `"30s"`, restart,
		"How long the other candidates wait after the last renewal before one of them takes the Lease. Longer than `renew_deadline`.",
		func(c *Config) *time.Duration { return &c.Lease.Duration }),
	key("lease.renew_deadline", duration(5*time.Second, 4*time.Minute, 500*time.Millisecond), `"20s"`, restart,
		"How long a coordinator tries to renew the Lease before it gives up its term. Longer than 1.2 times `retry_period`.",
		func(c *Config) *time.Duration { return &c.Lease.RenewDeadline }),
	key("lease.retry_period", duration(time.Second, time.Minute, 100*time.Millisecond), `"5s"`, restart,
		"How often the coordinator renews the Lease, and how often the other candidates try to get it.",
		func(c *Config) *time.Duration { return &c.Lease.RetryPeriod }),

	key("coordinator.kubeconfig", text("path", "absolute, or `\"\"`", or("a host that is never a candidate", absolute)), `"/etc/lockkeeper/coordinator.kubeconfig"`, restart,
		"The coordinator's credential. A host without this file is never a candidate. A host that gets the file becomes a candidate without a restart. lockkeeper only reads the file, and warns if users other than root can read or change it.",
		func(c *Config) *string { return &c.Coordinator.Kubeconfig }),
	key("coordinator.prometheus_url", text("string", "an address `http://HOST[:PORT][/PATH]`, or of https, or `\"\"`", or("no server, which closes all gates", webAddress)), `""`, restart,
		"The Prometheus server (or another server with its HTTP API) that the coordinator queries for the gates of policies. `\"\"`: none; then every gate is closed, and a policy with gates grants nothing. Certificates are checked against the host's certificate authorities.",
		func(c *Config) *string { return &c.Coordinator.PrometheusURL }),
	key("coordinator.prometheus_token_file", text("path", "absolute, or `\"\"`", or("no token", absolute)), `""`, restart,
		"A file with the bearer token for that server. It is read for each query, so a new token takes effect at once.",
		func(c *Config) *string { return &c.Coordinator.PrometheusTokenFile }),

	secret(key("notify.url", text("string", "an address of https, or of http on a loopback address, or `\"\"`", or("no notifications", webhook)), `""`, restart,
		"Where the coordinator sends notifications ([notifications](notifications.md)). `\"\"`: it sends none. Anyone who has the URL of a chat room's webhook can write into that room, so put it into a drop-in that only root can read. Certificates are checked against the host's certificate authorities. All keys of `[notify]` have to be the same on every candidate.",
		func(c *Config) *string { return &c.Notify.URL })),
	key("notify.token_file", text("path", "absolute, or `\"\"`", or("no token", absolute)), `""`, restart,
		"A file with the bearer token for that URL. It is read for each request, so a new token takes effect at once.",
		func(c *Config) *string { return &c.Notify.TokenFile }),
	key("notify.format", choice(v1alpha1.NotifySlack, v1alpha1.NotifyTeams, v1alpha1.NotifyGeneric), `"generic"`, restart,
		"`slack`: an incoming webhook of Slack. `teams`: a workflow of Microsoft Teams that a webhook request starts. `generic`: lockkeeper's own JSON object.",
		func(c *Config) *v1alpha1.NotifyFormat { return &c.Notify.Format }),
	key("notify.on", list[v1alpha1.Occasion]("list of occasions", codeList(occasions), len(occasions), occasion), `["failed", "halted", "held", "stop"]`, restart,
		"Which notifications to send. `turn-ended` sends one for each turn of each node.",
		func(c *Config) *[]v1alpha1.Occasion { return &c.Notify.On }),
	key("notify.held_longer_than", duration(10*time.Minute, 30*24*time.Hour, time.Second), `"24h"`, restart,
		"How long a node has been held when the notification `held` is sent. Set it longer than nodes usually wait for the window of their policy.",
		func(c *Config) *time.Duration { return &c.Notify.HeldLongerThan }),
	key("notify.cluster", text("string", "one line of at most 64 bytes", oneLine(64)), `""`, restart,
		"The name of the cluster in each notification, for people who have several clusters. `\"\"`: no name.",
		func(c *Config) *string { return &c.Notify.Cluster }),

	key("sources.update_engine", choice(UpdateEngineAuto, UpdateEngineOff), `"auto"`, restart,
		"`auto`: use update_engine (`com.coreos.update1`) if the host has it. `off`: do not use it.",
		func(c *Config) *UpdateEngine { return &c.Sources.UpdateEngine }),
	key("sources.poll_interval", duration(5*time.Second, time.Hour, 200*time.Millisecond), `"30s"`, restart,
		"How often lockkeeper queries update_engine between its signals. update_engine sends no signal when an update is cancelled, so lockkeeper may notice that this much later. Sentinels are watched, and also checked this often.",
		func(c *Config) *time.Duration { return &c.Sources.PollInterval }),
	key("sources.sentinels", list[string]("list of paths", "absolute", 64, absolute), `["/run/reboot-required", "/run/reboot-needed"]`, reload,
		"Files whose existence requests a reboot. They are watched, so lockkeeper notices at once when one appears or disappears.",
		func(c *Config) *[]string { return &c.Sources.Sentinels }),
	key("sources.manager_namespaces", list[string]("list of namespaces", "each a DNS label of at most 63 bytes", 16, label), `[]`, reload,
		"The namespaces, in addition to `kube-system`, in which a pod of another reboot manager on this host's node keeps the host from its turn, such as `\"reboot-coordinator\"` ([manners.md](manners.md#other-reboot-managers)). Anyone who may create pods in one of them can hold hosts.",
		func(c *Config) *[]string { return &c.Sources.ManagerNamespaces }),

	key("fleetlock.listen", text("string", "a loopback `ADDRESS:PORT`, or `\"\"`", or("no FleetLock", loopbackAddress)), `""`, restart,
		"The address on which lockkeeper answers a FleetLock client on this host, such as Zincati on Fedora CoreOS ([Fedora CoreOS](fedora-coreos.md)): `\"127.0.0.1:9478\"`. `\"\"`: none. If another process uses the address, lockkeeper tries again every minute.",
		func(c *Config) *string { return &c.FleetLock.Listen }),
	key("fleetlock.id", text("string", "32 hexadecimal digits, or `\"\"`", or("the ID that Zincati derives from the machine-id", hexID)), `""`, restart,
		"The ID by which the client identifies itself. Requests with another ID are refused. `\"\"`: the ID that Zincati derives from `/etc/machine-id`. Set it if Zincati's configuration has `node_uuid`, without hyphens.",
		func(c *Config) *string { return &c.FleetLock.ID }),

	key("reboot.session_delay", duration(0, time.Hour, 0), `"5m"`, reload,
		"How long the host warns users who are logged in before it reboots, but no more than half of the policy's `timeouts.rebooting`.",
		func(c *Config) *time.Duration { return &c.Reboot.SessionDelay }),
	key("reboot.min_uptime", duration(time.Minute, time.Hour, 0), `"2m"`, reload,
		"How long after a boot the host vetoes the next reboot. Flatcar marks a boot as successful after 45 s.",
		func(c *Config) *time.Duration { return &c.Reboot.MinUptime }),

	about("Each `[[window]]` is a time of the week in which this host may be disrupted. Without any, it may be disrupted at any time. "+
		"While no window is open, the host has the veto `Window`: it commits to no cordon, no apply and no reboot. In a turn during which a window closes, "+
		"evictions that have begun continue, and then the host waits, drained, until a window opens. The turn is backed out if the timeout of its policy for that state is over first, "+
		"unless `drain.onTimeout` is `Wait`. Steps that give the node back to the cluster happen at any time. "+
		"If this host's clock is more than 30 s off the API server's, the windows follow the API server's. "+
		"The windows of a file replace all windows of the files before it. `window = []` at the top of a drop-in removes all windows.",
		windowKey("days", list[v1alpha1.Day]("list of days", "of `\"Mon\"`, `\"Tue\"`, `\"Wed\"`, `\"Thu\"`, `\"Fri\"`, `\"Sat\"` and `\"Sun\"`", 7, oneLine(16)),
			`["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]`, `["Sat"]`,
			"The days on which the window opens. A window that crosses midnight belongs to the day on which it opens.",
			func(w *v1alpha1.Window) *[]v1alpha1.Day { return &w.Days })),
	windowKey("start", text("string", "`00:00` to `23:59`", oneLine(16)), "", `"02:00"`,
		"When the window opens, by the clocks of `time_zone`. If the clocks skip that time (daylight saving), the window opens right after the skip. If they show it twice, the window opens the first time.",
		func(w *v1alpha1.Window) *string { return &w.Start }),
	windowKey("duration", duration(10*time.Minute, 24*time.Hour, 10*time.Minute), "", `"4h"`,
		"How long the window is open, in real time, even if the clocks are changed meanwhile.",
		func(w *v1alpha1.Window) *time.Duration { return &w.Duration.Duration }),
	windowKey("time_zone", text("string", "a name of the IANA time zone database", oneLine(64)), `"UTC"`, `"UTC"`,
		"The time zone of `start` and `days`. The host needs no time zone database.",
		func(w *v1alpha1.Window) *string { return &w.TimeZone }),

	key("hooks.timeout", duration(time.Second, 24*time.Hour, 0), `"10m"`, reload,
		"How long the units that `lockkeeper-before-drain.target` (or the target of another stage) wants may take together.",
		func(c *Config) *time.Duration { return &c.Hooks.Timeout }),
	key("hooks.on_timeout", choice(HookTimeoutWait, HookTimeoutAbort), `"abort"`, reload,
		"`abort`: hook units that take longer are stopped and count as failed. `wait`: they continue until the coordinator's own timeout. In before-uncordon it is always `wait`.",
		func(c *Config) *HookTimeout { return &c.Hooks.OnTimeout }),

	key("health.units", list[string]("list of units", "with their suffix", 64, unit), `[]`, reload,
		"systemd units that must be active after a boot before the host reports that it is healthy.",
		func(c *Config) *[]string { return &c.Health.Units }),
	key("health.timeout", duration(time.Minute, 2*time.Hour, time.Second), `"15m"`, reload,
		"How long after a boot the host may take to become healthy before it reports a failure. The policy's `timeouts.rebooting` should allow for the reboot and for this time: once it has passed, the node is held as `Overdue`, but the turn continues.",
		func(c *Config) *time.Duration { return &c.Health.Timeout }),

	key("metrics.listen", text("string", "`HOST:PORT`, or `\"\"`", or("no server", address)), `"127.0.0.1:9477"`, reload,
		"The address on which `/metrics` and `/healthz` are served ([metrics](metrics.md)). `\"\"`: none. If another process uses the address, lockkeeper tries again every minute.",
		func(c *Config) *string { return &c.Metrics.Listen }),
}

// key defines a key of the host's settings. at returns the place of its value.
func key[T any](name string, k kind[T], def string, reload bool, means string, at func(*Config) *T) Key {
	return newKey(name, k, def, reload, means, func(in target) *T { return at(in.Config) })
}

// windowKey defines a key of each [[window]] table.
func windowKey[T any](name string, k kind[T], def, example, means string, at func(*v1alpha1.Window) *T) Key {
	out := newKey(windowTable+"."+name, k, def, reload, means, func(in target) *T { return at(in.window) })
	out.List, out.Example = true, example
	return out
}

func newKey[T any](name string, k kind[T], def string, reload bool, means string, at func(target) *T) Key {
	table, last, ok := strings.Cut(name, ".")
	if !ok {
		table, last = "", name
	}
	return Key{
		Name: name, Table: table, Last: last, Type: k.name, Bounds: k.bounds, Default: def, Means: means, Reload: reload,
		set: func(in target, raw any, testbed bool) string {
			v, expected := k.read(raw, testbed)
			if expected == "" {
				*at(in) = v
			}
			return expected
		},
		text: func(in target) string { return k.write(*at(in)) },
	}
}

// secret keeps the key's value out of errors, which end up in the journal.
func secret(k Key) Key {
	k.secret = true
	return k
}

// about describes the table whose first key is k.
func about(table string, k Key) Key {
	k.About = table
	return k
}

// setDefault sets the value that the key has in a file without it.
func (k *Key) setDefault(in target) {
	var v struct{ V any }
	if _, err := toml.Decode("V = "+k.Default, &v); err != nil || k.set(in, v.V, false) != "" {
		// A test reads all defaults, so this happens to no user.
		panic("lockkeeper: the default of " + k.Name + " is not valid: " + k.Default)
	}
}

// find returns the key of that name, or nil.
func find(name string) *Key {
	if i := slices.IndexFunc(keys, func(k Key) bool { return k.Name == name }); i >= 0 {
		return &keys[i]
	}
	return nil
}

// isTable reports whether name is a table that holds keys.
func isTable(name string) bool {
	return slices.ContainsFunc(keys, func(k Key) bool { return k.Table == name })
}

func codeList(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "`" + w + "`"
	}
	return joinAnd(quoted)
}
