package config

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// DefaultFile is the host's file, unless `--config` names another.
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

// UpdateEngine is whether a host uses update_engine.
type UpdateEngine string

// The values of UpdateEngine.
const (
	// UpdateEngineAuto: if the host has it.
	UpdateEngineAuto UpdateEngine = "auto"
	// UpdateEngineOff: never.
	UpdateEngineOff UpdateEngine = "off"
)

// Config is a host's settings, validated: every value is within the bounds
// that [Keys] documents. [Load] returns it. It does not change afterwards.
type Config struct {
	Mode             Mode
	ManagedByDefault bool   // what an absent label managed means on this host
	Paused           string // the reason of the host's own veto; "" for no veto
	NodeName         string // "" for the name in the host's credential
	LogLevel         slog.Level
	// LifecycleConditions: the host writes the lifecycle conditions of its Node.
	LifecycleConditions bool

	Kubernetes  Kubernetes
	Lease       Lease
	Coordinator Coordinator
	Notify      Notify
	Sources     Sources
	FleetLock   FleetLock
	Reboot      Reboot
	// Windows are the times at which the host may be disrupted; none means always.
	Windows []policy.Window
	Hooks   Hooks
	Health  Health
	Metrics Metrics

	origins map[string]origin // by key; a key that is absent has its default
	windows []window          // what Windows are made of
	files   []string          // in the order in which they were read
}

// Kubernetes is how the host reaches the API server.
type Kubernetes struct {
	Kubeconfig string // "" for the first of [HostKubeconfigs] that exists
}

// Lease is the Lease by which coordinators are elected; the same on every host.
// Duration > RenewDeadline > 1.2 * RetryPeriod, as client-go's elector requires.
type Lease struct {
	Namespace     string
	Name          string
	Duration      time.Duration
	RenewDeadline time.Duration
	RetryPeriod   time.Duration
}

// Coordinator is what a host needs to stand for election.
type Coordinator struct {
	// Kubeconfig is the path of the coordinator's credential. If it is "", or while
	// there is no such file, the host does not stand for election.
	Kubeconfig string
	// PrometheusURL is the server that the gates of policies query; "" for none.
	PrometheusURL string
	// PrometheusTokenFile has the bearer token for that server; "" for none.
	PrometheusTokenFile string
}

// Notify says which notifications a host that leads sends, and where to.
type Notify struct {
	URL       string // "" for no notifications
	TokenFile string // has the bearer token for that URL; "" for none
	Format    v1alpha1.NotifyFormat
	On        []v1alpha1.Occasion
	// HeldLongerThan is how long a node has been held when a notification is sent.
	HeldLongerThan time.Duration
	Cluster        string // the name in each notification; "" for none
}

// Sources are the sources of changes.
type Sources struct {
	UpdateEngine UpdateEngine
	PollInterval time.Duration
	Sentinels    []string // absolute paths
	// ManagerNamespaces are where pods of other reboot managers count, in addition to kube-system.
	ManagerNamespaces []string
}

// FleetLock says whether the host answers a FleetLock client.
type FleetLock struct {
	Listen string // ADDRESS:PORT of a loopback address; "" for no FleetLock
	ID     string // of the client, 32 lower-case hexadecimal digits; "" for the one that Zincati derives from the machine-id
}

// MaxFleetLockDelay bounds reboot.session_delay on a host with FleetLock. A client's request stays
// open for 25 minutes at most, and the delay begins when it comes.
const MaxFleetLockDelay = 20 * time.Minute

// Reboot is what a host waits for before it reboots.
type Reboot struct {
	SessionDelay time.Duration
	MinUptime    time.Duration
}

// Hooks say how this host's own hook units are run.
type Hooks struct {
	Timeout   time.Duration // of all units of a stage together
	OnTimeout HookTimeout   // before-uncordon always waits
}

// HookTimeout is what happens if the hook units of a stage take too long.
type HookTimeout string

// The values of HookTimeout.
const (
	// HookTimeoutWait: the host reports it and waits.
	HookTimeoutWait HookTimeout = "wait"
	// HookTimeoutAbort: the units are stopped and count as failed.
	HookTimeoutAbort HookTimeout = "abort"
)

// Health is what a host has to show after a boot.
type Health struct {
	Units   []string // names of systemd units
	Timeout time.Duration
}

// Metrics says where the process serves its metrics.
type Metrics struct {
	Listen string // HOST:PORT for /metrics and /healthz; "" for no server
}

// Options say what to load.
type Options struct {
	// File is the host's file, which must exist. "" is [DefaultFile], which need not
	// exist. [Load] says which drop-ins belong to it.
	File string
	// Testbed lowers the minima of durations, so that tests need not wait. Only the
	// hidden flag --root of `lockkeeper run` sets it.
	Testbed bool
}

