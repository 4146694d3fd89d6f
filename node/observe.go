package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/effect"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/node/source"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
	"lockkeeper.dev/lockkeeper/systemd"
)

// observe returns everything that this host knows now.
func (h *Host) observe(ctx context.Context) step.Observation {
	settings := h.currentSettings()
	h.sessions, h.inhibitors = nil, nil

	o := step.Observation{
		Self:             h.self.host(h.Version),
		Info:             h.self.info(),
		ImageVersion:     h.self.imageVersion,
		ManagedByDefault: settings.ManagedByDefault,
		Leaving:          local.Leaving(filepath.Join(h.Root, local.Dir)),
		Shutdown:         h.shutdown.State(),
	}
	facts := h.facts()
	if facts == nil {
		vetoes := h.vetoes(settings, false)
		o.Veto, o.VetoDetail = vetoes.First(&o.Sources)
		return o
	}
	o.Node = *facts
	n := &o.Node
	stage := effect.StageOf(n)
	h.apply.Leave(stage)
	// Read the work before the sources. If the work is done here, the sources no longer report
	// the changes that it applied.
	o.Apply = h.apply.Work(stage)
	reports := h.reports(ctx, n)
	o.Combine(&reports)
	o.Own, o.Term = reports.Policies.Terms(), h.Term()
	h.pods.poll(ctx, (n.InTurn() || o.Sources.Wants.Something()) && !settings.Observe && !o.Released())
	vetoes := h.vetoes(settings, n.Committed())
	pods, known := h.pods.judge(o.Own)
	o.Blocking = o.BlockingBy(pods, known, h.serverTime())
	if !n.InTurn() {
		vetoes.Blocked = o.Blocking.Veto(o.Own) // in a turn, the reads before the cordon list the pods again
		h.logBlockOff(&o)
	}
	o.Veto, o.VetoDetail = vetoes.First(&o.Sources)
	o.Now = time.Now()
	o.Self.PendingSince = o.Now.UTC().Truncate(time.Second) // unless the Node has an earlier one
	o.EvictFrom = h.evictFrom(n, o.Own)
	if n.State == v1alpha1.StateApplying && n.Ours() {
		h.observeApply(ctx, &o)
	}
	o.Hooks = h.hooks.Work(stage, n.Retry)
	o.Drain, h.progress = h.drain.Work(stage), h.drain.Progress()
	o.RebootError = h.reboot.Refusal(stage)
	if h.refusal.resourceVersion == n.ResourceVersion {
		o.UnsettledRefusal = h.refusal.ack
	}
	switch {
	case n.State != v1alpha1.StateRebooting || !n.Ours():
	case n.Grant.BootID == h.self.bootID:
		o.Blocked, o.BlockedDetail = h.blocked(ctx, n, step.SessionDelay(settings.SessionDelay, n.Grant, o.Own), o.Permits())
	default:
		o.Health = h.health(ctx, settings)
	}
	if o.Blocked != "" && h.fresh != nil {
		// An inhibitor or a session delays the reboot. The reads for a commit have to be
		// repeated after it is gone.
		h.fresh.Commit = false
	}
	h.checkLeader(ctx, &o)
	// Check the fresh read last, because it may have expired during the queries above.
	o.Fresh = h.validRead(n)
	return o
}

// evictFrom returns when the load balancers' delay is over, or zero if it is.
func (h *Host) evictFrom(n *turn.Node, own *v1alpha1.Terms) time.Time {
	until, left := h.delay.Until(n, own, time.Now())
	if h.delayLeft = left; left == 0 {
		return time.Time{}
	}
	return until
}

// vetoes returns this host's reasons against a commit. committed is whether it has committed
// already.
func (h *Host) vetoes(s Settings, committed bool) step.Vetoes {
	h.windows = step.WindowsAt(s.Windows, h.windowTime(), committed)
	v := step.Vetoes{Observe: s.Observe, Paused: s.Paused, Window: h.windows.Closed, Uptime: h.self.uptime(), MinUptime: s.MinUptime}
	for _, m := range h.managers.Active() {
		v.Managers = append(v.Managers, m.String())
	}
	h.pods.addVetoes(&v, s.ManagerNamespaces)
	return v
}

