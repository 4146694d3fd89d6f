// Package agent is the service that `lockkeeper run` starts: the host's loop, the candidate
// for the Lease next to it, the metrics, and what both report to systemd and to `lockkeeper
// status` on this host.
//
// It is the only package that knows both loops. It decides nothing.
package agent

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/agent/metrics"
	"lockkeeper.dev/lockkeeper/cli/agent/webserver"
	"lockkeeper.dev/lockkeeper/coordinator"
	"lockkeeper.dev/lockkeeper/coordinator/notify"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node"
	"lockkeeper.dev/lockkeeper/node/config"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/systemd"
	"lockkeeper.dev/lockkeeper/updateengine"
)

// Options are what Run needs in addition to the configuration.
type Options struct {
	Version string // lockkeeper's
	// Load reads the configuration, at each reload.
	Load func() (*config.Config, []config.Warning, error)
	// Reload receives a signal for each reload of the configuration.
	Reload <-chan os.Signal
	// Root is the directory below which the host's files are: "/", except in tests.
	Root string
	// StateDir is the directory of the local status; see package local.
	StateDir string
	// Lock is the lock in that directory. A nil Lock means that a leader that dies keeps the Lease
	// until it expires.
	Lock *local.Lock
	// Log is the process's log, and Level its level, which a reload changes.
	Log   *slog.Logger
	Level *slog.LevelVar
	// Leads, unless it is nil, is called with each decision of a leader, and receives how many Nodes
	// it is about. With each status of a candidate that does not lead, it receives 0. So the process
	// can adapt its limits. It must not block.
	Leads func(nodes int)

	// Bus is the message bus of the host's services; nil is the system bus.
	Bus *systemd.Bus
	// Transport replaces how the requests of an identity reach the API server; nil sends them
	// over the network. Only tests set Bus and Transport.
	Transport func(identity string, network http.RoundTripper) http.RoundTripper
	// FleetLock receives what answers a FleetLock client, in place of a server at the address in
	// the configuration. Only tests set it.
	FleetLock func(http.Handler)
}

// wrap returns what wraps the transport of the identity's requests.
func (o *Options) wrap(identity string, m *metrics.Metrics) func(http.RoundTripper) http.RoundTripper {
	count := m.Wrap(identity)
	if o.Transport == nil {
		return count
	}
	return func(network http.RoundTripper) http.RoundTripper { return count(o.Transport(identity, network)) }
}

// NewLog returns the log of this process. client-go's warnings and errors go there too.
func NewLog(level *slog.LevelVar) *slog.Logger {
	log := systemd.NewLogger(os.Stderr, level)
	klog.SetSlogLogger(slog.New(warnings{log.Handler()}))
	return log
}

