package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/lifecycle"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// Leave is the [Intent] of the first step of leaving. [Source.WaitLeft] and [Source.LeaveUnreleased]
// are the others.
var Leave = Intent{Command: "leave", Key: v1alpha1.LabelManaged, Label: true, Verb: "manage", edit: managed(false)}

// leaveWrites bounds the writes of [Source.LeaveUnreleased] to one node. Three are usual.
const leaveWrites = 10

// WaitLeft waits until nodes that are labeled managed=false have left: the coordinator has
// released them, and nothing of lockkeeper's but that label is left on their Nodes, nor their
// HostUpdates. It removes itself what the coordinator leaves. say receives a line for each node
// whenever what it waits for has changed. WaitLeft returns the nodes that have not left. The
// error is then a [report.UnreleasedError], the cause of ctx if that ended, or about a write.
func (s *Source) WaitLeft(ctx context.Context, nodes []string, say func(line string)) (pending []string, err error) {
	w := report.LeaveWait{Nodes: slices.Clone(nodes), Say: say, Finish: func(node string) (bool, error) {
		left, err := s.finishLeaving(ctx, node, mayFinish)
		if Away(err) {
			return false, nil // the watch reports it, and the next Report tries again
		}
		return left, err
	}}
	if err := s.followUntilReached(ctx, w.Show); err != nil {
		return w.Nodes, err
	}
	return nil, nil
}

// errCommitted is the error of a node whose host has committed to a reboot or an apply.
var errCommitted = errors.New("has committed to it; wait until its host reports, or delete the Node if the host is gone")

// LeaveAllUnreleased does what [Source.LeaveUnreleased] does, for one node after the other. A host that has committed keeps only its
// own node from leaving: a machine that is gone must not keep those that come after it. LeaveAllUnreleased returns the nodes that have
// not left, and the last error. say receives the others.
func (s *Source) LeaveAllUnreleased(ctx context.Context, nodes []string, say func(line string)) (pending []string, err error) {
	for i, node := range nodes {
		failed := s.LeaveUnreleased(ctx, node)
		if failed == nil {
			continue
		}
		if err != nil {
			say(err.Error())
		}
		if pending, err = append(pending, node), failed; !errors.Is(failed, errCommitted) {
			return append(pending, nodes[i+1:]...), err
		}
	}
	return pending, err
}

// LeaveUnreleased removes everything of lockkeeper's but the label managed=false from a node that
// no coordinator releases, and undoes lockkeeper's own cordon. It is an error if an instance
// releases nodes, or if the host has committed to a reboot or an apply. The caller needs the verb
// override on nodes.lockkeeper.dev.
func (s *Source) LeaveUnreleased(ctx context.Context, node string) error {
	r, err := s.readLease(ctx)
	if err != nil {
		return err
	}
	if r.NoRelease() == "" {
		return fmt.Errorf("an instance on %s releases nodes (Lease %s); without --without-coordinator, leave waits for it", page.Cell(r.Coordinator.Node), r.Coordinator.Lease)
	}
	for range leaveWrites {
		left, err := s.finishLeaving(ctx, node, func(n *turn.Node) (bool, error) {
			if _, err := mayFinish(n); err != nil {
				return false, err
			}
			if n.Committed() {
				return false, fmt.Errorf("%s is in %s and %w", n.Name, n.State, errCommitted)
			}
			return true, nil
		})
		if err != nil || left {
			return err
		}
	}
	return fmt.Errorf("node %s was changed again each time; check which program writes lockkeeper's keys on it", node)
}

// readLease returns a Report of the Lease alone. A list of all Nodes for each node that leaves
// would be 5,000 lists of 5,000 Nodes.
func (s *Source) readLease(ctx context.Context) (report.Report, error) {
	lease, refused, err := s.getLease(ctx)
	if err != nil {
		return report.Report{}, err
	}
	return report.Build(s.input(nil, nil, errors.New("not read"), lease, refused)), nil
}

// mayFinish reports whether the coordinator has released the node, or has never adopted it.
func mayFinish(n *turn.Node) (bool, error) {
	if n.Managed == nil || *n.Managed {
		return false, fmt.Errorf("another user or program removed %s=false from %s, so it does not leave", v1alpha1.LabelManaged, n.Name)
	}
	return n.State == v1alpha1.StateAbsent && !n.Mark, nil
}

// finishLeaving makes the next write that remains for a node to leave. It returns whether nothing
// remained: after a write, only the next call can tell, because the host may have written too.
func (s *Source) finishLeaving(ctx context.Context, node string, may func(*turn.Node) (bool, error)) (left bool, err error) {
	obj, err := kube.Find(ctx, s.Client, node)
	if err != nil || obj == nil {
		return err == nil, err
	}
	n := turn.FromNode(obj)
	if ok, err := may(&n); !ok || err != nil {
		return false, err
	}
	if p := leftover(obj); p != nil {
		switch _, outcome, err := kube.Write(ctx, s.Client, *p); outcome {
		case kube.Written, kube.Conflict:
			return false, nil
		case kube.Gone:
			return true, nil
		default:
			return false, err
		}
	}
	deleted, err := s.DeleteUpdate(ctx, node)
	return err == nil && !deleted, err
}

// leftover returns the next write that removes something of lockkeeper's from a Node, nil if only
// the label managed is left. The cordon and the exclusions that are
// lockkeeper's go with their mark.
func leftover(obj *corev1.Node) *kube.Patch {
	p := &kube.Patch{Node: obj.Name, ResourceVersion: obj.ResourceVersion, Manager: kube.FieldManager("admin")}
	p.Labels, p.Annotations = removals(obj.Labels), removals(obj.Annotations)
	n := turn.FromNode(obj)
	if n.OwnCordon() && n.Unschedulable {
		p.Unschedulable = new(false)
	}
	for _, x := range n.ToUndo() {
		if x.Kind == v1alpha1.MarkLabel {
			p.Labels[x.Key] = nil
		} else {
			p.Annotations[x.Key] = nil
		}
	}
	if len(p.Labels)+len(p.Annotations) > 0 {
		return p
	}
	if _, p.DropConditions = lifecycle.Change(obj.Status.Conditions, nil, time.Time{}); len(p.DropConditions) > 0 {
		return p
	}
	return nil
}

// removals returns lockkeeper's keys among keys, each to be removed.
func removals(keys map[string]string) map[string]*string {
	out := map[string]*string{}
	for key := range keys {
		if key != v1alpha1.LabelManaged && (strings.HasPrefix(key, v1alpha1.Prefix) || strings.HasPrefix(key, v1alpha1.HookPrefix)) {
			out[key] = nil
		}
	}
	return out
}
