package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/kube/dirwatch"
	"lockkeeper.dev/lockkeeper/node/hostfs"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
	"lockkeeper.dev/lockkeeper/updateengine"
)

// sources puts together what the sources say. published are the changes that
// stand on the Node from this same boot: what a source said before it could
// not be read any more.
func (h *Host) sources(ctx context.Context, n *turn.Node) step.Sources {
	var published []v1alpha1.Change
	spoken := n.Host != nil && n.Host.NodeUID == n.UID && n.Host.BootID == h.self.bootID
	if spoken {
		published = slices.Concat(n.Host.Changes, n.Host.HeldBack)
	}
	h.mu.Lock()
	sentinels, looked := h.changed, h.looked
	h.mu.Unlock()

	s := step.Sources{Complete: true}
	var changes []v1alpha1.Change
	engine := engineSays{confirmed: true}
	if h.Engine != nil {
		engine = engineChange(h.Engine.Latest(), of(published, v1alpha1.SourceOSUpdate), h.engineGone(ctx, published))
		if !engine.read && !spoken {
			s.Complete, s.Missing = false, "update_engine: "+errText(engine.err)
		}
		changes = append(changes, engine.changes...)
	}
	if !looked {
		s.Complete, s.Missing = false, "sentinels: not looked at yet"
	}
	for _, path := range sentinels {
		changes = append(changes, v1alpha1.Change{Source: v1alpha1.SourceSentinel, Name: path})
	}
	if _, looked := h.hooks.seen(); !looked && !spoken {
		s.Complete, s.Missing = false, "hook units: systemd has not been asked yet"
	}
	if n.Request != nil {
		changes = append(changes, v1alpha1.Change{Source: v1alpha1.SourceRequest})
	}
	match, known := h.match(n)
	unread := ""
	switch {
	case !known:
		s.Complete, s.Missing = false, "policies: "+errText(h.policies.Err())
	case match.Reason != "" && n.InTurn() && spoken:
		// This process has seen no valid ones: what the changes cost is not known,
		// neither vanished nor grown.
		s.Complete, s.Missing = false, "policies: "+match.Detail
	case match.Reason != "":
		// What was watched before is not to be forgotten.
	default:
		var missing string
		var differs []v1alpha1.Change
		if differs, unread, missing = h.differing(&match, published); missing != "" {
			s.Complete, s.Missing = false, missing
		}
		changes = append(changes, differs...)
	}
	plan := match.Plan(changes)
	s.Wants, s.Drains, s.Veto = plan.Wants, plan.Drains, plan.Veto
	switch {
	case s.Veto != "":
		s.VetoDetail = "its plan would boot a version that a policy holds back"
	case unread != "" && s.Wants.Something():
		// A commit reads everything: no turn is to begin that would wait for it.
		s.Veto, s.VetoDetail = v1alpha1.ReasonSourceUnreadable, unread
	}
	s.Changes, s.HeldBack, s.Plan = plan.Changes(), heldBack(&plan), planned(&plan)
	if text, lasts := h.unread.hear(h.policies.Err(), h.view.Err(), time.Now()); text != "" && known {
		s.Unconfirmed = text
		if lasts && s.Veto == "" && s.Wants.Something() {
			s.Veto, s.VetoDetail = v1alpha1.ReasonSourceUnreadable, text
		}
	}
	if !engine.confirmed && s.Unconfirmed == "" {
		// Others may carry the plan by themselves: then the engine's silence
		// keeps nobody waiting.
		rest := match.Plan(changes[len(engine.changes):])
		if rest.Wants != s.Wants || rest.Drains != s.Drains {
			s.Unconfirmed = "update_engine to answer: it has said that its update waits for a reboot, and is not there to say so again"
		}
	}
	return s
}

// unreadFor is how long the policies cannot be read, while Nodes can, before a host
// says so on its Node. It is more than the minute that at most lies between two
// lists: after an outage of the whole API server the policies come back by then, and
// no fleet writes that they were away.
const unreadFor = 90 * time.Second

// unread is that the policies cannot be read.
type unread struct {
	since time.Time // when that was first heard while Nodes could be read; zero: it was not
}

// hear takes in why the policies, and why Nodes, cannot be read at present; nil is
// that they can. text says why nothing is committed by the policies that were read
// last, or is "": what a change costs may be another thing by now. That there is no
// such kind is an answer. lasts: nor are turns to begin, since the API server said no,
// and will again, or has given no policies for long while it gave Nodes.
func (u *unread) hear(policies, nodes error, now time.Time) (text string, lasts bool) {
	switch {
	case policies == nil || errors.Is(policies, kube.ErrNotServed):
		*u = unread{}
		return "", false
	case nodes != nil && !u.lasts(now):
		*u = unread{}
	case u.since.IsZero():
		u.since = now
	}
	return "the policies to be read again: " + policies.Error(), apierrors.IsForbidden(policies) || u.lasts(now)
}

func (u *unread) lasts(now time.Time) bool { return !u.since.IsZero() && now.Sub(u.since) >= unreadFor }