// Run runs this host until ctx ends, which is not an error, or until another process has to
// replace this one: see [node.Host.Run]. cfg is what o.Load returned.
func Run(ctx context.Context, cfg *config.Config, o Options) error {
	log := o.Log
	o.Level.Set(cfg.LogLevel)

	notifier := systemd.NewNotifier(log)
	liveness := systemd.NewLiveness()
	m := metrics.New(o.Version)
	r := &record{notifier: notifier, liveness: liveness, dir: o.StateDir, version: o.Version, log: log}
	r.hostCredential = kube.New(kube.Options{
		Identity: v1alpha1.IdentityHost, Paths: cfg.HostKubeconfigs(o.Root), Absent: cfg.NoHostKubeconfig(o.Root), Version: o.Version,
		QPS: 20, Burst: 40, // requests a second, besides those of a drain
		Wrap: o.wrap(v1alpha1.IdentityHost, m), Log: log,
	})
	r.coordinatorCredential = kube.New(coordinatorCredential(cfg, o, log, r, m))
	host, err := newHost(cfg, o, log, r, m)
	if err != nil {
		return err
	}
	r.republish = host.Republish
	m.Watch(r.sources())
	server := webserver.New("metrics and health", metrics.Handler(m, log, r.health), log, r.setMetricsErr)
	server.Listen(cfg.Metrics.Listen)
	fleetLock := webserver.New("FleetLock", host.FleetLock(), log, r.setFleetLockErr)
	if o.FleetLock != nil {
		o.FleetLock(host.FleetLock())
	} else {
		fleetLock.Listen(cfg.FleetLock.Listen)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	down := &shutdown{changed: make(chan struct{})}
	host.ShutdownChanged = down.set

	var wg sync.WaitGroup
	wg.Go(func() { notifier.Watchdog(ctx, liveness) })
	wg.Go(func() { r.hostCredential.Run(ctx) })
	hostEnded := make(chan error, 1)
	wg.Go(func() { hostEnded <- host.Run(ctx) })
	wg.Go(func() { campaign(ctx, down, cfg, o, log, host, r, m) })
	wg.Go(func() { server.Run(ctx) })
	wg.Go(func() { fleetLock.Run(ctx) })
	notifier.Ready()
	r.setReady()
	systemd.LogEvent(log, slog.LevelInfo, v1alpha1.MessageStarted, "lockkeeper runs", "version", o.Version, "mode", string(cfg.Mode))

	for {
		select {
		case <-o.Reload:
			notifier.Reloading()
			reload(cfg, o, log, r, host, server)
			notifier.Ready()
		case err := <-hostEnded:
			if ctx.Err() != nil {
				continue // that is why it ended
			}
			notifier.Stopping()
			stop()
			wg.Wait()
			return err
		case <-ctx.Done():
			notifier.Stopping()
			systemd.LogEvent(log, slog.LevelInfo, v1alpha1.MessageStops, "lockkeeper stops", "node", host.Name())
			wg.Wait()
			return nil
		}
	}
}

// epochs returns the epoch of the process before this one, which is dead, and what records those of
// this process.
func epochs(lock *local.Lock, bootID string) (last string, record func(epoch string) error) {
	if lock == nil {
		return "", nil
	}
	return lock.LastEpoch(bootID), func(epoch string) error { return lock.RecordEpoch(bootID, epoch) }
}

// newHost makes the host's loop.
func newHost(cfg *config.Config, o Options, log *slog.Logger, r *record, m *metrics.Metrics) (*node.Host, error) {
	bus := cmp.Or(o.Bus, &systemd.Bus{})
	var engine *updateengine.Source
	if cfg.Sources.UpdateEngine != config.UpdateEngineOff {
		poll := cfg.Sources.PollInterval
		beat := r.liveness.Beat("update_engine", poll+updateengine.MaxSilence)
		engine = updateengine.New(updateengine.Options{
			Object: bus.Object(updateengine.BusName, updateengine.ObjectPath), PollInterval: poll, Logger: log, Alive: beat.Alive,
		})
	}
	return node.New(node.Options{
		Version:        o.Version,
		NodeName:       cfg.NodeName,
		Connect:        r.hostCredential.Client,
		LeaseNamespace: cfg.Lease.Namespace, LeaseName: cfg.Lease.Name,
		Root: o.Root, Engine: engine, PollInterval: cfg.Sources.PollInterval,
		Logind: systemd.Logind{Bus: bus}, Units: systemd.Units{Bus: bus},
		FleetLock: cfg.FleetLock.Listen, FleetLockID: cfg.FleetLock.ID, FleetLockAnswered: m.FleetLockAnswered,
		Settings: settings(cfg), Log: log, Liveness: r.liveness, TurnEnded: m.TurnEnded,
		Report: func(s local.Host) { m.HostReported(s); r.setHost(s) },
		Term:   r.term, Coordinator: r.election,
	})
}

// settings returns the settings that a reload can change.
func settings(cfg *config.Config) node.Settings {
	return node.Settings{
		Observe:           cfg.Mode == config.ModeObserve,
		ManagedByDefault:  cfg.ManagedByDefault,
		Paused:            cfg.Paused,
		Windows:           cfg.Windows,
		Sentinels:         cfg.Sources.Sentinels,
		ManagerNamespaces: cfg.Sources.ManagerNamespaces,
		SessionDelay:      cfg.Reboot.SessionDelay,
		MinUptime:         cfg.Reboot.MinUptime,
		HealthUnits:       cfg.Health.Units,
		HealthTimeout:     cfg.Health.Timeout,
		HookTimeout:       cfg.Hooks.Timeout,
		HookAbort:         cfg.Hooks.OnTimeout == config.HookTimeoutAbort,

		LifecycleConditions: cfg.LifecycleConditions,
	}
}

// maxConfigErr bounds what the status line and /healthz say about a bad configuration, in bytes.
// The journal has all mistakes.
const maxConfigErr = 400

// reload reads the configuration again; a bad one changes nothing. started is
// the one that the process started with.
func reload(started *config.Config, o Options, log *slog.Logger, r *record, host *node.Host, server *webserver.Server) {
	cfg, warnings, err := o.Load()
	for _, w := range warnings {
		log.Warn(w.String())
	}
	if err != nil {
		systemd.LogEvent(log, slog.LevelError, v1alpha1.MessageBadReload, "the configuration is not valid; the old one stays in effect", "err", err)
		// The next process refuses to start with it, at the latest after the reboot of the host's turn.
		r.setConfigErr(v1alpha1.OneLine("the configuration is not valid, and lockkeeper does not start again with it: "+err.Error(), maxConfigErr))
		return
	}
	r.setConfigErr("")
	if keys := started.NeedRestart(cfg); len(keys) > 0 {
		log.Warn("some settings keep their old values until a restart", "keys", strings.Join(keys, ", "))
	}
	o.Level.Set(cfg.LogLevel)
	host.Reload(settings(cfg))
	server.Listen(cfg.Metrics.Listen)
	systemd.LogEvent(log, slog.LevelInfo, v1alpha1.MessageReloaded, "configuration reloaded", "mode", string(cfg.Mode))
}

// shutdown is whether the host is shutting down.
type shutdown struct {
	mu      sync.Mutex
	down    bool
	changed chan struct{} // closed and replaced when down changes
}

func (p *shutdown) set(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down != down {
		p.down = down
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

func (p *shutdown) now() (down bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.down, p.changed
}

// coordinatorCredential returns the options of the second identity, which not every host has.
func coordinatorCredential(cfg *config.Config, o Options, log *slog.Logger, r *record, m *metrics.Metrics) kube.Options {
	k := kube.Options{
		Identity: v1alpha1.IdentityCoordinator, Absent: "no coordinator's kubeconfig at " + cfg.Coordinator.Kubeconfig,
		Renewed: filepath.Join(o.Root, node.StateDir, "coordinator-token.json"), Version: o.Version, QPS: coordinator.QPS, Burst: coordinator.Burst,
		Wrap: o.wrap(v1alpha1.IdentityCoordinator, m), Log: log, LogEvent: systemd.LogEvent, Report: r.credentialChanged,
	}
	if cfg.Coordinator.Kubeconfig != "" {
		k.Paths = []string{cfg.Coordinator.Kubeconfig}
	}
	return k
}

// campaignOptions returns what the configuration says about a candidate.
func campaignOptions(cfg *config.Config, m *metrics.Metrics) coordinator.Options {
	return coordinator.Options{
		LeaseNamespace: cfg.Lease.Namespace, LeaseName: cfg.Lease.Name,
		LeaseDuration: cfg.Lease.Duration, RenewDeadline: cfg.Lease.RenewDeadline, RetryPeriod: cfg.Lease.RetryPeriod,
		PrometheusURL: cfg.Coordinator.PrometheusURL, PrometheusTokenFile: cfg.Coordinator.PrometheusTokenFile,
		Notify: notifications(cfg, m),
	}
}

// notifications returns the settings of notifications.
func notifications(cfg *config.Config, m *metrics.Metrics) notify.Options {
	n := &cfg.Notify
	o := notify.Options{URL: n.URL, TokenFile: n.TokenFile, Format: n.Format, Cluster: n.Cluster, HeldLongerThan: n.HeldLongerThan, Count: m.Notified}
	for _, occasion := range n.On {
		o.On = append(o.On, v1alpha1.Occasion(occasion))
	}
	return o
}

// campaign campaigns for the Lease until ctx ends, if this host is meant to. A leader
// whose host shuts down releases the Lease at once, before the reboot; if the
// shutdown is cancelled, the host campaigns again.
func campaign(ctx context.Context, shutdown *shutdown, cfg *config.Config, o Options, log *slog.Logger, host *node.Host, r *record, m *metrics.Metrics) {
	if cfg.Coordinator.Kubeconfig == "" {
		r.setRole(coordinator.Status{Why: "coordinator.kubeconfig is empty"})
		return
	}
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { r.coordinatorCredential.Run(ctx) })
	report := func(s coordinator.Status) {
		if o.Leads != nil && !s.Leader {
			o.Leads(0)
		}
		m.RoleChanged(s)
		r.setRole(s)
	}
	decided := func(took time.Duration, s *rollout.Snapshot, out *rollout.Outcome) {
		if o.Leads != nil {
			o.Leads(len(s.Nodes))
		}
		m.Decided(took, s, out)
	}
	options := campaignOptions(cfg, m)
	options.Version, options.Credential, options.NodeName = o.Version, r.coordinatorCredential, host.Name
	options.Log, options.Liveness, options.Report, options.Decided = log, r.liveness, report, decided
	options.LastEpoch, options.RecordEpoch = epochs(o.Lock, host.BootID())
	for ctx.Err() == nil {
		down, changed := shutdown.now()
		if down {
			r.setRole(coordinator.Status{Why: "the host shuts down"})
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		campaigning, stop := context.WithCancel(ctx)
		go func() {
			defer stop()
			select {
			case <-changed:
			case <-campaigning.Done():
			}
		}()
		// It returns only with the context's error, and the Lease released.
		coordinator.Run(campaigning, options)
		stop()
		options.LastEpoch = "" // by now, the record is one of this process
	}
}
