// Package rig joins the parts of the testbed: a fleet of simulated hosts on a real control plane, and a referee that watches them. Tests and the
// demo start a rig. A Scene has the methods with which a test acts on a rig.
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
	// Policy is the spec of the fleet's DisruptionPolicy in YAML. It usually has a short settle time, such as 2s.
	Policy string
	// Policies are the specs of several DisruptionPolicies by name. They replace Policy.
	Policies map[string]string
	// Budget tells the referee how many nodes the policy, or all policies together, may disrupt; 0 means 1. PolicyBudgets has the limit of each
	// policy if there are several.
	Budget        int
	PolicyBudgets []referee.PolicyBudget
	// Lag is the longest delay that the test's own faults may cause for hosts and leaders. See [referee.Options].
	Lag time.Duration
	// OnEvent receives the line that the referee writes for each transition.
	OnEvent func(line string)
	// Proxied gives each process its own proxy to the API server, see [Rig.Proxies]. The fleet must then have no Each and no Prefix.
	Proxied bool
	// Label returns names for the writes that pass a proxy of the role. It must return quickly, because each request waits for it. If it is nil,
	// writes have no names.
	Label func(role string, q *faultproxy.Request) string
	// Work is a workload on the fleet's nodes, or nil. The rig sets its name and namespace.
	Work *controlplane.Workload
}

// Report is the referee's report.
type Report = referee.Report

// Rig is a fleet with a referee. The caller must close it.
type Rig struct {
	ControlPlane *controlplane.ControlPlane
	Fleet        *simhost.Fleet
	Referee      *referee.Referee
	// Proxies are the proxies by host name. They exist only if Options.Proxied is set.
	Proxies map[string]Proxies

	dir      string // directory of the proxies' kubeconfigs
	work     *controlplane.Workload
	policies []string // Close deletes these

	closing sync.Once
	report  Report
	failed  error // the error of the first Close
}

const (
	// idleWithin limits the wait until all hosts of a new fleet are idle.
	idleWithin = 4 * time.Minute
	// closeWithin limits the removal of a rig's objects.
	closeWithin = 2 * time.Minute
)

// Start starts the referee first, so that the referee sees every write, and then the fleet. It returns when a coordinator leads, every host is idle
// and the workload is Ready. The hosts stop when ctx ends, even after Start has returned.
func Start(ctx context.Context, cp *controlplane.ControlPlane, o Options) (*Rig, error) {
	r := &Rig{ControlPlane: cp, Proxies: map[string]Proxies{}}
	if err := r.start(ctx, o); err != nil {
		_, _ = r.Close() // err already describes the failure
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

// observed returns an observer that passes a host's events to the referee first and then to others, which may be nil.
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

// StartHost starts another host, which the referee watches too. The caller closes the host. The referee judges the shutdown of the host if it happens
// before the rig is closed.
func (r *Rig) StartHost(ctx context.Context, o simhost.Options) (*simhost.Host, error) {
	o.Events = r.observed(o.Events)
	return simhost.Start(ctx, r.ControlPlane, o)
}

// Close removes the workload, gets the referee's verdict and then stops the fleet. The referee does not judge the shutdown of the fleet. The error is
// the referee's error, or names what Close could not stop or remove. A second call returns the same result.
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
