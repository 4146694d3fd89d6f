package turns

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// want is a reason for a turn: an OS update, a sentinel, or one of the two files.
type want string

const (
	update   want = "OSUpdate" // wants a reboot
	sentinel want = flagged    // the same
	db       want = dbConf     // wants a drain, and db.service restarted
	app      want = appConf    // wants app.service restarted
)

// A place is where in a turn the want changes: hold keeps the turn of h there until release, and returns before the turn
// begins; there returns when the host waits in it.
type place struct {
	name  string
	spent bool   // there, nothing is left of what the turn began for
	hooks string // of the policy; they are kept until release, and confirmed from then on
	hold  func(s *scene, h *simhost.Host) (there, release func())
}

// hookStage is a stage with one hook.
func hookStage(field string, state v1alpha1.State, spent bool) place {
	return place{name: string(state), spent: spent, hooks: field, hold: func(s *scene, h *simhost.Host) (there, release func()) {
		return func() { s.reaches(h, state); s.statusLineHas(h, string(state)) }, func() { s.authors.Release(s.hook(field)) }
	}}
}

var (
	beforeDrain    = hookStage("beforeDrain", v1alpha1.StateBeforeDrain, false)
	beforeReboot   = hookStage("beforeReboot", v1alpha1.StateBeforeReboot, false)
	beforeUncordon = hookStage("beforeUncordon", v1alpha1.StateBeforeUncordon, true)

	draining = place{name: "draining", hold: func(s *scene, h *simhost.Host) (there, release func()) {
		release = s.block(h)
		return func() { s.commits(h, v1alpha1.StateDraining); s.statusLineHas(h, "1 pods to go") }, release
	}}
	rebooting = place{name: "rebooting", hold: func(s *scene, h *simhost.Host) (there, release func()) {
		release = h.Logind().Hold(blocker)
		return func() { s.reaches(h, v1alpha1.StateRebooting); s.statusLineHas(h, "Inhibited") }, release
	}}
	rebootCalled = place{name: "reboot-called", hold: func(s *scene, h *simhost.Host) (there, release func()) {
		release = h.Logind().Hold(delayer)
		return func() { s.commits(h, v1alpha1.StateRebooting); s.statusLineHas(h, "the reboot that is under way") }, release
	}}
	// A window of the host's own closes while it drains, so that it does not commit to what comes then.
	applying = place{name: "applying", hold: func(s *scene, h *simhost.Host) (there, release func()) {
		unblock := s.block(h)
		return func() {
			s.commits(h, v1alpha1.StateDraining)
			s.hostWindow(h, false)
			unblock()
			s.reaches(h, v1alpha1.StateApplying)
			s.statusLineHas(h, "Window (until a window of this host opens")
		}, func() { s.hostWindow(h, true) }
	}}
	// systemd is at work.
	applyBegun = place{name: "apply-begun", hold: func(s *scene, h *simhost.Host) (there, release func()) {
		release = h.Units().HoldJobs()
		return func() {
			s.commits(h, v1alpha1.StateApplying)
			s.ordered(h, appRestart)
		}, release
	}}
	// The turn has lost its want in before-reboot already, and is on its way back.
	backedOut = place{name: "backed-out", spent: true, hooks: "beforeReboot beforeUncordon", hold: func(s *scene, h *simhost.Host) (there, release func()) {
		return func() {
				s.reaches(h, v1alpha1.StateBeforeReboot)
				s.drop(h, sentinel)
				s.until(h, "to be backed out", func(n *turn.Node) bool {
					return n.State == v1alpha1.StateBeforeUncordon && n.HostReported() && n.Wants == v1alpha1.WantsNothing
				})
			}, func() {
				s.authors.Release(s.hook("beforeReboot"))
				s.authors.Release(s.hook("beforeUncordon"))
			}
	}}
	// The node is not Ready, so it is not given back.
	uncordoning = place{name: "uncordoning", spent: true, hooks: "beforeUncordon", hold: func(s *scene, h *simhost.Host) (there, release func()) {
		return func() {
			s.reaches(h, v1alpha1.StateBeforeUncordon)
			h.StopKubelet()
			s.Must(cp.SetNodeReady(s.soon(), h.Name(), "", false))
			s.authors.Release(s.hook("beforeUncordon"))
			s.reaches(h, v1alpha1.StateUncordoning)
			s.statusLineHas(h, "NotReady")
		}, func() { s.Must(h.StartKubelet()) }
	}}
)

