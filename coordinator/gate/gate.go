// Package gate queries a Prometheus server to find out whether the gates of policies are
// open. A gate is open if its query returns nothing. The package repeats the queries that
// the caller asks for, and keeps the last answer to each.
//
// Everything else closes the gate: a server that is unreachable or not configured, a
// query that fails, and an answer that is late, too large, of another type, or incomplete
// according to the server. A query for series that do not exist also returns nothing and
// so opens the gate. Where that matters, the policy's author has to use absent().
//
// The package must not know what a gate holds back, and nothing about nodes or who leads.
package gate

import (
	"cmp"
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const (
	// Every is the interval between two queries of one gate.
	Every = 30 * time.Second
	// Good is how long an answer is valid. A gate without a valid answer is closed.
	Good = 2 * time.Minute
	// Timeout bounds one query.
	Timeout = 10 * time.Second
	// MaxAnswer bounds an answer, in bytes.
	MaxAnswer = 1 << 20
	// MaxDetail bounds Answer.Detail, in bytes.
	MaxDetail = 256
	// atOnce is how many queries run at the same time.
	atOnce = 16
	// maxWanted is how many gates are queried. Further gates are closed until the
	// caller asks for fewer.
	maxWanted = 512
)

// Key identifies a gate by the name of its policy and its own name.
type Key struct{ Policy, Gate string }

// Query is the query of a gate.
type Query struct {
	Key
	Expr string // PromQL
}

// Answer is the last answer for a gate.
type Answer struct {
	Open bool
	// Detail tells users why the gate is closed, in one line of at most MaxDetail
	// bytes: what the query returned, or why there is no valid answer.
	Detail string
	At     time.Time
}

// Options configures Gates.
type Options struct {
	// URL is the URL of the server, http or https, with the path before /api/v1 if the
	// server has one. Without a URL, no gate is open.
	URL string
	// TokenFile contains the bearer token. It is read for each query. "" means no token.
	TokenFile string
	// Version is lockkeeper's version, for the user agent.
	Version string
	// Changed is called when an answer changes. It may be called from any goroutine, and
	// must not block. It may be nil.
	Changed func()
	Log     *slog.Logger
}

// Gates queries gates and keeps the answers. Create it with [New]. Any goroutine may call
// its methods.
type Gates struct {
	o     Options
	judge func(ctx context.Context, expr string) (open bool, detail string)
	kick  chan struct{}

	mu     sync.Mutex
	wanted map[Key]*entry
}

// entry is one query and its last answer. Its query never changes: a gate whose query
// changes gets a new entry, and an answer to the old query is dropped.
type entry struct {
	query    Query
	asked    time.Time // when the last query began; zero: never
	asking   bool      // a query runs now
	excess   bool      // not queried, because of maxWanted
	answer   Answer
	answered bool
}

// New returns Gates that query nothing yet.
func New(o Options) *Gates {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	g := &Gates{o: o, kick: make(chan struct{}, 1)}
	if o.URL == "" {
		g.judge = func(context.Context, string) (bool, string) {
			return false, "coordinator.prometheus_url is not set on the coordinator's host"
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

// Ask replaces the set of gates to query. Each key must be in wanted only once. Gates that
// are new are queried at once.
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

// Answers returns the valid answers for the gates passed to [Gates.Ask]. A gate without an
// answer is closed.
func (g *Gates) Answers() map[Key]Answer {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[Key]Answer, len(g.wanted))
	for key, e := range g.wanted {
		switch {
		case e.excess:
			all[key] = Answer{Detail: "the policies have more than " + strconv.Itoa(maxWanted) + " gates", At: time.Now()}
		case e.answered && time.Since(e.answer.At) <= Good:
			all[key] = e.answer
		}
	}
	return all
}

// Run queries the gates until ctx ends.
func (g *Gates) Run(ctx context.Context) {
	var asking sync.WaitGroup
	defer asking.Wait()
	places := make(chan struct{}, atOnce)
	for ctx.Err() == nil {
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
		select {
		case <-ctx.Done():
		case <-g.kick:
		case <-time.After(rest):
		}
	}
}

// due returns the entries to query now, and the time until the next one is due.
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

// ask runs one query and stores the answer.
func (g *Gates) ask(ctx context.Context, e *entry) {
	limited, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	a := Answer{}
	a.Open, a.Detail = g.judge(limited, e.query.Expr)
	a.Detail, a.At = v1alpha1.OneLine(a.Detail, MaxDetail), time.Now()
	if ctx.Err() != nil {
		return // Run ends, so no one reads the answer
	}
	g.mu.Lock()
	before, first := e.answer, !e.answered
	e.answer, e.answered, e.asking = a, true, false
	current := g.wanted[e.query.Key] == e
	g.mu.Unlock()
	if !current {
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
