package node

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/drain"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/updateengine"
)

// blockers remembers since when each blocker has blocked the host. It keeps a blocker for
// forgetBlocker after it is gone, because a drain that starts again knows nothing of the
// previous drain.
type blockers map[blockerID]blocked

type blockerID struct {
	kind      v1alpha1.BlockerKind
	name, pod v1alpha1.UpdateName
}

// blocked records since when a blocker has blocked the host, and when it was last seen.
type blocked struct{ since, last time.Time }

// forgetBlocker is how long blockers remembers a blocker that is gone.
const forgetBlocker = time.Minute

// list sets the Since of each blocker and returns the blockers with the oldest first. It drops
// duplicates, and returns at most [v1alpha1.MaxUpdateBlockers].
func (b *blockers) list(all []v1alpha1.Blocker, now time.Time) []v1alpha1.Blocker {
	if *b == nil {
		*b = blockers{}
	}
	seen := map[blockerID]bool{}
	var out []v1alpha1.Blocker
	for _, x := range all {
		id := blockerID{x.Kind, x.Name, x.Pod}
		if seen[id] {
			continue
		}
		seen[id] = true
		if x.Since.IsZero() {
			x.Since = metav1.NewTime(now)
		}
		if was, ok := (*b)[id]; ok && was.since.Before(x.Since.Time) {
			x.Since = metav1.NewTime(was.since)
		}
		(*b)[id] = blocked{x.Since.Time, now}
		out = append(out, x)
	}
	maps.DeleteFunc(*b, func(_ blockerID, x blocked) bool { return now.Sub(x.last) >= forgetBlocker })
	slices.SortStableFunc(out, func(x, y v1alpha1.Blocker) int {
		return cmp.Or(x.Since.Compare(y.Since.Time), cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Pod, y.Pod))
	})
	return out[:min(len(out), v1alpha1.MaxUpdateBlockers)]
}

// resume treats the blockers that the previous process published as if they had lasted until
// now.
func (b *blockers) resume(published []v1alpha1.Blocker, now time.Time) {
	if *b == nil {
		*b = blockers{}
	}
	for _, x := range published {
		id := blockerID{x.Kind, x.Name, x.Pod}
		if was, ok := (*b)[id]; x.Since.Time.Before(now) && (!ok || x.Since.Time.Before(was.since)) {
			(*b)[id] = blocked{x.Since.Time, now}
		}
	}
}

// blocker returns a Blocker. It cuts the texts to one line each, because other programs and
// users may have written them.
func blocker(kind v1alpha1.BlockerKind, name, message string) v1alpha1.Blocker {
	return v1alpha1.Blocker{
		Kind: kind, Name: v1alpha1.UpdateName(v1alpha1.OneLine(name, v1alpha1.MaxUpdateName)),
		Message: v1alpha1.UpdateText(v1alpha1.OneLine(message, v1alpha1.MaxUpdateText)),
	}
}

// blockedBy returns what the host waits for. A wait that ends without any action, such as the
// wait for a window, is a reason and not a blocker.
func (h *Host) blockedBy(o *step.Observation) []v1alpha1.Blocker {
	n := &o.Node
	var all []v1alpha1.Blocker
	if text := h.sourcesError(o); text != "" {
		all = append(all, sourceBlocker(text))
	}
	if !n.InTurn() && o.Sources.Drains && o.Blocking.Pods != "" && !o.Blocking.Off {
		for _, b := range h.pods.blockers {
			all = append(all, podBlocker(b)) // they hold the grant
		}
	}
	if !n.InTurn() || !n.Ours() {
		return all
	}
	if o.Drain.Running {
		p := h.progress
		for _, b := range p.Blockers {
			all = append(all, podBlocker(b))
		}
		if p.Err != nil {
			all = append(all, blocker(v1alpha1.BlockerAPIServer, "pods", fmt.Sprintf("cannot be listed: %v", p.Err)))
		}
	}
	switch {
	case o.Blocked == v1alpha1.ReasonInhibited:
		for _, l := range h.inhibitors {
			b := blocker(v1alpha1.BlockerInhibitor, l.Who, fmt.Sprintf("process %d (user %d) inhibits %s: %s", l.PID, l.UID, strings.Join(l.What, ":"), l.Why))
			all = append(all, b)
		}
		if len(h.inhibitors) == 0 {
			all = append(all, blocker(v1alpha1.BlockerInhibitor, "systemd-logind", o.BlockedDetail))
		}
	case o.Blocked == v1alpha1.ReasonSessions:
		for _, s := range h.sessions {
			all = append(all, blocker(v1alpha1.BlockerSession, s.User, "logged in on "+cmp.Or(s.TTY, "no terminal")+", and warned of the reboot"))
		}
	}
	if o.Apply.Failed != "" {
		all = append(all, unitBlocker(o.Apply.Failed))
	}
	if n.State == v1alpha1.StateRebooting && n.Grant.BootID != h.self.bootID && o.Health.Detail != "" {
		all = append(all, unitBlocker(o.Health.Detail))
	}
	return append(all, hookBlockers(o)...)
}

// readBy is how long after its start a process may take to read its sources for the first time.
// After that, it reports that it cannot read them.
const readBy = 10 * time.Second

