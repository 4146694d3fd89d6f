// Package node runs one host's loop. The loop observes, asks the pure package step for the next
// step, carries that step out and reports it. It watches the host's own Node, and the pods on it
// only during a drain. While the host wants something, it lists them from time to time.
//
// All decisions are in package step. Package node must not know other nodes, budgets, or which
// instance coordinates.
package node

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/drain"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/effect"
	"lockkeeper.dev/lockkeeper/node/fleetlock"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/node/publish"
	"lockkeeper.dev/lockkeeper/node/source"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/timing"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/node/watched"
	"lockkeeper.dev/lockkeeper/policy"
	"lockkeeper.dev/lockkeeper/systemd"
	"lockkeeper.dev/lockkeeper/updateengine"
)

// Settings are the validated settings that a reload can change.
type Settings struct {
	// Observe: the host publishes and plans, and changes nothing else.
	Observe          bool
	ManagedByDefault bool
	// Paused is the text of this host's own veto; "" means none.
	Paused string
	// Windows are when this host may be disrupted; none means always.
	Windows []policy.Window
	// Sentinels are absolute paths. A file that exists there asks for a reboot.
	Sentinels []string
	// ManagerNamespaces are the namespaces, in addition to kube-system, in which a pod of
	// another reboot manager on this host's node is a veto.
	ManagerNamespaces []string
	// SessionDelay is the time between the warning of logged-in users and the reboot, 0 to 1h.
	SessionDelay time.Duration
	// MinUptime is how long after a boot nothing is committed, 0 to 1h.
	MinUptime time.Duration
	// HealthUnits are the units that have to be active within HealthTimeout (1s to 2h) after
	// a boot.
	HealthUnits   []string
	HealthTimeout time.Duration
	// HookTimeout and HookAbort are the fields of an [effect.HookLimit].
	HookTimeout time.Duration
	HookAbort   bool
	// LifecycleConditions: the host writes the lifecycle conditions of its Node (KEP-5683),
	// unless it only observes.
	LifecycleConditions bool
}

// StateDir is the directory of the files that a later boot needs: which content of watched
// files is in effect, and the coordinator's renewed token. It is the unit's StateDirectory=,
// below the host's root.
const StateDir = "/var/lib/lockkeeper"

// Options are the parameters of a Host. Only the settings may change later; see [Host.Reload].
type Options struct {
	Version string
	// NodeName is the Node's name. If it is "", the host asks the API server for the name in
	// its credential.
	NodeName string
	// Connect returns a client with the host's identity, which is the kubelet's. The client
	// follows the credential; see [kube.Credential]. While Connect fails, the host calls it
	// again every few seconds.
	Connect func() (*kube.Client, error)
	// LeaseNamespace and LeaseName name the Lease that is checked at commits.
	LeaseNamespace, LeaseName string
	// Root is the directory with the host's files: "/", except in tests.
	Root string
	// Engine is the source that reads the update engine, or nil if the engine is off.
	Engine *updateengine.Source
	// PollInterval is the interval at which the host reads sentinels and watched files, even if
	// nothing reports a change.
	PollInterval time.Duration

	Logind systemd.Logind
	Units  systemd.Units

	// Patience is how long the host waits for its turn, without any sign from a coordinator,
	// before it reads the Lease to see whether an instance leads. 0 means ten minutes, or an
	// hour if the node is held for a reason.
	Patience time.Duration

	// FleetLock is the address at which [Host.FleetLock] is served, ADDRESS:PORT; "" means that the
	// host answers no FleetLock client. FleetLockID is the client's ID; "" means the one that
	// Zincati derives from the machine-id.
	FleetLock, FleetLockID string
	// FleetLockAnswered receives a value of [v1alpha1.MetricFleetLock] for each answer to the
	// client. It must not block and may be nil.
	FleetLockAnswered func(result string)

	Settings Settings
	Log      *slog.Logger
	// Liveness records that the loop is alive; it may be nil.
	Liveness *systemd.Liveness
	// Report receives the host's record after every change. It must not block and may be nil.
	Report func(local.Host)
	// TurnEnded receives the result of each turn of this host when it ends, if the Node records
	// it. It must not block and may be nil.
	TurnEnded func(v1alpha1.Result)
	// Term returns the epoch of the term that this process leads, or "". It must not block; nil
	// means that the process never leads.
	Term func() string
	// Coordinator returns this host's part in the election. Its Role is "" until the role is
	// known. Coordinator must not block; nil means that the host never campaigns. The caller
	// calls [Host.Republish] when the result changes.
	Coordinator func() local.Coordinator
	// ShutdownChanged is called when logind begins to shut the host down, and when logind
	// cancels the shutdown. It must not block and may be nil.
	ShutdownChanged func(active bool)
}

