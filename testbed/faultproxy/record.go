package faultproxy

import (
	"fmt"
	"slices"
	"time"
)

// Outcome is the result of a request.
type Outcome string

// The possible outcomes.
const (
	// Answered: the API server's answer was sent to the client.
	Answered Outcome = "answered"
	// Withheld: the API server answered, and its answer was not sent to the client.
	Withheld Outcome = "withheld"
	// Refused: a rule answered in place of the API server.
	Refused Outcome = "refused"
	// Dropped: the request was not forwarded, because of a rule or because its client gave up.
	Dropped Outcome = "dropped"
	// Unreachable: the API server did not answer, and the client's connection was cut.
	Unreachable Outcome = "unreachable"
)

// A Record is one request that has ended.
type Record struct {
	Request
	Outcome Outcome
	// Code is the HTTP status of the answer of the API server or the rule; 0 means no answer.
	Code int
	Took time.Duration
}

// String returns the record in one line.
func (r *Record) String() string {
	return fmt.Sprintf("%s %s %s: %s %d in %s", r.Time.Format("15:04:05.000"), r.Proxy, &r.Request, r.Outcome, r.Code, r.Took.Round(time.Millisecond))
}

// maxRecords limits the records that a proxy keeps. It keeps the first ones and counts the others.
const maxRecords = 100_000

// Records returns the requests that have ended, in the order of their ends. A watch ends when it is closed. more is the number of requests
// after the first maxRecords.
func (p *Proxy) Records() (all []Record, more int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.records), p.more
}

func (p *Proxy) record(r Record) {
	r.Body = nil
	p.mu.Lock()
	if len(p.records) < maxRecords {
		p.records = append(p.records, r)
	} else {
		p.more++
	}
	p.mu.Unlock()
	if p.opts.Record != nil {
		p.opts.Record(r)
	}
}
