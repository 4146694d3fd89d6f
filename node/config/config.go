package config

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// DefaultFile is the host's file unless another is named.
const DefaultFile = "/etc/lockkeeper/lockkeeper.toml"

// Mode is what a host may do.
type Mode string

// The modes.
const (
	// ModeAct: the host takes its turns.
	ModeAct Mode = "act"
	// ModeObserve: the host publishes and plans; it never cordons, evicts,
	// applies or reboots.
	ModeObserve Mode = "observe"
)

// UpdateEngine is whether a host listens to update_engine.
type UpdateEngine string

// The answers.
const (
	// UpdateEngineAuto: if there is one on the bus.
	UpdateEngineAuto UpdateEngine = "auto"
	// UpdateEngineOff: never.
	UpdateEngineOff UpdateEngine = "off"
)

// Config is a host's settings, validated: every value is within the bounds
// that [Keys] documents. [Load] makes it; nobody changes it afterwards.
type Config struct {
	Mode             Mode
	ManagedByDefault bool   // what an absent label managed means on this host
	Paused           string // the host's own veto and why; "" is none
	NodeName         string // "" is the name in the host's credential
	LogLevel         slog.Level
	// LifecycleConditions: the host writes the lifecycle conditions of its Node.
	LifecycleConditions bool

	Kubernetes  Kubernetes
	Lease       Lease
	Coordinator Coordinator
	Notify      Notify
	Sources     Sources
	Reboot      Reboot
	// Windows are when the host may be disturbed; none is always.
	Windows []policy.Window
	Hooks   Hooks
	Health  Health
	Metrics Metrics

	origins map[string]origin // by key; what is absent is a default
	// windowOrigins are those of the keys of each window.
	windowOrigins []map[string]origin
	files         []string // what was read, in the order in which it was
}

// Kubernetes is how the host reaches the API server.
type Kubernetes struct {
	Kubeconfig string // "" is the first of [HostKubeconfigs] that exists
}

// Lease is the Lease that coordinators are elected by; the same on every host.
// Duration > RenewDeadline > 1.2 * RetryPeriod, as client-go's election asks.
type Lease struct {
	Namespace     string
	Name          string
	Duration      time.Duration
	RenewDeadline time.Duration
	RetryPeriod   time.Duration
}

// Coordinator is what a host needs to stand for election.
type Coordinator struct {
	// Kubeconfig is the coordinator identity's. While there is no such file,
	// or it is "", the host does not campaign.
	Kubeconfig string
	// PrometheusURL is where policies' gates are asked, "" is nowhere.
	PrometheusURL string
	// PrometheusTokenFile holds the bearer token for that, "" is none.
	PrometheusTokenFile string
}

// Notify is where a host that leads sends notifications, and which.
type Notify struct {
	URL       string // "" is nowhere
	TokenFile string // holds the bearer token for that; "" is none
	Format    v1alpha1.NotifyFormat
	On        []string // each a [v1alpha1.Occasion]
	// HeldLongerThan is for how long a node is held before that is an occasion.
	HeldLongerThan time.Duration
	Cluster        string // the name in each notification; "" is none
}

// Sources are where the host looks for changes.
type Sources struct {
	UpdateEngine UpdateEngine
	PollInterval time.Duration
	Sentinels    []string // absolute paths
}

// Reboot is what a host waits for before it reboots.
type Reboot struct {
	SessionDelay time.Duration
	MinUptime    time.Duration
}

// Hooks are how this host's own hook units are run.
type Hooks struct {
	Timeout   time.Duration // of all units of a stage together
	OnTimeout HookTimeout   // before-uncordon waits, whatever it says
}

// HookTimeout is what follows when the hook units of a stage take too long.
type HookTimeout string

// What can follow.
const (
	// HookTimeoutWait: nothing; it is reported.
	HookTimeoutWait HookTimeout = "wait"
	// HookTimeoutAbort: they are stopped and count as failed.
	HookTimeoutAbort HookTimeout = "abort"
)

// Health is what proves a boot.
type Health struct {
	Units   []string // names of systemd units
	Timeout time.Duration
}

// Metrics is what the process serves of itself.
type Metrics struct {
	Listen string // HOST:PORT for /metrics and /healthz; "" is nowhere
}

// Options say what to load.
type Options struct {
	// File is the host's file. "" is [DefaultFile], which need not exist; a
	// file that is named has to. Drop-ins come with it: see [Load].
	File string
	// Testbed lowers the minima of durations, so that tests need not wait. It
	// is no setting: only the hidden flag --root of `lockkeeper run` sets it.
	Testbed bool
}

// Load reads the host's file and its drop-ins and validates all of it.
//
// The default file has drop-ins in config.d below /usr/lib/lockkeeper,
// /etc/lockkeeper and /run/lockkeeper. They are read after the file in the
// order of their names, whichever directory they are in; one in /run replaces
// one of the same name in /etc, and that one in /usr/lib, as a whole. A link to
// /dev/null masks. A file that was named and is not the default one has the
// drop-ins in config.d beside it and no others. Later values replace earlier
// ones key by key, lists as a whole.
//
// The error is an [Errors] with everything that is wrong, not only the first;
// Config is nil then. Warnings come with either.
func Load(o Options) (*Config, []Warning, error) {
	return load(layoutOf(o.File), o.Testbed)
}