// differing returns the files and units that differ from what is in effect, by the
// rules that name them. missing says what has not been read yet, and unread what cannot
// be read: changes in that are returned as this boot has published them.
func (h *Host) differing(match *policy.Match, published []v1alpha1.Change) (changes []v1alpha1.Change, unread, missing string) {
	paths, units := match.Watches()
	h.watched.Watch(paths, units, published)
	report := h.watched.Report()
	if report.Unread {
		return nil, "", "watched files: not read yet"
	}
	changes = report.Changes
	for _, p := range report.Problems {
		if unread == "" {
			unread = fmt.Sprintf("%s %s cannot be read: %v", p.Source, p.Name, p.Err)
		}
		for _, c := range published {
			if p.Covers(c) && !slices.ContainsFunc(changes, c.Same) {
				changes = append(changes, c)
			}
		}
	}
	return changes, unread, ""
}

func of(changes []v1alpha1.Change, source v1alpha1.Source) []v1alpha1.Change {
	return slices.DeleteFunc(slices.Clone(changes), func(c v1alpha1.Change) bool { return c.Source != source })
}

func errText(err error) string {
	if err == nil {
		return "not read yet"
	}
	return err.Error()
}

// readSources reads every source once more, for a commit, and sees whether
// another reboot manager has come to be active. What cannot be read
// now is an error: a commit needs a positive word. An engine that is not on the
// bus has none to give; what that means for the commit is sources' business.
func (h *Host) readSources(ctx context.Context) error {
	if h.Engine != nil {
		if r, err := h.Engine.Read(ctx); err != nil {
			return fmt.Errorf("reading update_engine: %w", err)
		} else if r.Presence == updateengine.Present && !r.Operation.Known() {
			return fmt.Errorf("update_engine is in operation %q, which is not known", r.Operation)
		}
	}
	// Units enabled since without a daemon-reload. If systemd does not say,
	// what was seen before stands: it is no source of changes.
	_ = h.hooks.look(ctx)
	if err := h.lookAtManagers(ctx); err != nil {
		return err
	}
	if err := h.watched.Refresh(ctx); err != nil {
		return err
	}
	return h.lookAtSentinels()
}

// watchHooks keeps up which stages have hook units.
func (h *Host) watchHooks(ctx context.Context) {
	failed := false
	h.Units.WatchReloads(ctx, func(ctx context.Context) {
		err := h.hooks.look(ctx)
		if err != nil && !failed && ctx.Err() == nil {
			h.Log.Warn("cannot look for hook units; what was seen before stands", "err", err)
		}
		failed = err != nil
	})
}

// hookStages are the stages with hook units: as last seen or, before that, as
// this boot has published them.
func (h *Host) hookStages(n *turn.Node) []v1alpha1.State {
	stages, looked := h.hooks.seen()
	if !looked && n.Host != nil && n.Host.NodeUID == n.UID && n.Host.BootID == h.self.bootID {
		return n.Host.HookStages
	}
	return stages
}

// lookAtSentinels sees which of the sentinel files are there.
func (h *Host) lookAtSentinels() error {
	h.looking.Lock()
	defer h.looking.Unlock()
	paths := h.sentinelPaths()
	r, err := hostfs.New(h.Root)
	if err != nil {
		return err
	}
	defer r.Close()
	var there []string
	for _, path := range paths {
		switch _, err := r.Lstat(path); {
		case err == nil:
			there = append(there, path)
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
			return fmt.Errorf("sentinel: %w", err)
		}
	}
	h.mu.Lock()
	news := !h.looked || !slices.Equal(h.changed, there)
	h.changed, h.looked = there, true
	h.mu.Unlock()
	if news {
		h.wake()
	}
	return nil
}

// sightPause is the least between two looks at the sentinels, however often
// they come and go.
const sightPause = 50 * time.Millisecond

// watchSentinels reads the sentinels when one has come or gone, and every poll interval.
func (h *Host) watchSentinels(ctx context.Context) {
	watch := dirwatch.New(func(string) {
		select {
		case h.resight <- struct{}{}:
		default:
		}
	})
	defer watch.Close()
	blind, failed := false, false
	for {
		// Watch first: what changes before the reading is read, what changes later is reported.
		_, err := watch.Watch("sentinels", h.Root, h.sentinelPaths(), false)
		if err != nil && !blind {
			h.Log.Warn("inotify does not report all sentinels; lockkeeper finds them at the poll interval", "err", err, "interval", h.PollInterval)
		}
		blind = err != nil
		err = h.lookAtSentinels()
		if err != nil && !failed {
			h.Log.Warn("cannot look at the sentinels; what they said before stands", "err", err)
		}
		failed = err != nil
		if wait(ctx, nil, sightPause) != nil || wait(ctx, h.resight, jitter(h.PollInterval)) != nil {
			return
		}
	}
}

func (h *Host) sentinelPaths() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.settings.Sentinels
}

// wait waits for a kick or for d, whichever is first; it returns ctx's error
// if ctx ends.
func wait(ctx context.Context, kick <-chan struct{}, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-kick:
	case <-t.C:
	}
	return ctx.Err()
}
