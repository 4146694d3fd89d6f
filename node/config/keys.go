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
	Name    string // with its tables, such as "lease.duration"
	Type    string
	Bounds  string
	Default string // as TOML; "" is that the key has to be there
	Means   string
	// About is said of a table as a whole, with the first of its keys.
	About string
	// List reports whether the key is one of each table of a list; Example is a
	// value for it, as TOML.
	List    bool
	Example string
	// Reload reports whether a reload applies a new value; else a restart does.
	Reload bool

	set  func(c *Config, raw any, testbed bool) (expected string)
	text func(c *Config) string // the value as TOML
	same func(a, b *Config) bool
	// secret: an error does not repeat the value.
	secret bool
	// setWindow is set for the keys of windows.
	setWindow func(w *windowValues, raw any) (expected string)
}

// Keys are all keys, in the order of the documentation.
func Keys() []Key {
	at := slices.IndexFunc(keys, func(k Key) bool { return strings.HasPrefix(k.Name, afterWindows) })
	return slices.Insert(slices.Clone(keys), at, windowKeys...)
}

// afterWindows is the table before which the windows' keys are shown.
const afterWindows = "hooks."

const (
	reload  = true
	restart = false
)

// keys is the one definition. The defaults go the way of every other value, so
// none of them can be out of its own bounds.
var keys = []Key{
	key("mode", choice(ModeAct, ModeObserve), `"act"`, reload,
		"`act`: the host takes its turns. `observe`: it publishes what it wants and plans, and never cordons, evicts, applies or reboots.",
		func(c *Config) *Mode { return &c.Mode }),
	key("managed_by_default", boolean(), `true`, reload,
		"What a Node without the label `lockkeeper.dev/managed` means on this host. `false` turns a fleet into an allow-list.",
		func(c *Config) *bool { return &c.ManagedByDefault }),
	key("paused", text("string", "one line of at most 256 bytes", oneLine(256)), `""`, reload,
		"Any text is this host's own veto, and its reason: nothing is committed while it is there. It outlives the Node object.",
		func(c *Config) *string { return &c.Paused }),
	key("node_name", text("string", "a DNS name of at most 253 bytes, or `\"\"`", or("the name in the host's credential", subdomain)), `""`, restart,
		"The name of this host's Node. `\"\"` takes it from the credential (`system:node:NAME`).",
		func(c *Config) *string { return &c.NodeName }),
	key("log_level", level(), `"info"`, reload,
		"What is logged: this and what is more severe.",
		func(c *Config) *slog.Level { return &c.LogLevel }),
	key("lifecycle_conditions", boolean(), `false`, reload,
		"`true`: the host writes the lifecycle conditions of its Node, such as `Drained` ([which, and when](hostupdate.md#the-nodes-lifecycle-conditions)). `false`: it writes none, and removes those that it wrote before.",
		func(c *Config) *bool { return &c.LifecycleConditions }),

	key("kubernetes.kubeconfig", text("path", "absolute, or `\"\"`", or("the kubelet's, first found", absolute)), `""`, restart,
		"The host's own credential. `\"\"` is the first that exists of "+codeList(HostKubeconfigs())+".",
		func(c *Config) *string { return &c.Kubernetes.Kubeconfig }),

	key("lease.namespace", text("string", "a DNS label of at most 63 bytes", label), `"`+v1alpha1.DefaultLeaseNamespace+`"`, restart,
		"The namespace of the Lease that coordinators are elected by. All keys of `[lease]` have to be the same on every host.",
		func(c *Config) *string { return &c.Lease.Namespace }),
	key("lease.name", text("string", "a DNS name of at most 253 bytes", subdomain), `"`+v1alpha1.DefaultLeaseName+`"`, restart,
		"The name of that Lease.",
		func(c *Config) *string { return &c.Lease.Name }),
	key("lease.duration", duration(10*time.Second, 5*time.Minute, time.Second), `"30s"`, restart,
		"How long a coordinator that is gone keeps its term. Longer than `renew_deadline`.",
		func(c *Config) *time.Duration { return &c.Lease.Duration }),
	key("lease.renew_deadline", duration(5*time.Second, 4*time.Minute, 500*time.Millisecond), `"20s"`, restart,
		"How long a coordinator goes on trying to renew its term before it gives up. Longer than 1.2 times `retry_period`.",
		func(c *Config) *time.Duration { return &c.Lease.RenewDeadline }),
	key("lease.retry_period", duration(time.Second, time.Minute, 100*time.Millisecond), `"5s"`, restart,
		"How often the coordinator renews its term and the others try to get one.",
		func(c *Config) *time.Duration { return &c.Lease.RetryPeriod }),

	key("coordinator.kubeconfig", text("path", "absolute, or `\"\"`", or("a host that never campaigns", absolute)), `"/etc/lockkeeper/coordinator.kubeconfig"`, restart,
		"The coordinator's credential. A host that has none never campaigns; one that gets the file is a candidate without a restart. lockkeeper only reads it, and warns if users other than root can read or change it.",
		func(c *Config) *string { return &c.Coordinator.Kubeconfig }),
	key("coordinator.prometheus_url", text("string", "an address `http://HOST[:PORT][/PATH]`, or of https, or `\"\"`", or("no server, and no open gate", webAddress)), `""`, restart,
		"The Prometheus, or what speaks its HTTP API, that the coordinator asks for the gates of policies. `\"\"` is none: then no gate is open, and nothing is granted under a policy that has any. Certificates are checked against the host's authorities.",
		func(c *Config) *string { return &c.Coordinator.PrometheusURL }),
	key("coordinator.prometheus_token_file", text("path", "absolute, or `\"\"`", or("no token", absolute)), `""`, restart,
		"A file with the bearer token for it. It is read for each query, so that a new token needs nothing else.",
		func(c *Config) *string { return &c.Coordinator.PrometheusTokenFile }),

	secret(key("notify.url", text("string", "an address of https, or of http on a loopback address, or `\"\"`", or("no notifications", webhook)), `""`, restart,
		"Where the coordinator sends notifications ([notifications](notifications.md)). `\"\"` sends none. Anyone who has the URL of a chat room's webhook can write into that room, so put it into a drop-in that only root can read. Certificates are checked against the host's authorities. All keys of `[notify]` have to be the same on every candidate.",
		func(c *Config) *string { return &c.Notify.URL })),
	key("notify.token_file", text("path", "absolute, or `\"\"`", or("no token", absolute)), `""`, restart,
		"A file with the bearer token for it. It is read for each request, so that a new token needs nothing else.",
		func(c *Config) *string { return &c.Notify.TokenFile }),
	key("notify.format", choice(v1alpha1.NotifySlack, v1alpha1.NotifyTeams, v1alpha1.NotifyGeneric), `"generic"`, restart,
		"`slack`: an incoming webhook of Slack. `teams`: a workflow of Microsoft Teams that a webhook request starts. `generic`: lockkeeper's own JSON object.",
		func(c *Config) *v1alpha1.NotifyFormat { return &c.Notify.Format }),
	key("notify.on", list("list of occasions", codeList(occasions), len(occasions), occasion), `["failed", "halted", "held", "stop"]`, restart,
		"What to send. `turn-ended` is one notification for each turn of each node.",
		func(c *Config) *[]string { return &c.Notify.On }),
	key("notify.held_longer_than", duration(10*time.Minute, 30*24*time.Hour, time.Second), `"24h"`, restart,
		"For how long a node is held before that is an occasion of the kind `held`. Longer than a node usually waits for its policy's window.",
		func(c *Config) *time.Duration { return &c.Notify.HeldLongerThan }),
	key("notify.cluster", text("string", "one line of at most 64 bytes", oneLine(64)), `""`, restart,
		"The cluster's name in each notification, for people who have several. `\"\"` is none.",
		func(c *Config) *string { return &c.Notify.Cluster }),

	key("sources.update_engine", choice(UpdateEngineAuto, UpdateEngineOff), `"auto"`, restart,
		"`auto`: listen to update_engine (`com.coreos.update1`) if there is one. `off`: never.",
		func(c *Config) *UpdateEngine { return &c.Sources.UpdateEngine }),
	key("sources.poll_interval", duration(5*time.Second, time.Hour, 200*time.Millisecond), `"30s"`, restart,
		"How often update_engine is asked without a signal of its own, and so how late an update that is cancelled, which it does not signal, may be noticed. Sentinels are watched; they are looked at this often too.",
		func(c *Config) *time.Duration { return &c.Sources.PollInterval }),
	key("sources.sentinels", list("list of paths", "absolute", 64, absolute), `["/run/reboot-required", "/run/reboot-needed"]`, reload,
		"Files whose existence calls for a reboot. They are watched: one that comes or goes is seen at once.",
		func(c *Config) *[]string { return &c.Sources.Sentinels }),

	key("reboot.session_delay", duration(0, time.Hour, 0), `"5m"`, reload,
		"How long the host waits, after it has warned them, for users who are logged in before it reboots.",
		func(c *Config) *time.Duration { return &c.Reboot.SessionDelay }),
	key("reboot.min_uptime", duration(time.Minute, time.Hour, 0), `"2m"`, reload,
		"How long after a boot the host vetoes the next one. Flatcar marks a boot as good 45 s after it.",
		func(c *Config) *time.Duration { return &c.Reboot.MinUptime }),

	key("hooks.timeout", duration(time.Second, 24*time.Hour, 0), `"10m"`, reload,
		"How long the units that `lockkeeper-before-drain.target` (or that of another stage) wants may take together.",
		func(c *Config) *time.Duration { return &c.Hooks.Timeout }),
	key("hooks.on_timeout", choice(HookTimeoutWait, HookTimeoutAbort), `"abort"`, reload,
		"`abort`: hook units that take longer are stopped and count as failed. `wait`: they go on, and the coordinator's own timeout decides. In before-uncordon it is always `wait`.",
		func(c *Config) *HookTimeout { return &c.Hooks.OnTimeout }),

	key("health.units", list("list of units", "with their suffix", 64, unit), `[]`, reload,
		"systemd units that have to be active after a boot before the host calls itself healthy.",
		func(c *Config) *[]string { return &c.Health.Units }),
	key("health.timeout", duration(time.Minute, 2*time.Hour, time.Second), `"15m"`, reload,
		"How long after a boot the host may take to be healthy before it says that it failed.",
		func(c *Config) *time.Duration { return &c.Health.Timeout }),

	key("metrics.listen", text("string", "`HOST:PORT`, or `\"\"`", or("nowhere", address)), `"127.0.0.1:9477"`, reload,
		"Where `/metrics` and `/healthz` are served ([metrics](metrics.md)). `\"\"` is nowhere. An address that somebody else has is tried again every minute.",
		func(c *Config) *string { return &c.Metrics.Listen }),
}

