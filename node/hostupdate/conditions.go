package hostupdate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/local"
)

// list collects conditions in order. A condition keeps its transition time as long as its
// status does not change. A new transition time is never earlier than an existing one.
type list struct {
	was []metav1.Condition
	now metav1.Time
	all []metav1.Condition
}

func (l *list) set(kind string, is bool, reason, message string) {
	if !v1alpha1.Reason(reason).Valid() { // a label on the Node may hold anything
		reason = v1alpha1.ConditionReasonUnknown
	}
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: string(text(message)), LastTransitionTime: l.now}
	if is {
		c.Status = metav1.ConditionTrue
	}
	if old := meta.FindStatusCondition(l.was, kind); old != nil && old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	l.all = append(l.all, c)
}

// keep repeats the previous condition. If there is none, it adds the condition as False with
// the given reason.
func (l *list) keep(kind, reason string) {
	if old := meta.FindStatusCondition(l.was, kind); old != nil {
		l.all = append(l.all, *old)
		return
	}
	l.set(kind, false, reason, "")
}

// setAll sets conditions to False with the same reason.
func (l *list) setAll(kinds []string, reason string) {
	for _, kind := range kinds {
		l.set(kind, false, reason, "")
	}
}

// keepAll is keep for several conditions.
func (l *list) keepAll(kinds []string, reason string) {
	for _, kind := range kinds {
		l.keep(kind, reason)
	}
}

// stages are the conditions of a turn between Planned and Complete, and afterPlanned those with Complete.
var (
	stages = []string{v1alpha1.ConditionCordoned, v1alpha1.ConditionDrained, v1alpha1.ConditionApplied,
		v1alpha1.ConditionRebooted, v1alpha1.ConditionUncordoned}
	afterPlanned = append(slices.Clip(stages), v1alpha1.ConditionComplete)
)

func conditions(prev, s *v1alpha1.HostUpdateStatus, f *Facts, ended *v1alpha1.Last, now time.Time) []metav1.Condition {
	l := &list{was: prev.Conditions, now: at(now)}
	for _, c := range prev.Conditions {
		if c.LastTransitionTime.After(l.now.Time) {
			l.now = c.LastTransitionTime // the host's clock was set back
		}
	}
	h := &f.Host
	switch {
	case h.Turn != "" && h.Course != nil:
		l.inTurn(h, prev.Turn == nil || prev.Turn.ID != s.Turn.ID)
	case ended != nil:
		l.ended(h, ended)
	default:
		l.idle(h, prev.Turn != nil && s.Turn == nil)
	}
	if len(s.Blockers) > 0 {
		b := s.Blockers[0]
		message := fmt.Sprintf("%s: %s", b.Name, b.Message)
		if b.Pod != "" && b.Pod != b.Name {
			message = fmt.Sprintf("%s: pod %s: %s", b.Name, b.Pod, b.Message)
		}
		l.set(v1alpha1.ConditionBlocked, true, string(b.Kind), message)
	} else {
		l.set(v1alpha1.ConditionBlocked, false, v1alpha1.ConditionReasonNotBlocked, "")
	}
	l.failed(h)
	l.health(f)
	return l.all
}

// failed sets Failed for the current turn, or for the last turn until an admin clears it: as long
// as the coordinator counts the node as failed. A host that rebooted into the old OS version may
// want nothing.
func (l *list) failed(h *local.Host) {
	switch {
	case h.Course != nil && h.Course.Result == v1alpha1.ResultFailed:
		l.set(v1alpha1.ConditionFailed, true, string(cmp.Or(h.Course.Reason, v1alpha1.ReasonFailed)), h.Detail)
	case h.Course == nil && h.Last != nil && h.Last.Result == v1alpha1.ResultFailed && !h.Cleared:
		reason := cmp.Or(h.Last.Reason, v1alpha1.ReasonFailed)
		l.set(v1alpha1.ConditionFailed, true, string(reason), reason.Doc().Means)
	default:
		l.set(v1alpha1.ConditionFailed, false, v1alpha1.ConditionReasonNotFailed, "")
	}
}

// position returns the position of a state in a turn. A turn has either rebooting or applying.
func position(s v1alpha1.State) int {
	switch s {
	case v1alpha1.StateBeforeDrain:
		return 1
	case v1alpha1.StateDraining:
		return 2
	case v1alpha1.StateBeforeReboot:
		return 3
	case v1alpha1.StateRebooting, v1alpha1.StateApplying:
		return 4
	case v1alpha1.StateBeforeUncordon:
		return 5
	case v1alpha1.StateUncordoning:
		return 6
	}
	return 0
}

