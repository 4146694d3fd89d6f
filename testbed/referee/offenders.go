package referee

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// World is the cluster in which an offender acts.
type World struct {
	Client kubernetes.Interface // may write everything except lockkeeper's own keys
	// Writer returns a client with an identity that may write labels or annotations with these keys on a Node. It models an offender that has
	// obtained the credential of a host or a coordinator.
	Writer func(node string, keys ...string) (kubernetes.Interface, error)
	// Nodes are the names of the hosts' Nodes. There are at least two.
	Nodes []string
	// Reboot calls the host's logind as a program on the host would.
	Reboot func(ctx context.Context, node string) error
}

// Offender is a small program that breaks a rule against a real API server, so that a test can check that the referee notices. It runs
// during a real rollout, or without one if NeedsTurn is false.
type Offender struct {
	Does   string
	Breaks Rule // the rule that the referee must report, perhaps among others
	// NeedsTurn means that the offender waits for a node that is in a turn.
	NeedsTurn bool
	Run       func(ctx context.Context, w World) error
}

// Offenders contains all offenders by name.
var Offenders = map[string]Offender{
	"budget": {"cordons and marks a second node, as a host would, while another is in its turn", Budget, true, offendBudget},
	"commit": {"cordons and marks a node that is in no turn", Commit, false, offendCommit},
	"cordon": {"cordons a node without the mark", Cordon, false, func(ctx context.Context, w World) error {
		return w.onIdle(ctx, func(n *turn.Node) error { return w.patch(ctx, n, offender, unschedulablePatch(true), nil, nil) })
	}},
	"jump": {"writes rebooting over idle, with a fine grant", Table, false, offendJump},
	"mark": {"marks a cordon that a person made", Mark, false, func(ctx context.Context, w World) error {
		return w.onAdminsCordon(ctx, func(n *turn.Node) error {
			return w.patch(ctx, n, offender, nil, nil, map[string]any{v1alpha1.AnnotationCordon: "an offender"})
		})
	}},
	"uncordon": {"undoes a cordon that a person made", Uncordon, false, func(ctx context.Context, w World) error {
		return w.onAdminsCordon(ctx, func(n *turn.Node) error { return w.patch(ctx, n, offender, unschedulablePatch(nil), nil, nil) })
	}},
	"evict":  {"evicts a pod from a node that is in no turn", Evict, false, offendEvict},
	"reboot": {"reboots a host that is in no turn", Reboot, false, offendReboot},
	"early":  {"reboots a host while it is drained", Reboot, true, offendEarly},
}

// OffenderNames returns the names of [Offenders] in order.
func OffenderNames() []string { return slices.Sorted(maps.Keys(Offenders)) }

const (
	offender = "offender" // the field manager of offenders
	person   = "kubectl-offender"
	// offenderPoll is the interval at which a waiting offender lists the Nodes.
	offenderPoll = 20 * time.Millisecond
)

// until lists the Nodes and calls act until act returns done or an error.
func (w World) until(ctx context.Context, act func(nodes []*turn.Node) (done bool, err error)) error {
	tick := time.NewTicker(offenderPoll)
	defer tick.Stop()
	for {
		var nodes []*turn.Node
		list, err := w.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err == nil {
			for i := range list.Items {
				if n := turn.FromNode(&list.Items[i]); slices.Contains(w.Nodes, n.Name) {
					nodes = append(nodes, &n)
				}
			}
			if done, err := act(nodes); done || err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the offender found no occasion: %w", errors.Join(context.Cause(ctx), err))
		case <-tick.C:
		}
	}
}

// onIdle calls act with the first node that is idle and schedulable.
func (w World) onIdle(ctx context.Context, act func(*turn.Node) error) error {
	return w.until(ctx, func(nodes []*turn.Node) (bool, error) {
		for _, n := range nodes {
			if idle(n) {
				return settled(act(n))
			}
		}
		return false, nil
	})
}

// settled reports whether an offender is done after a write. After a conflict it returns false, and the offender reads the Nodes again.
func settled(err error) (done bool, _ error) {
	if apierrors.IsConflict(err) {
		return false, nil
	}
	return true, err
}

func idle(n *turn.Node) bool { return n.State == v1alpha1.StateIdle && !n.Unschedulable && !n.Mark }

// onAdminsCordon cordons an idle node as an admin and then calls act with it.
func (w World) onAdminsCordon(ctx context.Context, act func(*turn.Node) error) error {
	name := ""
	if err := w.onIdle(ctx, func(n *turn.Node) error {
		name = n.Name
		return w.patch(ctx, n, person, unschedulablePatch(true), nil, nil)
	}); err != nil {
		return err
	}
	return w.until(ctx, func(nodes []*turn.Node) (bool, error) {
		for _, n := range nodes {
			if n.Name == name && n.Unschedulable {
				return settled(act(n))
			}
		}
		return false, nil
	})
}

