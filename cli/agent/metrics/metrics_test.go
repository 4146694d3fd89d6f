package metrics

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/agent/webserver"
	"lockkeeper.dev/lockkeeper/coordinator"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// facts are what the metrics are made of in a test.
type facts struct {
	healthy bool
	host    local.Host
	role    coordinator.Status
	own     kube.State // the coordinator's credential
	kubelet kube.State // the host's
}

func (f *facts) sources() Sources {
	return Sources{
		Healthy: func() bool { return f.healthy }, Host: func() local.Host { return f.host }, Role: func() coordinator.Status { return f.role },
		Credentials: func() []kube.State {
			f.kubelet.Identity, f.own.Identity = v1alpha1.IdentityHost, v1alpha1.IdentityCoordinator
			return []kube.State{f.kubelet, f.own}
		},
	}
}

// look is the page, without its comments.
func look(t *testing.T, m *Metrics) (lines []string) {
	t.Helper()
	w := httptest.NewRecorder()
	Handler(m, slog.New(slog.DiscardHandler), func() (bool, string) { return true, "ok\n" }).
		ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	for line := range strings.Lines(w.Body.String()) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// answer has a request answered; 0 is no answer.
func answer(m *Metrics, identity, path string, code int) {
	rt := m.Wrap(identity)(promhttp.RoundTripperFunc(func(*http.Request) (*http.Response, error) {
		if code == 0 {
			return nil, io.EOF
		}
		return &http.Response{StatusCode: code}, nil
	}))
	_, _ = rt.RoundTrip(httptest.NewRequest(http.MethodPost, path, nil))
}

func want(t *testing.T, have []string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !slices.Contains(have, line) {
			t.Errorf("no line %q", line)
		}
	}
	if t.Failed() {
		t.Log(strings.Join(have, "\n"))
	}
}

func in(s v1alpha1.State) turn.Node { return turn.Node{Keys: v1alpha1.Keys{State: s}} }

// TestWaitingForUnknownReasons checks that what another user writes to the Node's label held, which the host repeats, makes no
// series.
func TestWaitingForUnknownReasons(t *testing.T) {
	f := &facts{}
	m := New("v1.2.3")
	m.Watch(f.sources())
	for held, label := range map[v1alpha1.Reason]string{
		v1alpha1.ReasonBudget: "Budget", v1alpha1.ReasonNoCoordinator: "NoCoordinator", "Anything": "unknown", "anything.else_7": "unknown", "None": "unknown",
	} {
		f.host.Waits = held
		want(t, look(t, m), `lockkeeper_host_waiting{reason="`+label+`"} 1`)
	}
}

