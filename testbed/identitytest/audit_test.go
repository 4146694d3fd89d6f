package identitytest

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"time"
)

// A request is one line of the audit log.
type request struct {
	Stage     string
	Verb      string
	UserAgent string
	User      struct {
		Username string
		Groups   []string
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

// refused reports whether authentication, authorization or admission refused it.
func (r *request) refused() bool {
	return r.Annotations["authorization.k8s.io/decision"] == "forbid" ||
		r.ResponseStatus != nil && (r.ResponseStatus.Code == 401 || r.ResponseStatus.Code == 403)
}

func (r request) String() string {
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

// requests are those for resources that came since a time, watches when they began, in the order of their arrival.
func requests(t *testing.T, since time.Time) []request {
	t.Helper()
	f, err := os.Open(cp.AuditLog())
	must(t, err)
	defer f.Close()
	var all []request
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break // a line that is being written is of later
		}
		must(t, err)
		var r request
		must(t, json.Unmarshal(line, &r))
		if r.ObjectRef == nil || r.Received.Before(since) || r.Verb == "watch" && r.Stage != "ResponseStarted" && !r.refused() {
			continue
		}
		all = append(all, r)
	}
	slices.SortStableFunc(all, func(a, b request) int { return a.Received.Compare(b.Received) })
	return all
}

// certificateID is how the audit log names a client certificate.
func certificateID(t *testing.T, text []byte) string {
	t.Helper()
	block, _ := pem.Decode(text)
	sum := sha256.Sum256(block.Bytes)
	return "X509SHA256=" + hex.EncodeToString(sum[:])
}