func load(l layout, testbed bool) (*Config, []Warning, error) {
	texts, warnings, errs := l.read()
	c := unset()
	for _, t := range texts {
		errs = append(errs, c.apply(t, testbed)...)
	}
	if len(errs) == 0 {
		errs = c.checkLease()
	}
	if len(errs) > 0 {
		return nil, warnings, errs
	}
	return c, append(warnings, c.exposedWebhook()...), nil
}

// exposedWebhook warns if others can read the URL of a chat room: whoever has it
// can write into that room.
func (c *Config) exposedWebhook() []Warning {
	o, set := c.origins["notify.url"]
	if !set || c.Notify.URL == "" || c.Notify.Format == v1alpha1.NotifyGeneric {
		return nil
	}
	info, err := os.Stat(o.file)
	if err != nil || info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	return []Warning{{o.file, "users other than root can read notify.url, with which they can write into the room: move [notify] to a drop-in of mode 0600"}}
}

// Default is the settings of a host without a file.
func Default() *Config { return unset() }

// unset is the defaults.
func unset() *Config {
	c := &Config{origins: map[string]origin{}}
	for i := range keys {
		keys[i].setDefault(c)
	}
	return c
}

// apply sets what a file says, and returns what is wrong with it in the order
// of its lines.
func (c *Config) apply(d document, testbed bool) Errors {
	settings, errs := parse(d.file, d.data)
	for _, s := range settings {
		if s.key == windowTable {
			errs = append(errs, c.setWindows(s)...)
			continue
		}
		k := find(s.key)
		if expected := k.set(c, s.raw, testbed); expected != "" {
			got := show(s.raw)
			if k.secret {
				got = "a value that is not shown"
			}
			errs = append(errs, &Error{File: s.file, Line: s.line, Key: s.key, Got: got, Expected: expected})
			continue
		}
		c.origins[s.key] = s.origin
	}
	slices.SortStableFunc(errs, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Key, b.Key))
	})
	c.files = append(c.files, d.file)
	return errs
}

// renewJitter is client-go's: its elector refuses to start unless the renew
// deadline is longer than the retry period stretched by it.
const renewJitter = 1.2

// checkLease checks the three durations against each other.
func (c *Config) checkLease() Errors {
	l := &c.Lease
	wrong := func(expected string, keys ...string) Errors {
		e := &Error{Key: keys[0], Got: find(keys[0]).text(c), Expected: expected}
		// Blame a key that somebody set, not a default.
		for _, key := range slices.Backward(keys) {
			if o, set := c.origins[key]; set {
				e.File, e.Line, e.Key, e.Got = o.file, o.line, key, find(key).text(c)
			}
		}
		return Errors{e}
	}
	if l.Duration <= l.RenewDeadline {
		return wrong(fmt.Sprintf("lease.duration (%s) longer than lease.renew_deadline (%s)", short(l.Duration), short(l.RenewDeadline)),
			"lease.renew_deadline", "lease.duration")
	}
	if float64(l.RenewDeadline) <= renewJitter*float64(l.RetryPeriod) {
		return wrong(fmt.Sprintf("lease.renew_deadline (%s) longer than 1.2 times lease.retry_period (%s)", short(l.RenewDeadline), short(l.RetryPeriod)),
			"lease.retry_period", "lease.renew_deadline")
	}
	return nil
}

// Files are the files that were read, in the order in which they were.
func (c *Config) Files() []string { return slices.Clone(c.files) }

// NeedRestart returns the keys, in the table's order, whose values differ in
// next and that a reload does not apply: the caller goes on with the old values
// of these and says so.
func (c *Config) NeedRestart(next *Config) []string {
	var names []string
	for i := range keys {
		if k := &keys[i]; !k.Reload && !k.same(c, next) {
			names = append(names, k.Name)
		}
	}
	return names
}

// HostKubeconfigs are where kubelets keep their credential: kubeadm's, k3s's,
// RKE2's and most managed clusters' place, in the order in which they are tried.
func HostKubeconfigs() []string {
	return []string{
		"/etc/kubernetes/kubelet.conf",
		"/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
		"/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
		"/var/lib/kubelet/kubeconfig",
	}
}

// HostKubeconfigs returns where the host's kubeconfig may be: the path that is set, or
// each of [HostKubeconfigs] below root ("/" except in the test bed), in the order in
// which they are tried. A host that has not joined its cluster yet has none.
func (c *Config) HostKubeconfigs(root string) []string {
	if c.Kubernetes.Kubeconfig != "" {
		return []string{c.Kubernetes.Kubeconfig}
	}
	var paths []string
	for _, name := range HostKubeconfigs() {
		paths = append(paths, filepath.Join(root, name))
	}
	return paths
}

// NoHostKubeconfig is the error's text while there is none.
func (c *Config) NoHostKubeconfig(root string) string {
	return fmt.Sprintf("no kubeconfig of the kubelet's: looked for %s (kubernetes.kubeconfig names another)", joinAnd(c.HostKubeconfigs(root)))
}
