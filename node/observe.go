package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/systemd"
)

// jitter is d give or take a tenth, so that hosts do not act in step.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// observe puts together everything that this host knows at this moment.
func (h *Host) observe(ctx context.Context) step.Observation {
	h.mu.Lock()
	settings, shutdown, progress := h.settings, h.shutdown, h.progress
	h.mu.Unlock()
	h.announced.open = nil

	o := step.Observation{
		Self:             h.self.host(h.Version),
		Info:             h.self.info(),
		ManagedByDefault: settings.ManagedByDefault,
		Shutdown:         shutdown.valid(),
	}
	var n turn.Node
	obj := h.view.Get(h.name)
	if obj != nil {
		n = turn.FromNode(obj)
	}
	h.windows = windowsAt(settings.Windows, time.Now(), n.Committed())
	o.Veto, o.VetoDetail = h.veto(settings)
	if obj == nil {
		return o
	}
	o.Node = n
	stage := stageOf(&n)
	h.apply.in(stage)
	// Before the sources: what is done by this word is no change any more in
	// what they say after it.
	o.Apply = h.apply.work(stage)
	o.Sources = h.sources(ctx, &n)
	o.Self.PendingSince = time.Now().UTC().Truncate(time.Second) // unless the Node has an earlier one
	o.Own, o.Term = h.ownTerms(&n), h.Term()
	if n.State == v1alpha1.StateApplying && n.Ours() {
		h.observeApply(ctx, &o)
	}
	if outranks(o.Sources.Veto, o.Veto) {
		o.Veto, o.VetoDetail = o.Sources.Veto, o.Sources.VetoDetail
	}
	o.Self.HookStages = h.hookStages(&n)
	o.Hooks = h.hooks.work(stage, n.Retry)
	o.Drain = step.Drain{Running: h.drain.running(stage), Complete: h.drain.completed(stage), Detail: drainDetail(progress)}
	o.RebootError = h.rebooted.refusal(n.Turn)
	switch {
	case n.State != v1alpha1.StateRebooting || !n.Ours():
	case n.Grant.BootID == h.self.bootID:
		o.Blocked, o.BlockedDetail = h.blocked(ctx, n.Turn, settings)
	default:
		o.Health = h.healthy(ctx, settings)
	}
	if o.Blocked != "" && h.fresh != nil {
		// The look before a commit comes after inhibitors and sessions: one that
		// was made before they were noticed is no such look.
		h.fresh.Commit = false
	}
	h.listen(ctx, &o)
	// Last: whatever was asked above may have taken longer than a look lasts.
	o.Fresh = h.validRead(&n)
	return o
}

// outranks reports whether the veto of what the host's sources say goes before
// that of the host itself. A version that is held back ends a turn; windows and
// the like only let it wait, so they must not hide it.
func outranks(sources, own v1alpha1.Reason) bool {
	switch own {
	case v1alpha1.ReasonNone:
		return sources != ""
	case v1alpha1.ReasonWindow, v1alpha1.ReasonMinUptime, v1alpha1.ReasonOtherManager:
		return sources == v1alpha1.ReasonHeldBack
	}
	return false
}

// observeApply takes up what the last process has done, and sees whether the turn
// may still do what it is for, or has done it.
func (h *Host) observeApply(ctx context.Context, o *step.Observation) {
	stage := stageOf(&o.Node)
	ended := o.Node.HasAck(stage.state) && (o.Node.Ack.Report == v1alpha1.ReportDone || o.Node.Ack.Report == v1alpha1.ReportFailed)
	switch {
	case !o.Sources.Complete:
		return
	case o.Apply.Running:
		o.Apply.Settling = h.apply.resting(stage)
		return
	case ended && o.Apply.Done:
		return // what comes after the word is the next turn's, however long this stage lasts
	case o.Apply.Done && h.watched.Report().ProblemsOf(o.Node.Grant.Changes) != nil:
		// It could be read when the run ended, and cannot be now. The report on it is
		// older than that.
		o.Apply = step.Work{Running: true, Settling: true, Detail: "what the plan was for to be read"}
		return
	case o.Apply.Done:
		o.Apply.ChangedAgain = h.apply.outlived(stage, o.Sources.Changes)
		return
	case o.Apply != (step.Work{}):
		return
	}
	if h.apply.resume(ctx, stage) {
		o.Apply = step.Work{Running: true, Settling: true, Detail: atRest}
		return
	}
	_, o.Apply.NeedsReboot = h.errand(o)
}