// Host is one host's loop. Make it with [New], run it with [Host.Run].
type Host struct {
	Options
	log  *slog.Logger // the loop's logger, with the Node's name once it is known; other goroutines use Log
	self self
	kick chan struct{}

	// Embedded by what they are for. Only the loop's goroutine uses their fields.
	inputs
	effects
	outputs
	findings
	memory

	mu       sync.Mutex
	name     string // the Node's name, "" until it is known; only the loop's goroutine writes it
	settings Settings
}

// inputs is what the loop observes.
type inputs struct {
	client   *kube.Client
	identity any // the client's, when the host asked for the name of its Node
	view     *kube.NodeWatch
	policies *kube.Policies[policy.Policy]

	engine    *source.Engine
	sentinels *source.Sentinels
	watched   *watched.Watcher
	managers  *source.Managers
	hookUnits *effect.HookStages
	fleetLock *fleetlock.Server // nil: there is none
	pods      *nodePods         // nil before makeEffects
}

// effects is what acts on the host and on its pods.
type effects struct {
	drain    *effect.Drain
	hooks    *effect.Hooks
	apply    *effect.Apply
	reboot   *effect.Reboot
	shutdown *effect.Shutdown
}

// outputs is where the host reports.
type outputs struct {
	writes          *rate.Limiter // of writes to the Node
	hostUpdate      *publish.HostUpdate
	conditions      *publish.Conditions
	events          *publish.Events
	beat            *systemd.Beat
	coordinatorFile *updateengine.CoordinatorFile
}

// findings is what the last observation found and the decision does not need.
type findings struct {
	progress   drain.Progress      // of the drain
	sessions   []systemd.Session   // that the reboot waits for
	inhibitors []systemd.Inhibitor // those that block a shutdown
	windows    step.Windows
	delayLeft  time.Duration // of the load balancers' delay
	observed   local.Host    // the record of the observation
}

// memory is what one round of the loop leaves to later ones. A new process starts without it.
type memory struct {
	parsed       *corev1.Node // the version of the Node that parsedFacts are of
	parsedFacts  turn.Node
	policyMemory step.PolicyMemory
	fresh        *freshRead
	refusal      refusal
	announced    step.Announcement
	delay        step.LoadBalancerDelay
	leader       step.LeaderCheck
	blockers     blockers
	settled      bool       // see resume
	rested       local.Host // the record of the last decision without a read or a write
	reported     local.Host // the last record that was reported
	failures     int        // failed rounds in a row
	troubled     loggedTrouble
	// blockOff says that Block is off for the next turn, and that this was logged; coordinatorFailed that the last write of
	// coordinator.conf failed, and that this was logged.
	blockOff, coordinatorFailed bool
}

