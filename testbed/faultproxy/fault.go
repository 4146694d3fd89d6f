package faultproxy

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Rule looks at each request and says what is done to it, nil for nothing. Rules are asked in the order in which they were
// added, by several goroutines at a time; the first word counts.
type Rule func(*Request) *Fault

// A Fault is what happens to one request, in the order of its fields. The zero value passes it on.
type Fault struct {
	// Before it is forwarded.

	// Hold keeps the request until it is closed; nothing is forwarded or answered meanwhile.
	Hold <-chan struct{}
	// Late: a held or delayed write is forwarded also when its client has given it up meanwhile, as a wire may do. Without it,
	// it is dropped then.
	Late bool
	// Delay is how long it is held back.
	Delay time.Duration
	// Call is called.
	Call func()
	// Reset cuts the connection instead of forwarding.
	Reset bool
	// Status answers with this HTTP status, and a metav1.Status to it, instead of forwarding; RetryAfter is rounded up to
	// seconds, 0 for no such header.
	Status     int
	RetryAfter time.Duration

	// ListAt has a list answered as of this resourceVersion, whatever it asks for: what a cache that is behind would answer to
	// a client that is content with one.
	ListAt string

	// After the API server has answered, before anything of that goes back.

	HoldAnswer  <-chan struct{}
	DelayAnswer time.Duration
	CallAnswer  func()
	// ResetAnswer cuts the connection instead of passing the answer on.
	ResetAnswer bool

	// CallSent is called after all of the answer went back.
	CallSent func()
}

// KillBefore calls kill, which ends the client, before the request is sent on. Nothing is.
func KillBefore(kill func()) *Fault { return &Fault{Call: kill, Reset: true} }

// KillAnswered calls kill when the request was carried out and its client does not know.
func KillAnswered(kill func()) *Fault { return &Fault{CallAnswer: kill, ResetAnswer: true} }

// KillSent calls kill when the answer went back. Its client may have begun to act on it.
func KillSent(kill func()) *Fault { return &Fault{CallSent: kill} }

// Refuse answers instead of the API server: 409, 429, 500, 503.
func Refuse(status int, retryAfter time.Duration) *Fault {
	return &Fault{Status: status, RetryAfter: retryAfter}
}

// reasons are the API server's words for what a rule may answer.
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

// refuse writes the answer that a fault wants.
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
