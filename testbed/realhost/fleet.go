package realhost

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// FleetOptions describe a fleet. Its hosts are node-1, node-2 and so on.
type FleetOptions struct {
	Hosts int
	// Prefix is the prefix of the names; "" means "node-".
	Prefix string
	// Host has the options common to all hosts. StartFleet sets Name for each host.
	Host Options
	// Each changes the options of the i-th host, counted from 0, after all other options are set. It may be nil.
	Each func(i int, o *Options)
}

// Fleet is a set of hosts on one control plane.
type Fleet struct {
	Hosts []*Host // in order of their numbers
	cp    *controlplane.ControlPlane
}

// readyWithin bounds the wait for a new fleet. systemd restarts the kubelet after 2 s if it failed because something
// was missing.
const readyWithin = 5 * time.Minute

// StartFleet boots hosts in parallel and returns when all Nodes are Ready. The lab's gateway must be one of the control
// plane's Options.Addresses. If one host fails to boot, StartFleet closes all. It also closes them when ctx ends, even
// after StartFleet has returned.
func StartFleet(ctx context.Context, lab *Lab, cp *controlplane.ControlPlane, o FleetOptions) (*Fleet, error) {
	if o.Hosts < 1 {
		return nil, fmt.Errorf("invalid fleet of %d hosts", o.Hosts)
	}
	if o.Prefix == "" {
		o.Prefix = "node-"
	}
	p, err := prepareParts(ctx, lab.log)
	if err != nil {
		return nil, err
	}
	f := &Fleet{cp: cp}
	for i := range o.Hosts {
		opts := o.Host
		opts.Name = fmt.Sprint(o.Prefix, i+1)
		if o.Each != nil {
			o.Each(i, &opts)
		}
		h, err := newHost(ctx, lab, cp, p, opts)
		if err != nil {
			f.Close()
			return nil, err
		}
		f.Hosts = append(f.Hosts, h)
	}
	waiting, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("it took more than %s", readyWithin))
	defer cancel()
	if err := f.each(func(h *Host) error { return h.WaitReady(waiting) }); err != nil {
		f.Close()
		return nil, err
	}
	context.AfterFunc(ctx, f.Close)
	return f, nil
}

// Host returns the host with the name, or nil.
func (f *Fleet) Host(name string) *Host {
	i := slices.IndexFunc(f.Hosts, func(h *Host) bool { return h.Name() == name })
	if i < 0 {
		return nil
	}
	return f.Hosts[i]
}

// Close cuts the power of all hosts and deletes their Nodes. The lab removes everything else.
func (f *Fleet) Close() {
	_ = f.each(func(h *Host) error {
		h.stop()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return f.cp.Client().CoreV1().Nodes().Delete(ctx, h.Name(), metav1.DeleteOptions{}) // fails if the control plane is gone
	})
}

func (f *Fleet) each(do func(*Host) error) error {
	errs := make([]error, len(f.Hosts))
	var wg sync.WaitGroup
	for i, h := range f.Hosts {
		wg.Go(func() { errs[i] = do(h) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// WaitReady waits until the host is up and its kubelet has reported Ready in the current boot. After a call for a
// reboot the current boot is the old one for a while, so wait for the new boot first; see [Host.WaitBoots].
func (h *Host) WaitReady(ctx context.Context) error {
	if err := h.WaitBoots(ctx, 1); err != nil {
		return err
	}
	_, err := h.cp.WaitNode(ctx, h.opts.Name, "to be Ready in the host's current boot", func(n *corev1.Node) bool {
		return n != nil && n.Status.NodeInfo.BootID != "" && n.Status.NodeInfo.BootID == h.BootID() && nodeReady(n)
	})
	if err != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		said, _ := h.Journal(late, "kubelet.service")
		return fmt.Errorf("%w; the end of the console:\n%s\nthe end of the kubelet's journal:\n%s", err, h.console(), controlplane.LastLines(said, 20))
	}
	return nil
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
