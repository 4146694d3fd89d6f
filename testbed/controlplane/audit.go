package controlplane

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// Request is one line of the audit log.
type Request struct {
	Stage     string
	Verb      string
	UserAgent string
	User      struct {
		Username string
		Extra    map[string][]string
	}
	ObjectRef      *struct{ Resource, Subresource, Namespace, Name, APIGroup string }
	ResponseStatus *struct {
		Code    int
		Message string
	}
	Annotations map[string]string
	Received    time.Time `json:"requestReceivedTimestamp"`
}

// Refused reports whether authentication, authorization or admission refused the request.
func (r *Request) Refused() bool {
	return r.Annotations["authorization.k8s.io/decision"] == "forbid" ||
		r.ResponseStatus != nil && (r.ResponseStatus.Code == 401 || r.ResponseStatus.Code == 403)
}

// Writes reports whether the request changes something.
func (r *Request) Writes() bool { return !slices.Contains([]string{"get", "list", "watch"}, r.Verb) }

// String returns the user, the verb, the object and the answer.
func (r Request) String() string {
	what := "?"
	if o := r.ObjectRef; o != nil {
		what = fmt.Sprintf("%s.%s/%s %s/%s", o.Resource, o.APIGroup, o.Subresource, o.Namespace, o.Name)
	}
	text := fmt.Sprintf("%s (%s): %s %s", r.User.Username, r.UserAgent, r.Verb, what)
	if r.ResponseStatus != nil {
		text += fmt.Sprintf(": %d %s", r.ResponseStatus.Code, r.ResponseStatus.Message)
	}
	return text
}

// Requests returns the requests for resources that the API server received since a time, in the order of their arrival. A watch counts from
// its begin. Requests needs [Options.Audit]. A request appears soon after its answer was sent, but not before.
func (cp *ControlPlane) Requests(since time.Time) ([]Request, error) {
	f, err := os.Open(cp.AuditLog())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []Request
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break // a line that is still being written belongs to a later request
		}
		if err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		var r Request
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("reading the audit log: %w in %q", err, line)
		}
		if r.ObjectRef == nil || r.Received.Before(since) || r.Verb == "watch" && r.Stage != "ResponseStarted" && !r.Refused() {
			continue
		}
		all = append(all, r)
	}
	slices.SortStableFunc(all, func(a, b Request) int { return a.Received.Compare(b.Received) })
	return all, nil
}
