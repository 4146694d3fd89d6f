// Package metrics serves the metrics and the health of one process. The table in package
// v1alpha1 lists all metrics (docs/metrics.md); this package gives them their values.
//
// The loops call it when something happens. It decides nothing, asks the API server for
// nothing, and must not know why a value is what it is.
package metrics

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/local"
)

// Sources are where the metrics of the present moment come from. They are asked at each
// scrape.
type Sources struct {
	Healthy func() bool
	Host    func() local.Host
	Role    func() coordinator.Status
	// Credentials are the host's and the coordinator's.
	Credentials func() []kube.State
}

// Metrics are all metrics of one process. Its methods may be called from any
// goroutine.
type Metrics struct {
	version  string
	sources  Sources
	descs    map[v1alpha1.Metric]*prometheus.Desc
	counters map[v1alpha1.Metric]*prometheus.CounterVec
	stages   *prometheus.HistogramVec
	decision prometheus.Histogram

	mu    sync.Mutex
	stage stage  // of this host's turn, zero outside of one
	term  string // the epoch of the last term of this process
	// fleet is what a leader saw when it last decided, in the term fleetOf, which may be
	// over.
	fleet   []prometheus.Metric
	fleetOf string
}

// stage is a stage of a turn, and when it began by the coordinator's clock.
type stage struct {
	turn  string
	state v1alpha1.State
	began time.Time
}

// buckets of a decision, in seconds: that of five thousand nodes takes a few
// hundredths.
var buckets = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1}

// stageBuckets are those of a stage of a turn, in seconds: a hook or an uncordon takes seconds, a reboot minutes, a drain
// up to hours. They are few, because each host has them for each state of a turn.
var stageBuckets = []float64{1, 5, 30, 60, 300, 900, 1800, 3600, 4 * 3600}

// New makes the metrics of a process of that version of lockkeeper. Watch has
// to be called before the first scrape.
func New(version string) *Metrics {
	m := &Metrics{version: version, descs: map[v1alpha1.Metric]*prometheus.Desc{}, counters: map[v1alpha1.Metric]*prometheus.CounterVec{}}
	for _, d := range v1alpha1.MetricDocs() {
		m.descs[d.Name] = prometheus.NewDesc(string(d.Name), d.Help, d.Labels, nil)
		switch {
		case d.Name == v1alpha1.MetricDecision:
			m.decision = prometheus.NewHistogram(prometheus.HistogramOpts{Name: string(d.Name), Help: d.Help, Buckets: buckets})
		case d.Name == v1alpha1.MetricStageDuration:
			m.stages = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: string(d.Name), Help: d.Help, Buckets: stageBuckets}, d.Labels)
		case d.Type == v1alpha1.Counter && d.Name != v1alpha1.MetricRenewals: // the credential counts those
			m.counters[d.Name] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: string(d.Name), Help: d.Help}, d.Labels)
		}
	}
	// Counters and histograms have their series from the start.
	for _, s := range v1alpha1.States() {
		if s.InTurn() {
			m.stages.WithLabelValues(s.String())
		}
	}
	for _, r := range results {
		m.counter(v1alpha1.MetricHostTurns, string(r))
	}
	for _, result := range []string{v1alpha1.NotificationSent, v1alpha1.NotificationFailed, v1alpha1.NotificationDropped} {
		m.counter(v1alpha1.MetricNotifications, result)
	}
	for _, result := range []string{v1alpha1.RequestSuccess, v1alpha1.RequestTooMany, v1alpha1.RequestRefused, v1alpha1.RequestError} {
		m.counter(v1alpha1.MetricAPIRequests, v1alpha1.IdentityHost, result)
		m.counter(v1alpha1.MetricAPIRequests, v1alpha1.IdentityCoordinator, result)
		m.counter(v1alpha1.MetricHostEvictions, result)
	}
	for _, result := range []string{v1alpha1.FleetLockPermitted, v1alpha1.FleetLockSteady, v1alpha1.FleetLockNotYet, v1alpha1.FleetLockRefused} {
		m.counter(v1alpha1.MetricFleetLock, result)
	}
	m.counter(v1alpha1.MetricTerms)
	return m
}