// A wantRow is what happens to a turn whose want changes in it.
type wantRow struct {
	at     place
	change string // vanishes, weakens or grows
	from   []want // there when the turn begins
	lost   want   // then goes, or
	got    want   // comes
	turns  []string
	// reboots and jobs are those of all of the turns.
	reboots int
	jobs    []string
}

// wantRows are DESIGN section 3's, state by change. A want that vanishes, or falls below what the state needs, turns the node
// round, up to the commit; one that grows before draining is over is the turn's, and later the next turn's; so is what is left of
// one that fell.
var wantRows = []wantRow{
	{at: beforeDrain, change: "vanishes", from: []want{update}, lost: update,
		turns: []string{"Cancelled WantGone: before-drain uncordoning"}},
	{at: beforeDrain, change: "weakens to drain", from: []want{update, db}, lost: update,
		turns: []string{"Done: before-drain draining applying uncordoning"}, jobs: []string{dbRestart}},
	{at: beforeDrain, change: "weakens to apply", from: []want{update, app}, lost: update,
		turns: []string{"Cancelled WantGone: before-drain uncordoning", "Done: applying"}, jobs: []string{appRestart}},
	{at: beforeDrain, change: "grows", from: []want{db}, got: update,
		turns: []string{"Done: before-drain draining rebooting uncordoning"}, reboots: 1},

	{at: draining, change: "vanishes", from: []want{db}, lost: db,
		turns: []string{"Cancelled WantGone: draining uncordoning"}},
	{at: draining, change: "weakens to drain", from: []want{sentinel, db}, lost: sentinel,
		turns: []string{"Done: draining applying uncordoning"}, jobs: []string{dbRestart}},
	{at: draining, change: "weakens to apply", from: []want{sentinel, app}, lost: sentinel,
		turns: []string{"Cancelled WantGone: draining uncordoning", "Done: applying"}, jobs: []string{appRestart}},
	{at: draining, change: "grows", from: []want{db}, got: sentinel,
		turns: []string{"Done: draining rebooting uncordoning"}, reboots: 1},

	{at: beforeReboot, change: "vanishes", from: []want{sentinel}, lost: sentinel,
		turns: []string{"Cancelled WantGone: draining before-reboot uncordoning"}},
	{at: beforeReboot, change: "weakens", from: []want{sentinel, db}, lost: sentinel,
		turns: []string{"Cancelled WantGone: draining before-reboot uncordoning", "Done: draining applying uncordoning"}, jobs: []string{dbRestart}},
	// A reboot is the most that a node can want, and does what the restart would.
	{at: beforeReboot, change: "grows", from: []want{sentinel}, got: db,
		turns: []string{"Done: draining before-reboot rebooting uncordoning"}, reboots: 1},

	{at: rebooting, change: "vanishes", from: []want{sentinel}, lost: sentinel,
		turns: []string{"Cancelled WantGone: draining rebooting uncordoning"}},
	{at: rebooting, change: "weakens", from: []want{sentinel, db}, lost: sentinel,
		turns: []string{"Cancelled WantGone: draining rebooting uncordoning", "Done: draining applying uncordoning"}, jobs: []string{dbRestart}},
	{at: rebooting, change: "grows", from: []want{sentinel}, got: db,
		turns: []string{"Done: draining rebooting uncordoning"}, reboots: 1},
	// No one calls the reboot back.
	{at: rebootCalled, change: "vanishes", from: []want{sentinel}, lost: sentinel,
		turns: []string{"Done: draining rebooting uncordoning"}, reboots: 1},
	{at: rebootCalled, change: "weakens", from: []want{sentinel, app}, lost: sentinel,
		turns: []string{"Done: draining rebooting uncordoning"}, reboots: 1},

	{at: applying, change: "vanishes", from: []want{db}, lost: db,
		turns: []string{"Cancelled WantGone: draining applying uncordoning"}},
	// The plan is carried out as a whole.
	{at: applying, change: "weakens", from: []want{db, app}, lost: db,
		turns: []string{"Done: draining applying uncordoning"}, jobs: []string{appRestart, dbRestart}},
	// Later than the drain: the next turn's.
	{at: applying, change: "grows", from: []want{db}, got: sentinel,
		turns: []string{"Done: draining applying uncordoning", "Done: draining rebooting uncordoning"}, reboots: 1, jobs: []string{dbRestart}},
	// What has begun is finished. Whether the unit has read the one file or the other no one knows: a person has to look.
	{at: applyBegun, change: "vanishes", from: []want{app}, lost: app,
		turns: []string{"Failed StillWanted: applying uncordoning", "Done: applying"}, jobs: []string{appRestart, appRestart}},
	{at: applyBegun, change: "grows", from: []want{app}, got: update,
		turns: []string{"Done: applying", "Done: draining rebooting uncordoning"}, reboots: 1, jobs: []string{appRestart}},

	// These states only give back: what comes is the next turn's.
	{at: backedOut, change: "grows", from: []want{sentinel}, got: sentinel,
		turns: []string{"Cancelled WantGone: draining before-reboot before-uncordon uncordoning",
			"Done: draining before-reboot rebooting before-uncordon uncordoning"}, reboots: 1},
	{at: beforeUncordon, change: "grows", from: []want{update}, got: app,
		turns: []string{"Done: draining rebooting before-uncordon uncordoning", "Done: applying"}, reboots: 1, jobs: []string{appRestart}},
	{at: uncordoning, change: "grows", from: []want{db}, got: sentinel,
		turns: []string{"Done: draining applying before-uncordon uncordoning",
			"Done: draining rebooting before-uncordon uncordoning"}, reboots: 1, jobs: []string{dbRestart}},
}

