// Package metrics serves the metrics and the health of one process. The table in package
// v1alpha1 lists all metrics (docs/metrics.md); this package gives them their values.
//
// The loops call it when something happens. It decides nothing, asks the API server for
// nothing, and must not know why a value is what it is.
package metrics

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/local"
)

// Sources are what is asked when somebody looks.
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
	version string
	sources Sources
	descs   map[v1alpha1.Metric]*prometheus.Desc

	HostContact, CoordinatorContact *Contact

	mu       sync.Mutex
	turns    map[v1alpha1.Result]int
	stages   *prometheus.HistogramVec
	stage    stage // of this host's turn, zero outside of one
	terms    int
	term     string         // the epoch of the last term of this process
	notified map[string]int // by what happened to the notification
	decision prometheus.Histogram
	fleet    *fleet // nil before a first decision; of a term that may be over
}

// stage is a stage of a turn, and when it began by the coordinator's clock.
type stage struct {
	turn  string
	state v1alpha1.State
	began time.Time
}

// fleet is what a leader saw when it last decided.
type fleet struct {
	epoch     string // the term it decided in
	states    map[v1alpha1.State]int
	held      map[v1alpha1.Reason]int
	unsettled int // nodes
	uses      map[v1alpha1.SlotUse]int
	slots     []rollout.Slot // those that have series
	stopped   bool
	pending   time.Time // since when the oldest pending change has been, zero for none
	rollout.Figures
}

// buckets of a decision, in seconds: that of five thousand nodes takes a few
// hundredths.
var buckets = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1}

// stageBuckets are those of a stage of a turn, in seconds: a hook or an uncordon takes seconds, a reboot minutes, a drain
// up to hours. They are few, because each host has them for each state of a turn.
var stageBuckets = []float64{1, 5, 30, 60, 300, 900, 1800, 3600, 4 * 3600}

// New makes the metrics of a process of that version of lockkeeper. Watch has
// to be called before anybody looks.
func New(version string) *Metrics {
	m := &Metrics{
		version: version, descs: map[v1alpha1.Metric]*prometheus.Desc{},
		HostContact: newContact(v1alpha1.IdentityHost), CoordinatorContact: newContact(v1alpha1.IdentityCoordinator),
		turns:    map[v1alpha1.Result]int{},
		notified: map[string]int{v1alpha1.NotificationSent: 0, v1alpha1.NotificationFailed: 0, v1alpha1.NotificationLost: 0},
	}
	for _, d := range v1alpha1.MetricDocs() {
		m.descs[d.Name] = prometheus.NewDesc(string(d.Name), d.Help, d.Labels, nil)
		switch d.Name {
		case v1alpha1.MetricDecision:
			m.decision = prometheus.NewHistogram(prometheus.HistogramOpts{Name: string(d.Name), Help: d.Help, Buckets: buckets})
		case v1alpha1.MetricStageDuration:
			m.stages = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: string(d.Name), Help: d.Help, Buckets: stageBuckets}, d.Labels)
		}
	}
	for _, s := range v1alpha1.States() {
		if s.InTurn() {
			m.stages.WithLabelValues(s.String()) // a histogram is there from the start, as a counter is
		}
	}
	for _, r := range []v1alpha1.Result{v1alpha1.ResultDone, v1alpha1.ResultCancelled, v1alpha1.ResultBackedOut, v1alpha1.ResultFailed} {
		m.turns[r] = 0 // a counter is there from the start
	}
	return m
}

// Watch says where the facts are.
func (m *Metrics) Watch(s Sources) { m.sources = s }

// TurnEnded counts a turn of this host's.
func (m *Metrics) TurnEnded(r v1alpha1.Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.turns[r]; known { // a label of somebody else's making is none
		m.turns[r]++
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
		m.terms++
	}
}

// Notified counts a notification by what happened to it.
func (m *Metrics) Notified(result string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notified[result]++
}

// Decided takes in a leader's decision, which took that long. It is told of
// each, and keeps nothing of what it is given.
func (m *Metrics) Decided(took time.Duration, s *rollout.Snapshot, out *rollout.Outcome) {
	f := &fleet{epoch: s.Epoch, states: map[v1alpha1.State]int{}, held: map[v1alpha1.Reason]int{}, unsettled: len(s.Unsettled), stopped: s.Stopped, Figures: out.Figures}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		f.states[n.State]++
		if n.State == v1alpha1.StateAbsent || !n.HostReported() || n.Host.PendingSince.IsZero() {
			continue
		}
		if since := n.Host.PendingSince; f.pending.IsZero() || since.Before(f.pending) {
			f.pending = since
		}
	}
	for i := range out.Verdicts {
		if held := out.Verdicts[i].Held; held != v1alpha1.ReasonNone {
			f.held[held]++
		}
	}
	f.uses = map[v1alpha1.SlotUse]int{}
	for _, s := range out.Slots {
		f.uses[s.Use]++
	}
	f.slots = rollout.ByUse(out.Slots)
	f.slots = f.slots[:min(len(f.slots), v1alpha1.MaxSlotSeries)]
	m.decision.Observe(took.Seconds())
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fleet = f
}

// Describe names nothing: which series there are depends on the facts.
func (m *Metrics) Describe(chan<- *prometheus.Desc) {}