func TestValues(t *testing.T) {
	f := &facts{}
	m := New("v1.2.3")
	m.Watch(f.sources())
	began := look(t, m)
	want(t, began,
		`lockkeeper_build_info{protocol="1",version="v1.2.3"} 1`, `lockkeeper_healthy 0`,
		`lockkeeper_host_state{state="absent"} 1`, `lockkeeper_host_wants{wants="unknown"} 1`, `lockkeeper_host_waiting{reason="None"} 0`,
		`lockkeeper_host_turns_total{result="Done"} 0`,
		`lockkeeper_api_last_contact_timestamp_seconds{identity="host"} 0`, `lockkeeper_credential_refused{identity="coordinator"} 0`,
		`lockkeeper_coordinator_leader 0`, `lockkeeper_coordinator_decision_duration_seconds_count 0`)
	if slices.ContainsFunc(began, func(l string) bool { return strings.Contains(l, "_start_timestamp_seconds") }) {
		t.Error("there is a start of a turn or stage outside of a turn")
	}
	for _, line := range began {
		for _, absent := range []string{"credential_expiry", "coordinator_nodes", "held_nodes", "budget", "failed_nodes", "update_engine", "stopped", "managed_nodes", "reporting_nodes"} {
			if strings.Contains(line, absent) {
				t.Errorf("at the beginning there is %s", line)
			}
		}
	}

	f.healthy, f.kubelet.Expires, f.kubelet.Answered = true, time.Unix(2000000000, 0), time.Unix(1700000000, 5e8)
	f.host = local.Host{
		State: v1alpha1.StateDraining, Wants: v1alpha1.WantsReboot, Waits: v1alpha1.ReasonStopped,
		Since: time.Unix(1700000000, 5e8), TurnSince: time.Unix(1700000002, 0), StageSince: time.Unix(1700000003, 0),
		Blockers: []v1alpha1.Blocker{{Kind: v1alpha1.BlockerBudget, Name: "shop/web", Pod: "shop/web-0", Since: metav1.NewTime(time.Unix(1700000001, 0))}},
	}
	f.role = coordinator.Status{Candidate: true, Leader: true, Epoch: "term 1"}
	f.own = kube.State{Present: true, Expires: time.Unix(1900000000, 0), Renewals: 2, Failures: 3, Refused: time.Now()}
	for _, result := range []v1alpha1.Result{v1alpha1.ResultDone, v1alpha1.ResultDone, "Whatever"} { // the last one is not lockkeeper's
		m.TurnEnded(result)
	}
	m.Notified(v1alpha1.NotificationSent)
	m.Notified(v1alpha1.NotificationSent)
	m.Notified(v1alpha1.NotificationDropped)
	figures := []rollout.PolicyFigures{{Name: "web", Selected: 10, UpToDate: 2, Wanting: 8, InTurn: 3, Unavailable: 4, Failed: 1, Allowed: 5, Halted: true}, {Name: "db", Problems: make([]policy.Problem, 1)}}
	for i := range 100 {
		figures = append(figures, rollout.PolicyFigures{Name: fmt.Sprintf("p%d", i)})
	}
	slots := []rollout.Slot{{Node: "z", Use: v1alpha1.SlotCordoned}}
	for i := range 21 {
		slots = append(slots, rollout.Slot{Node: fmt.Sprintf("n%02d", i), Use: v1alpha1.SlotInTurn})
	}
	m.Decided(30*time.Millisecond, &rollout.Snapshot{Epoch: "term 1", Stopped: true, Nodes: []turn.Node{in(v1alpha1.StateIdle), in(v1alpha1.StateIdle), in("odd")},
		Uncertain: map[string]bool{"n1": true, "n2": true}, Unsettled: map[string]string{"n1": "since noon"}},
		&rollout.Outcome{
			Verdicts: []rollout.Verdict{{Held: v1alpha1.ReasonBudget}, {}, {Held: v1alpha1.ReasonUnknownState}},
			Slots:    slots,
			Figures:  rollout.Figures{Managed: 9, Reporting: 8, Unavailable: 4, Budget: 5, Failed: 6, Policies: figures},
		})
	for _, code := range []int{200, 201, 404, 401, 429, 500, 0} {
		answer(m, v1alpha1.IdentityCoordinator, "/api/v1/nodes/n1", code)
	}
	for _, code := range []int{201, 429, 404} {
		answer(m, v1alpha1.IdentityHost, "/api/v1/namespaces/shop/pods/web-0/eviction", code)
	}
	now := look(t, m)
	want(t, now,
		`lockkeeper_healthy 1`, `lockkeeper_host_state{state="draining"} 1`, `lockkeeper_host_wants{wants="reboot"} 1`,
		`lockkeeper_host_waiting{reason="Stopped"} 1`, `lockkeeper_host_last_transition_timestamp_seconds 1.7000000005e+09`,
		`lockkeeper_host_turn_start_timestamp_seconds 1.700000002e+09`, `lockkeeper_host_stage_start_timestamp_seconds 1.700000003e+09`,
		`lockkeeper_host_blockers{kind="PodDisruptionBudget"} 1`, `lockkeeper_host_blockers{kind="Hook"} 0`,
		`lockkeeper_host_blocked_since_timestamp_seconds{kind="PodDisruptionBudget",name="shop/web",pod="shop/web-0"} 1.700000001e+09`,
		`lockkeeper_coordinator_notifications_total{result="sent"} 2`, `lockkeeper_coordinator_notifications_total{result="failed"} 0`, `lockkeeper_coordinator_notifications_total{result="dropped"} 1`,
		`lockkeeper_host_turns_total{result="Done"} 2`, `lockkeeper_host_turns_total{result="Failed"} 0`,
		`lockkeeper_host_evictions_total{result="success"} 1`, `lockkeeper_host_evictions_total{result="too_many_requests"} 1`, `lockkeeper_host_evictions_total{result="refused"} 1`,
		`lockkeeper_api_requests_total{identity="coordinator",result="success"} 2`, `lockkeeper_api_requests_total{identity="coordinator",result="too_many_requests"} 1`,
		`lockkeeper_api_requests_total{identity="coordinator",result="refused"} 2`, `lockkeeper_api_requests_total{identity="coordinator",result="error"} 2`,
		`lockkeeper_api_last_contact_timestamp_seconds{identity="host"} 1.7000000005e+09`, `lockkeeper_api_last_contact_timestamp_seconds{identity="coordinator"} 0`,
		`lockkeeper_credential_refused{identity="coordinator"} 1`, `lockkeeper_credential_refused{identity="host"} 0`,
		`lockkeeper_credential_expiry_timestamp_seconds{identity="coordinator"} 1.9e+09`, `lockkeeper_credential_expiry_timestamp_seconds{identity="host"} 2e+09`,
		`lockkeeper_coordinator_credential_renewals_total{result="success"} 2`, `lockkeeper_coordinator_credential_renewals_total{result="error"} 3`,
		`lockkeeper_coordinator_nodes{state="idle"} 2`, `lockkeeper_coordinator_nodes{state="unknown"} 1`, `lockkeeper_coordinator_nodes{state="draining"} 0`,
		`lockkeeper_coordinator_held_nodes{reason="Budget"} 1`, `lockkeeper_coordinator_held_nodes{reason="Failed"} 0`,
		`lockkeeper_coordinator_unavailable_nodes{reason="Cordoned"} 1`, `lockkeeper_coordinator_unavailable_nodes{reason="InTurn"} 21`,
		`lockkeeper_coordinator_unavailable_nodes{reason="NotReady"} 0`, `lockkeeper_coordinator_slot_info{node="z",reason="Cordoned"} 1`, `lockkeeper_coordinator_slot_info{node="n18",reason="InTurn"} 1`,
		`lockkeeper_coordinator_stopped 1`, `lockkeeper_coordinator_unsettled_nodes 1`,
		`lockkeeper_coordinator_managed_nodes 9`, `lockkeeper_coordinator_reporting_nodes 8`,
		`lockkeeper_coordinator_budget_nodes 5`, `lockkeeper_coordinator_failed_nodes 6`,
		`lockkeeper_coordinator_policies{valid="true"} 101`, `lockkeeper_coordinator_policies{valid="false"} 1`,
		`lockkeeper_coordinator_policy_nodes{count="selected",policy="web"} 10`, `lockkeeper_coordinator_policy_nodes{count="up_to_date",policy="web"} 2`,
		`lockkeeper_coordinator_policy_nodes{count="wanting",policy="web"} 8`, `lockkeeper_coordinator_policy_nodes{count="in_turn",policy="web"} 3`,
		`lockkeeper_coordinator_policy_nodes{count="unavailable",policy="web"} 4`, `lockkeeper_coordinator_policy_nodes{count="failed",policy="web"} 1`,
		`lockkeeper_coordinator_policy_nodes{count="allowed",policy="web"} 5`, `lockkeeper_coordinator_policy_halted{policy="web"} 1`,
		`lockkeeper_coordinator_policy_halted{policy="db"} 0`, `lockkeeper_coordinator_policy_halted{policy="p97"} 0`,
		`lockkeeper_coordinator_decision_duration_seconds_bucket{le="0.025"} 0`, `lockkeeper_coordinator_decision_duration_seconds_bucket{le="0.05"} 1`)
	if slices.ContainsFunc(now, func(l string) bool { return strings.Contains(l, `policy="p98"`) }) {
		t.Error("more than 100 policies have series of their own")
	}
	if slices.ContainsFunc(now, func(l string) bool { return strings.Contains(l, `_slot_info{node="n19"`) }) {
		t.Error("more than 20 nodes that take a slot have series of their own")
	}

	f.role.Leader, f.own.Refused = false, time.Time{}
	for _, line := range look(t, m) {
		if strings.Contains(line, "coordinator_nodes") || line == `lockkeeper_credential_refused{identity="coordinator"} 1` {
			t.Errorf("afterwards there is still %s", line)
		}
	}

	f.role.Leader, f.role.Epoch = true, "term 2"
	if now := look(t, m); slices.ContainsFunc(now, func(l string) bool { return strings.Contains(l, "_nodes") }) {
		t.Errorf("before its first decision another term serves the last one's:\n%s", strings.Join(now, "\n"))
	}
	m.Decided(0, &rollout.Snapshot{Epoch: "term 2", Nodes: []turn.Node{in(v1alpha1.StateIdle)}}, &rollout.Outcome{})
	want(t, look(t, m), `lockkeeper_coordinator_nodes{state="idle"} 1`)
}