// inTurn sets the turn's conditions. begins is whether the previous status was of another turn
// or of none.
func (l *list) inTurn(h *local.Host, begins bool) {
	c := h.Course
	switch {
	case c.Wants.Something() && !h.Wants.Something() && !begins:
		l.keep(v1alpha1.ConditionPlanned, v1alpha1.ConditionReasonNothing) // it is done, or not known in this boot
	case c.Wants.Something():
		l.set(v1alpha1.ConditionPlanned, true, v1alpha1.ConditionReasonDone, wants(h))
	default:
		l.set(v1alpha1.ConditionPlanned, false, v1alpha1.ConditionReasonNotNeeded, "the turn only removes a cordon of lockkeeper's")
	}
	reboots := c.Wants == v1alpha1.WantsReboot
	begun := c.Result == "" || c.Result == v1alpha1.ResultFailed
	at, back := position(h.State), position(h.State) >= position(v1alpha1.StateBeforeUncordon)
	stage := func(kind string, needed bool, state v1alpha1.State, passed bool) {
		was := !begins && meta.IsStatusConditionTrue(l.was, kind)
		switch {
		case was || needed && passed:
			l.set(kind, true, v1alpha1.ConditionReasonDone, "")
		case !needed:
			l.set(kind, false, v1alpha1.ConditionReasonNotNeeded, "")
		case h.State == state:
			l.set(kind, false, cmp.Or(string(h.Waits), v1alpha1.ConditionReasonRunning), h.Detail)
		case at < position(state):
			l.set(kind, false, v1alpha1.ConditionReasonPending, "")
		default:
			l.set(kind, false, v1alpha1.ConditionReasonBackedOut, string(c.Reason))
		}
	}
	stage(v1alpha1.ConditionCordoned, c.Drains, v1alpha1.StateDraining, h.Cordoned && at >= position(v1alpha1.StateDraining))
	stage(v1alpha1.ConditionDrained, c.Drains, v1alpha1.StateDraining, at > position(v1alpha1.StateDraining) && !back || back && begun)
	stage(v1alpha1.ConditionApplied, !reboots && c.Wants.Something(), v1alpha1.StateApplying, back && c.Result == "")
	stage(v1alpha1.ConditionRebooted, reboots, v1alpha1.StateRebooting, c.Rebooted && begun && at >= position(v1alpha1.StateRebooting))
	stage(v1alpha1.ConditionUncordoned, c.Drains || h.Cordoned, v1alpha1.StateUncordoning, h.State == v1alpha1.StateUncordoning && !h.Cordoned)
	l.set(v1alpha1.ConditionComplete, false, v1alpha1.ConditionReasonRunning, "")
}

// notBegun are the reasons of a stage that is not under way.
var notBegun = []string{
	v1alpha1.ConditionReasonNotNeeded, v1alpha1.ConditionReasonPending, v1alpha1.ConditionReasonBackedOut, v1alpha1.ConditionReasonNothing,
}

// ended sets the conditions of a turn that is over. A stage that it has not reached stays as it was, and one in the
// middle of which it ended is backed out.
func (l *list) ended(h *local.Host, last *v1alpha1.Last) {
	done := last.Result == v1alpha1.ResultDone
	l.keep(v1alpha1.ConditionPlanned, v1alpha1.ConditionReasonNothing)
	for _, kind := range stages {
		was := meta.FindStatusCondition(l.was, kind)
		needed := was != nil && was.Reason != v1alpha1.ConditionReasonNotNeeded
		switch cordoned := meta.IsStatusConditionTrue(l.was, v1alpha1.ConditionCordoned); {
		case kind == v1alpha1.ConditionUncordoned && (cordoned || needed) && h.Cordoned:
			l.set(kind, false, v1alpha1.ConditionReasonNotNeeded, "the node was cordoned before the turn, and stays cordoned")
		case kind == v1alpha1.ConditionUncordoned && cordoned, needed && done:
			l.set(kind, true, v1alpha1.ConditionReasonDone, "")
		case was != nil && was.Status == metav1.ConditionFalse && !slices.Contains(notBegun, was.Reason):
			// An apply without a drain has failed, or the turn was ended while this host was down.
			l.set(kind, false, v1alpha1.ConditionReasonBackedOut, string(last.Reason))
		default:
			l.keep(kind, v1alpha1.ConditionReasonBackedOut)
		}
	}
	l.set(v1alpha1.ConditionComplete, done, string(last.Result), string(last.Reason))
}

