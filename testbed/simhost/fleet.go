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

// FleetOptions describe a fleet. Its hosts are node-1, node-2 and so on.
type FleetOptions struct {
	// Hosts is the number of hosts. The first Coordinators of them have the coordinator's kubeconfig.
	Hosts, Coordinators int
	// Prefix is the prefix of the names; "" means "node-".
	Prefix string
	// Zones are assigned to the hosts in rotation. Without Zones, hosts have no zone.
	Zones []string
	// Host has the options common to all hosts. StartFleet sets Name, Zone and Coordinator for each host.
	Host Options
	// Each changes the options of the i-th host, counted from 0, after all other options are set. It may be nil.
	Each func(i int, o *Options)
}

// Fleet is a set of hosts that start and stop together.
type Fleet struct {
	Hosts []*Host // in the order of their numbers
	cp    *controlplane.ControlPlane
}

// StartFleet applies lockkeeper's objects and starts the hosts in parallel. If one host fails to start, StartFleet closes all.
func StartFleet(ctx context.Context, cp *controlplane.ControlPlane, o FleetOptions) (*Fleet, error) {
	if o.Hosts < 1 || o.Coordinators < 0 || o.Coordinators > o.Hosts {
		return nil, fmt.Errorf("invalid fleet of %d hosts with %d coordinators", o.Hosts, o.Coordinators)
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
		_ = f.Close() // err already describes the failure
		return nil, err
	}
	return f, nil
}

// Host returns the host with the name, or nil.
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

// WaitIdle waits until every host's Node is Ready with the host's current boot ID and in the state idle.
func (f *Fleet) WaitIdle(ctx context.Context) error {
	return f.WaitNodes(ctx, "to be Ready and idle", func(h *Host, n *corev1.Node) bool { return h.idle(n) })
}

// WaitUpdated waits until every host runs the version and its Node is Ready, schedulable, idle and wants nothing.
func (f *Fleet) WaitUpdated(ctx context.Context, version string) error {
	return f.WaitNodes(ctx, "to be back with "+version, func(h *Host, n *corev1.Node) bool {
		return h.Version() == version && h.idle(n) && !n.Spec.Unschedulable && n.Labels[v1alpha1.LabelWants] == string(v1alpha1.WantsNothing)
	})
}

// WaitNodes waits, in parallel for all hosts, until cond returns true for their Nodes. It never calls cond with nil.
func (f *Fleet) WaitNodes(ctx context.Context, what string, cond func(*Host, *corev1.Node) bool) error {
	errs := make([]error, len(f.Hosts))
	var wg sync.WaitGroup
	for i, h := range f.Hosts {
		wg.Go(func() {
			_, err := f.cp.WaitNode(ctx, h.Name(), what, func(n *corev1.Node) bool { return n != nil && cond(h, n) })
			if err != nil {
				errs[i] = fmt.Errorf("%w; the end of the host's log:\n%s", err, h.LogTail(30))
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

// Close closes all hosts in parallel.
func (f *Fleet) Close() error {
	errs := make([]error, len(f.Hosts))
	var wg sync.WaitGroup
	for i, h := range f.Hosts {
		wg.Go(func() { errs[i] = h.Close() })
	}
	wg.Wait()
	return errors.Join(errs...)
}