// New reads the host's boot ID, uptime and OS, and returns a Host.
func New(o Options) (*Host, error) {
	self, err := readSelf(o.Root)
	if err != nil {
		return nil, fmt.Errorf("reading this host's boot ID, uptime and OS: %w", err)
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Liveness = cmp.Or(o.Liveness, systemd.NewLiveness())
	if o.Coordinator == nil {
		o.Coordinator = func() local.Coordinator { return local.Coordinator{Role: v1alpha1.RoleHost} }
	}
	if o.Term == nil {
		o.Term = func() string { return "" }
	}
	for _, err := range self.unread {
		o.Log.Warn("cannot read a file that describes this host's OS; the values from it are published as empty", "err", err)
	}
	h := &Host{Options: o, log: o.Log, self: self, settings: o.Settings, kick: make(chan struct{}, 1)}
	h.writes = rate.NewLimiter(rate.Every(writeEvery), writesAtOnce)
	h.hostUpdate = publish.NewHostUpdate(publish.Options{
		Log: o.Log, Version: o.Version, StateDir: filepath.Join(o.Root, StateDir), Coordinator: o.Coordinator,
		FirstRead: func() {
			h.wake()
			time.AfterFunc(publish.FirstReads, h.wake)
		},
	})
	h.coordinatorFile = updateengine.NewCoordinatorFile(o.Root)
	sources := source.Options{Root: o.Root, PollInterval: o.PollInterval, Log: o.Log, Changed: h.wake}
	h.engine = source.NewEngine(o.Engine, o.Units)
	h.sentinels = source.NewSentinels(sources, o.Settings.Sentinels)
	h.managers = source.NewManagers(sources, o.Units, h.coordinatorOwner, o.FleetLock)
	if o.FleetLock != "" {
		h.fleetLock = fleetlock.New(fleetlock.Options{ID: h.zincatiID(), Log: o.Log, Changed: h.wake, Answered: o.FleetLockAnswered})
	}
	h.shutdown, h.hookUnits = &effect.Shutdown{}, effect.NewHookStages(o.Units, h.wake)
	h.watched = watched.New(watched.Options{Root: o.Root, StateDir: filepath.Join(o.Root, StateDir), BootID: self.bootID,
		Units: o.Units, Poll: o.PollInterval, Log: o.Log})
	return h, nil
}

// Reload replaces the settings. It may be called from any goroutine.
func (h *Host) Reload(s Settings) {
	h.mu.Lock()
	h.settings = s
	h.mu.Unlock()
	h.sentinels.SetPaths(s.Sentinels)
	h.wake()
}

// currentSettings returns the settings of the last reload.
func (h *Host) currentSettings() Settings {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.settings
}

// wake makes the loop start another round soon.
func (h *Host) wake() { timing.Kick(h.kick) }

// loopBound is the longest time between two signs of life of the loop. After that, the watchdog
// considers the loop stuck.
const loopBound = 3 * time.Minute

// managersBound bounds the first read of the other reboot managers.
const managersBound = 2 * time.Second

// Run runs the host until ctx ends, and returns ctx's error. If the API server or the bus is not
// available, Run waits for it. Any other error means that the process has to end: see checkName.
func (h *Host) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	if h.Engine != nil {
		wg.Go(func() { h.Engine.Run(ctx, h.wake) })
	}
	wg.Go(func() { h.sentinels.Run(ctx) })
	wg.Go(func() { h.watched.Run(ctx, h.wake) })
	wg.Go(func() { h.Logind.WatchShutdown(ctx, h.shutdownChanged) })
	wg.Go(func() { h.watchHooks(ctx) })
	wg.Go(func() { h.hostUpdate.KeepOffline(ctx) })

	h.beat = h.Liveness.Beat("node", loopBound)
	defer h.beat.Stop()
	if err := h.findNode(ctx); err != nil {
		return err
	}
	h.view = kube.WatchNode(h.client, h.name, h.wake)
	h.policies = kube.WatchPolicies(h.client, policy.Compile, h.wake)
	if err := h.makeEffects(); err != nil {
		return err
	}
	name := h.name
	h.conditions = publish.NewConditions(h.Log, func() *corev1.Node { return h.view.Get(name) }, h.writeConditions)
	wg.Go(func() { h.view.Run(ctx) })
	wg.Go(func() { h.policies.Run(ctx) })
	wg.Go(func() { h.events.Run(ctx) })
	wg.Go(func() { h.conditions.Run(ctx) })
	wg.Go(func() {
		h.hostUpdate.Run(ctx, kube.HostUpdates{Client: h.client, Node: h.name, LeftOut: h.hostUpdate.LeftOut})
	})
	// Read the managers before the first observation. Otherwise the host could publish that it
	// has no veto, and right after that publish one.
	first, cancelFirst := context.WithTimeout(ctx, managersBound)
	_ = h.managers.Read(first) // Run repeats a failed read
	cancelFirst()
	wg.Go(func() { h.managers.Run(ctx) })
	return h.loop(ctx)
}

// coordinatorOwner returns the name of another program that owns coordinator.conf, or "". The
// check takes the file's lock for a moment, so a host that only observes does not make it.
func (h *Host) coordinatorOwner() (string, error) {
	if h.currentSettings().Observe {
		return "", nil
	}
	return h.coordinatorFile.Other()
}

// makeEffects creates the effects that need the Node's name and the client.
func (h *Host) makeEffects() error {
	// The API server's answers set the pace of a drain.
	unlimited, err := h.client.Limited(-1, 0)
	if err != nil {
		return err
	}
	h.events = publish.NewEvents(h.log, h.client, h.name)
	h.pods = newNodePods(h.client, h.name, h.PollInterval)
	h.drain = effect.NewDrain(unlimited, h.name, h.log, h.wake, h.events.Deleted, h.events.Flush)
	h.hooks = effect.NewHooks(h.Units, h.log, h.wake)
	h.apply = effect.NewApply(h.Units, sources{h.watched, h.sentinels}, filepath.Join(h.Root, local.Dir), h.self.bootID, h.log, h.wake)
	h.reboot = effect.NewReboot(h.Logind, h.shutdown, h.self.bootID, h.log, h.wake)
	return nil
}

