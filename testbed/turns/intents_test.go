package turns

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/packaging/render/intents"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// An intentPlace is a place of [intents.Matrix] on a real API server.
type intentPlace struct {
	place
	want want
	// begin, where not nil, starts the host.
	begin func(s *scene) *simhost.Host
	// frozen: the host's process is stopped with SIGSTOP before the turn begins.
	frozen bool
	// passes: a pause does not stop what is under way. The host reports done, and then rests.
	passes bool
}

// intentPlaces are all places except two that end within milliseconds: a host that has committed, and
// has not acted yet.
var intentPlaces = map[string]intentPlace{
	"absent": {want: update, begin: func(s *scene) *simhost.Host {
		h := s.host(simhost.Options{Name: s.name + "-1", WithoutLockkeeper: true})
		s.until(h, "to be Ready", func(n *turn.Node) bool { return n.Ready })
		return h
	}, place: place{hold: func(s *scene, h *simhost.Host) (there, release func()) {
		return func() {}, func() { s.Must(h.StartLockkeeper()) }
	}}},
	"idle": {want: update, place: place{hold: func(s *scene, h *simhost.Host) (there, release func()) {
		return func() {}, func() { s.intentPolicy(place{}, false) }
	}}},
	"paused": {want: update, place: place{hold: func(s *scene, h *simhost.Host) (there, release func()) {
		return func() {
			s.Annotate(h.Name(), v1alpha1.AnnotationPaused, "first")
			s.until(h, "to be paused", func(n *turn.Node) bool { return nodeAt(n) == "paused, held=Paused" })
		}, func() { s.intentPolicy(place{}, false) }
	}}},
	"before-drain":               {want: update, place: beforeDrain},
	"draining, not cordoned yet": {want: update, frozen: true, place: frozenIn(v1alpha1.StateDraining)},
	"draining":                   {want: update, place: draining},
	"before-reboot":              {want: update, place: beforeReboot},
	"rebooting":                  {want: update, place: rebooting},
	"rebooting, under way":       {want: update, passes: true, place: rebootCalled},
	"rebooting, in the new boot": {want: update, passes: true, place: place{hold: func(s *scene, h *simhost.Host) (there, release func()) {
		h.SetNextBoot(simhost.NextBoot{WithoutKubelet: true})
		return func() {
			s.Must(h.WaitBoots(s.soon(), 2))
			s.statusLineHas(h, string(v1alpha1.ReasonUnhealthy))
		}, func() { s.Must(h.StartKubelet()) }
	}}},
	// The host's own window closes while it drains, so it does not commit.
	"applying": {want: db, place: place{hold: func(s *scene, h *simhost.Host) (there, release func()) {
		there, _ = applying.hold(s, h)
		return there, func() { s.writeWindow(h, true) }
	}}},
	"applying, under way": {want: db, passes: true, place: place{hold: func(s *scene, h *simhost.Host) (there, release func()) {
		release = h.Units().HoldJobs()
		return func() { s.commits(h, v1alpha1.StateApplying); s.ordered(h, dbRestart) }, release
	}}},
	"before-uncordon": {want: update, place: beforeUncordon},
	"uncordoning":     {want: update, place: uncordoning},
}

// frozenIn is the state in which the coordinator finds a host whose process is stopped.
func frozenIn(state v1alpha1.State) place {
	return place{hold: func(s *scene, h *simhost.Host) (there, release func()) {
		return func() {
			s.until(h, "to be "+string(state), func(n *turn.Node) bool { return n.State == state })
		}, func() { s.Must(h.Continue()) }
	}}
}

// brief are the places that no test can hold.
var brief = []string{"rebooting, committed", "applying, committed"}

// A variant is how a cell of the matrix is played.
type variant string

const (
	removed variant = ""       // the admin removes the intent
	until   variant = "-until" // the coordinator removes it
	dead    variant = "-dead"  // the machine goes down for good before the intent is set
	both    variant = "-both"  // the node is paused too, and the pause ends first
	byFile  variant = "-file"  // managed_by_default in the host's file, and a reload
)

// morePlaces are those of the variants until, both and byFile.
var morePlaces = []string{"idle", "before-drain", "draining", "rebooting", "applying", "uncordoning"}

