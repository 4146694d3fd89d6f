package kube

import (
	"errors"
	"net/http"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

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