// wants are the rows as scenes.
func wants() map[string]func(*scene) {
	all := map[string]func(*scene){}
	for _, r := range wantRows {
		all[strings.ReplaceAll("want-"+r.at.name+"-"+r.change, " ", "-")] = r.play
	}
	return all
}

func (r wantRow) play(s *scene) {
	for field := range strings.FieldsSeq(r.at.hooks) {
		s.authors.Keep(s.hook(field))
	}
	s.policy(r.policy(s, true))
	h := s.hosts(1)[0]
	there, release := r.at.hold(s, h)
	// The turn begins when all of it is known.
	s.add(h, r.from...)
	s.published(h, strongest(r.from), names(r.from)...)
	s.held(h, v1alpha1.ReasonPaused)
	_, err := s.tryPolicy(r.policy(s, false))
	s.Must(err)
	there()
	if r.lost != "" {
		s.drop(h, r.lost)
	}
	if r.got != "" {
		s.add(h, r.got)
	}
	if r.lost != "" && strings.HasPrefix(r.turns[0], string(v1alpha1.ResultCancelled)) {
		s.over(h, 1) // it is backed out by itself
		if n := s.evictions(h); n > 0 && r.at.name == draining.name {
			s.T.Errorf("%d pods were evicted from %s", n, h.Name())
		}
	} else if left := r.left(); r.at.name == applying.name && len(left) > 0 {
		// The host publishes the plan of the turn until the turn is over. The journal has what it wants now.
		s.Eventually("the change to be read", func(context.Context) (bool, error) {
			return strings.Contains(h.Logs(), "state=applying wants="+string(strongest(left))), nil
		})
	} else if r.at.name != applyBegun.name {
		s.published(h, strongest(left), names(left)...)
	}
	release()
	if strings.HasPrefix(r.turns[0], string(v1alpha1.ResultFailed)) {
		s.over(h, 1)
		s.held(h, v1alpha1.ReasonFailed)
		if out, err := s.lockkeeper("retry", h.Name()); err != nil {
			s.T.Errorf("%v: %s", err, out)
		}
	}
	s.over(h, len(r.turns))
	s.idle(h) // nothing is left to have another turn for
	s.ended(h, r.turns...)
	s.did(h, r.reboots, r.jobs...)
}

