package faultproxy

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Rule receives each request and returns the fault for it, or nil. The proxy calls rules in the order in which they were added, from
// several goroutines at once. The first fault applies.
type Rule func(*Request) *Fault

// A Fault is what happens to one request, in the order of its fields. The zero value passes the request on.
type Fault struct {
	// Before the request is forwarded:

	// Hold delays the request until the channel is closed. In the meantime the request is neither forwarded nor answered.
	Hold <-chan struct{}
	// Late forwards a held or delayed write even if its client has given up in the meantime, as a network may do. Without Late the proxy
	// then drops the write.
	Late bool
	// Delay is how long the request is delayed.
	Delay time.Duration
	// Call is called.
	Call func()
	// Reset cuts the connection, and the request is not forwarded.
	Reset bool
	// Status answers with this HTTP status and a matching metav1.Status, and the request is not forwarded. RetryAfter is rounded up to
	// seconds; 0 means no such header.
	Status     int
	RetryAfter time.Duration

	// ListAt makes a list return the state at this resourceVersion, no matter which one it requests: what a stale cache would answer to a
	// client that accepts stale data.
	ListAt string
	// Page makes a list return at most this many objects, and a token for the rest, regardless of the limit that it requests.
	Page int64

	// After the API server has answered, before the answer goes back to the client:

	HoldAnswer  <-chan struct{}
	DelayAnswer time.Duration
	CallAnswer  func()
	// ResetAnswer cuts the connection, and the answer is not passed on.
	ResetAnswer bool

	// CallSent is called after the whole answer was sent to the client.
	CallSent func()
}

// KillBefore calls kill, which ends the client, before the request is forwarded. The request is not forwarded.
func KillBefore(kill func()) *Fault { return &Fault{Call: kill, Reset: true} }

// KillAnswered calls kill when the API server has executed the request and the client has no answer.
func KillAnswered(kill func()) *Fault { return &Fault{CallAnswer: kill, ResetAnswer: true} }

// KillSent calls kill when the answer was sent to the client. The client may already have acted on it.
func KillSent(kill func()) *Fault { return &Fault{CallSent: kill} }

// Refuse answers in place of the API server, with 409, 429, 500 or 503.
func Refuse(status int, retryAfter time.Duration) *Fault {
	return &Fault{Status: status, RetryAfter: retryAfter}
}

// reasons are the API server's reasons for the statuses that a rule may return.
var reasons = map[int]metav1.StatusReason{
	http.StatusForbidden:           metav1.StatusReasonForbidden,
	http.StatusNotFound:            metav1.StatusReasonNotFound,
	http.StatusConflict:            metav1.StatusReasonConflict,
	http.StatusGone:                metav1.StatusReasonExpired,
	http.StatusTooManyRequests:     metav1.StatusReasonTooManyRequests,
	http.StatusInternalServerError: metav1.StatusReasonInternalError,
	http.StatusServiceUnavailable:  metav1.StatusReasonServiceUnavailable,
	http.StatusGatewayTimeout:      metav1.StatusReasonTimeout,
}

// refuse writes the answer of the fault.
func (f *Fault) refuse(w http.ResponseWriter, r *Request) {
	seconds := int32((f.RetryAfter + time.Second - 1) / time.Second)
	s := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(f.Status), Reason: reasons[f.Status],
		Message: "a fault of the test's: " + http.StatusText(f.Status),
		Details: &metav1.StatusDetails{Name: r.Name, Group: r.Group, Kind: r.Resource, RetryAfterSeconds: seconds},
	}
	body, err := json.Marshal(s)
	if err != nil {
		panic("encoding a Status: " + err.Error())
	}
	w.Header().Set("Content-Type", "application/json")
	if seconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(seconds)))
	}
	w.WriteHeader(f.Status)
	_, _ = w.Write(body)
}
