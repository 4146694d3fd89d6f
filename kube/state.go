package kube

import (
	"cmp"
	"fmt"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// mints is the command that mints a new credential for the coordinator.
const mints = "`lockkeeper kubeconfig` mints a new one"

// State describes a credential.
type State struct {
	Identity string // see Options
	File     string // the kubeconfig, or where the first one is expected
	Present  bool   // there is a kubeconfig
	InUse    bool   // a client uses the credential; a host's client does so even after the kubeconfig was removed
	// Error is why the kubeconfig cannot be used, or why its plugin provides no
	// credential, since ErrorSince; "" if there is no error. The previous content of the
	// kubeconfig may still be in use.
	Error      string
	ErrorSince time.Time

	User            string    // "" if the credential does not name it
	Issued, Expires time.Time // zero if the credential does not say
	// NotRenewed is why lockkeeper does not renew the credential; "" if it renews it, at Renews.
	NotRenewed string
	Renews     time.Time
	// RenewError is why the last attempt to renew the credential failed, since
	// RenewErrorSince; "" if it succeeded.
	RenewError         string
	RenewErrorSince    time.Time
	Renewals, Failures int // in this process
	// Exposed is how other users can read or change the credential, one finding per
	// line, "" if they cannot. See [Exposed].
	Exposed string

	// Refused is since when the API server refuses the credential (401), zero while it
	// does not.
	Refused time.Time
	// Answered is when the API server last sent an answer other than 401, 429 or 5xx, or a
	// part of such an answer; zero means never. A watch is one answer that lasts for most
	// of an hour and has new data every minute.
	Answered time.Time
}

// State returns the current state.
func (c *Credential) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, p := c.state, c.problem
	if p.err == nil && c.conn != nil && c.conn.plugin != nil {
		p = c.conn.plugin.problem()
	}
	if p.err != nil {
		s.Error, s.ErrorSince = p.err.Error(), p.since
	}
	if c.last != nil {
		i := &c.last.claims
		s.User, s.Issued, s.Expires, s.NotRenewed = i.user, i.issued, i.expires, i.notRenewed
		if c.coordinator() && i.notRenewed == "" {
			s.Renews = renewAt(i.issued, i.expires)
		}
	}
	if s.InUse = c.client != nil; s.InUse {
		c.answers.mu.Lock()
		s.Refused = c.answers.refused // without a client, refused may come from late answers to an earlier client
		c.answers.mu.Unlock()
	}
	if last := c.answers.last.Load(); last != 0 {
		s.Answered = time.Unix(0, last)
	}
	return s
}

// report calls Options.Report if the state has changed.
func (c *Credential) report() {
	c.reporting.Lock()
	defer c.reporting.Unlock()
	s := c.State()
	s.Answered = c.reported.Answered
	if s != c.reported && c.o.Report != nil {
		c.reported = s
		c.o.Report(s)
	}
}

// left returns how long the credential is still valid; it is negative if the credential has
// expired. ok is false if that is not known.
func (s *State) left(now time.Time) (left time.Duration, ok bool) {
	if !s.Present && !s.InUse || s.Expires.IsZero() {
		return 0, false
	}
	return s.Expires.Sub(now), true
}

// Problem returns what an admin has to fix about the credential, or "" if there is nothing to
// fix. fails is whether the credential does not work now: an error has lasted for ten seconds,
// it has expired, or the API server refuses it. If fails is false, the problem is that the
// coordinator's credential expires soon and is not renewed. An API server that does not answer
// is not a problem of the credential.
func (s *State) Problem(now time.Time) (text string, fails bool) {
	left, known := s.left(now)
	expired := known && left <= 0
	name, fix := "the "+s.Identity+"'s credential in "+s.File, ""
	if s.Identity == v1alpha1.IdentityCoordinator {
		fix = "; " + mints
	}
	switch {
	case !s.Present && !s.InUse:
		return "", false
	case s.Error != "" && now.Sub(s.ErrorSince) >= lasting:
		return "the " + s.Identity + "'s credential: " + s.Error, true
	case !s.Refused.IsZero():
		if expired {
			name += ", which expired at " + stamp(s.Expires) + ","
		}
		return fmt.Sprintf("the API server has refused %s since %s%s", name, stamp(s.Refused), fix), true
	case expired:
		return fmt.Sprintf("%s expired at %s%s", name, stamp(s.Expires), fix), true
	case !known, fix == "", now.Before(warnAt(s.Issued, s.Expires)):
		return "", false
	}
	why := cmp.Or(s.NotRenewed, s.RenewError)
	if why == "" {
		return "", false // it is about to be renewed
	}
	return fmt.Sprintf("%s expires in %s%s; it is not renewed: %s", name, roughly(left), fix, why), false
}

// roughly formats a duration for people: in days, hours or minutes, rounded down.
func roughly(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 2*day:
		return fmt.Sprintf("%d days", d/day)
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", d/time.Hour)
	}
	return fmt.Sprintf("%d minutes", max(d, 0)/time.Minute)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