// intentScenes returns the cells of the matrix as scenes: all of them with LOCKKEEPER_SOAK,
// otherwise four that the seed draws.
func intentScenes(t *testing.T) map[string]func(*scene) {
	all := map[string]func(*scene){}
	for _, m := range intents.Matrix {
		for _, cell := range m.Cells {
			at, known := intentPlaces[cell.Place]
			if !known {
				if !slices.Contains(brief, cell.Place) {
					t.Errorf("no way to %q", cell.Place)
				}
				continue
			}
			at.name = cell.Place
			for _, v := range []variant{removed, until, both, byFile, dead} {
				switch {
				case v == until && (m.Intent == intents.Unmanaged || !slices.Contains(morePlaces, cell.Place)):
					continue
				case v == both && (m.Intent != intents.Detached || !slices.Contains(morePlaces, cell.Place)):
					continue
				case v == byFile && (m.Intent != intents.Unmanaged || !slices.Contains(morePlaces, cell.Place)):
					continue
				case v == dead && (cell.Place == "absent" || strings.Contains(cell.Dead, string(v1alpha1.ReasonOverdue))):
					continue // Overdue takes half an hour: in the model cluster only
				}
				name := strings.NewReplacer(" ", "-", ",", "", "managed=false", "unmanaged", "detached with force", "forced").Replace("intent-" + m.Intent + "-" + cell.Place + string(v))
				all[name] = func(s *scene) { playIntent(s, m.Intent, cell, at, v) }
			}
		}
	}
	return drawn(t, all, 4)
}

// drawn returns as many of the scenes as the seed draws, or all with LOCKKEEPER_SOAK.
func drawn(t *testing.T, all map[string]func(*scene), count int) map[string]func(*scene) {
	if rig.Number(t, "LOCKKEEPER_SOAK", 0) > 0 {
		t.Logf("all of %d scenes", len(all))
		return all
	}
	seed := rig.Number(t, "LOCKKEEPER_SEED", 1)
	names := slices.Sorted(maps.Keys(all))
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	t.Logf("of %d scenes LOCKKEEPER_SEED=%d draws %q", len(all), seed, names[:count])
	some := map[string]func(*scene){}
	for _, name := range names[:count] {
		some[name] = all[name]
	}
	return some
}

// cellOf returns the cell of the intent in the place.
func cellOf(t *testing.T, intent, place string) intents.Cell {
	t.Helper()
	for _, m := range intents.Matrix {
		for _, cell := range m.Cells {
			if m.Intent == intent && cell.Place == place {
				return cell
			}
		}
	}
	t.Fatalf("no cell %s in %s", intent, place)
	return intents.Cell{}
}

// intentPolicy makes the scene's policy hold its host, or let it go.
func (s *scene) intentPolicy(at place, paused bool) {
	s.T.Helper()
	_, err := s.tryPolicy(wantRow{at: at}.policy(s, paused))
	s.Must(err)
}

// setIntent sets an intent. An until that is not zero is when it ends.
func (s *scene) setIntent(h *simhost.Host, intent string, ends time.Time) {
	s.T.Helper()
	payload := `{"reason":"theirs","by":"ann"`
	if !ends.IsZero() {
		payload += `,"until":"` + ends.UTC().Format(time.RFC3339) + `"`
	}
	switch intent {
	case intents.Unmanaged:
		s.Label(h.Name(), v1alpha1.LabelManaged, "false")
	case intents.Paused:
		s.Annotate(h.Name(), v1alpha1.AnnotationPaused, payload+"}")
	case intents.Detached:
		s.Annotate(h.Name(), v1alpha1.AnnotationDetached, payload+"}")
	case intents.Forced:
		s.Annotate(h.Name(), v1alpha1.AnnotationDetached, payload+`,"force":true}`)
	}
}

// nodeAt describes where a node is, as [intents.Cell] does.
func nodeAt(n *turn.Node) string {
	at := n.State.String()
	if n.Unschedulable {
		at += ", cordoned"
	}
	if n.Held != "" {
		at += ", held=" + string(n.Held)
	}
	return at
}

// bring brings a host to the place, and returns what lets it go on, and its turn.
func (s *scene) bring(at intentPlace) (h *simhost.Host, release func(), began string) {
	s.T.Helper()
	for field := range strings.FieldsSeq(at.hooks) {
		s.authors.Keep(s.hook(field))
	}
	s.policy(wantRow{at: at.place}.policy(s, true))
	if at.begin != nil {
		h = at.begin(s)
	} else {
		h = s.hosts(1)[0]
	}
	there, release := at.hold(s, h)
	s.add(h, at.want)
	if at.name != "absent" {
		s.published(h, strongest([]want{at.want}), string(at.want))
		s.held(h, v1alpha1.ReasonPaused)
	}
	if at.frozen {
		s.freeze(h)
	}
	if at.name != "idle" && at.name != "paused" {
		s.intentPolicy(at.place, false)
	}
	there()
	return h, release, s.Now(h.Name()).Turn
}

