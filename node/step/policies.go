package step

import (
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// unreadFor is for how long the policies cannot be read, although Nodes can, before the
// host publishes that. At most a minute lies between two lists. So after an outage of the
// whole API server the policies are read again before that, and a fleet does not write that
// they were not.
const unreadFor = 90 * time.Second

// refusedFor is for how long the API server refuses to let the host read the policies before
// the host publishes a veto. One that has just started refuses until it has read its roles.
const refusedFor = 10 * time.Second

// Policies is what a host knows of the cluster's policies.
type Policies struct {
	// Listed is set once they were read. Error is why they cannot be read now, or "".
	Listed bool
	Error  string
	// Match is what they say of this node; see [PolicyMemory.Match].
	Match policy.Match
	// Invalid names a policy that selects this node and is invalid now, and why, or "". No turn
	// may begin. The coordinator grants nothing by a policy that is invalid to it, but it may be
	// newer than this host and know a value or a time zone that this host does not know.
	Invalid string
	// Unread is why nothing may be committed by Match, or "": the policies cannot be read
	// now, so a change may cost something else by now. UnreadVeto is set if no turn may
	// begin either, and UnreadLasts if it has lasted for so long that the host publishes it.
	Unread                  string
	UnreadVeto, UnreadLasts bool
}

// PolicyMemory is what a host remembers of the policies from one observation to the next.
// The zero value remembers nothing.
type PolicyMemory struct {
	valid       *policy.Match
	unreadSince time.Time // zero while they can be read, and while Nodes cannot
}

// Match returns by which policies the host plans: by m, which is what they say of its node
// now, or, while that is not valid, by the last ones that were. Policies that become
// invalid or are deleted change no plan, and the coordinator grants nothing by them.
func (p *PolicyMemory) Match(m policy.Match) policy.Match {
	switch {
	case m.Reason == "":
		p.valid = &m
	case p.valid != nil:
		return *p.valid
	}
	return m
}

// Unread returns the values of [Policies]. problem is why the policies cannot be read now,
// or "" if they can. refused is set if the API server refuses to let the host read them,
// and nodesFail if it cannot read Nodes either.
//
// A turn may not begin if the API server has refused for a few seconds, because it will refuse
// again, or if it has returned Nodes for longer, and no policies.
func (p *PolicyMemory) Unread(problem string, refused, nodesFail bool, now time.Time) (text string, veto, lasts bool) {
	lasting := func(d time.Duration) bool { return !p.unreadSince.IsZero() && now.Sub(p.unreadSince) >= d }
	switch {
	case problem == "":
		p.unreadSince = time.Time{}
		return "", false, false
	case nodesFail && !lasting(unreadFor):
		p.unreadSince = time.Time{}
	case p.unreadSince.IsZero():
		p.unreadSince = now
	}
	lasts = lasting(unreadFor)
	return "policies cannot be read again: " + problem, lasts || refused && lasting(refusedFor), lasts
}

// Terms returns the terms of the policy that applies to this host, as the host has read it;
// nil if it has read none that is valid.
func (p *Policies) Terms() *v1alpha1.Terms {
	if !p.Listed || p.Match.Policy == nil || p.Match.Reason != "" {
		return nil
	}
	return &p.Match.Policy.Terms
}
