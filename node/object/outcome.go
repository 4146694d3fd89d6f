package object

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
	// Conflict: the Node is another version than the one in the patch. Decide
	// again.
	Conflict
	// Gone: the Node does not exist.
	Gone
	// Refused: the API server did not store it, and says so: forbidden, invalid,
	// too large, an admission webhook that does not answer.
	Refused
	// Unknown: there was no answer, or one that does not say, or one that is not
	// the API server's. The write may have landed, may land later, or never.
	Unknown
)

// String names the outcome.
func (o Outcome) String() string {
	return [...]string{"written", "conflict", "gone", "refused", "unknown"}[o]
}

// outcome says what an answer to a write of the Node means. Only a Status of the
// API server itself tells: what a proxy or load balancer answers in its place
// says nothing of what the API server did with the request.
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
// not exist. A 404 that does not name the object is not: a proxy, or an API
// server behind which the resource is not served, gives such an answer too.
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

// serverStatus is the API server's Status in err, or nil if err is something
// else. client-go makes a Status of any answer; the cause that it adds then
// tells its own from the API server's.
func serverStatus(err error) *metav1.Status {
	e, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || apierrors.IsUnexpectedServerError(e) {
		return nil
	}
	return &e.ErrStatus
}

// notStored reports whether the message of a 5xx says that nothing was stored.
// The API server asks admission webhooks before it writes to etcd; and etcd and
// its client refuse an object that is too large before they propose it
// (etcd's rpctypes.ErrRequestTooLarge, gRPC's ResourceExhausted).
func notStored(message string) bool {
	for _, text := range []string{"failed calling webhook", "etcdserver: request is too large", "trying to send message larger than max"} {
		if strings.Contains(message, text) {
			return true
		}
	}
	return false
}
