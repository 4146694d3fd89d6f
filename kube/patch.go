package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Patch is one write to a Node, with the version that was decided on.
type Patch struct {
	Node            string
	ResourceVersion string
	// Labels and Annotations: nil removes the key.
	Labels      map[string]*string
	Annotations map[string]*string
	// Unschedulable, where not nil, is the new spec.unschedulable.
	Unschedulable *bool
	// Conditions are set in the Node's status, and those of the types DropConditions
	// removed from it. A patch with any of them changes nothing else.
	Conditions     []corev1.NodeCondition
	DropConditions []corev1.NodeConditionType
	// Manager is the field manager; see [FieldManager].
	Manager string
}

// toStatus reports whether the patch is one of the Node's status. It is a strategic
// merge patch then, which changes the conditions that it names and no others.
func (p *Patch) toStatus() bool { return len(p.Conditions)+len(p.DropConditions) > 0 }

// body is the JSON merge patch (RFC 7386), or the strategic merge patch of the status.
// The resourceVersion in it is a precondition: the API server answers 409 if the Node is
// another version.
func (p *Patch) body() []byte {
	meta := map[string]any{"resourceVersion": p.ResourceVersion}
	if len(p.Labels) > 0 {
		meta["labels"] = p.Labels
	}
	if len(p.Annotations) > 0 {
		meta["annotations"] = p.Annotations
	}
	doc := map[string]any{"metadata": meta}
	if p.Unschedulable != nil {
		doc["spec"] = map[string]any{"unschedulable": *p.Unschedulable}
	}
	if p.toStatus() {
		conditions := []any{}
		for _, c := range p.Conditions {
			conditions = append(conditions, c)
		}
		for _, kind := range p.DropConditions {
			conditions = append(conditions, map[string]any{"type": kind, "$patch": "delete"})
		}
		doc = map[string]any{"metadata": meta, "status": map[string]any{"conditions": conditions}}
	}
	b, err := json.Marshal(doc)
	if err != nil {
		panic(fmt.Sprintf("lockkeeper: encoding a patch of strings and times: %v", err))
	}
	return b
}

// Write sends the patch once and confirms what the answer means.
//
// After a conflict it reads the Node from the quorum and returns it, and the
// caller decides again. An answer that the Node does not exist counts only after
// Find has confirmed it. If Find cannot confirm a conflict or a missing Node, the
// outcome is Unknown, because a proxy may have repeated a write that had already
// landed. If the Node still has the patch's version after a conflict, the outcome
// is Refused: an admission webhook answered 409, and would do so again at once.
//
// The Node is not nil with Written and Conflict. The error is nil only with
// Written.
func Write(ctx context.Context, client kubernetes.Interface, p Patch) (*corev1.Node, Outcome, error) {
	n, o, err := send(ctx, client, p)
	if o != Conflict && o != Gone {
		return n, o, err
	}
	n, readErr := Find(ctx, client, p.Node)
	switch {
	case readErr != nil:
		return nil, Unknown, fmt.Errorf("%w; reading the Node after that: %w", err, readErr)
	case n == nil:
		return nil, Gone, err
	case n.ResourceVersion == p.ResourceVersion:
		return nil, Refused, err
	}
	return n, Conflict, err
}

// send sends the patch once. The Node is the one that was written, nil unless
// Written; the error is nil only then.
func send(ctx context.Context, client kubernetes.Interface, p Patch) (*corev1.Node, Outcome, error) {
	if p.ResourceVersion == "" {
		// The API server would take that for no precondition at all.
		return nil, Refused, fmt.Errorf("writing node %s: the write names no resourceVersion", p.Node)
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	kind, subresources := types.MergePatchType, []string(nil)
	if p.toStatus() {
		kind, subresources = types.StrategicMergePatchType, []string{"status"}
	}
	n, err := client.CoreV1().Nodes().Patch(ctx, p.Node, kind, p.body(), metav1.PatchOptions{FieldManager: p.Manager}, subresources...)
	if err != nil {
		return nil, outcome(err, p.Node), fmt.Errorf("writing node %s: %w", p.Node, err)
	}
	if err := isNode(n, p.Node); err != nil {
		return nil, Unknown, fmt.Errorf("writing node %s: %w", p.Node, err)
	}
	return n, Written, nil
}

// isNode returns an error if what was decoded from an answer is not the Node of
// that name. client-go takes any JSON object for what it asked for, that of a
// proxy as well.
func isNode(n *corev1.Node, name string) error {
	if n.Name != name || n.UID == "" || n.ResourceVersion == "" {
		return errors.New("the answer is not this Node; does a proxy answer in the API server's place?")
	}
	return nil
}

// Settle repeats a write whose outcome is not known until the outcome cannot
// change any more. It returns the Node as it is then, nil if it does not exist.
// The outcome cannot change after a success, or once the Node has another version
// than the patch: whichever write made that version, every further try is a
// conflict. A refusal alone settles nothing, because the first try may be delayed
// and land later.
//
// Between tries it waits a second, then two, up to ten. It ends early only with
// ctx. failed receives why a try settled nothing.
func Settle(ctx context.Context, client kubernetes.Interface, p Patch, failed func(error)) (*corev1.Node, error) {
	delay := time.Second
	for {
		if err := pause(ctx, delay); err != nil {
			return nil, err
		}
		delay = min(2*delay, 10*time.Second)
		_, o, err := send(ctx, client, p)
		n, readErr := Find(ctx, client, p.Node)
		switch {
		case readErr != nil:
			failed(readErr)
		case n == nil, o == Written, n.ResourceVersion != p.ResourceVersion:
			return n, nil
		default:
			failed(err)
		}
	}
}

// Find reads a Node from the quorum. It returns nil, and no error, only if the
// Node does not exist: a GET says so in the API server's own words, and a LIST
// of Nodes of that name confirms it with an empty list. A single 404 is not
// enough to free the Node's slot.
func Find(ctx context.Context, client kubernetes.Interface, name string) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		err = isNode(n, name)
	}
	if err == nil {
		return n, nil
	}
	if !IsGone(err, corev1.Resource("nodes"), name) {
		return nil, fmt.Errorf("reading node %s: %w", name, err)
	}
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: named(name)})
	if err == nil {
		err = VerifyList(list)
	}
	if err == nil && len(list.Items) > 0 {
		err = isNode(&list.Items[0], name)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("confirming that node %s does not exist: %w", name, err)
	case len(list.Items) == 0:
		return nil, nil
	}
	return &list.Items[0], nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