// key ties a kind to the place of its value.
func key[T any](name string, k kind[T], def string, reload bool, means string, at func(*Config) *T) Key {
	return Key{
		Name: name, Type: k.name, Bounds: k.bounds, Default: def, Means: means, Reload: reload,
		set: func(c *Config, raw any, testbed bool) string {
			v, expected := k.read(raw, testbed)
			if expected == "" {
				*at(c) = v
			}
			return expected
		},
		text: func(c *Config) string { return k.write(*at(c)) },
		same: func(a, b *Config) bool { return k.same(*at(a), *at(b)) },
	}
}

// secret keeps the key's value out of errors, which end up in the journal.
func secret(k Key) Key {
	k.secret = true
	return k
}

// setDefault reads the default as it would stand in a file.
func (k *Key) setDefault(c *Config) {
	var v struct{ V any }
	_, err := toml.Decode("V = "+k.Default, &v)
	expected := ""
	if err == nil {
		expected = k.set(c, v.V, false)
	}
	if err != nil || expected != "" {
		// A test reads all of them, so no user comes here.
		panic("lockkeeper: the default of " + k.Name + " is not valid: " + k.Default)
	}
}

// find returns the key of that name, or nil.
func find(name string) *Key {
	for i := range keys {
		if keys[i].Name == name {
			return &keys[i]
		}
	}
	return nil
}

// isTable reports whether name is a table that holds keys.
func isTable(name string) bool {
	for i := range keys {
		if strings.HasPrefix(keys[i].Name, name+".") {
			return true
		}
	}
	return false
}

func codeList(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "`" + w + "`"
	}
	return joinAnd(quoted)
}
