package object

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// FieldManager is the name under which lockkeeper's writes stand in
// managedFields; role is "host" or "coordinator".
func FieldManager(role string) string { return "lockkeeper-" + role }

// Timeout bounds one request for a Node or a Lease.
const Timeout = 10 * time.Second

// Patch is one write to a Node, with the version that was decided on.
type Patch struct {
	Node            string
	ResourceVersion string
	// Labels and Annotations: nil removes the key.
	Labels      map[string]*string
	Annotations map[string]*string
	// Unschedulable, where not nil, is the new spec.unschedulable.
	Unschedulable *bool
	// Manager is the field manager; see [FieldManager].
	Manager string
}

// body is the JSON merge patch (RFC 7386). The resourceVersion in it is a
// precondition: the API server answers 409 if the Node is another version.
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
	b, err := json.Marshal(doc)
	if err != nil {
		panic(fmt.Sprintf("lockkeeper: encoding a patch of strings: %v", err))
	}
	return b
}

// Outcome is what became of a write.
type Outcome int

// The outcomes.
const (
	// Written: the API server has it.
	Written Outcome = iota
	// Conflict: the Node was another version. Decide again.
	Conflict
	// Gone: there is no such Node.
	Gone
	// Refused: the API server would not: forbidden, invalid, too many.
	Refused
	// Unknown: no answer, or one that does not say. The write may have been
	// carried out, may be carried out later, or never.
	Unknown
)

// String names the outcome.
func (o Outcome) String() string {
	return [...]string{"written", "conflict", "gone", "refused", "unknown"}[o]
}

// Send sends the patch once. The Node is the one that was written, nil unless
// Written; the error is nil only then.
func Send(ctx context.Context, client kubernetes.Interface, p Patch) (*corev1.Node, Outcome, error) {
	if p.ResourceVersion == "" {
		// The API server would take that for no precondition at all.
		return nil, Refused, fmt.Errorf("writing node %s: the write names no resourceVersion", p.Node)
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	n, err := client.CoreV1().Nodes().Patch(ctx, p.Node, types.MergePatchType, p.body(), metav1.PatchOptions{FieldManager: p.Manager})
	if err != nil {
		return nil, outcome(err), fmt.Errorf("writing node %s: %w", p.Node, err)
	}
	return n, Written, nil
}

func outcome(err error) Outcome {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return Unknown
	}
	switch code := status.Status().Code; {
	case code == 409:
		return Conflict
	case code == 404:
		return Gone
	case code >= 400 && code < 500 && code != 408:
		return Refused
	}
	return Unknown
}

// Settle repeats a write whose outcome is not known until the outcome cannot
// change any more, and returns the Node as it is then, nil if it is gone. That
// is so after success, and once the Node is another version than the one that
// was written to: by this write or by another, which both turn every further
// try into a conflict. A refusal alone settles nothing: the first try, held up
// somewhere, may still be carried out.
//
// Between tries it waits a second, then two, up to ten. It ends early only
// with ctx. alive, if not nil, is called before every try: however long it
// takes, this is no loop that is stuck.
func Settle(ctx context.Context, client kubernetes.Interface, p Patch, alive func()) (*corev1.Node, error) {
	delay := time.Second
	for {
		if err := pause(ctx, delay); err != nil {
			return nil, err
		}
		if alive != nil {
			alive()
		}
		delay = min(2*delay, 10*time.Second)
		_, o, _ := Send(ctx, client, p)
		n, err := Read(ctx, client, p.Node)
		switch {
		case apierrors.IsNotFound(err):
			return nil, nil
		case err == nil && (o == Written || n.ResourceVersion != p.ResourceVersion):
			return n, nil
		}
	}
}

// Read reads a Node from the quorum.
func Read(ctx context.Context, client kubernetes.Interface, name string) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading node %s: %w", name, err)
	}
	return n, nil
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
