package turns

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
	"lockkeeper.dev/lockkeeper/testbed/hookauthor"
	"lockkeeper.dev/lockkeeper/testbed/referee"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

var (
	cp     *controlplane.ControlPlane
	binary string
)

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "100") // see atOnce
	flag.Parse()
	binary = rig.Binary(false)
	os.Exit(controlplane.RunTests(complete{m}, controlplane.Options{}, func(c *controlplane.ControlPlane) { cp = c }))
}

// atOnce is how many scenes are played at once: they mostly wait, for files to settle or for their hosts to boot. Gates come on top,
// because one is asked every half minute. More scenes at once would end more turns than the coordinator may write Events about.
const atOnce = 8

// sceneLabel on a Node names the scene that it is for.
const sceneLabel = "turns"

// costs is a policy of the owners of some files: it says what their changes cost, on all scenes' hosts, and decides nothing
// else, since each scene has a policy of a higher priority.
const costs = `
priority: -10
nodeSelector: {matchExpressions: [{key: turns, operator: Exists}]}
rules:
- {source: File, path: /etc/app.conf, actions: [{type: Restart, unit: app.service}]}
- {source: File, path: /etc/db.conf, actions: [{type: Drain}, {type: Restart, unit: db.service}]}
`

// TestTurns plays the scenes: all of them in `make soak`.
func TestTurns(t *testing.T) {
	w := &world{prom: newPrometheus(t), lines: map[string][]string{}, binary: binary, nodes: follow(t)}
	// Not t.Context(), which ends before the cleanup hears the verdict.
	ctx := context.Background()
	must(t, cp.ApplyLockkeeper(ctx))
	_, err := cp.ApplyPolicy(ctx, "costs", costs)
	must(t, err)
	sampled, scenes := map[string]func(*scene){}, map[string]func(*scene){}
	for _, some := range []map[string]func(*scene){windows, canaries, hooks, overdueDrains, changes, taken, conditions, others, exclusions, members, wants()} {
		maps.Copy(sampled, some)
	}
	for _, some := range []map[string]func(*scene){sampled, gates, published, intentScenes(t), takeovers(t)} {
		maps.Copy(scenes, some)
	}
	// These read reasons and blockers, of which none may be missing.
	for _, name := range slices.Concat(slices.Concat(slices.Collect(maps.Values(provokedBy))...), slices.Collect(maps.Values(blockedIn))) {
		delete(sampled, name)
	}
	var budgets []referee.PolicyBudget
	for name := range scenes {
		b := referee.PolicyBudget{Policy: name, Labels: map[string]string{sceneLabel: name}, Budget: 1}
		if gates[name] != nil || windows[name] != nil {
			b.Budget = 3 // 100 % of its hosts: it is not the budget that keeps any of them
		}
		budgets = append(budgets, b)
	}
	// Behind a proxy, so that its requests are counted.
	config, err := cp.CoordinatorConfig()
	must(t, err)
	w.coordinator, err = faultproxy.Start(faultproxy.Options{Name: "coordinator", Config: config, Dir: t.TempDir()})
	must(t, err)
	t.Cleanup(func() {
		if err := w.coordinator.Close(); err != nil {
			t.Error(err)
		}
	})
	w.rig, err = rig.Start(ctx, cp, rig.Options{
		Policy: "{nodeSelector: {matchLabels: {turns: nobody}}}",
		Budget: 100, PolicyBudgets: budgets,
		OnEvent: w.recordLine,
		Fleet: simhost.FleetOptions{Hosts: 1, Coordinators: 1, Prefix: "lead-", Host: simhost.Options{
			Binary: binary, RestartDelay: time.Second, CoordinatorKubeconfig: w.coordinator.Kubeconfig(), Config: func(c simhost.Config) {
				c.Set("coordinator", "prometheus_url", w.prom.URL)
				c.Set("metrics", "listen", "127.0.0.1:0")
				// A busy machine must not end the term: it has other tests.
				for key, d := range map[string]time.Duration{"duration": 60 * time.Second, "renew_deadline": 40 * time.Second} {
					c.Set("lease", key, d)
				}
			},
		}},
	})
	must(t, err)
	w.start, w.leader = w.rig.StartHost, w.rig.Fleet.Hosts[0]
	t.Cleanup(func() {
		report, err := w.rig.Close()
		if err != nil {
			t.Errorf("%v\n%s", err, w.leader.LogTail(60))
		}
		t.Log(report.String())
	})
	w.authors, err = hookauthor.Start(cp.Client(), func(text string) { t.Log(text) })
	must(t, err)
	t.Cleanup(w.authors.Close)
	slots := make(chan struct{}, atOnce)
	for name, play := range scenes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if sampled[name] != nil {
				rig.Sample(t, 3)
			}
			if gates[name] == nil {
				slots <- struct{}{}
				t.Cleanup(func() { <-slots })
			}
			play(w.scene(t, name))
		})
	}
}

// world is what the scenes share.
type world struct {
	rig     *rig.Rig
	prom    *prometheus
	authors *hookauthor.Authors
	// coordinator is the way of the coordinator's requests.
	coordinator *faultproxy.Proxy
	binary      string // that the scenes' hosts run
	start       func(context.Context, simhost.Options) (*simhost.Host, error)
	leader      *simhost.Host
	nodes       *versions

	mu    sync.Mutex
	lines map[string][]string // what the referee has told, by node
}

// scene returns a scene of the world.
func (w *world) scene(t *testing.T, name string) *scene {
	return &scene{Scene: &rig.Scene{T: t, Rig: w.rig}, name: name, world: w}
}

// ownedScene returns a scene that is played in several tests; its hosts are closed at the end of owner.
func (w *world) ownedScene(owner *testing.T, name string) *scene {
	s := w.scene(owner, name)
	s.owner = owner
	return s
}

// recordLine records a line of the referee: the time, the node and what happened to it.
func (w *world) recordLine(line string) {
	_, rest, _ := strings.Cut(line, " ")
	name, text, _ := strings.Cut(rest, " ")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines[name] = append(w.lines[name], strings.TrimSpace(text))
}

// linesOf returns the referee's lines about a node up to now.
func (w *world) linesOf(name string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.lines[name])
}

// prometheus answers as one: a query that is closed returns a series, any other one nothing. That a real one is understood is
// package rollout's to show.
type prometheus struct {
	*httptest.Server
	mu     sync.Mutex
	closed map[string]bool
}

func newPrometheus(t *testing.T) *prometheus {
	p := &prometheus{closed: map[string]bool{}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		result := ""
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.closed[r.FormValue("query")] {
			result = `{"metric":{"__name__":"errors","shard":"a"},"value":[1,"7"]}`
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[%s]}}`, result)
	}))
	t.Cleanup(p.Close)
	return p
}

// shut has the query return something, or nothing.
func (p *prometheus) shut(query string, closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed[query] = closed
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
