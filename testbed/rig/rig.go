// Package rig joins the test bed's parts: a fleet of simulated hosts on a real control plane, with the referee watching. Tests and
// the demo begin with it. Scene is what tests do with a rig.
package rig

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
	"lockkeeper.dev/lockkeeper/testbed/referee"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// Options describe a rig.
type Options struct {
	Fleet simhost.FleetOptions
	// Policy is the spec of the DisruptionPolicy that the fleet rolls by, in YAML: a settle of 2s and such.
	Policy string
	// Policies are the specs of several DisruptionPolicies by their names, in place of Policy.
	Policies map[string]string
	// Budget is what the policy allows, or all policies together, for the referee; 0 is 1. PolicyBudgets are what each of several allows.
	Budget        int
	PolicyBudgets []referee.PolicyBudget
	// Lag is by how much the run's own faults may hold back hosts and leaders, for the referee; see [referee.Options].
	Lag time.Duration
	// OnEvent gets the referee's line for each transition.
	OnEvent func(line string)
	// Proxied: each process reaches the API server through a proxy of its own, see [Rig.Proxies]. The fleet then has no Each and no
	// Prefix.
	Proxied bool
	// Label names the writes that pass a proxy of the role; nil for no names. It gets the body and has to be quick.
	Label func(role string, q *faultproxy.Request) string
	// Work is a workload on the fleet's nodes, nil for none. Its name and namespace are the rig's.
	Work *controlplane.Workload
}

// Report is the referee's.
type Report = referee.Report

// A Rig is a fleet with a referee. Close both.
type Rig struct {
	ControlPlane *controlplane.ControlPlane
	Fleet        *simhost.Fleet
	Referee      *referee.Referee
	// Proxies are the hosts' by their names, if they were asked for.
	Proxies map[string]Proxies

	dir      string // of the proxies' kubeconfigs
	work     *controlplane.Workload
	policies []string // that Close deletes

	closing sync.Once
	report  Report
	failed  error // of closing
}

const (
	// idleWithin bounds the wait for a new fleet's hosts to be idle.
	idleWithin = 4 * time.Minute
	// closeWithin bounds the removal of a rig's objects.
	closeWithin = 2 * time.Minute
)

// Start starts the referee first, so that it misses nothing, and then the fleet. It returns when every host is idle under a coordinator and
// the workload is Ready. The end of ctx stops the hosts, also later.
func Start(ctx context.Context, cp *controlplane.ControlPlane, o Options) (*Rig, error) {
	r := &Rig{ControlPlane: cp, Proxies: map[string]Proxies{}}
	if err := r.start(ctx, o); err != nil {
		_, _ = r.Close() // what went wrong is in err
		return nil, err
	}
	return r, nil
}

func (r *Rig) start(ctx context.Context, o Options) (err error) {
	if err := r.ControlPlane.ApplyLockkeeper(ctx); err != nil {
		return err
	}
	policies := o.Policies
	if policies == nil {
		policies = map[string]string{controlplane.TestPolicy: o.Policy}
	}
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		if _, err := r.ControlPlane.ApplyPolicy(ctx, name, policies[name]); err != nil {
			return err
		}
		r.policies = append(r.policies, name)
	}
	r.Referee, err = referee.Start(ctx, r.ControlPlane, referee.Options{Budget: o.Budget, Policies: o.PolicyBudgets, Lag: o.Lag, OnEvent: o.OnEvent})
	if err != nil {
		return err
	}
	o.Fleet.Host.Events = r.observed(o.Fleet.Host.Events)
	if o.Proxied {
		if err := r.startProxies(&o); err != nil {
			return err
		}
	}
	if r.Fleet, err = simhost.StartFleet(ctx, r.ControlPlane, o.Fleet); err != nil {
		return err
	}
	idle, cancel := context.WithTimeout(ctx, idleWithin)
	defer cancel()
	if err := r.Fleet.WaitIdle(idle); err != nil {
		return err
	}
	if o.Work == nil {
		return nil
	}
	return r.startWork(idle, *o.Work)
}

// observed has the referee see a host's events before others, which may be nil.
func (r *Rig) observed(others func(simhost.Event)) func(simhost.Event) {
	return func(ev simhost.Event) {
		r.Referee.HostEvent(referee.HostEvent{
			Time: ev.Time, Host: ev.Host, Kind: referee.Kind(ev.Kind), BootID: ev.BootID, Detail: ev.Detail,
		})
		if others != nil {
			others(ev)
		}
	}
}

// StartHost starts another host, which the referee watches as well. The caller closes it; what its end does is judged if that is
// before the rig's.
func (r *Rig) StartHost(ctx context.Context, o simhost.Options) (*simhost.Host, error) {
	o.Events = r.observed(o.Events)
	return simhost.Start(ctx, r.ControlPlane, o)
}

// Close removes the workload, hears the referee's verdict and then stops the fleet: what stopping it does is not judged. The error is
// the referee's, or what could not be stopped or removed. A second call returns the same.
func (r *Rig) Close() (Report, error) {
	r.closing.Do(func() { r.report, r.failed = r.close() })
	return r.report, r.failed
}

func (r *Rig) close() (report Report, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	errs := []error{r.removeWork(ctx)}
	if r.Referee != nil {
		report, err = r.Referee.Close()
		errs = append(errs, err)
	}
	if r.Fleet != nil {
		errs = append(errs, r.Fleet.Close())
	}
	for _, p := range r.Proxies {
		for _, p := range p.All() {
			errs = append(errs, p.Close())
		}
	}
	for _, name := range r.policies {
		errs = append(errs, r.ControlPlane.DeletePolicy(ctx, name))
	}
	if r.dir != "" {
		errs = append(errs, os.RemoveAll(r.dir))
	}
	return report, errors.Join(errs...)
}
