// Package large plays the hosts of a fleet that is too large for real ones, on a real API server (`make bench PARTS=scale`) and in virtual
// time: its own test runs a real coordinator with thousands of Nodes, and with the latencies of a real API server.
package large

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	core "k8s.io/client-go/kubernetes/typed/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// Host plays one host in its turns: it writes to its Node what a host does that cordons, drains, reboots and uncordons.
type Host struct {
	// Nodes sends the host's writes, as an identity that may write any key.
	Nodes core.NodeInterface
	// Stage returns when the host has drained, and again when it has booted.
	Stage func(context.Context) error
	// Await returns when the coordinator has moved the Node to the state.
	Await func(ctx context.Context, node string, state v1alpha1.State) error
}

// Turn plays one turn. n is the Node after it was granted the turn.
func (h *Host) Turn(ctx context.Context, n turn.Node) error {
	boot := n.BootID
	ack := func(state v1alpha1.State, report v1alpha1.Report) string {
		return v1alpha1.Ack{Turn: n.Turn, BootID: boot, State: state, Report: report}.String()
	}
	annotate := func(annotations map[string]any, cordoned *bool) func() error {
		return func() error { return h.write(ctx, n.Name, nil, annotations, cordoned) }
	}
	await := func(state v1alpha1.State) func() error {
		return func() error { return h.Await(ctx, n.Name, state) }
	}
	stage := func() error { return h.Stage(ctx) }
	mark := v1alpha1.Cordon{Turn: n.Turn, At: time.Now().UTC(), Set: []string{v1alpha1.CordonOurs}}
	draining, rebooting, uncordoning := v1alpha1.StateDraining, v1alpha1.StateRebooting, v1alpha1.StateUncordoning

	err := inOrder(
		annotate(map[string]any{v1alpha1.AnnotationAck: ack(draining, v1alpha1.ReportCommitted), v1alpha1.AnnotationCordon: mark.String()}, new(true)),
		stage,
		annotate(map[string]any{v1alpha1.AnnotationAck: ack(draining, v1alpha1.ReportDone)}, nil),
		await(rebooting),
		annotate(map[string]any{v1alpha1.AnnotationAck: ack(rebooting, v1alpha1.ReportCommitted)}, nil),
		stage,
	)
	if err != nil {
		return err
	}
	boot = n.Turn // each turn ends in another boot
	host := *n.Host
	host.BootID, host.Drains, host.Changes = boot, false, nil
	host.BootTime = time.Now().UTC().Truncate(time.Second)
	return inOrder(
		func() error {
			status := fmt.Sprintf(`{"status":{"nodeInfo":{"bootID":%q}}}`, boot)
			_, err := h.Nodes.Patch(ctx, n.Name, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status")
			return err
		},
		func() error {
			return h.write(ctx, n.Name, map[string]any{v1alpha1.LabelWants: string(v1alpha1.WantsNothing)},
				map[string]any{v1alpha1.AnnotationHost: v1alpha1.FormatRecord(host), v1alpha1.AnnotationAck: ack(rebooting, v1alpha1.ReportDone)}, nil)
		},
		await(uncordoning),
		annotate(map[string]any{v1alpha1.AnnotationAck: ack(uncordoning, v1alpha1.ReportDone), v1alpha1.AnnotationCordon: nil}, new(false)),
		await(v1alpha1.StateIdle),
	)
}

// inOrder calls the functions until one fails.
func inOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// write writes labels and annotations of a Node, of which nil removes one, and whether it is cordoned, unless that is nil.
func (h *Host) write(ctx context.Context, node string, labels, annotations map[string]any, cordoned *bool) error {
	meta := map[string]any{"annotations": annotations}
	if labels != nil {
		meta["labels"] = labels
	}
	patch := map[string]any{"metadata": meta}
	if cordoned != nil {
		patch["spec"] = map[string]any{"unschedulable": *cordoned}
	}
	body, err := json.Marshal(patch)
	if err == nil {
		_, err = h.Nodes.Patch(ctx, node, types.MergePatchType, body, metav1.PatchOptions{})
	}
	return err
}
