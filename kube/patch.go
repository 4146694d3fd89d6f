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
)

// Patch is one write to a Node, with the version of the Node that the decision used.
type Patch struct {
	Node            string
	ResourceVersion string
	// Labels and Annotations are the keys to set; a nil value removes the key.
	Labels      map[string]*string
	Annotations map[string]*string
	// Unschedulable is the new spec.unschedulable; nil does not change it.
	Unschedulable *bool
	// Taints are all taints of the Node; nil does not change them.
	Taints *[]corev1.Taint
	// Conditions are set in the Node's status. Conditions of the types in DropConditions are
	// removed from it. A patch with either changes nothing else.
	Conditions     []corev1.NodeCondition
	DropConditions []corev1.NodeConditionType
	// Manager is the field manager; see [FieldManager].
	Manager string
	// DryRun has the API server check the write and not store it.
	DryRun bool
}

// toStatus reports whether the patch changes the Node's status. Such a patch is a strategic
// merge patch, which changes only the conditions that it names.
func (p *Patch) toStatus() bool { return len(p.Conditions)+len(p.DropConditions) > 0 }

// body returns the JSON merge patch (RFC 7386), or the strategic merge patch of the status.
// The resourceVersion in it is a precondition: the API server answers 409 if the Node has
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
	spec := map[string]any{}
	if p.Unschedulable != nil {
		spec["unschedulable"] = *p.Unschedulable
	}
	if p.Taints != nil {
		spec["taints"] = *p.Taints
	}
	if len(spec) > 0 {
		doc["spec"] = spec
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

// Write sends the patch once and determines its outcome.
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
func Write(ctx context.Context, client API, p Patch) (*corev1.Node, Outcome, error) {
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

// send sends the patch once. With Written, it returns the Node from the answer and no error.
// Otherwise the Node is nil and the error is not.
func send(ctx context.Context, client API, p Patch) (*corev1.Node, Outcome, error) {
	if p.ResourceVersion == "" {
		// The API server would treat an empty resourceVersion as no precondition.
		return nil, Refused, fmt.Errorf("writing node %s: the write names no resourceVersion", p.Node)
	}
	ctx, cancel := within(ctx, client)
	defer cancel()
	kind, subresources := types.MergePatchType, []string(nil)
	if p.toStatus() {
		kind, subresources = types.StrategicMergePatchType, []string{"status"}
	}
	options := metav1.PatchOptions{FieldManager: p.Manager}
	if p.DryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	n, err := client.CoreV1().Nodes().Patch(ctx, p.Node, kind, p.body(), options, subresources...)
	if err != nil {
		return nil, outcome(err, p.Node), fmt.Errorf("writing node %s: %w", p.Node, err)
	}
	if err := isNode(n, p.Node); err != nil {
		return nil, Unknown, fmt.Errorf("writing node %s: %w", p.Node, err)
	}
	return n, Written, nil
}

// isNode returns an error if the decoded answer is not the Node of that name. client-go
// accepts any JSON object as the requested one, even if a proxy sent it.
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
// Between attempts it waits one second, then two, up to ten. It ends early only if ctx ends.
// failed receives the reason why an attempt did not settle the outcome.
func Settle(ctx context.Context, client API, p Patch, failed func(error)) (*corev1.Node, error) {
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

// Find reads a Node from the quorum. It returns nil, and no error, only if the Node does not
// exist: the API server itself answers a GET with 404, and a LIST of Nodes of that name is
// empty. A single 404 is not enough to free the Node's slot.
func Find(ctx context.Context, client API, name string) (*corev1.Node, error) {
	ctx, cancel := within(ctx, client)
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
	// Written means that the API server has stored the write.
	Written Outcome = iota
	// Conflict means that the Node has another version than the patch. The caller decides
	// again.
	Conflict
	// Gone means that the Node does not exist.
	Gone
	// Refused means that the API server reports that it did not store the write: the write
	// is forbidden, invalid or too large, or an admission webhook does not answer.
	Refused
	// Unknown means that there was no answer, that the answer does not show what happened,
	// or that another server sent it. The write may have landed, may still land, or may
	// never land.
	Unknown
)

// String names the outcome.
func (o Outcome) String() string {
	return [...]string{"written", "conflict", "gone", "refused", "unknown"}[o]
}

// outcome returns the outcome of a write of the Node from its answer. It uses only a Status
// from the API server itself: the answer of a proxy or load balancer does not show what the
// API server did with the request.
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

// ErrNotLease is the error of an answer that is not the Lease that was read or written.
var ErrNotLease = errors.New("the answer is not this Lease; does a proxy answer in the API server's place?")

// VerifyLease returns [ErrNotLease] if an answer without an error is not the Lease of that name. client-go
// accepts any JSON object, and one without the annotation of the stop would look like a Lease without a stop.
func VerifyLease(lease *coordinationv1.Lease, err error, name string) error {
	if err == nil && lease.Name != name {
		return ErrNotLease
	}
	return err
}

// names reports whether the Status names the object as the one that does not exist.
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

// notStored reports whether the message of a 5xx means that nothing was stored.
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
