package faultproxy

import (
	"fmt"
	"slices"
	"time"
)

// Outcome is what became of a request.
type Outcome string

// The outcomes.
const (
	// Answered: the API server's answer went back.
	Answered Outcome = "answered"
	// Withheld: the API server answered, and its answer did not go back.
	Withheld Outcome = "withheld"
	// Refused: a rule answered in the API server's place.
	Refused Outcome = "refused"
	// Dropped: it was not forwarded, by a rule or because its client gave it up.
	Dropped Outcome = "dropped"
	// Unreachable: the API server did not answer; the client's connection was cut.
	Unreachable Outcome = "unreachable"
)

// A Record is one request that came to its end.
type Record struct {
	Request
	Outcome Outcome
	// Code is the HTTP status of the API server's answer, or the rule's; 0 without one.
	Code int
	Took time.Duration
}

// String is one line.
func (r *Record) String() string {
	return fmt.Sprintf("%s %s %s: %s %d in %s", r.Time.Format("15:04:05.000"), r.Proxy, &r.Request, r.Outcome, r.Code, r.Took.Round(time.Millisecond))
}

// maxRecords bounds what a proxy remembers: the first ones, and the count of the others.
const maxRecords = 100_000

// Records are the requests that came to their end so far, in that order; a watch comes to its end when it is closed. more is how many
// there were beyond the first hundred thousand.
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
