package faults

import (
	"fmt"
	"sync"

	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// moment is when a process is killed, relative to one of its writes.
type moment int

const (
	before moment = iota
	unanswered
	after
)

// moments lists all moments.
var moments = []moment{before, unanswered, after}

func (m moment) String() string {
	return [...]string{"before it is sent", "took effect, not answered", "after the answer"}[m]
}

// point is where a process is killed: the first write of a class in a run, and the moment.
type point struct {
	class string
	moment
}

func (p point) String() string { return fmt.Sprintf("%s, %s", p.class, p.moment) }

// gun kills the process behind a proxy at one point.
type gun struct {
	hosts func(name string) *simhost.Host

	mu    sync.Mutex
	armed *point
	hit   chan struct{} // closed when the process is gone
}

// arm loads the gun. It closes hit after the kill.
func (g *gun) arm(p point) (hit <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed, g.hit = &p, make(chan struct{})
	return g.hit
}

// reset unloads the gun.
func (g *gun) reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed, g.hit = nil, nil
}

// aim is the rule of the proxies.
func (g *gun) aim(host string, r *faultproxy.Request) *faultproxy.Fault {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.armed == nil || r.Label == "" || r.Label != g.armed.class {
		return nil
	}
	moment, hit := g.armed.moment, g.hit
	g.armed = nil
	kill := func() {
		g.hosts(host).Kill()
		close(hit)
	}
	switch moment {
	case before:
		return faultproxy.KillBefore(kill)
	case unanswered:
		return faultproxy.KillAnswered(kill)
	default:
		return faultproxy.KillSent(kill)
	}
}