// Each stage that ends while the process runs is observed once, with its time by the coordinator's clock.
func TestStages(t *testing.T) {
	m := New("v")
	m.Watch((&facts{}).sources())
	noon := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	report := func(turn string, s v1alpha1.State, since time.Time) {
		m.HostReported(local.Host{Turn: turn, State: s, StageSince: since, Last: &v1alpha1.Last{Turn: "t0", End: noon}})
	}
	ended := func(turn string, at time.Time) {
		m.HostReported(local.Host{State: v1alpha1.StateIdle, Last: &v1alpha1.Last{Turn: turn, End: at}})
	}
	has := func(lines ...string) {
		t.Helper()
		want(t, look(t, m), lines...)
	}
	const metric = "lockkeeper_host_stage_duration_seconds"
	has(metric+`_count{state="before-drain"} 0`, metric+`_count{state="uncordoning"} 0`, metric+`_bucket{state="rebooting",le="14400"} 0`)

	report("", v1alpha1.StateIdle, time.Time{})
	report("t1", v1alpha1.StateDraining, noon)
	report("t1", v1alpha1.StateDraining, noon)
	report("t1", v1alpha1.StateDraining, time.Time{})           // the grant cannot be read now
	report("t1", v1alpha1.StateDraining, noon.Add(time.Minute)) // a new leader has set it
	has(metric + `_count{state="draining"} 0`)
	report("t1", v1alpha1.StateRebooting, noon.Add(2*time.Minute))
	has(metric+`_count{state="draining"} 1`, metric+`_sum{state="draining"} 120`, metric+`_bucket{state="draining",le="60"} 0`, metric+`_bucket{state="draining",le="300"} 1`)
	report("t1", v1alpha1.StateUncordoning, noon.Add(5*time.Minute))
	ended("t1", noon.Add(5*time.Minute+3*time.Second))
	has(metric+`_sum{state="draining"} 120`, metric+`_sum{state="rebooting"} 180`, metric+`_count{state="uncordoning"} 1`, metric+`_sum{state="uncordoning"} 3`)
	ended("t1", noon.Add(time.Hour))
	has(metric + `_count{state="uncordoning"} 1`)

	// The end of a turn was not seen, times run backwards, and a state has a name that is not lockkeeper's.
	report("t2", v1alpha1.StateDraining, noon)
	report("t3", v1alpha1.StateRebooting, noon)
	ended("t2", noon.Add(time.Hour))
	has(metric+`_count{state="draining"} 1`, metric+`_count{state="rebooting"} 1`)
	report("t3", "odd", noon.Add(-time.Hour))
	report("t3", v1alpha1.StateUncordoning, noon)
	has(metric+`_count{state="rebooting"} 2`, metric+`_sum{state="rebooting"} 180`)
	for _, line := range look(t, m) {
		if strings.Contains(line, "odd") {
			t.Errorf("a label of the Node makes a series: %s", line)
		}
	}
}