// Collect gives every metric its value, as things are now.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	c := collection{m, out, time.Now()}
	c.of(v1alpha1.MetricBuildInfo, 1, m.version, strconv.Itoa(v1alpha1.Protocol))
	c.of(v1alpha1.MetricHealthy, one(m.sources.Healthy()))
	c.host(m.sources.Host())
	for _, contact := range []*Contact{m.HostContact, m.CoordinatorContact} {
		c.contact(contact)
	}
	for _, s := range m.sources.Credentials() {
		c.credential(&s)
	}
	role := m.sources.Role()
	c.of(v1alpha1.MetricCandidate, one(role.Candidate))
	c.of(v1alpha1.MetricLeader, one(role.Leader))
	m.decision.Collect(out)
	m.stages.Collect(out)

	m.mu.Lock()
	defer m.mu.Unlock()
	for r, n := range m.turns {
		c.of(v1alpha1.MetricHostTurns, float64(n), string(r))
	}
	c.of(v1alpha1.MetricTerms, float64(m.terms))
	for result, n := range m.notified {
		c.of(v1alpha1.MetricNotifications, float64(n), result)
	}
	if role.Leader && m.fleet != nil && m.fleet.epoch == role.Epoch {
		c.fleet(m.fleet)
	}
}

// collection is one look.
type collection struct {
	*Metrics
	out chan<- prometheus.Metric
	now time.Time
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

var types = map[v1alpha1.MetricType]prometheus.ValueType{v1alpha1.Gauge: prometheus.GaugeValue, v1alpha1.Counter: prometheus.CounterValue}

var typeOf = func() map[v1alpha1.Metric]prometheus.ValueType {
	all := map[v1alpha1.Metric]prometheus.ValueType{}
	for _, d := range v1alpha1.MetricDocs() {
		all[d.Name] = types[d.Type]
	}
	return all
}()

// of sends a series of a metric that the table has; its labels are in the
// table's order.
func (c *collection) of(name v1alpha1.Metric, value float64, labels ...string) {
	c.out <- prometheus.MustNewConstMetric(c.descs[name], typeOf[name], value, labels...)
}

// at sends a time, none for the zero one.
func (c *collection) at(name v1alpha1.Metric, t time.Time, labels ...string) {
	if !t.IsZero() {
		c.of(name, float64(t.UnixMilli())/1000, labels...)
	}
}

func (c *collection) host(h local.Host) {
	c.of(v1alpha1.MetricHostState, 1, word(h.State))
	wants := string(h.Wants)
	if wants == "" {
		wants = v1alpha1.WantsUnknown
	}
	c.of(v1alpha1.MetricHostWants, 1, wants)
	if h.Waits == v1alpha1.ReasonNone {
		c.of(v1alpha1.MetricHostWaits, 0, v1alpha1.WaitsForNothing)
	} else {
		c.of(v1alpha1.MetricHostWaits, 1, string(h.Waits))
	}
	if h.Since.IsZero() {
		h.Since = c.now
	}
	c.at(v1alpha1.MetricHostSince, h.Since)
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
	c.of(v1alpha1.MetricHostTurn, c.age(h.TurnSince))
	c.of(v1alpha1.MetricHostStage, c.age(h.StageSince))
}

// word is a state as a label: one that nobody knows, in somebody's label on a
// Node, makes no series of its own.
func word(s v1alpha1.State) string {
	if !s.Known() {
		return "unknown"
	}
	return s.String()
}

// age is how long ago t was, in seconds; 0 for the zero time.
func (c *collection) age(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return max(c.now.Sub(t).Seconds(), 0)
}

func (c *collection) contact(from *Contact) {
	from.mu.Lock()
	defer from.mu.Unlock()
	for answer, n := range from.answers {
		c.of(v1alpha1.MetricAPIRequests, float64(n), from.identity, answer)
	}
	if from == c.HostContact {
		for answer, n := range from.evictions {
			c.of(v1alpha1.MetricHostEvictions, float64(n), answer)
		}
	}
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
		c.of(v1alpha1.MetricRenewals, float64(s.Renewals), "renewed")
		c.of(v1alpha1.MetricRenewals, float64(s.Failures), "failed")
	}
}

func (c *collection) fleet(f *fleet) {
	counts := map[string]int{"unknown": 0}
	for _, s := range v1alpha1.States() {
		counts[s.String()] = 0
	}
	for s, n := range f.states {
		counts[word(s)] += n
	}
	for s, n := range counts {
		c.of(v1alpha1.MetricNodes, float64(n), s)
	}
	for _, d := range v1alpha1.ReasonDocs() {
		c.of(v1alpha1.MetricHeldNodes, float64(f.held[d.Reason]), string(d.Reason))
	}
	for _, u := range v1alpha1.SlotUses() {
		c.of(v1alpha1.MetricUnavailable, float64(f.uses[u]), string(u))
	}
	for _, s := range f.slots {
		c.of(v1alpha1.MetricSlot, 1, s.Node, string(s.Use))
	}
	c.of(v1alpha1.MetricStopped, one(f.stopped))
	c.at(v1alpha1.MetricOldestPending, f.pending)
	c.of(v1alpha1.MetricManagedNodes, float64(f.Managed))
	c.of(v1alpha1.MetricReportingNodes, float64(f.Reporting))
	c.of(v1alpha1.MetricBudget, float64(f.Budget))
	c.of(v1alpha1.MetricFailed, float64(f.Failed))
	c.of(v1alpha1.MetricUnsettled, float64(f.unsettled))
	c.policies(f.Policies)
}

// policies gives the figures of each policy; they are in the order in which the
// policies win.
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
