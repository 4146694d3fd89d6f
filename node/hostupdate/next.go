package hostupdate

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/local"
)

// Facts are the inputs of [Next] other than the previous status and the time.
type Facts struct {
	Host local.Host
	// Version is the version of lockkeeper.
	Version string
	// Coordinator is the host's part in the election.
	Coordinator local.Coordinator
	// Gap is the last outage of the API server that this process has seen; zero if there
	// was none.
	Gap Gap
	// Offline are the events from while the API server could not be reached, in order, since
	// the last write of the status; nil if there are none.
	Offline []v1alpha1.OfflineEvent
}

// Gap is a period in which the API server could not be reached.
type Gap struct {
	From, To time.Time
	Error    string
}

// Next returns the status that follows prev at the time now. prev is the status that the API
// server has, or the last result of Next; it is the zero status if there is none. The result
// is within the bounds of the schema for any facts.
func Next(prev *v1alpha1.HostUpdateStatus, f *Facts, now time.Time) v1alpha1.HostUpdateStatus {
	h := &f.Host
	s := v1alpha1.HostUpdateStatus{
		Wants: h.Wants, State: name(h.State.String()), Waits: name(string(h.Waits)), Since: timeOrNil(h.Since),
		Message: text(h.Text()), Changes: pending(prev, h, now), Plan: lines(h.Plan, 16),
		Engine: engine(h.Engine),
		OS:     v1alpha1.OSStatus{ID: name(string(h.OS.ID)), Version: name(string(h.OS.Version)), Group: name(string(h.OS.Group))},
		BootID: name(h.BootID), Version: name(f.Version), Role: cmp.Or(f.Coordinator.Role, v1alpha1.RoleHost),
		Drain: h.Drain, History: prev.History, Offline: prev.Offline,
	}
	if !s.Wants.Known() {
		s.Wants = ""
	}
	if s.Wants == "" && prev.BootID == s.BootID {
		s.Wants = prev.Wants // another process of this boot has read the sources
	}
	for _, b := range h.Blockers[:min(len(h.Blockers), v1alpha1.MaxUpdateBlockers)] {
		if b.Since.IsZero() {
			b.Since = metav1.NewTime(now)
		}
		b.Name, b.Pod, b.Message, b.Since = name(string(b.Name)), name(string(b.Pod)), text(string(b.Message)), at(b.Since.Time)
		s.Blockers = append(s.Blockers, b)
	}
	if s.Drain != nil && s.Drain.ExpectedEnd != nil {
		d := *s.Drain
		d.ExpectedEnd = new(at(d.ExpectedEnd.Time))
		s.Drain = &d
	}
	if len(f.Offline) > 0 {
		s.Offline = nil
		for _, e := range f.Offline[max(0, len(f.Offline)-v1alpha1.MaxUpdateOffline):] {
			if e.Time.IsZero() {
				continue // the file on the host's disk may be damaged, and the schema refuses this
			}
			s.Offline = append(s.Offline, v1alpha1.OfflineEvent{Time: at(e.Time.Time), Message: text(string(e.Message))})
		}
	}
	ended := turns(&s, prev, h)
	s.Conditions = conditions(prev, &s, f, ended, now)
	return s
}

// turns sets Turn and History. If the turn in prev has ended, turns returns how it ended, and
// otherwise nil.
func turns(s, prev *v1alpha1.HostUpdateStatus, h *local.Host) *v1alpha1.Last {
	t := prev.Turn
	if t != nil && string(t.ID) == h.Turn {
		s.Turn = t.DeepCopy()
		if stage := at(h.StageSince); prev.State != s.State && !h.StageSince.IsZero() {
			s.Turn.Stages = addStage(t.Stages, prev.State, t.StageStarted, stage)
			s.Turn.StageStarted = stage
		}
		return nil
	}
	if h.Turn != "" && !h.TurnSince.IsZero() {
		s.Turn = &v1alpha1.TurnStatus{ID: name(h.Turn), Started: at(h.TurnSince), StageStarted: at(h.StageSince)}
		if h.StageSince.IsZero() {
			s.Turn.StageStarted = s.Turn.Started
		}
	}
	if t == nil || h.Last == nil || string(t.ID) != h.Last.Turn {
		return nil // no turn has ended, or the Node does not record how it ended
	}
	end := at(h.Last.End)
	if h.Last.End.IsZero() { // the schema refuses this
		end = t.StageStarted
	}
	done := v1alpha1.FinishedTurn{
		Turn: t.ID, Result: name(string(h.Last.Result)), Reason: name(string(h.Last.Reason)),
		Started: t.Started, Ended: end, Stages: addStage(t.Stages, prev.State, t.StageStarted, end),
	}
	var changes []string
	for _, c := range h.Last.Changes {
		changes = append(changes, c.String()+h.Last.Request.Note(c))
	}
	done.Changes = lines(changes, 16)
	s.History = append([]v1alpha1.FinishedTurn{done}, prev.History[:min(len(prev.History), v1alpha1.MaxUpdateHistory-1)]...)
	return h.Last
}

// addStage returns the stages with one more, which lasted from from to to. A turn that enters
// a state twice has two stages for it.
func addStage(all []v1alpha1.StageTime, state v1alpha1.UpdateName, from, to metav1.Time) []v1alpha1.StageTime {
	if len(all) >= v1alpha1.MaxUpdateStages {
		return all
	}
	return append(slices.Clip(all), v1alpha1.StageTime{State: state, Seconds: max(0, int64(to.Sub(from.Time).Seconds()))})
}

// pending returns the host's changes, each with the time since when it has been pending. A
// change to another version is another change.
func pending(prev *v1alpha1.HostUpdateStatus, h *local.Host, now time.Time) []v1alpha1.PendingChange {
	if h.Wants == "" {
		return prev.Changes // the current changes are unknown
	}
	var all []v1alpha1.PendingChange
	for _, c := range h.Changes[:min(len(h.Changes), v1alpha1.MaxUpdateChanges)] {
		p := v1alpha1.PendingChange{Source: name(string(c.Source)), Name: name(c.Name), Version: name(c.Version), Since: at(now)}
		for _, was := range prev.Changes {
			if was.Source == p.Source && was.Name == p.Name && was.Version == p.Version {
				p.Since = was.Since
			}
		}
		all = append(all, p)
	}
	return all
}

func engine(e *v1alpha1.EngineStatus) *v1alpha1.EngineStatus {
	if e == nil {
		return nil
	}
	s := *e
	s.Operation, s.Version = name(string(s.Operation)), name(string(s.Version))
	s.Progress = min(max(s.Progress, 0), 100)
	if s.LastChecked != nil {
		s.LastChecked = new(at(s.LastChecked.Time))
	}
	return &s
}

// at returns a time as the API server stores it: in UTC, truncated to a second.
func at(t time.Time) metav1.Time { return metav1.NewTime(t.UTC().Truncate(time.Second)) }

func timeOrNil(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return new(at(t))
}

func name(s string) v1alpha1.UpdateName {
	return v1alpha1.UpdateName(v1alpha1.OneLine(s, v1alpha1.MaxUpdateName))
}
func text(s string) v1alpha1.UpdateText {
	return v1alpha1.UpdateText(v1alpha1.OneLine(s, v1alpha1.MaxUpdateText))
}

func lines(all []string, most int) []v1alpha1.UpdateText {
	var out []v1alpha1.UpdateText
	for _, s := range all[:min(len(all), most)] {
		out = append(out, text(s))
	}
	return out
}