// patch writes to a Node with the field manager manager and the resourceVersion of n. Nil values remove fields.
func (w World) patch(ctx context.Context, n *turn.Node, manager string, spec, labels, annotations map[string]any) error {
	meta := map[string]any{"resourceVersion": n.ResourceVersion}
	body := map[string]any{"metadata": meta}
	for _, part := range []struct {
		in     map[string]any
		key    string
		fields map[string]any
	}{{meta, "labels", labels}, {meta, "annotations", annotations}, {body, "spec", spec}} {
		if part.fields != nil { // null would remove all of them
			part.in[part.key] = part.fields
		}
	}
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	keys := slices.Concat(slices.Collect(maps.Keys(labels)), slices.Collect(maps.Keys(annotations)))
	client, err := w.Writer(n.Name, keys...)
	if err != nil {
		return err
	}
	if own, more := v1alpha1.CoordinatorKeys(); slices.ContainsFunc(keys, func(k string) bool { return slices.Contains(own, k) || slices.Contains(more, k) }) {
		manager = "lockkeeper-coordinator" // the admission policy accepts no other field manager
	}
	_, err = client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, b, metav1.PatchOptions{FieldManager: manager})
	return err
}

func unschedulablePatch(value any) map[string]any {
	return map[string]any{"unschedulable": value}
}

// cordon writes what a host writes at the commit of draining, whether or not the node is in a turn.
func (w World) cordon(ctx context.Context, n *turn.Node) error {
	id := n.Turn
	if id == "" {
		id = "offender"
	}
	ack := v1alpha1.Ack{Turn: id, BootID: n.BootID, State: v1alpha1.StateDraining, Report: v1alpha1.ReportCommitted}
	return w.patch(ctx, n, offender, unschedulablePatch(true), nil,
		map[string]any{v1alpha1.AnnotationCordon: id, v1alpha1.AnnotationAck: ack.String()})
}

func offendBudget(ctx context.Context, w World) error {
	return w.until(ctx, func(nodes []*turn.Node) (bool, error) {
		var inTurn, other *turn.Node
		for _, n := range nodes {
			switch {
			case n.Mark && n.InTurn() && n.State != v1alpha1.StateUncordoning:
				inTurn = n
			case !n.InTurn() && !n.Unschedulable:
				other = n
			}
		}
		if inTurn == nil || other == nil {
			return false, nil
		}
		return settled(w.cordon(ctx, other))
	})
}

func offendCommit(ctx context.Context, w World) error {
	return w.onIdle(ctx, func(n *turn.Node) error { return w.cordon(ctx, n) })
}

func offendJump(ctx context.Context, w World) error {
	return w.onIdle(ctx, func(n *turn.Node) error {
		g := v1alpha1.Grant{Turn: "offender", Epoch: "offender", NodeUID: n.UID, BootID: n.BootID, Wants: v1alpha1.WantsReboot, Drains: true}
		return w.patch(ctx, n, offender, nil, map[string]any{v1alpha1.LabelState: string(v1alpha1.StateRebooting)},
			map[string]any{v1alpha1.AnnotationTurn: g.Turn, v1alpha1.AnnotationGrant: v1alpha1.FormatRecord(g)})
	})
}

func offendEvict(ctx context.Context, w World) error {
	pods := w.Client.CoreV1().Pods(metav1.NamespaceDefault)
	return w.onIdle(ctx, func(n *turn.Node) error {
		p, err := pods.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "victim-"},
			Spec: corev1.PodSpec{
				NodeName:   n.Name,
				Containers: []corev1.Container{{Name: "app", Image: "example.invalid/app"}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("creating a pod to evict: %w", err)
		}
		return w.evictNow(ctx, p)
	})
}

func (w World) evictNow(ctx context.Context, p *corev1.Pod) error {
	return w.Client.CoreV1().Pods(p.Namespace).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
	})
}

func offendReboot(ctx context.Context, w World) error {
	return w.onIdle(ctx, func(n *turn.Node) error { return w.Reboot(ctx, n.Name) })
}

func offendEarly(ctx context.Context, w World) error {
	return w.until(ctx, func(nodes []*turn.Node) (bool, error) {
		for _, n := range nodes {
			if n.State == v1alpha1.StateDraining && n.Mark {
				return true, w.Reboot(ctx, n.Name)
			}
		}
		return false, nil
	})
}
