package explore

import (
	"fmt"
	"math/bits"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// Plan is what every host's update costs.
type Plan uint8

// The plans.
const (
	DrainReboot Plan = iota
	RebootOnly
	DrainApply
	ApplyOnly
)

func (p Plan) wants() (v1alpha1.Wants, bool) {
	switch p {
	case RebootOnly:
		return v1alpha1.WantsReboot, false
	case DrainApply:
		return v1alpha1.WantsDrain, true
	case ApplyOnly:
		return v1alpha1.WantsApply, false
	}
	return v1alpha1.WantsReboot, true
}

// Config is what is explored.
type Config struct {
	Nodes  int // 1 to 3
	Budget int
	Faults int // how many faults a run may have, of these kinds
	Kinds  kindSet
	Plan   Plan
	Hooks  bool // a hook in each stage, which may be confirmed or not
	Absent bool // nodes begin without a word, not idle
	// Lag lets a term's view of the Nodes stay behind, and its writes land when
	// they are decided. Without it the view is the Nodes as they are, and the
	// writes are on their way for as long as may be. See doc.go.
	Lag bool
	// Stale is how many rounds a term may decide after it lost the Lease and
	// before it notices, 0 to 3.
	Stale uint8
	Bug   Bug
	// Only, where not empty, are the names of the properties that are held.
	Only []string
	// MaxStates ends the search; 0: no end. See Result.Whole.
	MaxStates int
}

// String names the configuration in a line.
func (c Config) String() string {
	plural := func(n int, word string) string {
		if n == 1 {
			return "1 " + word
		}
		return fmt.Sprintf("%d %ss", n, word)
	}
	var text strings.Builder
	text.WriteString(fmt.Sprintf("%s, budget %d, %s", plural(c.Nodes, "node"), c.Budget, plural(c.Faults, "fault")))
	if c.Kinds != allKinds {
		text.WriteString(fmt.Sprintf(" of %d kinds", bits.OnesCount64(uint64(c.Kinds))))
	}
	text.WriteString([...]string{"", ", no drain", ", apply on a drained node", ", apply"}[c.Plan])
	if c.Stale > 1 {
		text.WriteString(fmt.Sprintf(", %d stale rounds", c.Stale))
	}
	for _, o := range []struct {
		on   bool
		word string
	}{{c.Hooks, ", hooks"}, {c.Absent, ", from nothing"}, {c.Lag, ", lagging views"}} {
		if o.on {
			text.WriteString(o.word)
		}
	}
	return text.String()
}

// model makes the steps of a state. It calls the real cores and remembers what
// they said.
type model struct {
	Config
	*tables
	policy   policy.Policy
	steps    map[seen]*did
	decides  map[snapshot][]round
	orders   [][]int
	disposed int // how many writes of dead writers found no room
}

func newModel(c Config) *model {
	m := &model{Config: c, tables: newTables(), steps: map[seen]*did{}, decides: map[snapshot][]round{}}
	m.policy = policy.Default()
	m.policy.Settle = 0
	m.policy.MaxUnavailable.Number = c.Budget
	if c.Bug == BudgetOffByOne {
		m.policy.MaxUnavailable.Number++
	}
	if c.Hooks {
		t := &m.policy.Terms
		for i, stage := range []*[]v1alpha1.Hook{&t.BeforeDrain, &t.BeforeReboot, &t.BeforeUncordon} {
			h := v1alpha1.Hook{Name: hookNames[i], OnTimeout: v1alpha1.OnTimeoutAbort}
			if i == 2 {
				h.OnTimeout = v1alpha1.OnTimeoutWait
			}
			h.Timeout.Duration = time.Hour
			*stage = []v1alpha1.Hook{h}
		}
	}
	m.orders = [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	return m
}

// begin is where every run begins: a leader at work, every host up, with an
// update staged and its want published, and idle.
func (m *model) begin() state {
	s := state{lease: lease{exists: true, holder: 1}, faults: int8(m.Faults)}
	s.terms[0] = term{live: true, listed: true}
	wants, drains := m.Plan.wants()
	for i := range m.Nodes {
		n := node{boot: 1, version: 1, change: 2, pods: true, proc: true, started: 1, src: true, known: 2, vcur: true}
		o := object{uid: 1, boot: 1, ready: true}
		if !m.Absent {
			o.state = number(states, v1alpha1.StateIdle)
			o.wants = 1 + number(wantsList, wants)
			o.host = hostRecord{boot: 1, start: 1, uid: 1, managed: true, drains: drains, change: 2, version: 1}
		}
		n.api = m.object(o)
		n.terms[0].vcur = true
		n.terms[1].vcur = m.Bug == CachedList
		s.n[i] = n
	}
	return s
}

// set makes o the Node's next version: whoever looked at the last one looks at
// the past, and what was decided on it is dead. by is the slot of the term
// that wrote it, byHost, or byOther.
func (m *model) set(n *node, o object, by int) bool {
	id := m.object(o)
	if id == n.api {
		return false // the API server writes nothing
	}
	old := n.api
	n.api = id
	if n.proc && n.vcur && by != byHost {
		n.vcur, n.view = false, old
	}
	for k := range n.terms {
		t := &n.terms[k]
		if t.vcur && by != k && m.Lag {
			t.vcur, t.view = false, old
		}
		switch t.write {
		case toSend:
			*t = sight{vcur: t.vcur, view: t.view}
		case unknown:
			t.write, t.obj = unknownOf, 0
		}
	}
	n.orphans = [3]uint32{}
	return true
}

const (
	byHost  = -1
	byOther = -2
)

// orphan leaves a write whose writer died on its way.
func (m *model) orphan(n *node, obj uint32) {
	if obj == n.api {
		return
	}
	for k, o := range n.orphans {
		if o == obj {
			return
		}
		if o == 0 {
			n.orphans[k] = obj
			return
		}
	}
	m.disposed++
}

// event is what a step did, for the properties.
type event struct {
	action action
	// writer says who wrote Node node; "" is no one.
	writer        writer
	node, term    int
	before, after object
	// host is the node as it was before the step, with the host's look.
	host node
	// reboots: the host calls for a reboot, of this turn as it sees it.
	reboots   bool
	turnSeen  uint8
	grantSeen grantRecord
	// publishes: wants are in the host's write.
	publishes bool
	// leaseWas is the Lease before the step.
	leaseWas lease
}

type writer string

const (
	hostWrites  writer = "host"
	leadWrites  writer = "coordinator"
	adminWrites writer = "admin"
	lateHost    writer = "host, late"
	lateLeader  writer = "coordinator, late"
)

// next hands every step that can be made from s to yield.
func (m *model) next(s *state, yield func(*event, *state)) {
	for i := range m.Nodes {
		m.hostSteps(s, i, yield)
		m.machineSteps(s, i, yield)
		m.adminSteps(s, i, yield)
	}
	for k := range s.terms {
		m.termSteps(s, k, yield)
	}
	m.leaseSteps(s, yield)
}