// reports returns what the host's sources report.
func (h *Host) reports(ctx context.Context, n *turn.Node) step.Reports {
	var published []v1alpha1.Change
	if p := step.Published(n, h.self.bootID); p != nil {
		published = append(append(published, p.Changes...), p.HeldBack...)
	}
	r := step.Reports{Policies: h.readPolicies(n)}
	var err error
	if r.Engine, err = h.engine.Report(ctx, published); err != nil {
		r.EngineError = err.Error()
	}
	r.Sentinels, r.SentinelsRead = h.sentinels.Present()
	h.readPermission(&r)
	if err := cmp.Or(h.engine.Unread(), h.managers.Unread(), h.sentinels.Unread()); err != nil {
		r.Unread = err.Error()
	}
	r.HookStages, r.HooksRead = h.hookUnits.Stages()
	if p := &r.Policies; p.Listed && p.Match.Reason == "" { // otherwise the watched paths and units do not change
		paths, units := p.Match.Watches()
		r.Files, r.FilesRead, err = source.Files(h.watched, paths, units, published)
		if err != nil {
			r.FilesError = err.Error()
		}
	}
	return r
}

// readPolicies returns what this host knows about the cluster's policies. A cluster that does
// not serve the kind has no policies.
func (h *Host) readPolicies(n *turn.Node) step.Policies {
	var p step.Policies
	err := h.policies.Err()
	if err != nil {
		p.Error = err.Error()
	}
	p.Match, p.Invalid, p.Listed = h.match(n)
	if errors.Is(err, kube.ErrNotServed) {
		p.Error = ""
	}
	p.Unread, p.UnreadVeto, p.UnreadLasts = h.policyMemory.Unread(p.Error, apierrors.IsForbidden(err), h.view.Err() != nil, time.Now())
	return p
}

// match returns the policies that apply to this host, and which of them is invalid now. ok is
// false until the policies have been read.
func (h *Host) match(n *turn.Node) (m policy.Match, invalid string, ok bool) {
	if !h.policies.Listed() {
		return policy.Match{}, "", false
	}
	now := policy.NewSet(h.policies.Compiled()...).For(n.Labels)
	if now.Reason == v1alpha1.ReasonInvalidPolicy {
		invalid = now.Detail
	}
	return h.policyMemory.Match(now), invalid, true
}

// readSources reads every source again before a commit, and checks whether another reboot
// manager is active. It returns an error if one of them cannot be read. An engine that is not
// on the bus is not an error; see [source.Engine.Read].
func (h *Host) readSources(ctx context.Context) error {
	if err := h.engine.Read(ctx); err != nil {
		return err
	}
	// Hook units may have been enabled without a daemon-reload. They are not a source of
	// changes, so if systemd does not answer, the last answer remains valid.
	_ = h.hookUnits.Read(ctx)
	if err := h.managers.Read(ctx); err != nil {
		return err
	}
	if err := h.pods.refresh(ctx, min(commitPodsAge, h.pods.every)); err != nil {
		return err
	}
	if err := h.watched.Refresh(ctx); err != nil {
		return err
	}
	return h.sentinels.Read()
}

// watchHooks reads which stages have hook units whenever systemd reloads its units.
func (h *Host) watchHooks(ctx context.Context) {
	failed := false
	h.Units.WatchReloads(ctx, func(ctx context.Context) {
		err := h.hookUnits.Read(ctx)
		if err != nil && !failed && ctx.Err() == nil {
			h.Log.Warn("cannot look for hook units; the last answer remains valid", "err", err)
		}
		failed = err != nil
	})
}

// serverTime returns the time by the API server's clock. A host that has just booted may have a
// clock that is weeks behind.
func (h *Host) serverTime() time.Time {
	ahead, _ := h.client.Skew()
	return time.Now().Add(ahead)
}

// clockSlack is by how much the host's clock may differ from the API server's before the host's
// windows follow that one.
const clockSlack = 30 * time.Second

// windowTime returns the time by which the host's windows are open or closed: by its own clock, or
// by the API server's if its own is far off. Otherwise a host whose clock is not set, as for a
// while after its boot, would reboot outside of its windows.
func (h *Host) windowTime() time.Time {
	now := time.Now()
	if ahead, _ := h.client.Skew(); ahead.Abs() > clockSlack {
		return now.Add(ahead)
	}
	return now
}