// errand is what there is to do in applying.
func (h *Host) errand(o *step.Observation) (e errand, dearer bool) {
	match, _ := h.match(&o.Node)
	return errandOf(match, o.Sources.Changes, o.Node.Grant.Changes)
}

// veto is why this host would not commit anything, whatever the cluster says,
// and what a person would want to know about it.
func (h *Host) veto(s Settings) (v1alpha1.Reason, string) {
	h.mu.Lock()
	managers := h.managers
	h.mu.Unlock()
	switch {
	case s.Observe:
		return v1alpha1.ReasonObserve, ""
	case s.Paused != "":
		return v1alpha1.ReasonHostPaused, s.Paused
	case len(managers.active) > 0:
		names := make([]string, len(managers.active))
		for i, m := range managers.active {
			names[i] = m.String()
		}
		return v1alpha1.ReasonOtherManager, strings.Join(names, "; ")
	case h.windows.closed != "":
		return v1alpha1.ReasonWindow, h.windows.closed
	case h.self.uptime() < s.MinUptime:
		return v1alpha1.ReasonMinUptime, fmt.Sprintf("until %v after the boot", s.MinUptime)
	}
	return "", ""
}

// stage names one state of one turn.
type stage struct {
	turn  string
	state v1alpha1.State
}

func stageOf(n *turn.Node) stage { return stage{n.Turn, n.State} }

// blocked asks logind what stands against a shutdown: block inhibitors, which
// are waited for and never overridden, then the people who are logged in.
func (h *Host) blocked(ctx context.Context, turnID string, s Settings) (v1alpha1.Reason, string) {
	h.inhibitors = nil
	block, err := h.Logind.BlockingInhibitors(ctx)
	if err != nil {
		return v1alpha1.ReasonInhibited, fmt.Sprintf("logind does not say who inhibits a shutdown: %v", err)
	}
	if len(block) > 0 {
		h.inhibitors = block
		return v1alpha1.ReasonInhibited, inhibitors(block)
	}
	return h.waitForSessions(ctx, turnID, s.SessionDelay)
}

// inhibitors names the locks, at most three of them.
func inhibitors(all []systemd.Inhibitor) string {
	var names []string
	for i, l := range all {
		if i == 3 {
			names = append(names, fmt.Sprintf("%d more", len(all)-i))
			break
		}
		names = append(names, fmt.Sprintf("%s (pid %d, %s, %s): %s", l.Who, l.PID, strings.Join(l.What, ":"), l.Mode, l.Why))
	}
	return strings.Join(names, "; ")
}

// healthCheck caches what the host knows of its health after a boot.
type healthCheck struct {
	at   time.Time
	last step.Health
}

const healthEvery = 2 * time.Second

// healthy asks systemd whether the boot is complete and the units that the
// host's file names are active.
func (h *Host) healthy(ctx context.Context, s Settings) step.Health {
	if time.Since(h.health.at) < healthEvery {
		return h.health.last
	}
	detail := ""
	switch boot, err := h.Units.BootIncomplete(ctx); {
	case err != nil:
		detail = fmt.Sprintf("systemd does not say whether the boot is complete: %v", err)
	case boot != "":
		detail = "boot-complete.target is " + boot
	}
	for _, unit := range s.HealthUnits {
		if detail != "" {
			break
		}
		state, loaded, err := h.Units.ActiveState(ctx, unit)
		switch {
		case err != nil:
			detail = fmt.Sprintf("systemd does not say how %s is: %v", unit, err)
		case !loaded:
			detail = unit + " is not there"
		case state != "active":
			detail = unit + " is " + state
		}
	}
	h.health = healthCheck{time.Now(), step.Health{Healthy: detail == "", Detail: detail, Overdue: h.self.uptime() > s.HealthTimeout}}
	return h.health.last
}