// sourcesError returns which source of changes the host cannot read, and why. It returns "" if
// the host can read all of them, or probably soon.
func (h *Host) sourcesError(o *step.Observation) string {
	switch s := &o.Sources; {
	case o.Node.UID == "", !s.Complete && time.Since(h.self.started) < readBy:
		return ""
	case s.Veto == v1alpha1.ReasonSourceUnreadable:
		return s.VetoDetail
	case s.Unreadable != "": // without a veto: the host wants nothing, or a version is held back
		return s.Unreadable
	case s.Passing:
		return s.Missing
	default:
		return cmp.Or(s.Missing, s.Unconfirmed)
	}
}

// hookBlockers returns the hooks and the volumes that the stage waits for.
func hookBlockers(o *step.Observation) []v1alpha1.Blocker {
	n := &o.Node
	var all []v1alpha1.Blocker
	for _, hook := range n.Grant.Terms.Hooks(n.State) {
		if n.Hooks[hook.Name] == n.Turn {
			continue
		}
		all = append(all, blocker(v1alpha1.BlockerHook, hook.Name, fmt.Sprintf(
			"has not confirmed; its program, or `lockkeeper confirm %s %s`, sets the annotation %s%s to the turn's ID %s; after %v: %s",
			n.Name, hook.Name, v1alpha1.HookPrefix, hook.Name, n.Turn, hook.Timeout.Duration, hook.OnTimeout)))
	}
	if n.State == v1alpha1.StateBeforeReboot && n.Grant.Terms.WaitForVolumeDetach && n.Grant.Drains {
		for _, v := range n.Volumes {
			all = append(all, blocker(v1alpha1.BlockerVolume, v, "is attached to the node; the attach-detach controller detaches it once no pod uses it"))
		}
	}
	if o.Hooks.Failed != "" {
		all = append(all, unitBlocker(o.Hooks.Failed))
	}
	return all
}

// podBlocker returns the Blocker for a pod that the drain cannot evict.
func podBlocker(b drain.Blocker) v1alpha1.Blocker {
	kind, name := v1alpha1.BlockerPod, b.Pod.String()
	switch b.Reason {
	case drain.PodDisruptionBudget:
		kind, name = v1alpha1.BlockerBudget, cmp.Or(b.Budget, name)
	case drain.ServerError, drain.TooManyRequests, drain.Unreachable:
		kind = v1alpha1.BlockerAPIServer
	case drain.Refused:
		if strings.Contains(b.Message, "admission webhook") || strings.Contains(b.Message, "ValidatingAdmissionPolicy") {
			kind = v1alpha1.BlockerWebhook
		}
	case drain.Finalizer:
		kind = v1alpha1.BlockerFinalizer
	}
	x := blocker(kind, name, b.Message)
	x.Pod, x.Since = v1alpha1.UpdateName(v1alpha1.OneLine(b.Pod.String(), v1alpha1.MaxUpdateName)), metav1.NewTime(b.Since)
	return x
}

// sourceBlocker returns a Blocker for a text that begins with a source: "policies: …",
// "File /etc/x cannot be read: …", "pods of node n1 cannot be read, so …".
func sourceBlocker(text string) v1alpha1.Blocker {
	name, _, _ := strings.Cut(text, " cannot be read")
	name, _, _ = strings.Cut(name, ": ")
	if source, path, ok := strings.Cut(name, " "); ok && strings.HasPrefix(path, "/") {
		return blocker(v1alpha1.BlockerSource, path, source+" "+strings.TrimPrefix(text, source+" "))
	}
	return blocker(v1alpha1.BlockerSource, name, text)
}

// unitBlocker returns a Blocker for a text that begins with a unit's name.
func unitBlocker(text string) v1alpha1.Blocker {
	name, _, _ := strings.Cut(text, " ")
	return blocker(v1alpha1.BlockerUnit, strings.TrimRight(name, ",;:"), text)
}

// failing returns what blocks a host whose requests fail.
func failing(s *local.Host) []v1alpha1.Blocker {
	switch {
	case s.API == nil:
		return nil
	case s.API.RefusedBy != "":
		return []v1alpha1.Blocker{blocker(v1alpha1.BlockerWebhook, s.API.RefusedBy, s.API.Error)}
	}
	return []v1alpha1.Blocker{blocker(v1alpha1.BlockerAPIServer, "API server", s.API.Error)}
}

// drainStatus returns the progress of the drain, or nil if no drain runs.
func (h *Host) drainStatus(o *step.Observation) *v1alpha1.DrainStatus {
	if !o.Drain.Running {
		return nil
	}
	p := h.progress
	s := &v1alpha1.DrainStatus{Total: int32(p.Total), Evicted: int32(p.Total - p.Evictable), Remaining: int32(p.Evictable)}
	if !p.End.IsZero() {
		s.ExpectedEnd = new(metav1.NewTime(p.End))
	}
	return s
}

// engineStatus returns the update engine's status, or the reason why it does not answer.
func (h *Host) engineStatus() (*v1alpha1.EngineStatus, string) {
	if h.Engine == nil {
		return nil, ""
	}
	r := h.Engine.Latest()
	switch {
	case r.Presence == updateengine.Unknown && r.Err != nil:
		return nil, r.Err.Error()
	case r.Presence != updateengine.Present:
		return nil, ""
	}
	s := &v1alpha1.EngineStatus{
		Operation: v1alpha1.UpdateName(r.Operation), Version: v1alpha1.UpdateName(r.Version), Progress: int32(r.Progress*10) * 10,
	}
	if !r.LastChecked.IsZero() {
		s.LastChecked = new(metav1.NewTime(r.LastChecked))
	}
	return s, ""
}
