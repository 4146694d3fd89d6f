package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
		if wait(ctx, delay, nil); ctx.Err() != nil {
			return nil, ctx.Err()
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

// Outcome is what happened to a write.
type Outcome int

// The outcomes.
const (
	// Written: the API server has stored it.
	Written Outcome = iota
	// Conflict: the Node has another version than the patch. Decide again.
	Conflict
	// Gone: the Node does not exist.
	Gone
	// Refused: the API server says that it did not store it: it is forbidden,
	// invalid, or too large, or an admission webhook does not answer.
	Refused
	// Unknown: there was no answer, or it does not say what happened, or it is not
	// the API server's. The write may have landed, may land later, or never.
	Unknown
)

// String names the outcome.
func (o Outcome) String() string {
	return [...]string{"written", "conflict", "gone", "refused", "unknown"}[o]
}

// outcome returns what an answer to a write of the Node means. Only a Status from
// the API server itself counts: an answer from a proxy or load balancer does not
// say what the API server did with the request.
func outcome(err error, node string) Outcome {
	s := serverStatus(err)
	if s == nil {
		return Unknown
	}
	switch {
	case s.Code == http.StatusConflict:
		return Conflict
	case names(s, schema.GroupResource{Resource: "nodes"}, node):
		return Gone
	case refused(s):
		return Refused
	}
	return Unknown
}

// IsRefused reports whether err is the API server's own answer that it stored
// nothing, other than a conflict or that the object does not exist.
func IsRefused(err error) bool {
	s := serverStatus(err)
	return s != nil && refused(s)
}

func refused(s *metav1.Status) bool {
	switch s.Code {
	case http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict:
		return false
	}
	return s.Code >= 400 && s.Code < 500 || notStored(s.Message)
}

// IsGone reports whether err is the API server's own answer that the object does
// not exist. A 404 that does not name the object does not count: a proxy, or an
// API server that does not serve the resource, gives such an answer too.
func IsGone(err error, resource schema.GroupResource, name string) bool {
	s := serverStatus(err)
	return s != nil && names(s, resource, name)
}

// NoLease reports whether err is the API server's own answer that there is no
// Lease of that name.
func NoLease(err error, name string) bool {
	return IsGone(err, coordinationv1.Resource("leases"), name)
}

// names reports whether the Status says that the object does not exist.
func names(s *metav1.Status, resource schema.GroupResource, name string) bool {
	return s.Code == http.StatusNotFound && s.Reason == metav1.StatusReasonNotFound && s.Details != nil &&
		s.Details.Group == resource.Group && s.Details.Kind == resource.Resource && s.Details.Name == name
}

// serverStatus returns the API server's Status in err, or nil if err has none.
// client-go makes a Status from any answer, but adds a cause to the ones that it
// makes itself.
func serverStatus(err error) *metav1.Status {
	e, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || apierrors.IsUnexpectedServerError(e) {
		return nil
	}
	return &e.ErrStatus
}

// notStored reports whether the message of a 5xx says that nothing was stored.
// The API server asks admission webhooks before it writes to etcd. etcd and its
// client refuse an object that is too large before they propose it (etcd's
// rpctypes.ErrRequestTooLarge, gRPC's ResourceExhausted).
func notStored(message string) bool {
	for _, text := range []string{"failed calling webhook", "etcdserver: request is too large", "trying to send message larger than max"} {
		if strings.Contains(message, text) {
			return true
		}
	}
	return false
}
