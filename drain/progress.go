package drain

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Reasons of Blockers. [Terminating] and the reasons of a Policy are among them.
const (
	// PodDisruptionBudget: a budget allows no disruption now. The message names it. The drain
	// asks the budget again after 1 to 30 s, for one of its pods. Or several budgets select the
	// pod, which lasts until a user changes one; the API server does not name them.
	PodDisruptionBudget Reason = "PodDisruptionBudget"
	// TooManyRequests: 429 for another reason: the API server is busy.
	TooManyRequests Reason = "TooManyRequests"
	// Refused: the API server refused the eviction (4xx), or a webhook did, with any code.
	Refused Reason = "Refused"
	// ServerError: 5xx.
	ServerError Reason = "ServerError"
	// Unreachable: no answer from the API server, or a proxy's in its place (502, 503).
	Unreachable Reason = "Unreachable"
	// NotDeleted: the eviction was accepted 30 s ago, and nothing happened.
	NotDeleted Reason = "NotDeleted"
	// Returning: a controller keeps putting pods on this node.
	Returning Reason = "Returning"
	// Finalizer: the pod is terminating and ended, but it has finalizers.
	Finalizer Reason = "Finalizer"
)

// MaxBlockers is how many Blockers a Progress lists at most.
const MaxBlockers = 50

// Blocker is a pod that keeps the node from being drained.
type Blocker struct {
	Pod
	// Reason is why the pod is still there.
	Reason Reason
	// Budget is the PodDisruptionBudget that allows no eviction, as namespace/name; "" for
	// other reasons, and if the API server names none.
	Budget string
	// Message is one printable line of at most 400 bytes: the API server's message or what is
	// wrong, and what to do. For a budget it has the budget's name and figures.
	Message string
	// Since is when this Run first failed to evict this pod. For a terminating pod it is the
	// end of its grace period by the API server's clock, which does not depend on a Run.
	Since time.Time
}

func (b Blocker) equal(o Blocker) bool {
	return b.Pod == o.Pod && b.Reason == o.Reason && b.Budget == o.Budget && b.Message == o.Message && b.Since.Equal(o.Since)
}

// Progress is how far a drain is.
type Progress struct {
	// Total is how many pods this Run has seen that had to go.
	Total int
	// Evictable is how many pods must still go: those not evicted yet, and the
	// Terminating ones. Zero means drained.
	Evictable int
	// Terminating is how many of them have a deletionTimestamp.
	Terminating int
	// Evicted is how many evictions this Run sent were accepted, a pod once.
	Evicted int
	// Blocked is how many of the Evictable have a Blocker.
	Blocked int
	// Blockers lists them, the longest blocked first, then by name; MaxBlockers at most.
	Blockers []Blocker
	// End is when the last pod is gone if each takes its whole grace period, and critical pods
	// begin after all others; zero while a pod is blocked, and when no pod is left.
	End time.Time
	// Err is why the pods cannot be listed or watched now. The counts are then those that were
	// seen last. It is nil while they can.
	Err error
}

func (p Progress) equal(o Progress) bool {
	return p.Total == o.Total && p.Evictable == o.Evictable && p.Terminating == o.Terminating &&
		p.Evicted == o.Evicted && p.Blocked == o.Blocked &&
		fmt.Sprint(p.Err) == fmt.Sprint(o.Err) &&
		slices.EqualFunc(p.Blockers, o.Blockers, Blocker.equal)
}

// block records a blocker. A pod may have different blockers one after the other, a budget and
// an API server that restarts; the time of the first one stays.
func (e *entry) block(now time.Time, r Reason, budget, message string) {
	since := now.Round(0) // to be shown and kept, not to be measured with
	if e.blocker != nil {
		since = e.blocker.Since
	}
	e.blocker = &Blocker{Pod: e.Pod, Reason: r, Budget: budget, Message: message, Since: since}
}

// stuck returns a terminating pod's Blocker, once the pod should be gone.
func (e *entry) stuck(now time.Time) *Blocker {
	if e.verdict.Class != Wait || now.Before(e.goneBy.Add(overdue)) {
		return nil
	}
	reason := Terminating
	if e.finalizers != "" {
		reason = Finalizer
	}
	return &Blocker{Pod: e.Pod, Reason: reason, Message: e.explainStuck(), Since: e.deadline}
}

// end returns when the pod is gone if it takes its whole grace period. It begins now, unless it
// has begun.
func (e *entry) end(now time.Time) time.Time {
	if e.verdict.Class == Wait {
		return e.goneBy.Round(0)
	}
	return now.Add(e.grace)
}

// progress returns the progress at now.
func (s *schedule) progress(now time.Time) Progress {
	p := Progress{Total: len(s.seen), Evictable: len(s.pods), Evicted: s.evicted, Err: s.err}
	at := now
	now = now.Round(0) // to be shown, not to be measured with
	others := now      // when all pods are gone that are not critical
	for _, e := range s.pods {
		b := e.blocker
		if e.verdict.Class == Wait {
			p.Terminating++
			b = e.stuck(at)
		}
		if b != nil {
			p.Blockers = append(p.Blockers, *b)
		}
		if end := e.end(now); !e.critical() && end.After(others) {
			others = end
		}
	}
	for _, e := range s.pods {
		from := now
		if e.critical() {
			from = others
		}
		if end := e.end(from); end.After(p.End) {
			p.End = end
		}
	}
	if p.Blocked = len(p.Blockers); p.Blocked > 0 {
		p.End = time.Time{}
	}
	slices.SortFunc(p.Blockers, func(a, b Blocker) int {
		return cmp.Or(a.Since.Compare(b.Since), comparePods(a.Pod, b.Pod))
	})
	p.Blockers = p.Blockers[:min(len(p.Blockers), MaxBlockers)]
	return p
}

// reporter limits how often the progress function is called.
type reporter struct {
	send  func(Progress)
	every time.Duration

	last   Progress
	lastAt time.Time
	called bool
}

// offer reports p if it has changed and the progress interval has passed, or if it is the last
// report. It returns when to offer p again, zero if it need not be.
func (r *reporter) offer(now time.Time, p Progress, last bool) time.Time {
	if r.send == nil || (!last && r.called && p.equal(r.last)) {
		return time.Time{}
	}
	if due := r.lastAt.Add(r.every); !last && r.called && now.Before(due) {
		return due
	}
	r.last, r.lastAt, r.called = p, now, true
	r.last.Blockers = slices.Clone(p.Blockers) // the caller may keep and change p
	r.send(p)
	return time.Time{}
}