// policy is a policy with the hooks that the place needs.
func (r wantRow) policy(s *scene, paused bool) string {
	var text strings.Builder
	fmt.Fprintf(&text, "paused: %t\nrollout: {settle: 0s}\nhooks:\n  waitForVolumeDetach: false\n", paused)
	for field := range strings.FieldsSeq(r.at.hooks) {
		fmt.Fprintf(&text, "  %s: [{name: %s}]\n", field, s.hook(field))
	}
	return text.String()
}

// left is what the host wants after the change.
func (r wantRow) left() (all []want) {
	if !r.at.spent {
		all = slices.DeleteFunc(slices.Clone(r.from), func(w want) bool { return w == r.lost })
	}
	if r.got != "" {
		all = append(all, r.got)
	}
	return all
}

// strongest is what a host wants for all of these.
func strongest(all []want) v1alpha1.Wants {
	switch {
	case slices.Contains(all, update), slices.Contains(all, sentinel):
		return v1alpha1.WantsReboot
	case slices.Contains(all, db):
		return v1alpha1.WantsDrain
	case slices.Contains(all, app):
		return v1alpha1.WantsApply
	}
	return v1alpha1.WantsNothing
}

// names are the changes' sources or names, as [scene.published] takes them.
func names(all []want) (names []string) {
	for _, w := range all {
		names = append(names, string(w))
	}
	return names
}

// hook is the name of the scene's hook of a stage.
func (s *scene) hook(field string) string { return strings.ToLower(s.name + "-" + field) }

// add has the host's sources say these.
func (s *scene) add(h *simhost.Host, all ...want) {
	s.T.Helper()
	for _, w := range all {
		switch w {
		case update:
			s.stage(h)
		case sentinel:
			if s.Referee != nil {
				s.Referee.WantMade(h.Name())
			}
			s.Must(h.WriteFile(flagged, ""))
		default:
			s.Must(h.WriteFile(string(w), "changed = true\n"))
		}
	}
}

// drop takes one back at its source.
func (s *scene) drop(h *simhost.Host, w want) {
	s.T.Helper()
	if w == update {
		s.cancel(h)
		return
	}
	s.Must(h.RemoveFile(string(w)))
	if w == sentinel {
		s.Referee.WantCancelled(h.Name())
	}
}

// hostWindow is [scene.writeWindow], and returns when the host has published what follows from it.
func (s *scene) hostWindow(h *simhost.Host, open bool) {
	s.T.Helper()
	s.writeWindow(h, open)
	veto := v1alpha1.ReasonWindow
	if open {
		veto = ""
	}
	s.until(h, fmt.Sprintf("to have the veto %q", veto), func(n *turn.Node) bool { return n.Host != nil && n.Host.Veto == veto })
}

// writeWindow gives the host a window of its own in a drop-in, and has the host read it. One that is closed was open for ten
// minutes half a day ago.
func (s *scene) writeWindow(h *simhost.Host, open bool) {
	s.T.Helper()
	start, lasts := time.Now().UTC().Add(-12*time.Hour), "10m"
	if open {
		start, lasts = time.Now().UTC().Add(-time.Hour), "12h"
	}
	dir := filepath.Join(filepath.Dir(h.ConfigPath()), "config.d")
	s.Must(os.MkdirAll(dir, 0o700))
	text := fmt.Sprintf("[[window]]\nstart = %q\nduration = %q\n", start.Format("15:04"), lasts)
	s.Must(os.WriteFile(filepath.Join(dir, "window.toml"), []byte(text), 0o600))
	s.Must(h.Signal(syscall.SIGHUP))
}
