package gate

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func key(gate string) Key { return Key{Policy: "p", Gate: gate} }

func queries(gates ...string) (all []Query) {
	for _, g := range gates {
		all = append(all, Query{key(g), "expr of " + g})
	}
	return all
}

// gates with an answer that the test gives, running until the test ends.
func fake(t *testing.T, judge func(ctx context.Context, expr string) (bool, string)) (g *Gates, changes *atomic.Int32) {
	t.Helper()
	changes = &atomic.Int32{}
	g = New(Options{Changed: func() { changes.Add(1) }})
	g.judge = judge
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { g.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return g, changes
}

func TestAskedWhileWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := map[string]int{}
		var mu sync.Mutex
		count := func(expr string) int {
			mu.Lock()
			defer mu.Unlock()
			return asked[expr]
		}
		open := atomic.Bool{}
		open.Store(true)
		g, changes := fake(t, func(_ context.Context, expr string) (bool, string) {
			mu.Lock()
			defer mu.Unlock()
			asked[expr]++
			if open.Load() {
				return true, ""
			}
			return false, "no"
		})
		wantAsked := func(when string, a, b int) {
			t.Helper()
			synctest.Wait()
			if count("expr of a") != a || count("expr of b") != b {
				t.Errorf("%s: a was asked %d times and b %d, expected %d and %d", when, count("expr of a"), count("expr of b"), a, b)
			}
		}
		time.Sleep(time.Hour)
		wantAsked("nobody wants to know", 0, 0)
		if len(g.Answers()) != 0 {
			t.Error("answers to nothing")
		}
		g.Ask(queries("a"))
		wantAsked("at once", 1, 0)
		if a := g.Answers()[key("a")]; !a.Open || !a.At.Equal(time.Now()) {
			t.Errorf("a: %+v", a)
		}
		time.Sleep(Every - time.Second)
		g.Ask(queries("a", "b"))
		wantAsked("the new one alone", 1, 1)
		time.Sleep(time.Second)
		wantAsked("each after its own time", 2, 1)
		time.Sleep(4 * Every)
		wantAsked("and again", 6, 5)
		if n := changes.Load(); n != 2 {
			t.Errorf("%d changes of 2 gates that opened", n)
		}
		open.Store(false)
		time.Sleep(Every)
		synctest.Wait()
		if n, a := changes.Load(), g.Answers()[key("b")]; n != 4 || a.Open || a.Detail != "no" {
			t.Errorf("%d changes, b: %+v", n, a)
		}
		g.Ask(queries("b"))
		if all := g.Answers(); len(all) != 1 {
			t.Errorf("%d answers, one gate is wanted", len(all))
		}
		// Another query under the same name: what the old one said is nobody's.
		g.Ask([]Query{{key("b"), "other"}})
		if a, known := g.Answers()[key("b")]; known {
			t.Errorf("an answer to a query that was not asked yet: %+v", a)
		}
		synctest.Wait()
		if _, known := g.Answers()[key("b")]; !known || count("other") != 1 {
			t.Error("the other query was not asked")
		}
		g.Ask(nil)
		before := count("other")
		time.Sleep(time.Hour)
		synctest.Wait()
		if count("other") != before || len(g.Answers()) != 0 {
			t.Error("it goes on asking what nobody wants")
		}
	})
}

// An answer that comes after its query was replaced opens nothing.
func TestLateAnswerToAnotherQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, changes := fake(t, func(ctx context.Context, expr string) (bool, string) {
			if expr == "old" {
				time.Sleep(5 * time.Second)
				return true, ""
			}
			return false, "no"
		})
		g.Ask([]Query{{key("a"), "old"}})
		synctest.Wait()
		g.Ask([]Query{{key("a"), "new"}})
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if a, known := g.Answers()[key("a")]; !known || a.Open || changes.Load() != 1 {
			t.Errorf("%+v, %d changes", a, changes.Load())
		}
	})
}

func TestAnswersDoNotLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{})
		g.judge = func(context.Context, string) (bool, string) { return true, "" }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			g.Run(ctx)
			close(ended)
		}()
		g.Ask(queries("a"))
		synctest.Wait()
		cancel()
		<-ended
		time.Sleep(Good)
		if !g.Answers()[key("a")].Open {
			t.Error("gone too soon")
		}
		time.Sleep(time.Nanosecond)
		if len(g.Answers()) != 0 {
			t.Error("an answer of two minutes ago still counts")
		}
	})
}

// Sixteen wait for their answers at once; the others have theirs in the end. A
// server that never answers is waited for ten seconds.
func TestSlowAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int32
		g, _ := fake(t, func(ctx context.Context, expr string) (bool, string) {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			<-ctx.Done()
			return false, "late"
		})
		var all []Query
		for i := range 40 {
			all = append(all, Query{key(fmt.Sprint(i)), "up"})
		}
		g.Ask(all)
		began := time.Now()
		for len(g.Answers()) < 40 {
			if time.Since(began) > time.Minute {
				t.Fatalf("only %d answers", len(g.Answers()))
			}
			time.Sleep(time.Second)
		}
		if took := time.Since(began); most.Load() != 16 || took < 30*time.Second || took > 31*time.Second {
			t.Errorf("%d at once, %v for 40; expected 16 and 30s", most.Load(), took)
		}
		all = nil
		for i := range 600 {
			all = append(all, Query{key(fmt.Sprint("more", i)), "up"})
		}
		g.Ask(all)
		if a := g.Answers()[key("more599")]; a.Open || a.Detail != "the policies have more than 512 gates" {
			t.Errorf("one too many: %+v", a)
		}
	})
}

func TestNoServer(t *testing.T) {
	if open, detail := New(Options{}).judge(t.Context(), "up"); open || detail != "coordinator.prometheus_url is not set on the coordinator's host" {
		t.Errorf("%t, %q", open, detail)
	}
	if open, detail := New(Options{URL: "http://[::1"}).judge(t.Context(), "up"); open || !strings.Contains(detail, "missing ']' in host") {
		t.Errorf("an address that is none: %t, %q", open, detail)
	}
}

// What is one too many is closed and says so, and is asked as soon as there is room for it.
func TestMoreGatesThanAreAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := sync.Map{}
		g, _ := fake(t, func(_ context.Context, expr string) (bool, string) {
			asked.Store(expr, true)
			return true, ""
		})
		var names []string
		for i := range maxWanted + 2 {
			names = append(names, fmt.Sprint(i))
		}
		open := func(when, first, last string) {
			t.Helper()
			synctest.Wait()
			for _, name := range []string{first, last} {
				if a := g.Answers()[key(name)]; !a.Open {
					t.Errorf("%s: %s is closed: %q", when, name, a.Detail)
				}
			}
		}
		g.Ask(queries(names...))
		open("too many", "0", "511")
		if a := g.Answers()[key("512")]; a.Open || a.Detail != "the policies have more than 512 gates" {
			t.Errorf("one too many: %+v", a)
		}
		time.Sleep(time.Hour)
		if _, was := asked.Load("expr of 512"); was {
			t.Error("one too many was asked")
		}
		if a := g.Answers()[key("513")]; a.Open || a.Detail == "" {
			t.Errorf("an hour later: %+v", a)
		}
		g.Ask(queries(names[1:]...))
		open("one less", "1", "512")
		g.Ask(queries(append(names[1:], "0")...)) // the other way round
		if a := g.Answers()[key("0")]; a.Open || a.Detail == "" {
			t.Errorf("what comes last is one too many: %+v", a)
		}
		g.Ask(queries(append([]string{"513"}, names[:maxWanted]...)...))
		open("another order", "513", "0")
		if a := g.Answers()[key("511")]; a.Open || a.Detail == "" {
			t.Errorf("what was open and is one too many: %+v", a)
		}
	})
}
