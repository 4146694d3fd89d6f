package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// auditPolicy makes the API server log each request once, and a watch when it starts. It logs the bodies of promotions
// of Nodes. It leaves out KWOK's renewals of Leases for a thousand Nodes.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, users: ["testbed:kwok-ballast"]}
- {level: Request, verbs: [patch], resources: [{group: "", resources: [nodes]}]}
- {level: Metadata}
`

// request is one line of the audit log.
type request struct {
	Stage          string
	Verb           string
	RequestURI     string
	UserAgent      string
	User           struct{ Username string }
	ObjectRef      *struct{ Resource, Subresource, Name string }
	RequestObject  json.RawMessage
	ResponseStatus struct{ Code int }
	Received       time.Time `json:"requestReceivedTimestamp"`
	Done           time.Time `json:"stageTimestamp"`
}

// counted reports whether the line counts as its request, because a watch is logged at its start and at its end.
func (r *request) counted() bool {
	if r.ObjectRef == nil {
		return false // for example /readyz
	}
	if r.Verb == "watch" {
		return r.Stage == "ResponseStarted"
	}
	return r.Stage == "ResponseComplete"
}

// what returns the verb and the resource, as RBAC names them.
func (r *request) what() string {
	resource := r.ObjectRef.Resource
	if r.ObjectRef.Subresource != "" {
		resource += "/" + r.ObjectRef.Subresource
	}
	return r.Verb + " " + resource
}

// requests returns the requests that arrived in an interval.
func (b *bench) requests(from, to time.Time) ([]request, error) {
	f, err := os.Open(b.audit)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []request
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return all, nil // a line that is not complete yet is later
		}
		if err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("reading the audit log: %w in %q", err, line)
		}
		if r.counted() && !r.Received.Before(from) && r.Received.Before(to) {
			all = append(all, r)
		}
	}
}

// total returns the sum of apiserver_request_total over all resources, except watches, which count when they end.
func (b *bench) total(ctx context.Context) (int, error) {
	text, err := b.cp.Client().Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("reading the API server's metrics: %w", err)
	}
	sum := 0.0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "apiserver_request_total{") || strings.Contains(line, `,resource=""`) || strings.Contains(line, `verb="WATCH"`) {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
		if err != nil {
			return 0, fmt.Errorf("reading the API server's metrics: %w", err)
		}
		sum += v
	}
	return int(sum), nil
}
