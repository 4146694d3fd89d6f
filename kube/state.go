package kube

import (
	"fmt"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// mints is the command that mints a new credential for the coordinator.
const mints = "`lockkeeper kubeconfig` mints a new one"

// State is what is known about a credential.
type State struct {
	Identity string // see Options
	File     string // the kubeconfig, or where the first one is expected
	Present  bool   // there is a kubeconfig
	InUse    bool   // a client uses it. A host's does so also after the kubeconfig has gone
	// Problem is why the kubeconfig cannot be used, or why its plugin provides no
	// credential, since ProblemSince; "" if all is well. What the kubeconfig said
	// before may still be in use.
	Problem      string
	ProblemSince time.Time

	Kind            Kind
	User            string    // "" if the credential does not name it
	Issued, Expires time.Time // zero if the credential does not say
	// Foreign is why lockkeeper does not renew the credential, "" if it does, at Renews.
	Foreign string
	Renews  time.Time
	// Failed is why the last attempt to renew it failed, since FailedSince; "" if it
	// did not.
	Failed             string
	FailedSince        time.Time
	Renewals, Failures int // in this process
	// Exposed is how other users can read or change the credential, one finding per
	// line, "" if they cannot. See [Exposed].
	Exposed string

	// Refused is since when the API server refuses the credential (401), zero while it
	// does not.
	Refused time.Time
	// Answered is when the API server last answered with anything but 401, 429 or 5xx,
	// or sent more of such an answer: a watch is one answer, which lasts for most of an
	// hour, with something in it every minute. Zero is never.
	Answered time.Time
}

// State returns the present state.
func (c *Credential) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, p := c.state, c.problem
	if p.err == nil && c.conn != nil && c.conn.plugin != nil {
		p = c.conn.plugin.problem()
	}
	if p.err != nil {
		s.Problem, s.ProblemSince = p.err.Error(), p.since
	}
	if c.last != nil {
		i := &c.last.info
		s.Kind, s.User, s.Issued, s.Expires, s.Foreign = i.kind, i.user, i.issued, i.expires, i.foreign
		if c.coordinator() && i.foreign == "" {
			s.Renews = renewAt(i.issued, i.expires)
		}
	}
	if s.InUse = c.client != nil; s.InUse {
		c.answers.mu.Lock()
		s.Refused = c.answers.refused // without a client, only late answers to an earlier one
		c.answers.mu.Unlock()
	}
	if last := c.answers.last.Load(); last != 0 {
		s.Answered = time.Unix(0, last)
	}
	return s
}

// report passes the state on if it has changed.
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

// Broken is State.Problem once it has lasted for ten seconds, "" before.
func (s *State) Broken(now time.Time) string {
	if s.Problem == "" || now.Sub(s.ProblemSince) < lasting {
		return ""
	}
	return s.Problem
}

// Left returns how long the credential is valid, negative if it has expired; ok is
// false if that is not known.
func (s *State) Left(now time.Time) (left time.Duration, ok bool) {
	if !s.Present && !s.InUse || s.Expires.IsZero() {
		return 0, false
	}
	return s.Expires.Sub(now), true
}

// Unhealthy is what an admin has to fix about the credential now, "" if nothing. An
// API server that does not answer is not a reason.
func (s *State) Unhealthy(now time.Time) string {
	left, known := s.Left(now)
	switch {
	case !s.Present && !s.InUse:
		return ""
	case s.Broken(now) != "":
		return s.name() + ": " + s.Problem
	case known && left <= 0:
		return s.expired()
	case !s.Refused.IsZero():
		return s.RefusedText()
	}
	return ""
}

// RefusedText says that the API server refuses the credential, and since when.
func (s *State) RefusedText() string {
	text := fmt.Sprintf("the API server has refused %s in %s", s.name(), s.File)
	if left, ok := s.Left(time.Now()); ok && left <= 0 {
		text += ", which expired at " + stamp(s.Expires)
	}
	return text + ", since " + stamp(s.Refused) + s.mints()
}

func (s *State) expired() string {
	return fmt.Sprintf("%s in %s expired at %s%s", s.name(), s.File, stamp(s.Expires), s.mints())
}

func (s *State) name() string { return "the " + s.Identity + "'s credential" }

func (s *State) mints() string {
	if s.Identity != v1alpha1.IdentityCoordinator {
		return ""
	}
	return "; " + mints
}

// Warning is what an admin has to know and do about the coordinator's credential, ""
// if nothing: that it has expired, or will soon and is not renewed.
func (s *State) Warning(now time.Time) string {
	left, ok := s.Left(now)
	switch {
	case !ok || s.Issued.IsZero() && left > 7*24*time.Hour:
		return ""
	case left <= 0:
		return s.expired()
	case now.Before(warnAt(s.Issued, s.Expires)):
		return ""
	}
	why := s.Foreign
	if why == "" {
		why = s.Failed
	}
	if why == "" {
		return "" // it is about to be renewed
	}
	return fmt.Sprintf("%s in %s expires in %s, and is not renewed: %s%s", s.name(), s.File, roughly(left), why, s.mints())
}

// Urgent is what an admin has to do about the coordinator's credential before
// anything else, in a few words, "" if nothing.
func (s *State) Urgent(now time.Time) string {
	left, _ := s.Left(now)
	switch {
	case !s.Present:
		return ""
	case !s.Refused.IsZero():
		return fmt.Sprintf("%s (%s) is refused since %s, %s", s.name(), s.File, clock(s.Refused), mints)
	case s.Warning(now) == "":
		return ""
	case left <= 0:
		return s.name() + " has expired, " + mints
	}
	return s.name() + " expires in " + roughly(left) + ", " + mints
}

// Text describes the coordinator's credential in one line.
func (s *State) Text(now time.Time) string {
	left, ok := s.Left(now)
	switch warning := s.Warning(now); {
	case s.Problem != "":
		return s.Problem
	case !s.Present:
		return "none at " + s.File
	case warning != "":
		return warning
	case !ok:
		return fmt.Sprintf("%s; it does not say how long it is valid: %s", s.File, s.Foreign)
	case s.Foreign != "":
		return fmt.Sprintf("%s, valid for %s more, not renewed by lockkeeper: %s", s.File, roughly(left), s.Foreign)
	case s.Failed != "":
		return fmt.Sprintf("%s, valid for %s more; renewing it has failed since %s: %s", s.File, roughly(left), stamp(s.FailedSince), s.Failed)
	}
	return fmt.Sprintf("%s, valid for %s more; it renews itself at %s", s.File, roughly(left), stamp(s.Renews))
}

// roughly is a duration for people: days, hours or minutes, rounded down.
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

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