// playIntent plays a cell of the matrix.
func playIntent(s *scene, intent string, cell intents.Cell, at intentPlace, v variant) {
	h, release, began := s.bring(at)
	if v == dead {
		if at.frozen {
			release()
		}
		s.Must(h.Crash(simhost.CrashOptions{StayDown: true}))
		s.setIntent(h, intent, time.Time{})
		s.rests(h, cell.Dead)
		return
	}
	if v == both {
		s.setIntent(h, intents.Paused, time.Time{})
	}
	if v == byFile {
		s.managedByDefault(h, false)
	} else {
		s.setIntent(h, intent, time.Time{})
	}
	release()
	if v == both {
		s.rests(h, cellOf(s.T, intents.Paused, cell.Place).Rest)
		s.Annotate(h.Name(), v1alpha1.AnnotationPaused, nil)
	}
	n := s.rests(h, cell.Rest)
	if intent == intents.Paused && n.InTurn() {
		s.staysPaused(h, at, cell.Rest)
	}
	switch {
	case v == byFile:
		s.managedByDefault(h, true)
	case v == until: // the same intent, with an end now
		s.setIntent(h, intent, time.Now().Add(2*time.Second))
	case intent == intents.Unmanaged:
		s.Label(h.Name(), v1alpha1.LabelManaged, nil)
	case intent == intents.Paused:
		s.Annotate(h.Name(), v1alpha1.AnnotationPaused, nil)
	default:
		s.Annotate(h.Name(), v1alpha1.AnnotationDetached, nil)
	}
	if end := cell.End; v == byFile {
		s.arrives(h, at, began, strings.Replace(end, "no turn", "the same turn", 1)) // the record of the last turn stays
	} else {
		s.arrives(h, at, began, end)
	}
}

// managedByDefault changes the host's file, and has the host read it.
func (s *scene) managedByDefault(h *simhost.Host, is bool) {
	s.T.Helper()
	s.Must(h.Configure(func(c simhost.Config) { c.Set("", "managed_by_default", is) }))
	s.Must(h.Signal(syscall.SIGHUP))
	if !is {
		s.until(h, "to have published that", func(n *turn.Node) bool { return n.Host == nil || !n.Host.Managed })
	}
}

// rests waits until the node is where it is to rest. A node without a state has no other key of ours.
func (s *scene) rests(h *simhost.Host, want string) *turn.Node {
	s.T.Helper()
	n := s.until(h, "to rest in "+want, func(n *turn.Node) bool { return nodeAt(n) == want })
	byItsFile := n.Detached == nil && n.Managed == nil // then the record of its last turn stays
	if n.State == v1alpha1.StateAbsent && (n.Turn != "" || n.Grant != nil || n.Mark || n.Wants != "" || n.RawHost != "" || n.Last != nil && !byItsFile || n.Ack != v1alpha1.Ack{}) {
		s.T.Errorf("%s is absent, and has %+v", h.Name(), n.Keys)
	}
	return n
}

// staysPaused waits until the host has seen the pause: what was under way is done, or another process of the host has begun with it.
// Then the node has to be where it was.
func (s *scene) staysPaused(h *simhost.Host, at intentPlace, rest string) {
	s.T.Helper()
	if at.passes {
		s.until(h, "to report done", func(n *turn.Node) bool { return n.HasReport(v1alpha1.ReportDone) })
	} else {
		started := s.Now(h.Name()).Host.Started
		h.StopLockkeeper()
		s.Must(h.StartLockkeeper())
		s.until(h, "to have another process", func(n *turn.Node) bool { return n.Host != nil && !n.Host.Started.Equal(started) })
	}
	s.until(h, "to have its clock stopped", func(n *turn.Node) bool { return n.Grant != nil && n.Grant.PausedSince != nil })
	if n := s.Now(h.Name()); nodeAt(n) != rest {
		s.T.Errorf("paused, %s is %s; expected %s", h.Name(), nodeAt(n), rest)
	}
}

// arrives waits until the node is at the end of the cell, and checks by which turn it came there.
func (s *scene) arrives(h *simhost.Host, at intentPlace, began, want string) {
	s.T.Helper()
	if want == "paused, held=Paused" {
		n := s.rests(h, want)
		if n.Detached != nil || n.Managed != nil || n.Last != nil {
			s.T.Errorf("%s has %+v", h.Name(), n.Keys)
		}
		s.did(h, 0)
		return
	}
	n := s.until(h, "to be idle, and to want nothing", func(n *turn.Node) bool {
		return n.State == v1alpha1.StateIdle && n.HostReported() && n.Wants == v1alpha1.WantsNothing && n.Ready && n.BootID == h.BootID()
	})
	got := nodeAt(n)
	switch {
	case n.Last == nil:
		got += ", no turn"
	case n.Last.Result != v1alpha1.ResultDone:
		got += fmt.Sprintf(", %+v", n.Last)
	case n.Last.Turn == began:
		got += ", the same turn"
	default:
		got += ", a new turn"
	}
	if got != want {
		s.T.Errorf("%s arrives at %q, expected %q", h.Name(), got, want)
	}
	if at.want == db {
		s.did(h, 0, dbRestart)
	} else {
		s.did(h, 1)
	}
}
