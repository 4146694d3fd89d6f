// Package rig joins the test bed's parts: a fleet of simulated hosts on a real
// control plane, with the referee watching. Tests and the demo begin with it.
package rig

import (
	"context"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/referee"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// Options describe a rig.
type Options struct {
	Fleet simhost.FleetOptions
	// Policy is the spec of the DisruptionPolicy that the fleet rolls by, in
	// YAML: a settle of 2s and such.
	Policy string
	// Policies are the specs of several DisruptionPolicies by their names, in
	// place of Policy. They stay when the rig is closed.
	Policies map[string]string
	// Budget is what the policy allows, or all policies together, for the
	// referee; 0 is 1. PolicyBudgets are what each of several allows.
	Budget        int
	PolicyBudgets []referee.PolicyBudget
	// Lag is by how much the run's own faults may hold back hosts and leaders, for the referee; see [referee.Options].
	Lag time.Duration
	// OnEvent gets the referee's line for each transition.
	OnEvent func(line string)
}

// A Rig is a fleet with a referee. Close both.
type Rig struct {
	ControlPlane *controlplane.ControlPlane
	Fleet        *simhost.Fleet
	Referee      *referee.Referee
}

// idleWithin bounds the wait for a new fleet's hosts to be idle.
const idleWithin = 4 * time.Minute

// Start starts the referee, which is to miss nothing, and then the fleet; it
// returns when every host is idle in a coordinator's care. The end of ctx stops
// the hosts, also later.
func Start(ctx context.Context, cp *controlplane.ControlPlane, o Options) (*Rig, error) {
	r := &Rig{ControlPlane: cp}
	if err := cp.ApplyLockkeeper(ctx); err != nil {
		return nil, err
	}
	policies := o.Policies
	if policies == nil {
		policies = map[string]string{controlplane.TestPolicy: o.Policy}
	}
	for name, spec := range policies {
		if _, err := cp.ApplyPolicy(ctx, name, spec); err != nil {
			return nil, err
		}
	}
	var err error
	r.Referee, err = referee.Start(ctx, cp, referee.Options{Budget: o.Budget, Policies: o.PolicyBudgets, Lag: o.Lag, OnEvent: o.OnEvent})
	if err != nil {
		return nil, err
	}
	o.Fleet.Host.Events = r.telling(o.Fleet.Host.Events)
	if r.Fleet, err = simhost.StartFleet(ctx, cp, o.Fleet); err != nil {
		r.Referee.Close()
		return nil, err
	}
	idle, cancel := context.WithTimeout(ctx, idleWithin)
	defer cancel()
	if err := r.Fleet.WaitIdle(idle); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// telling tells the referee of a host's events, and then others, which may be nil.
func (r *Rig) telling(others func(simhost.Event)) func(simhost.Event) {
	return func(ev simhost.Event) {
		r.Referee.HostEvent(referee.HostEvent{
			Time: ev.Time, Host: ev.Host, Kind: referee.Kind(ev.Kind), BootID: ev.BootID, Detail: ev.Detail,
		})
		if others != nil {
			others(ev)
		}
	}
}

// StartHost starts a host beside the fleet, under the referee's eyes as well. The caller closes it; what its end does is judged
// if that is before the rig's.
func (r *Rig) StartHost(ctx context.Context, o simhost.Options) (*simhost.Host, error) {
	o.Events = r.telling(o.Events)
	return simhost.Start(ctx, r.ControlPlane, o)
}

// Close hears the referee's verdict and then stops the fleet: what stopping it
// does is not judged. The error is the referee's, or what would not stop.
func (r *Rig) Close() (referee.Report, error) {
	report, err := r.Referee.Close()
	if stopErr := r.Fleet.Close(); err == nil {
		err = stopErr
	}
	return report, err
}

// Verdict is for the end of a test: it closes the rig, logs the referee's report, and fails the test if the referee objects. After a
// failure it first logs the end of each host's journal.
func (r *Rig) Verdict(t Test) referee.Report {
	t.Helper()
	if t.Failed() {
		for _, h := range r.Fleet.Hosts {
			t.Logf("%s:\n%s", h.Name(), h.LogTail(80))
		}
	}
	report, err := r.Close()
	if err != nil {
		t.Error(err)
	}
	t.Logf("%s", report.String())
	return report
}