// idle sets the conditions of a host that is not in a turn. The conditions of its last turn
// stay until it wants something again. lost is whether a turn has ended without a result on the
// Node. In that case no condition of that turn stays.
func (l *list) idle(h *local.Host, lost bool) {
	complete := meta.FindStatusCondition(l.was, v1alpha1.ConditionComplete)
	fresh := lost || complete == nil || complete.Reason == v1alpha1.ConditionReasonPending || complete.Reason == v1alpha1.ConditionReasonNothing
	switch {
	case h.Wants == "" && lost:
		l.set(v1alpha1.ConditionPlanned, false, string(v1alpha1.ReasonSourceUnreadable), "")
		l.setAll(afterPlanned, v1alpha1.ConditionReasonPending)
	case h.Wants == "":
		l.keep(v1alpha1.ConditionPlanned, string(v1alpha1.ReasonSourceUnreadable))
		l.keepAll(afterPlanned, v1alpha1.ConditionReasonPending)
	case h.Wants.Something() && (fresh || complete.Status == metav1.ConditionTrue):
		l.set(v1alpha1.ConditionPlanned, true, v1alpha1.ConditionReasonDone, wants(h))
		needed := map[string]bool{
			v1alpha1.ConditionCordoned: h.Drains, v1alpha1.ConditionDrained: h.Drains, v1alpha1.ConditionUncordoned: h.Drains,
			v1alpha1.ConditionApplied: h.Wants != v1alpha1.WantsReboot, v1alpha1.ConditionRebooted: h.Wants == v1alpha1.WantsReboot,
			v1alpha1.ConditionComplete: true,
		}
		for _, kind := range afterPlanned {
			reason := v1alpha1.ConditionReasonNotNeeded
			if needed[kind] {
				reason = v1alpha1.ConditionReasonPending
			}
			l.set(kind, false, reason, "")
		}
	case h.Wants.Something():
		// The last turn did not complete the changes. Its conditions show how far it got.
		l.set(v1alpha1.ConditionPlanned, true, v1alpha1.ConditionReasonDone, wants(h))
		l.keepAll(afterPlanned, v1alpha1.ConditionReasonPending)
	case fresh:
		l.set(v1alpha1.ConditionPlanned, false, v1alpha1.ConditionReasonNothing, "")
		l.setAll(afterPlanned, v1alpha1.ConditionReasonNothing)
	default:
		l.keep(v1alpha1.ConditionPlanned, v1alpha1.ConditionReasonNothing)
		l.keepAll(afterPlanned, v1alpha1.ConditionReasonNothing)
	}
}

// health sets the conditions that are independent of a turn.
func (l *list) health(f *Facts) {
	h := &f.Host
	set := func(kind, problem string) {
		if problem == "" {
			l.set(kind, true, v1alpha1.ConditionReasonHealthy, "")
			return
		}
		l.set(kind, false, v1alpha1.ConditionReasonUnhealthy, problem)
	}
	if h.Engine != nil || h.EngineError != "" { // a host may have no update engine
		set(v1alpha1.ConditionEngineReachable, h.EngineError)
	}
	set(v1alpha1.ConditionSourcesReadable, h.SourcesError)
	credential, away := "", ""
	if h.API != nil && (h.API.Local || h.API.Reason == v1alpha1.ReasonForbidden && h.API.RefusedBy == "") {
		credential = h.API.Error
	} else if h.API != nil && h.API.RefusedBy == "" {
		away = h.API.Error
	}
	set(v1alpha1.ConditionCredentialValid, credential)
	if set(v1alpha1.ConditionClusterReachable, away); away == "" && !f.Gap.From.IsZero() {
		l.all[len(l.all)-1].Message = string(text(fmt.Sprintf("the last gap lasted %v, until %s: %s",
			f.Gap.To.Sub(f.Gap.From).Round(time.Second), f.Gap.To.UTC().Format(time.RFC3339), f.Gap.Error)))
	}
	if c := &f.Coordinator; c.Role != v1alpha1.RoleHost && c.Role != "" || c.Credential != nil {
		set(v1alpha1.ConditionCoordinatorHealthy, c.Problem)
	}
}

// wants describes what the host wants, and for which changes.
func wants(h *local.Host) string {
	names := make([]string, 0, len(h.Changes))
	for _, c := range h.Changes {
		names = append(names, c.String())
	}
	w := h.Wants
	if !w.Something() && h.Course != nil {
		return string(h.Course.Wants) // the changes are no longer known
	}
	return fmt.Sprintf("%s for %s", w, strings.Join(names, ", "))
}