// Whatever the update engine answers, its metric has a label of those that the documentation lists.
func TestUpdateEngine(t *testing.T) {
	f := &facts{}
	m := New("v")
	m.Watch(f.sources())
	for _, c := range []struct {
		status *v1alpha1.EngineStatus
		err    string
		want   string
	}{
		{nil, "", ""},
		{nil, "org.freedesktop.DBus.Error.NoReply", "unknown"},
		{&v1alpha1.EngineStatus{Operation: "DOWNLOADING"}, "", "DOWNLOADING"},
		{&v1alpha1.EngineStatus{Operation: "ATTEMPTING_ROLLBACK"}, "", "unknown"},
		{&v1alpha1.EngineStatus{}, "", "unknown"},
	} {
		f.host.Engine, f.host.EngineError = c.status, c.err
		got := slices.DeleteFunc(look(t, m), func(line string) bool { return !strings.HasPrefix(line, "lockkeeper_host_update_engine") })
		var wanted []string
		if c.want != "" {
			wanted = []string{`lockkeeper_host_update_engine{operation="` + c.want + `"} 1`}
		}
		if !slices.Equal(got, wanted) {
			t.Errorf("%+v, %q: %v, want %v", c.status, c.err, got, wanted)
		}
	}
}

// The oldest pending change is that of the managed host whose change has been pending for longest, by what hosts report in this boot.
func TestOldestPending(t *testing.T) {
	node := func(s v1alpha1.State, boot string, since int64) turn.Node {
		n := turn.Node{UID: "u", BootID: "b1", Keys: v1alpha1.Keys{State: s, Wants: v1alpha1.WantsReboot, Host: &v1alpha1.Host{NodeUID: "u", BootID: boot}}}
		if since > 0 {
			n.Host.PendingSince = time.Unix(since, 0)
		}
		return n
	}
	idle, absent := v1alpha1.StateIdle, v1alpha1.StateAbsent
	for name, c := range map[string]struct {
		nodes []turn.Node
		want  string
	}{
		"none":          {[]turn.Node{node(idle, "b1", 0), in(idle)}, ""},
		"the oldest":    {[]turn.Node{node(idle, "b1", 3000), node(v1alpha1.StateDraining, "b1", 2000), node(idle, "b1", 4000)}, "2000"},
		"others' words": {[]turn.Node{node(absent, "b1", 1000), node(idle, "b0", 1000), node(idle, "b1", 3000)}, "3000"},
	} {
		f := &facts{role: coordinator.Status{Leader: true}}
		m := New("v")
		m.Watch(f.sources())
		m.Decided(0, &rollout.Snapshot{Nodes: c.nodes}, &rollout.Outcome{})
		got := ""
		for _, line := range look(t, m) {
			if value, found := strings.CutPrefix(line, "lockkeeper_coordinator_oldest_pending_change_timestamp_seconds "); found {
				got = value
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A term counts once, however often the candidate reports.
func TestTerms(t *testing.T) {
	m := New("v")
	m.Watch((&facts{}).sources())
	want(t, look(t, m), "lockkeeper_coordinator_terms_total 0")
	for _, s := range []coordinator.Status{
		{Candidate: true}, {Leader: true, Epoch: "a"}, {Leader: true, Epoch: "a", Why: "blind"}, {Candidate: true}, {Leader: true, Epoch: "b"}, {},
	} {
		m.RoleChanged(s)
	}
	want(t, look(t, m), "lockkeeper_coordinator_terms_total 2")
}

// Prometheus' own rules for metrics find nothing to correct.
func TestLint(t *testing.T) {
	m := served(t)
	w := httptest.NewRecorder()
	Handler(m, slog.New(slog.DiscardHandler), nil).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	problems, err := promlint.New(w.Body).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// served returns metrics of which each has a series.
func served(t *testing.T) *Metrics {
	t.Helper()
	f := &facts{role: coordinator.Status{Leader: true}, kubelet: kube.State{Expires: time.Unix(1, 0)}, host: local.Host{
		TurnSince: time.Unix(1, 0), StageSince: time.Unix(1, 0),
		Engine:   &v1alpha1.EngineStatus{Operation: "IDLE"},
		Blockers: []v1alpha1.Blocker{{Kind: v1alpha1.BlockerBudget, Name: "shop/web", Pod: "shop/web-0", Since: metav1.NewTime(time.Unix(1, 0))}},
	}}
	m := New("v")
	m.Watch(f.sources())
	pending := turn.Node{UID: "u", BootID: "b", Keys: v1alpha1.Keys{State: v1alpha1.StateIdle, Wants: v1alpha1.WantsReboot,
		Host: &v1alpha1.Host{NodeUID: "u", BootID: "b", PendingSince: time.Unix(1, 0)}}}
	m.Decided(0, &rollout.Snapshot{Nodes: []turn.Node{pending}}, &rollout.Outcome{
		Slots: []rollout.Slot{{Node: "a", Use: v1alpha1.SlotInTurn}}, Figures: rollout.Figures{Policies: []rollout.PolicyFigures{{Name: "p"}}}})
	return m
}

// TestTable: every metric of the table is served, with its type and its help, and no other.
func TestTable(t *testing.T) {
	m := served(t)
	w := httptest.NewRecorder()
	Handler(m, slog.New(slog.DiscardHandler), nil).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	served := map[string]bool{}
	for _, s := range regexp.MustCompile(`(?m)^# TYPE (\S+ \S+)$`).FindAllStringSubmatch(w.Body.String(), -1) {
		served[s[1]] = true
	}
	for _, d := range v1alpha1.MetricDocs() {
		key := string(d.Name) + " " + string(d.Type)
		if !served[key] || !strings.Contains(w.Body.String(), "# HELP "+string(d.Name)+" "+d.Help+"\n") {
			t.Errorf("%s is not served so", key)
		}
		delete(served, key)
	}
	for key := range served {
		t.Errorf("%s is served and is not in the table", key)
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// An address that somebody else has is told of, and everything goes on; another address, or none, is taken at once.
func TestServer(t *testing.T) {
	f := &facts{}
	m := New("v")
	m.Watch(f.sources())
	health := make(chan string, 1)
	handler := Handler(m, slog.New(slog.DiscardHandler), func() (bool, string) {
		text := <-health
		return text == "ok\n", text
	})
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	other := free.Addr().String()
	free.Close()

	problems := make(chan string, 10)
	s := webserver.New("metrics and health", handler, slog.New(slog.DiscardHandler), func(p string) { problems <- p })
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	told := func(part string) {
		t.Helper()
		for {
			select {
			case p := <-problems:
				if p == part || part != "" && strings.Contains(p, part) {
					return
				}
			case <-time.After(time.Minute):
				t.Fatalf("never told %q", part)
			}
		}
	}
	s.Listen(taken.Addr().String())
	told("address already in use")
	s.Listen(other)
	told("") // the other address is no problem before it was tried,
	told("") // nor after
	health <- "ok\n"
	if code, text := get(t, "http://"+other+"/healthz"); code != 200 || text != "ok\n" {
		t.Errorf("%d %q", code, text)
	}
	health <- "unhealthy: a test\n"
	if code, text := get(t, "http://"+other+"/healthz"); code != 503 || text != "unhealthy: a test\n" {
		t.Errorf("%d %q", code, text)
	}
	if code, text := get(t, "http://"+other+"/metrics"); code != 200 || !strings.Contains(text, "lockkeeper_build_info") {
		t.Errorf("%d %q", code, text)
	}
	if code, _ := get(t, "http://"+other+"/"); code != 404 {
		t.Errorf("/ answers %d", code)
	}
	s.Listen("")
	told("")
	if code, text := get(t, "http://"+other+"/healthz"); code != 0 {
		t.Errorf("after its end: %d %q", code, text)
	}
	stop()
	<-done
}