// Load reads and validates the host's file and its drop-ins.
//
// The default file has drop-ins in config.d below /usr/lib/lockkeeper,
// /etc/lockkeeper and /run/lockkeeper. They are read after the file in the
// order of their names, whichever directory they are in. A drop-in in /run replaces one
// of the same name in /etc, which replaces one in /usr/lib. A link to /dev/null masks a
// drop-in. Any other file has the drop-ins in the directory config.d next to it, and no
// others. Later values replace earlier ones key by key, and lists as a whole.
//
// The error is an [Errors] with all mistakes; Config is nil then. Warnings are returned
// in both cases.
func Load(o Options) (*Config, []Warning, error) {
	return load(layoutOf(o.File), o.Testbed)
}

func load(l layout, testbed bool) (*Config, []Warning, error) {
	files, warnings, errs := l.read()
	c := Default()
	for _, f := range files {
		errs = append(errs, c.apply(f, testbed)...)
	}
	if len(errs) == 0 {
		errs = append(c.checkLease(), c.checkFleetLock()...)
	}
	if len(errs) > 0 {
		return nil, warnings, errs
	}
	return c, append(warnings, c.exposedWebhook()...), nil
}

// exposedWebhook warns if other users can read the URL of a chat room. Anyone who has it
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
	return []Warning{{o.file, "users other than root can read notify.url, with which they can post to its receiver: move [notify] to a drop-in of mode 0600"}}
}

// Default returns the settings of a host without a file.
func Default() *Config {
	c := &Config{origins: map[string]origin{}}
	for i := range keys {
		if !keys[i].List {
			keys[i].setDefault(target{c, nil})
		}
	}
	return c
}

// apply sets what a file says, and returns what is wrong with it in the order of its
// lines.
func (c *Config) apply(f file, testbed bool) Errors {
	p := parse(f.path, f.text)
	for _, s := range p.settings {
		p.errs = append(p.errs, target{c, nil}.set(s, c.origins, testbed)...)
	}
	if p.windowsAt.line > 0 {
		p.errs = append(p.errs, c.setWindows(&p)...)
	}
	slices.SortStableFunc(p.errs, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Key, b.Key))
	})
	c.files = append(c.files, f.path)
	return p.errs
}

// set validates a setting and takes it over, with its origin.
func (in target) set(s setting, origins map[string]origin, testbed bool) Errors {
	k := find(s.key)
	expected := k.set(in, s.raw, testbed)
	if expected == "" {
		origins[s.key] = s.origin
		return nil
	}
	got := show(s.raw)
	if k.secret {
		got = "a value that is not shown"
	}
	return Errors{{File: s.file, Line: s.line, Key: s.key, Got: got, Expected: expected}}
}

// renewJitter is client-go's leaderelection.JitterFactor. Its elector refuses to start
// unless the renew deadline is longer than the retry period times this factor.
const renewJitter = 1.2

// wrong returns the error that the keys do not fit together. It names the first of them that a file
// sets, not a default.
func (c *Config) wrong(expected string, keys ...string) Errors {
	e := &Error{Key: keys[0], Expected: expected}
	for _, key := range slices.Backward(keys) {
		if o, set := c.origins[key]; set {
			e.File, e.Line, e.Key = o.file, o.line, key
		}
	}
	e.Got = find(e.Key).text(target{c, nil})
	return Errors{e}
}

// checkFleetLock compares the delay for users with how long a client's request can wait.
func (c *Config) checkFleetLock() Errors {
	switch {
	case c.FleetLock.Listen == "":
		return nil
	case c.FleetLock.Listen == c.Metrics.Listen:
		return c.wrong("another address than metrics.listen", "fleetlock.listen")
	case c.Reboot.SessionDelay <= MaxFleetLockDelay:
		return nil
	}
	return c.wrong(fmt.Sprintf("at most %s with fleetlock.listen", v1alpha1.ShortDuration(MaxFleetLockDelay)), "reboot.session_delay")
}

// checkLease compares the three durations.
func (c *Config) checkLease() Errors {
	l := &c.Lease
	if l.Duration <= l.RenewDeadline {
		return c.wrong(fmt.Sprintf("lease.duration (%s) longer than lease.renew_deadline (%s)", v1alpha1.ShortDuration(l.Duration), v1alpha1.ShortDuration(l.RenewDeadline)),
			"lease.renew_deadline", "lease.duration")
	}
	if float64(l.RenewDeadline) <= renewJitter*float64(l.RetryPeriod) {
		return c.wrong(fmt.Sprintf("lease.renew_deadline (%s) longer than 1.2 times lease.retry_period (%s)", v1alpha1.ShortDuration(l.RenewDeadline), v1alpha1.ShortDuration(l.RetryPeriod)),
			"lease.retry_period", "lease.renew_deadline")
	}
	return nil
}

// Files returns the files that were read, in that order.
func (c *Config) Files() []string { return slices.Clone(c.files) }

// NeedRestart returns the keys whose values differ in next and that a reload does not
// apply. The caller keeps the old values of these keys and reports it.
func (c *Config) NeedRestart(next *Config) []string {
	var names []string
	for i := range keys {
		if k := &keys[i]; !k.Reload && k.text(target{c, nil}) != k.text(target{next, nil}) {
			names = append(names, k.Name)
		}
	}
	return names
}
