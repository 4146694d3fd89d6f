// Package gate asks a Prometheus whether the gates of policies are open: a
// gate's query must return nothing. It asks every now and then, while somebody
// wants to know, and keeps the last answer to each.
//
// Whatever is not a plain "nothing" closes the gate: a server that is away or
// not configured, a query that fails, an answer that is late, too large, of
// another kind, or that the server itself calls incomplete. A query about series
// that do not exist returns nothing too, and opens it; who writes a gate says
// absent() where that matters.
//
// This room must not know what a gate holds up, nor of nodes and of who leads.
package gate

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const (
	// Every is how often each gate is asked.
	Every = 30 * time.Second
	// Good is how long an answer counts. One that could not be renewed since is
	// none, and so the gate is closed.
	Good = 2 * time.Minute
	// Timeout is how long one answer may take.
	Timeout = 10 * time.Second
	// MaxAnswer bounds an answer, in bytes.
	MaxAnswer = 1 << 20
	// MaxDetail bounds what is said of an answer, in bytes.
	MaxDetail = 256
	// atOnce is how many queries wait for their answers at the same time.
	atOnce = 16
	// maxWanted is how many gates are asked; what is wanted beyond is closed, and
	// asked as soon as others are not wanted any more.
	maxWanted = 512
)

// Key names a gate: of which policy, and which of its gates.
type Key struct{ Policy, Gate string }

// Query is what to ask for a gate.
type Query struct {
	Key
	Expr string // in Prometheus' language
}

// Answer is what was last heard of a gate.
type Answer struct {
	Open bool
	// Detail says why it is closed, for people, in one line of at most MaxDetail
	// bytes: what the query returned, or why there is no good answer.
	Detail string
	At     time.Time
}

// Options are what Gates are made of.
type Options struct {
	// URL is the server's, http or https, with the path before /api/v1 if there
	// is one. "" is no server: no gate is open.
	URL string
	// TokenFile holds the bearer token, and is read for each query; "" is none.
	TokenFile string
	// Version is lockkeeper's.
	Version string
	// Changed is called when an answer is another one than the last; it may be
	// called from any goroutine, and must not block. nil is fine.
	Changed func()
	Log     *slog.Logger
}

// Gates are the gates that are asked. Make them with [New]; their methods may be
// called from any goroutine.
type Gates struct {
	o     Options
	judge func(ctx context.Context, expr string) (open bool, detail string)
	kick  chan struct{}

	mu     sync.Mutex
	wanted map[Key]*entry
}

// entry is one query that is wanted. It is never another one: a gate whose query
// is changed has a new entry, and what is still heard of the old one is nobody's.
type entry struct {
	query    Query
	asked    time.Time // when it last was, zero is never
	asking   bool
	excess   bool // it is one more than are asked
	answer   Answer
	answered bool
}

// New makes Gates that ask nothing yet. Where the URL is none, no gate is open.
func New(o Options) *Gates {
	g := &Gates{o: o, kick: make(chan struct{}, 1)}
	if o.Log == nil {
		g.o.Log = slog.New(slog.DiscardHandler)
	}
	if o.URL == "" {
		g.judge = func(context.Context, string) (bool, string) {
			return false, "the coordinator's host names no Prometheus to ask (coordinator.prometheus_url)"
		}
		return g
	}
	s, err := newServer(o)
	if err != nil {
		g.judge = func(context.Context, string) (bool, string) { return false, err.Error() }
		return g
	}
	g.judge = s.judge
	return g
}

// Ask says which gates somebody wants to know of from now on, each key once, and
// no others. New ones are asked at once.
func (g *Gates) Ask(wanted []Query) {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := make(map[Key]*entry, len(wanted))
	for _, q := range wanted {
		e := g.wanted[q.Key]
		if e == nil || e.query != q {
			e = &entry{query: q}
		}
		next[q.Key] = e
		if e.excess = len(next) > maxWanted; !e.excess && e.asked.IsZero() {
			select {
			case g.kick <- struct{}{}:
			default:
			}
		}
	}
	g.wanted = next
}

// Answers are those to the gates that are wanted, as long as they are good. A
// gate without one is closed.
func (g *Gates) Answers() map[Key]Answer {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[Key]Answer, len(g.wanted))
	for key, e := range g.wanted {
		switch {
		case e.excess:
			all[key] = Answer{Detail: "more than " + strconv.Itoa(maxWanted) + " gates are to be asked", At: time.Now()}
		case e.answered && time.Since(e.answer.At) <= Good:
			all[key] = e.answer
		}
	}
	return all
}

// Run asks what is wanted until ctx ends.
func (g *Gates) Run(ctx context.Context) {
	var asking sync.WaitGroup
	defer asking.Wait()
	places := make(chan struct{}, atOnce)
	for {
		due, rest := g.due(time.Now())
		for _, e := range due {
			select {
			case places <- struct{}{}:
			case <-ctx.Done():
				return
			}
			asking.Go(func() {
				defer func() { <-places }()
				g.ask(ctx, e)
			})
		}
		t := time.NewTimer(rest)
		select {
		case <-ctx.Done():
		case <-g.kick:
		case <-t.C:
		}
		t.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// due returns what is to be asked now, and how long it is until something is.
func (g *Gates) due(now time.Time) (due []*entry, rest time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	rest = Every
	for _, e := range g.wanted {
		left := Every - now.Sub(e.asked)
		switch {
		case e.asking || e.excess:
		case e.asked.IsZero() || left <= 0:
			e.asked, e.asking = now, true
			due = append(due, e)
		default:
			rest = min(rest, left)
		}
	}
	return due, rest
}

// ask asks for one answer and takes it in.
func (g *Gates) ask(ctx context.Context, e *entry) {
	limited, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	a := Answer{}
	a.Open, a.Detail = g.judge(limited, e.query.Expr)
	a.Detail, a.At = v1alpha1.OneLine(a.Detail, MaxDetail), time.Now()
	if ctx.Err() != nil {
		return // nobody waits for it any more
	}
	g.mu.Lock()
	before, first := e.answer, !e.answered
	e.answer, e.answered, e.asking = a, true, false
	here := g.wanted[e.query.Key] == e
	g.mu.Unlock()
	if !here {
		return
	}
	if first || before.Open != a.Open {
		text := "a gate is closed"
		if a.Open {
			text = "a gate is open"
		}
		g.o.Log.Info(text, "policy", e.query.Policy, "gate", e.query.Gate, "detail", a.Detail)
	}
	if (first || before.Open != a.Open || before.Detail != a.Detail) && g.o.Changed != nil {
		g.o.Changed()
	}
}