// checkLeader reads the Lease if the host has waited for its turn for a long time.
func (h *Host) checkLeader(ctx context.Context, o *step.Observation) {
	if h.leader.Due(o, h.Patience, time.Now()) && h.view.Err() == nil {
		reason, detail := h.leader.NoLeader() // stays if the read fails for a reason that the watch of the Node reports
		lease, err := h.readLease(ctx)
		if err == nil {
			reason, detail = lease.Unheld(h.LeaseNamespace+"/"+h.LeaseName, h.serverTime())
		} else if t := h.client.Explain(err); t != nil && t.Reason != "" {
			reason, detail = t.Reason, t.Text
		}
		h.leader.Checked(reason, detail, time.Now())
	}
	o.NoLeader, o.NoLeaderDetail = h.leader.NoLeader()
}

// observeApply completes o.Apply: it resumes the work that the previous process began, and
// checks whether the changes that the turn has applied can be read or have changed again.
func (h *Host) observeApply(ctx context.Context, o *step.Observation) {
	stage := effect.StageOf(&o.Node)
	ended := o.Node.HasAck(stage.State) && (o.Node.Ack.Report == v1alpha1.ReportDone || o.Node.Ack.Report == v1alpha1.ReportFailed)
	switch {
	case !o.Sources.Complete:
		return
	case o.Apply.Running:
		return
	case ended && o.Apply.Done:
		return // a change after the report belongs to the next turn, however long this stage lasts
	case o.Apply.Done && h.watched.Report().ProblemsOf(o.Node.Grant.Changes) != nil:
		// The changes could be read when the run ended, but not now. The sources therefore
		// report them as they were before.
		o.Apply = step.Work{Running: true, Detail: effect.Settling + effect.Unread}
		return
	case o.Apply.Done:
		o.Apply.ChangedAgain = h.apply.ChangedAgain(stage, o.Sources.Changes)
		return
	case o.Apply != (step.Work{}):
		return
	}
	if h.apply.Resume(ctx, stage) {
		o.Apply = step.Work{Running: true, Detail: effect.Settling}
	}
}

// blocked asks logind what blocks a reboot. It checks for block inhibitors first, which
// lockkeeper never overrides, and then for logged-in users, who get the delay, unless the reboot may
// come at any time.
func (h *Host) blocked(ctx context.Context, n *turn.Node, delay time.Duration, permitted bool) (v1alpha1.Reason, string) {
	block, err := h.Logind.BlockingInhibitors(ctx)
	if err != nil {
		return v1alpha1.ReasonInhibited, fmt.Sprintf("logind does not say who inhibits a shutdown: %v", err)
	}
	if h.inhibitors = block; len(block) > 0 {
		return v1alpha1.ReasonInhibited, inhibitors(block)
	}
	if permitted {
		return "", ""
	}
	return h.waitForSessions(ctx, n.Turn, delay)
}

// inhibitors describes at most three of the locks.
func inhibitors(all []systemd.Inhibitor) string {
	return listUpTo(3, all, func(l systemd.Inhibitor) string {
		return fmt.Sprintf("%s (pid %d, %s, %s): %s", l.Who, l.PID, strings.Join(l.What, ":"), l.Mode, l.Why)
	}, "; ")
}

// listUpTo joins the names of the first limit things, and appends how many more there are.
func listUpTo[T any](limit int, all []T, name func(T) string, separator string) string {
	var names []string
	for i, x := range all {
		if i == limit {
			names = append(names, fmt.Sprintf("%d more", len(all)-i))
			break
		}
		names = append(names, name(x))
	}
	return strings.Join(names, separator)
}

// health asks systemd whether the host is healthy after a boot.
func (h *Host) health(ctx context.Context, s Settings) step.Health {
	detail := h.unhealthy(ctx, s.HealthUnits)
	return step.Health{Healthy: detail == "", Detail: detail, Overdue: h.self.uptime() > s.HealthTimeout}
}

// unhealthy describes the first health check that fails after a boot, or returns "".
func (h *Host) unhealthy(ctx context.Context, units []string) string {
	switch boot, err := h.Units.BootIncomplete(ctx); {
	case err != nil:
		return fmt.Sprintf("systemd does not say whether the boot is complete: %v", err)
	case boot != "":
		return "boot-complete.target is " + boot
	}
	for _, unit := range units {
		switch state, loaded, err := h.Units.ActiveState(ctx, unit); {
		case err != nil:
			return fmt.Sprintf("systemd does not say whether %s is active: %v", unit, err)
		case !loaded:
			return unit + " does not exist"
		case state != "active":
			return unit + " is " + state
		}
	}
	return ""
}
