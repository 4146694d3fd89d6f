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

// NewLog returns the log of this process. client-go's warnings and errors go there too.
func NewLog(level *slog.LevelVar) *slog.Logger {
	log := systemd.NewLogger(os.Stderr, level)
	klog.SetSlogLogger(slog.New(warnings{log.Handler()}))
	return log
}

// service is the running process and its parts.
type service struct {
	Options
	cfg      *config.Config // the one that the process started with
	metrics  *metrics.Metrics
	record   *record
	shutdown *shutdown
	host     *node.Host
	server   *webserver.Server // of metrics and health
}

// Run runs this host until ctx ends, which is not an error, or until another process has to
// replace this one: see [node.Host.Run]. cfg is what o.Load returned.
func Run(ctx context.Context, cfg *config.Config, o Options) error {
	o.Level.Set(cfg.LogLevel)

	notifier, liveness := systemd.NewNotifier(o.Log), systemd.NewLiveness()
	r := &record{notifier: notifier, liveness: liveness, dir: o.StateDir, version: o.Version, log: o.Log}
	s := &service{Options: o, cfg: cfg, metrics: metrics.New(o.Version), record: r, shutdown: &shutdown{changed: make(chan struct{})}}
	r.hostCredential = kube.New(s.hostCredential())
	r.coordinatorCredential = kube.New(s.coordinatorCredential())
	var err error
	if s.host, err = s.newHost(); err != nil {
		return err
	}
	r.republish = s.host.Republish
	s.metrics.Watch(r.sources())
	s.server = webserver.New("metrics and health", metrics.Handler(s.metrics, o.Log, r.health), o.Log, r.setMetricsErr)
	s.server.Listen(cfg.Metrics.Listen)
	fleetLock := webserver.New("FleetLock", s.host.FleetLock(), o.Log, r.setFleetLockErr)
	if o.FleetLock != nil {
		o.FleetLock(s.host.FleetLock())
	} else {
		fleetLock.Listen(cfg.FleetLock.Listen)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	var wg sync.WaitGroup
	wg.Go(func() { notifier.Watchdog(ctx, liveness) })
	wg.Go(func() { r.hostCredential.Run(ctx) })
	hostEnded := make(chan error, 1)
	wg.Go(func() { hostEnded <- s.host.Run(ctx) })
	wg.Go(func() { s.campaign(ctx) })
	wg.Go(func() { s.server.Run(ctx) })
	wg.Go(func() { fleetLock.Run(ctx) })
	notifier.Ready()
	r.setReady()
	systemd.LogEvent(o.Log, slog.LevelInfo, v1alpha1.MessageStarted, "lockkeeper runs", "version", o.Version, "mode", string(cfg.Mode))

	for {
		select {
		case <-o.Reload:
			notifier.Reloading()
			s.reload()
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
			systemd.LogEvent(o.Log, slog.LevelInfo, v1alpha1.MessageStops, "lockkeeper stops", "node", s.host.Name())
			wg.Wait()
			return nil
		}
	}
}

// wrap returns what wraps the transport of the identity's requests.
func (s *service) wrap(identity string) func(http.RoundTripper) http.RoundTripper {
	count := s.metrics.Wrap(identity)
	if s.Transport == nil {
		return count
	}
	return func(network http.RoundTripper) http.RoundTripper { return count(s.Transport(identity, network)) }
}

// hostCredential returns the options of the host's identity.
func (s *service) hostCredential() kube.Options {
	return kube.Options{
		Identity: v1alpha1.IdentityHost, Paths: s.cfg.HostKubeconfigs(s.Root), Absent: s.cfg.NoHostKubeconfig(s.Root), Version: s.Version,
		QPS: 20, Burst: 40, // requests a second, besides those of a drain
		Wrap: s.wrap(v1alpha1.IdentityHost), Log: s.Log,
	}
}

// coordinatorCredential returns the options of the second identity, which not every host has.
func (s *service) coordinatorCredential() kube.Options {
	k := kube.Options{
		Identity: v1alpha1.IdentityCoordinator, Absent: "no coordinator's kubeconfig at " + s.cfg.Coordinator.Kubeconfig,
		Renewed: filepath.Join(s.Root, node.StateDir, "coordinator-token.json"), Version: s.Version, QPS: coordinator.QPS, Burst: coordinator.Burst,
		Wrap: s.wrap(v1alpha1.IdentityCoordinator), Log: s.Log, LogEvent: systemd.LogEvent, Report: s.record.credentialChanged,
	}
	if s.cfg.Coordinator.Kubeconfig != "" {
		k.Paths = []string{s.cfg.Coordinator.Kubeconfig}
	}
	return k
}

// newHost makes the host's loop.
func (s *service) newHost() (*node.Host, error) {
	cfg, bus := s.cfg, cmp.Or(s.Bus, &systemd.Bus{})
	var engine *updateengine.Source
	if cfg.Sources.UpdateEngine != config.UpdateEngineOff {
		poll := cfg.Sources.PollInterval
		beat := s.record.liveness.Beat("update_engine", poll+updateengine.MaxSilence)
		engine = updateengine.New(updateengine.Options{
			Object: bus.Object(updateengine.BusName, updateengine.ObjectPath), PollInterval: poll, Logger: s.Log, Alive: beat.Alive,
		})
	}
	return node.New(node.Options{
		Version:        s.Version,
		NodeName:       cfg.NodeName,
		Connect:        s.record.hostCredential.Client,
		LeaseNamespace: cfg.Lease.Namespace, LeaseName: cfg.Lease.Name,
		Root: s.Root, Engine: engine, PollInterval: cfg.Sources.PollInterval,
		Logind: systemd.Logind{Bus: bus}, Units: systemd.Units{Bus: bus}, ShutdownChanged: s.shutdown.set,
		FleetLock: cfg.FleetLock.Listen, FleetLockID: cfg.FleetLock.ID, FleetLockAnswered: s.metrics.FleetLockAnswered,
		Settings: settings(cfg), Log: s.Log, Liveness: s.record.liveness, TurnEnded: s.metrics.TurnEnded,
		Report: func(h local.Host) { s.metrics.HostReported(h); s.record.setHost(h) },
		Term:   s.record.term, Coordinator: s.record.election,
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

// reload reads the configuration again; a bad one changes nothing.
func (s *service) reload() {
	cfg, warnings, err := s.Load()
	for _, w := range warnings {
		s.Log.Warn(w.String())
	}
	if err != nil {
		systemd.LogEvent(s.Log, slog.LevelError, v1alpha1.MessageBadReload, "the configuration is not valid; the old one stays in effect", "err", err)
		// The next process refuses to start with it, at the latest after the reboot of the host's turn.
		s.record.setConfigErr(v1alpha1.OneLine("the configuration is not valid, and lockkeeper does not start again with it: "+err.Error(), maxConfigErr))
		return
	}
	s.record.setConfigErr("")
	if keys := s.cfg.NeedRestart(cfg); len(keys) > 0 {
		s.Log.Warn("some settings keep their old values until a restart", "keys", strings.Join(keys, ", "))
	}
	s.Level.Set(cfg.LogLevel)
	s.host.Reload(settings(cfg))
	s.server.Listen(cfg.Metrics.Listen)
	systemd.LogEvent(s.Log, slog.LevelInfo, v1alpha1.MessageReloaded, "configuration reloaded", "mode", string(cfg.Mode))
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

// campaignOptions returns what the configuration says about a candidate.
func (s *service) campaignOptions() coordinator.Options {
	cfg, n := s.cfg, &s.cfg.Notify
	return coordinator.Options{
		LeaseNamespace: cfg.Lease.Namespace, LeaseName: cfg.Lease.Name,
		LeaseDuration: cfg.Lease.Duration, RenewDeadline: cfg.Lease.RenewDeadline, RetryPeriod: cfg.Lease.RetryPeriod,
		PrometheusURL: cfg.Coordinator.PrometheusURL, PrometheusTokenFile: cfg.Coordinator.PrometheusTokenFile,
		Notify: notify.Options{
			URL: n.URL, TokenFile: n.TokenFile, Format: n.Format, Cluster: n.Cluster, On: n.On, HeldLongerThan: n.HeldLongerThan, Count: s.metrics.Notified,
		},
	}
}

// epochs returns the epoch of the process before this one, which is dead, and what records those of
// this process.
func (s *service) epochs() (last string, record func(epoch string) error) {
	if s.Lock == nil {
		return "", nil
	}
	bootID := s.host.BootID()
	return s.Lock.LastEpoch(bootID), func(epoch string) error { return s.Lock.RecordEpoch(bootID, epoch) }
}

// campaign campaigns for the Lease until ctx ends, if this host is meant to. A leader
// whose host shuts down releases the Lease at once, before the reboot; if the
// shutdown is cancelled, the host campaigns again.
func (s *service) campaign(ctx context.Context) {
	r := s.record
	if s.cfg.Coordinator.Kubeconfig == "" {
		r.setRole(coordinator.Status{Why: "coordinator.kubeconfig is empty"})
		return
	}
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { r.coordinatorCredential.Run(ctx) })
	options := s.campaignOptions()
	options.Version, options.Credential, options.NodeName = s.Version, r.coordinatorCredential, s.host.Name
	options.Log, options.Liveness, options.Report, options.Decided = s.Log, r.liveness, s.roleChanged, s.decided
	options.LastEpoch, options.RecordEpoch = s.epochs()
	for ctx.Err() == nil {
		down, changed := s.shutdown.now()
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

// roleChanged takes in what this host does as a candidate.
func (s *service) roleChanged(role coordinator.Status) {
	if s.Leads != nil && !role.Leader {
		s.Leads(0)
	}
	s.metrics.RoleChanged(role)
	s.record.setRole(role)
}

// decided takes in a decision of this host as the leader.
func (s *service) decided(took time.Duration, snapshot *rollout.Snapshot, out *rollout.Outcome) {
	if s.Leads != nil {
		s.Leads(len(snapshot.Nodes))
	}
	s.metrics.Decided(took, snapshot, out)
}
