package rollout

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"lockkeeper.dev/lockkeeper/coordinator/gate"
)

// asker is a leader that queries one gate.
type asker struct {
	*gate.Gates
	changed chan struct{}
}

func newAsker(t *testing.T, o gate.Options) *asker {
	t.Helper()
	a := &asker{changed: make(chan struct{}, 1)}
	o.Changed = func() {
		select {
		case a.changed <- struct{}{}:
		default:
		}
	}
	a.Gates = gate.New(o)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { a.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return a
}

// ask returns a fresh answer to a query: the first request after a pause is sent at once.
func (a *asker) ask(t *testing.T, expr string) (answer gate.Answer) {
	t.Helper()
	key := gate.Key{Policy: "p", Gate: "g"}
	a.Ask(nil)
	a.Ask([]gate.Query{{Key: key, Expr: expr}})
	until(t, "an answer to "+expr, func() (known bool, said string) {
		answer, known = a.Answers()[key]
		return known, ""
	})
	return answer
}

func (a *asker) opens(t *testing.T, expr string) {
	t.Helper()
	until(t, expr+" to return nothing", func() (bool, string) {
		answer := a.ask(t, expr)
		return answer.Open, answer.Detail
	})
}

// closes waits until the gate is closed with this text in its detail.
func (a *asker) closes(t *testing.T, expr, detail string) {
	t.Helper()
	until(t, expr+" to close the gate by "+detail, func() (bool, string) {
		answer := a.ask(t, expr)
		return !answer.Open && strings.Contains(answer.Detail, detail), fmt.Sprintf("open %t: %s", answer.Open, answer.Detail)
	})
}

func TestGates(t *testing.T) {
	t.Parallel()
	app := newExporter(t)
	prom := newPrometheus(t, "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"+
		"scrape_configs:\n- {job_name: app, static_configs: [{targets: ['"+strings.TrimPrefix(app.URL, "http://")+"']}]}\n")
	prom.start(t)
	token := filepath.Join(t.TempDir(), "token")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(token, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("secret-1\n")
	door := newFront(t, prom.address, "secret-1")
	g := newAsker(t, gate.Options{URL: door.URL, TokenFile: token, Version: "test"})
	const errors = "app_errors > 0"

	// Prometheus has scraped, and there are no errors.
	g.opens(t, "absent(app_errors)")
	if a := g.ask(t, errors); !a.Open || a.Detail != "" {
		t.Errorf("no errors: %+v", a)
	}
	if len(g.changed) == 0 {
		t.Error("the change callback was not called")
	}
	app.value.Store(7)
	series := fmt.Sprintf(`its query returns 2 series, the first app_errors{instance="%s", job="app", shard="a"} with 7`, strings.TrimPrefix(app.URL, "http://"))
	g.closes(t, errors, series)
	app.value.Store(0)
	g.opens(t, errors)
	// A query without any series opens the gate, unless the query requires a series.
	if a := g.ask(t, "no_such_series > 0"); !a.Open {
		t.Errorf("a series that does not exist: %+v", a)
	}
	if a := g.ask(t, `absent(no_such_series{x="y"})`); a.Open || a.Detail != `its query returns {x="y"} with 1` {
		t.Errorf("absent: %+v", a)
	}

	for _, c := range []struct{ expr, detail string }{
		{"app_errors >", `the query is not valid: invalid parameter "query": 1:13: parse error: unexpected end of input`},
		{"", `the query is not valid: invalid parameter "query": `},
		{"0", "the query returns a scalar, expected an instant vector"},
		{"app_errors[1m]", "the query returns a matrix, expected an instant vector"},
		{"no_such_series[1m]", "the query returns a matrix, expected an instant vector"},
		{`"text"`, `the answer cannot be read: `},
		{"app_errors * on(job) app_errors", "Prometheus cannot answer (execution): "},
		{fmt.Sprintf("label_replace(vector(1), \"x\", \"%s\", \"\", \"\")", strings.Repeat("long ", 200)), `its query returns {x="long long long `},
		{"rate(prometheus_tsdb_head_samples_appended_total)", "the query is not valid: "},
	} {
		if a := g.ask(t, c.expr); a.Open || !strings.HasPrefix(a.Detail, c.detail) || len(a.Detail) > gate.MaxDetail {
			t.Errorf("%.40s: open %t, %q; expected %q", c.expr, a.Open, a.Detail, c.detail)
		}
	}
	// One value for each second of a day: about 2 MiB.
	if a := g.ask(t, "vector(1)[1d:1s]"); a.Open || a.Detail != "the answer is larger than 1 MiB, expected nothing or a few series" {
		t.Errorf("a huge answer: %+v", a)
	}

	// Prometheus expects a new token before the file contains it.
	door.token.Store("secret-2")
	if a := g.ask(t, errors); a.Open || a.Detail != "Prometheus refuses the query (client error: 401); check coordinator.prometheus_token_file" {
		t.Errorf("old token: %+v", a)
	}
	put("secret-2\n")
	if a := g.ask(t, errors); !a.Open {
		t.Errorf("new token: %+v", a)
	}

	// The scrape target goes away, and its series with it. Only up shows that.
	app.value.Store(3)
	g.closes(t, errors, " with 3")
	app.Close()
	g.closes(t, "up == 0", `job="app"} with 0`)
	g.opens(t, errors)

	// Prometheus stops, and starts again with its old data.
	prom.stop()
	if a := g.ask(t, "up == 0"); a.Open || !strings.HasPrefix(a.Detail, "cannot query Prometheus: ") {
		t.Errorf("Prometheus stopped: %+v", a)
	}
	prom.start(t)
	door.behind.Store(prom.address)
	if a := g.ask(t, "up == 0"); a.Open || !strings.HasSuffix(a.Detail, `job="app"} with 0`) {
		t.Errorf("Prometheus restarted: %+v", a)
	}
	if a := g.ask(t, "up == 1"); !a.Open {
		t.Errorf("Prometheus restarted: %+v", a)
	}
}