var results = []v1alpha1.Result{v1alpha1.ResultDone, v1alpha1.ResultCancelled, v1alpha1.ResultBackedOut, v1alpha1.ResultFailed}

// counter returns the counter of a metric with these labels.
func (m *Metrics) counter(name v1alpha1.Metric, labels ...string) prometheus.Counter {
	return m.counters[name].WithLabelValues(labels...)
}

// Watch sets where the metrics of the present moment come from.
func (m *Metrics) Watch(s Sources) { m.sources = s }

// TurnEnded counts a turn of this host's. A result that lockkeeper does not write, which
// another user may have put on the Node, does not count.
func (m *Metrics) TurnEnded(r v1alpha1.Result) {
	if slices.Contains(results, r) {
		m.counter(v1alpha1.MetricHostTurns, string(r)).Inc()
	}
}

// HostReported observes the stage of this host's turn that has ended since the report before. Call it with every report, in
// their order.
func (m *Metrics) HostReported(h local.Host) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := h.Last; l != nil && l.Turn == m.stage.turn {
		m.endStage(l.End)
	}
	if h.Turn == "" || h.StageSince.IsZero() || h.Turn == m.stage.turn && h.State == m.stage.state {
		return // also after a change of leader, which sets StageSince again
	}
	if h.Turn == m.stage.turn {
		m.endStage(h.StageSince)
	}
	m.stage = stage{h.Turn, h.State, h.StageSince}
}

// endStage observes the present stage, which ended at that time by the coordinator's clock. The caller holds mu.
func (m *Metrics) endStage(at time.Time) {
	if m.stage.state.Known() && m.stage.state.InTurn() {
		m.stages.WithLabelValues(m.stage.state.String()).Observe(max(at.Sub(m.stage.began).Seconds(), 0))
	}
	m.stage = stage{}
}

// RoleChanged counts the terms of this process. Call it with every status of the candidate.
func (m *Metrics) RoleChanged(s coordinator.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.Leader && s.Epoch != m.term {
		m.term = s.Epoch
		m.counter(v1alpha1.MetricTerms).Inc()
	}
}

// FleetLockAnswered counts an answer to this host's FleetLock client.
func (m *Metrics) FleetLockAnswered(result string) {
	m.counter(v1alpha1.MetricFleetLock, result).Inc()
}

// Notified counts a notification by what happened to it.
func (m *Metrics) Notified(result string) {
	m.counter(v1alpha1.MetricNotifications, result).Inc()
}

// Wrap returns what counts the answers to the requests of that identity.
func (m *Metrics) Wrap(identity string) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(r)
			result := v1alpha1.RequestError
			switch {
			case err != nil || resp.StatusCode >= 500:
			case resp.StatusCode == http.StatusTooManyRequests:
				result = v1alpha1.RequestTooMany
			case resp.StatusCode >= 400:
				result = v1alpha1.RequestRefused
			default:
				result = v1alpha1.RequestSuccess
			}
			m.counter(v1alpha1.MetricAPIRequests, identity, result).Inc()
			if identity == v1alpha1.IdentityHost && r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/eviction") {
				m.counter(v1alpha1.MetricHostEvictions, result).Inc()
			}
			return resp, err
		})
	}
}

// Decided takes in a leader's decision, which took that long. Call it with each. It keeps
// nothing of its arguments.
func (m *Metrics) Decided(took time.Duration, s *rollout.Snapshot, out *rollout.Outcome) {
	m.decision.Observe(took.Seconds())
	c := collection{Metrics: m}
	c.nodes(s)
	c.outcome(out)
	c.policies(out.Figures.Policies)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fleet, m.fleetOf = c.all, s.Epoch
}

// Describe describes nothing: which series there are depends on the facts.
func (m *Metrics) Describe(chan<- *prometheus.Desc) {}

