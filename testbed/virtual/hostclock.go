package virtual

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/coordinator"
)

const (
	// prompt is how fast an answer has to be for its Date to count, as package kube documents.
	prompt = 5 * time.Second
	// dateError is how far off kube.Client.Skew may be.
	dateError = 3 * time.Second
	// leadsOn bounds how long a leader whose clock is off writes to Nodes: until its round ends, whose writes may wait for answers.
	leadsOn = 30 * time.Second
)

// clocked checks that a leader stops leading when its host's clock is off, which it learns from the Date of the API server's answers. If a plan has
// set the clock of the host, clocked changes that Date. Nothing else shows the wrong clock, because a bubble has only one.
type clocked struct {
	m    *Machine
	next http.RoundTripper

	mu  sync.Mutex
	off time.Time // since when every prompt answer has shown that the clock is off; zero: the last one did not
}

// RoundTrip sends a request, and checks it.
func (c *clocked) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPatch && strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") {
		c.mu.Lock()
		off := c.off
		c.mu.Unlock()
		c.m.mu.Lock()
		thawed := time.Since(c.m.reads.thawed) < leadsOn
		c.m.mu.Unlock()
		if !off.IsZero() && time.Since(off) > leadsOn && !thawed {
			c.m.f.problem("Clock: %s leads, and has read %v ago that its clock is off", c.m.name, time.Since(off).Round(time.Second))
		}
	}
	sent := time.Now()
	resp, err := c.next.RoundTrip(r)
	if err != nil || time.Since(sent) > prompt {
		return resp, err
	}
	date, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return resp, nil
	}
	date = date.Add(-time.Duration(c.m.clock.Load()))
	resp.Header.Set("Date", date.UTC().Format(http.TimeFormat))
	c.mu.Lock()
	defer c.mu.Unlock()
	switch ahead := time.Until(date); {
	case ahead.Abs() < coordinator.MaxSkew+dateError:
		c.off = time.Time{}
	case c.off.IsZero():
		c.off = time.Now()
	}
	return resp, nil
}
