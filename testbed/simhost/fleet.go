package simhost

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// FleetOptions describe a fleet: hosts node-1, node-2 and so on.
type FleetOptions struct {
	// Hosts is how many there are; Coordinators of them, the first ones, have the coordinator's kubeconfig.
	Hosts, Coordinators int
	// Prefix of the names; "" is "node-".
	Prefix string
	// Zones are given to the hosts in turn; none for hosts without a zone.
	Zones []string
	// Host is what all hosts have in common: Name, Zone and Coordinator are set for each.
	Host Options
	// Each changes the options of the i-th host, counted from 0, last of all; nil for none.
	Each func(i int, o *Options)
}

// A Fleet is some hosts that are started and stopped together.
type Fleet struct {
	Hosts []*Host // in order of their numbers
	cp    *controlplane.ControlPlane
}

// StartFleet applies lockkeeper's objects and starts the hosts side by side. If one does not start, all are closed.
func StartFleet(ctx context.Context, cp *controlplane.ControlPlane, o FleetOptions) (*Fleet, error) {
	if o.Hosts < 1 || o.Coordinators < 0 || o.Coordinators > o.Hosts {
		return nil, fmt.Errorf("a fleet of %d hosts with %d coordinators cannot be", o.Hosts, o.Coordinators)
	}
	if o.Prefix == "" {
		o.Prefix = "node-"
	}
	if err := cp.ApplyLockkeeper(ctx); err != nil {
		return nil, err
	}
	hosts, errs := make([]*Host, o.Hosts), make([]error, o.Hosts)
	var wg sync.WaitGroup
	for i := range o.Hosts {
		opts := o.Host
		opts.Name = fmt.Sprint(o.Prefix, i+1)
		opts.Coordinator = i < o.Coordinators
		if len(o.Zones) > 0 {
			opts.Zone = o.Zones[i%len(o.Zones)]
		}
		if o.Each != nil {
			o.Each(i, &opts)
		}
		wg.Go(func() { hosts[i], errs[i] = Start(ctx, cp, opts) })
	}
	wg.Wait()
	f := &Fleet{Hosts: slices.DeleteFunc(hosts, func(h *Host) bool { return h == nil }), cp: cp}
	if err := errors.Join(errs...); err != nil {
		_ = f.Close() // what went wrong is in err
		return nil, err
	}
	return f, nil
}

// Host is the one with a name, nil if there is none.
func (f *Fleet) Host(name string) *Host {
	for _, h := range f.Hosts {
		if h.Name() == name {
			return h
		}
	}
	return nil
}

// StageUpdate stages a version on all hosts.
func (f *Fleet) StageUpdate(version string) error {
	var errs []error
	for _, h := range f.Hosts {
		errs = append(errs, h.StageUpdate(version))
	}
	return errors.Join(errs...)
}

// WaitIdle waits until every host's Node is Ready in the host's present boot, and in the state idle.
func (f *Fleet) WaitIdle(ctx context.Context) error {
	return f.WaitNodes(ctx, "to be Ready and idle", func(h *Host, n *corev1.Node) bool { return h.idle(n) })
}

// WaitUpdated waits until every host runs the version and its Node is Ready, schedulable, idle and wants nothing.
func (f *Fleet) WaitUpdated(ctx context.Context, version string) error {
	return f.WaitNodes(ctx, "to be back with "+version, func(h *Host, n *corev1.Node) bool {
		return h.Version() == version && h.idle(n) && !n.Spec.Unschedulable && n.Labels[v1alpha1.LabelWants] == string(v1alpha1.WantsNothing)
	})
}

// WaitNodes waits, for all hosts side by side, until cond holds for their Nodes; cond gets no nil.
func (f *Fleet) WaitNodes(ctx context.Context, what string, cond func(*Host, *corev1.Node) bool) error {
	errs := make([]error, len(f.Hosts))
	var wg sync.WaitGroup
	for i, h := range f.Hosts {
		wg.Go(func() {
			_, err := f.cp.WaitNode(ctx, h.Name(), what, func(n *corev1.Node) bool { return n != nil && cond(h, n) })
			if err != nil {
				errs[i] = fmt.Errorf("%w; the end of its host's log:\n%s", err, h.LogTail(30))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (h *Host) idle(n *corev1.Node) bool {
	return n.Labels[v1alpha1.LabelState] == string(v1alpha1.StateIdle) &&
		n.Status.NodeInfo.BootID == h.BootID() && readyOf(n) == corev1.ConditionTrue
}

// Close closes all hosts side by side.
func (f *Fleet) Close() error {
	errs := make([]error, len(f.Hosts))
	var wg sync.WaitGroup
	for i, h := range f.Hosts {
		wg.Go(func() { errs[i] = h.Close() })
	}
	wg.Wait()
	return errors.Join(errs...)
}
