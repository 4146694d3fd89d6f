package zincati

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// Zincati's periods.
const (
	// RefreshPeriod is the time until Zincati asks again after a refusal or a failure, without jitter.
	RefreshPeriod = 300 * time.Second
	// PostponementPeriod is the time until Zincati asks again after a session held the reboot back. It has no jitter.
	PostponementPeriod = 60 * time.Second
	// MaxPostponements is how many times in a row sessions can hold the reboot back.
	MaxPostponements = 10
)

// Agent is Zincati's state machine on one host. Client, Staged, Finalize and Reboot are required. A field that is 0 has
// Zincati's value.
type Agent struct {
	Client *Client

	// Staged reports whether an update is staged. The agent does not call it again after it was true, as Zincati never checks a
	// staged release again.
	Staged func() bool
	// Sessions reports whether an interactive session has a tty. Zincati takes a failure to list the sessions as no.
	Sessions func() bool
	// Finalize unlocks the staged update so that it is applied at shutdown. It fails, for example, if an inhibitor of shutdowns in
	// mode block is held.
	Finalize func(context.Context) error
	// Reboot reboots the host. On a real host, rpm-ostree does so as the last step of finalize-deployment.
	Reboot func(context.Context) error
	// Log, if set, receives one line for each transition, and one for each request and each step that fails.
	Log func(line string)

	// Refresh replaces RefreshPeriod, in all states: Zincati's steady_interval_secs has the same default.
	Refresh time.Duration
	// Postponement replaces PostponementPeriod.
	Postponement time.Duration
	// Postponements replaces MaxPostponements.
	Postponements int
	// Jitter returns the hundredths of Refresh to add to it, from 0 to 10. If it is nil, they are random. Zincati adds whole
	// seconds, which is the same for 300 s.
	Jitter func() int
}

// Run runs the agent from the start of zincati.service until it has called Reboot, and returns nil then, even if Reboot fails:
// Zincati never tries again. Otherwise it returns the error of ctx. Run again is a restart of the service, which reports steady
// state whether or not the host has rebooted.
func (a *Agent) Run(ctx context.Context) error {
	a.log("initialized, reporting steady state")
	for accepted := false; !accepted; {
		var err error
		if accepted, err = a.ask(ctx, "steady-state", a.Client.SteadyState); err == nil && !accepted {
			err = a.waitRefresh(ctx)
		}
		if err != nil {
			return err
		}
	}
	a.log("steady, waiting for a staged update")
	for !a.Staged() {
		if err := a.waitRefresh(ctx); err != nil {
			return err
		}
	}
	a.log("update staged, asking for a reboot slot")
	if err := a.finalize(ctx); err != nil {
		return err
	}
	a.log("update finalized, rebooting")
	if err := a.Reboot(ctx); err != nil {
		a.log("reboot failed, not trying again: %v", err)
	}
	return nil
}

// finalize asks for a slot until it is granted and the update is finalized.
func (a *Agent) finalize(ctx context.Context) error {
	limit := cmp.Or(a.Postponements, MaxPostponements)
	left := limit
	for {
		granted, err := a.ask(ctx, "pre-reboot", a.Client.PreReboot)
		switch {
		case err != nil:
			return err
		case !granted:
			left = limit
		case a.Sessions != nil && a.Sessions() && left > 0:
			left--
			a.log("slot granted, postponed for a session, %d postponements left", left)
		default:
			a.log("slot granted, finalizing the update")
			if err = a.Finalize(ctx); err == nil {
				return nil
			}
			a.log("finalize failed: %v", err)
		}
		// Zincati's own comment says that only a postponement shortens the wait. Its code looks at the count, so a failed finalize
		// after a postponement is also tried again after 60 s, until a refusal resets the count.
		if left < limit {
			err = wait(ctx, cmp.Or(a.Postponement, PostponementPeriod))
		} else {
			err = a.waitRefresh(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// ask sends a request and reports whether the answer is yes. As in Zincati, a request without an answer counts as refused. The
// error is that of ctx.
func (a *Agent) ask(ctx context.Context, name string, send func(context.Context) (Answer, error)) (yes bool, err error) {
	answer, err := send(ctx)
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case err != nil:
		a.log("%s failed: %v", name, err)
	case !answer.OK:
		a.log("%s refused: code %d, %s: %s", name, answer.Status, answer.Kind, answer.Value)
	}
	return answer.OK, nil
}

func (a *Agent) waitRefresh(ctx context.Context) error {
	refresh, jitter := cmp.Or(a.Refresh, RefreshPeriod), a.Jitter
	if jitter == nil {
		jitter = func() int { return rand.IntN(11) }
	}
	return wait(ctx, refresh+refresh/100*time.Duration(jitter()))
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return ctx.Err()
}

func (a *Agent) log(format string, args ...any) {
	if a.Log != nil {
		a.Log(fmt.Sprintf(format, args...))
	}
}