// Collect gives every metric its present value.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	c := collection{Metrics: m, now: time.Now()}
	c.of(v1alpha1.MetricBuildInfo, 1, m.version, strconv.Itoa(v1alpha1.Protocol))
	c.of(v1alpha1.MetricHealthy, one(m.sources.Healthy()))
	c.host(m.sources.Host())
	for _, s := range m.sources.Credentials() {
		c.credential(&s)
	}
	role := m.sources.Role()
	c.of(v1alpha1.MetricCandidate, one(role.Candidate))
	c.of(v1alpha1.MetricLeader, one(role.Leader))
	m.decision.Collect(out)
	m.stages.Collect(out)
	for _, counter := range m.counters {
		counter.Collect(out)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if role.Leader && m.fleetOf == role.Epoch {
		c.all = append(c.all, m.fleet...)
	}
	for _, metric := range c.all {
		out <- metric
	}
}

// collection collects series.
type collection struct {
	*Metrics
	all []prometheus.Metric
	now time.Time
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// of adds a series of a metric in the table; its labels are in the table's order.
func (c *collection) of(name v1alpha1.Metric, value float64, labels ...string) {
	valueType := prometheus.GaugeValue
	if name == v1alpha1.MetricRenewals {
		valueType = prometheus.CounterValue
	}
	c.all = append(c.all, prometheus.MustNewConstMetric(c.descs[name], valueType, value, labels...))
}

// at adds a time, except the zero time.
func (c *collection) at(name v1alpha1.Metric, t time.Time, labels ...string) {
	if !t.IsZero() {
		c.of(name, float64(t.UnixMilli())/1000, labels...)
	}
}

func (c *collection) host(h local.Host) {
	c.of(v1alpha1.MetricHostState, 1, stateLabel(h.State))
	c.of(v1alpha1.MetricHostWants, 1, cmp.Or(string(h.Wants), v1alpha1.WantsUnknown))
	if h.Waits == v1alpha1.ReasonNone {
		c.of(v1alpha1.MetricHostWaiting, 0, v1alpha1.WaitsForNothing)
	} else {
		c.of(v1alpha1.MetricHostWaiting, 1, reasonLabel(h.Waits))
	}
	if h.Since.IsZero() {
		h.Since = c.now
	}
	c.at(v1alpha1.MetricHostTransition, h.Since)
	counts := map[v1alpha1.BlockerKind]int{}
	for _, b := range h.Blockers {
		counts[b.Kind]++
		c.at(v1alpha1.MetricHostBlocked, b.Since.Time, string(b.Kind), string(b.Name), string(b.Pod))
	}
	for _, k := range v1alpha1.BlockerKinds() {
		c.of(v1alpha1.MetricHostBlockers, float64(counts[k]), string(k))
	}
	if h.Engine != nil || h.EngineError != "" {
		operation := v1alpha1.OperationUnknown
		if h.Engine != nil && slices.Contains(v1alpha1.UpdateOperations(), string(h.Engine.Operation)) {
			operation = string(h.Engine.Operation)
		}
		c.of(v1alpha1.MetricUpdateEngine, 1, operation)
	}
	c.at(v1alpha1.MetricHostTurn, h.TurnSince)
	c.at(v1alpha1.MetricHostStage, h.StageSince)
}

// stateLabel is a state as a label. A state that this version does not know, which
// another user may have put on the Node, has no series of its own.
func stateLabel(s v1alpha1.State) string {
	if !s.Known() {
		return "unknown"
	}
	return s.String()
}

// reasonLabel is a reason as a label. A reason that this version does not know has no series of
// its own either: a host that waits for its turn repeats the Node's label held.
func reasonLabel(r v1alpha1.Reason) string {
	if r.Doc().Reason == "" {
		return v1alpha1.WaitsForUnknown
	}
	return string(r)
}

func (c *collection) credential(s *kube.State) {
	answered := 0.0
	if !s.Answered.IsZero() {
		answered = float64(s.Answered.UnixMilli()) / 1000
	}
	c.of(v1alpha1.MetricAPIContact, answered, s.Identity)
	c.of(v1alpha1.MetricCredentialRefuse, one(!s.Refused.IsZero()), s.Identity)
	c.at(v1alpha1.MetricCredentialExpiry, s.Expires, s.Identity)
	if s.Identity == v1alpha1.IdentityCoordinator {
		c.of(v1alpha1.MetricRenewals, float64(s.Renewals), v1alpha1.RequestSuccess)
		c.of(v1alpha1.MetricRenewals, float64(s.Failures), v1alpha1.RequestError)
	}
}

// nodes adds what a leader saw.
func (c *collection) nodes(s *rollout.Snapshot) {
	states := map[string]int{"unknown": 0}
	for _, state := range v1alpha1.States() {
		states[state.String()] = 0
	}
	var pending time.Time // since when the oldest pending change has been
	for i := range s.Nodes {
		n := &s.Nodes[i]
		states[stateLabel(n.State)]++
		if n.State == v1alpha1.StateAbsent || !n.HostReported() || n.Host.PendingSince.IsZero() {
			continue
		}
		if since := n.Host.PendingSince; pending.IsZero() || since.Before(pending) {
			pending = since
		}
	}
	for state, n := range states {
		c.of(v1alpha1.MetricNodes, float64(n), state)
	}
	c.at(v1alpha1.MetricOldestPending, pending)
	c.of(v1alpha1.MetricStopped, one(s.Stopped))
	c.of(v1alpha1.MetricUnsettled, float64(len(s.Unsettled)))
}

// outcome adds what a leader decided.
func (c *collection) outcome(out *rollout.Outcome) {
	held, uses := map[v1alpha1.Reason]int{}, map[v1alpha1.SlotUse]int{}
	for i := range out.Verdicts {
		held[out.Verdicts[i].Held]++
	}
	for _, s := range out.Slots {
		uses[s.Use]++
	}
	for _, d := range v1alpha1.ReasonDocs() {
		c.of(v1alpha1.MetricHeldNodes, float64(held[d.Reason]), string(d.Reason))
	}
	for _, u := range v1alpha1.SlotUses() {
		c.of(v1alpha1.MetricUnavailable, float64(uses[u]), string(u))
	}
	slots := rollout.ByUse(out.Slots)
	for _, s := range slots[:min(len(slots), v1alpha1.MaxSlotSeries)] {
		c.of(v1alpha1.MetricSlot, 1, s.Node, string(s.Use))
	}
	f := &out.Figures
	c.of(v1alpha1.MetricManagedNodes, float64(f.Managed))
	c.of(v1alpha1.MetricReportingNodes, float64(f.Reporting))
	c.of(v1alpha1.MetricBudget, float64(f.Budget))
	c.of(v1alpha1.MetricFailed, float64(f.Failed))
}

// policies adds the figures of each policy; they are in the order of precedence.
func (c *collection) policies(all []rollout.PolicyFigures) {
	invalid := 0
	for i := range all {
		p := &all[i]
		if len(p.Problems) > 0 {
			invalid++
		}
		if i >= v1alpha1.MaxPolicySeries {
			continue
		}
		for count, n := range map[string]int{
			v1alpha1.CountSelected: p.Selected, v1alpha1.CountUpToDate: p.UpToDate, v1alpha1.CountWanting: p.Wanting, v1alpha1.CountInTurn: p.InTurn,
			v1alpha1.CountUnavailable: p.Unavailable, v1alpha1.CountFailed: p.Failed, v1alpha1.CountAllowed: p.Allowed,
		} {
			c.of(v1alpha1.MetricPolicyNodes, float64(n), p.Name, count)
		}
		c.of(v1alpha1.MetricPolicyHalted, one(p.Halted), p.Name)
	}
	c.of(v1alpha1.MetricPolicies, float64(len(all)-invalid), v1alpha1.PolicyValid)
	c.of(v1alpha1.MetricPolicies, float64(invalid), v1alpha1.PolicyInvalid)
}