// sources are those that an apply may end: it may be what removes a sentinel.
type sources struct {
	*watched.Watcher
	sentinels *source.Sentinels
}

// WaitSettled also reads the sentinels once more. Otherwise the turn would be judged by what they
// were before its last step, until inotify or the next poll shows that one is gone.
func (s sources) WaitSettled(ctx context.Context, changes []v1alpha1.Change) error {
	err := s.Watcher.WaitSettled(ctx, changes)
	if err == nil && v1alpha1.Has(changes, v1alpha1.SourceSentinel) {
		err = s.sentinels.Read()
	}
	return err
}

// shutdownChanged receives logind's PrepareForShutdown.
func (h *Host) shutdownChanged(active bool) {
	if h.ShutdownChanged != nil {
		h.ShutdownChanged(active)
	}
	state := step.ShutdownNone
	if active {
		state = step.ShutdownUnderway
		systemd.LogEvent(h.Log, slog.LevelInfo, v1alpha1.MessageShutdown, "the host begins to shut down", "node", h.Name())
	}
	h.shutdown.Set(state)
	h.wake()
}

// Republish makes the host compare its HostUpdate with its record again. The caller calls it
// when the host's part in the election has changed. It may be called from any goroutine.
func (h *Host) Republish() {
	h.hostUpdate.Refresh()
	h.wake() // the loop may wait for the role; see resume
}

// BootID returns the ID of the present boot.
func (h *Host) BootID() string { return h.self.bootID }

// Name returns the name of the host's Node, or "" until it is known. It may be called from any
// goroutine.
func (h *Host) Name() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.name
}

// findNode connects to the API server and finds the name of this host's Node. It tries until it
// succeeds or ctx ends.
func (h *Host) findNode(ctx context.Context) error {
	delay, began := time.Second, time.Now()
	for {
		name, err := h.connect(ctx)
		if err == nil {
			h.logTroubleOver()
			h.mu.Lock()
			h.name = name
			h.mu.Unlock()
			h.log = h.log.With("node", name)
			return nil
		}
		t := h.explain(err)
		if h.client == nil && !sameTrouble(t.Text, h.troubled.text) {
			delay = time.Second // a user is fixing the kubeconfig, and no request was sent yet
		}
		h.logTrouble(t, "again_in", delay)
		s := local.Host{
			BootID: h.self.bootID, OS: h.self.os(), API: failure(t), Since: began,
			Waits: cmp.Or(t.Reason, v1alpha1.ReasonNotReady), Detail: "to find out which Node is this host's",
		}
		s.Engine, s.EngineError = h.engineStatus()
		h.report(s)
		if err := timing.Wait(ctx, nil, timing.Jitter(delay)); err != nil {
			return err
		}
		h.beat.Alive()
		delay = min(2*delay, 15*time.Second)
	}
}

func (h *Host) connect(ctx context.Context) (name string, err error) {
	if h.client == nil { // an existing client follows its kubeconfig
		if h.client, err = h.Connect(); err != nil {
			h.client = nil
			return "", err
		}
	}
	if h.NodeName != "" {
		return h.NodeName, nil
	}
	h.identity = h.client.Identity() // before the answer: if it changes meanwhile, checkName asks again
	return kube.NodeName(ctx, h.client)
}

// checkName returns an error if the host's credential has become that of another Node, as when the
// host has joined under another name. All that a Host does is about the Node of its start, so the
// process has to end, and the next one finds its Node. While the API server does not say whose
// credential it is, the next round asks again.
func (h *Host) checkName(ctx context.Context) error {
	now := h.client.Identity()
	if h.NodeName != "" || now == h.identity {
		return nil
	}
	name, err := kube.NodeName(ctx, h.client)
	if err != nil {
		return nil
	}
	if name != h.name {
		return fmt.Errorf("the host's credential is now that of Node %s, and was that of Node %s: lockkeeper ends, and has to be started again for the new Node", name, h.name)
	}
	h.identity = now
	return nil
}
