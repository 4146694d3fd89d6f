package explore

import (
	"fmt"
	"math/bits"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// Plan is the set of steps that each host's update needs.
type Plan uint8

// These are the plans.
const (
	DrainReboot Plan = iota
	RebootOnly
	DrainApply
	ApplyOnly
	Requested // by an admin, with no change on the host
	ByClient  // by the host's FleetLock client, which reboots the host
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

// Config defines what is explored.
type Config struct {
	Nodes  int // 1 to 3
	Budget int
	Faults int // the number of faults in a run, of these kinds
	Kinds  kindSet
	Plan   Plan
	Settle bool // grants wait for the settle time, which passes in a step of its own
	// Pools is the number of policies, 0 for one that selects all nodes. Each selects a pool of the nodes and has its own
	// budget. Total is the budget of all nodes together, 0 for none; one policy has it.
	Pools, Total int
	// Control is the number of control-plane nodes.
	Control int
	Hooks   bool // a hook in each stage, which may or may not be confirmed
	Units   bool // each host has hook units of its own in each hook stage
	Wait    bool // the timeouts of the drain and of all hooks are Wait
	Absent  bool // nodes begin without any labels instead of idle
	// Blocks is what the policy does with pods that the drain must not evict, if there may be any; see block.go.
	Blocks Blocks
	// After: the nodes of the second policy wait for those of the first, which are its canaries; see canary.go.
	After bool
	// Blackouts: blackouts begin and end at any time. With OnClose, they cancel turns that have not committed.
	Blackouts, OnClose bool
	// Lag lets a term's view of the Nodes lag behind, and lets its writes land when they are decided. Without Lag the
	// view is current, and the writes are in flight for any time. See doc.go.
	Lag bool
	// Stale is the number of rounds, 0 to 3, that a term may decide after it lost the Lease and before it notices.
	Stale uint8
	Bug   Bug
	// Only restricts the check to the properties with these names. Empty means all.
	Only []string
	// MaxStates limits the number of states. 0 means no limit. See Result.Whole.
	MaxStates int
}

// String describes the configuration in one line.
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
	text.WriteString([...]string{"", ", no drain", ", apply on a drained node", ", apply", ", requested", ", by FleetLock"}[c.Plan])
	if c.Pools > 0 {
		text.WriteString(fmt.Sprintf(", %d policies, budget %d in all", c.Pools, c.Total))
	}
	if c.Control > 0 {
		text.WriteString(fmt.Sprintf(", %d control-plane", c.Control))
	}
	if c.Stale > 1 {
		text.WriteString(fmt.Sprintf(", %d stale rounds", c.Stale))
	}
	for _, o := range []struct {
		on   bool
		word string
	}{{c.Hooks, ", hooks"}, {c.Units, ", hook units"}, {c.Settle, ", settling"}, {c.Wait, ", timeouts that wait"}, {c.Absent, ", from nothing"}, {c.Lag, ", lagging views"},
		{c.Blocks == BlocksHold, ", pods that block"}, {c.Blocks == BlocksEvict, ", pods that block for a time"}, {c.After, ", canaries"}, {c.Blackouts, ", blackouts"}, {c.OnClose, " that cancel"}} {
		if o.on {
			text.WriteString(o.word)
		}
	}
	return text.String()
}

// model yields the steps of a state. It calls the real cores and caches their answers.
type model struct {
	Config
	*tables
	policy   policy.Policy // of Terms that all policies have
	policies policy.Set
	dark     policy.Set             // policies in a blackout
	read     map[poolView]turn.Node // the versions of Nodes as the cores see them
	steps    map[seen]*did
	decides  map[snapshot][]round
	orders   [][]int
	world    world
	disposed int // the number of writes in flight that did not fit into the model
}

// planSteps is the number of units that a plan restarts.
const planSteps = 2

func newModel(c Config) *model {
	m := &model{Config: c, tables: newTables(), read: map[poolView]turn.Node{}, steps: map[seen]*did{}, decides: map[snapshot][]round{}}
	m.policy = policy.Default()
	if !c.Settle {
		m.policy.Settle = 0
	}
	m.policy.MaxUnavailable.Number = c.Budget
	if c.Bug == BudgetOffByOne {
		m.policy.MaxUnavailable.Number++
	}
	t := &m.policy.Terms
	if c.Wait {
		t.DrainTimeout = v1alpha1.OnTimeoutWait
	}
	if c.Hooks {
		for i, stage := range []*[]v1alpha1.Hook{&t.BeforeDrain, &t.BeforeReboot, &t.BeforeUncordon} {
			h := v1alpha1.Hook{Name: hookNames[i], OnTimeout: v1alpha1.OnTimeoutAbort}
			if c.Wait || i == 2 {
				h.OnTimeout = v1alpha1.OnTimeoutWait
			}
			h.Timeout.Duration = time.Hour
			*stage = []v1alpha1.Hook{h}
		}
	}
	m.setBlocks(t)
	if c.OnClose {
		t.OnClose = v1alpha1.OnCloseCancel
	}
	m.policies = m.pools()
	m.dark = blackedOut(m.policies)
	m.orders = [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	return m
}

// pools returns the policies.
func (m *model) pools() policy.Set {
	if m.Pools == 0 {
		return policy.Set{m.policy}
	}
	var set policy.Set
	for pool := range uint8(m.Pools) {
		obj := &v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
		obj.Name = id("p", pool+1)
		obj.Spec.NodeSelector.MatchLabels = map[string]string{"pool": obj.Name}
		p := policy.Compile(obj, func(string) (*time.Location, error) { return time.UTC, nil })
		p.Settle, p.MaxUnavailable, p.Terms = m.policy.Settle, m.policy.MaxUnavailable, m.policy.Terms
		if pool == 0 && m.Total > 0 && m.Bug != TotalIgnored {
			p.MaxUnavailableTotal = &policy.Limit{Number: m.Total}
		}
		if pool == 1 && m.After {
			p.After = []policy.After{{Policy: id("p", canaryPool), For: canaryTime}}
		}
		if m.Bug == PolicyIgnored {
			p.MaxUnavailable.Number = m.Nodes
		}
		set = append(set, p)
	}
	return policy.NewSet(set...)
}

// poolOf returns the pool of the node with index i: pools take turns.
func (m *model) poolOf(i int) uint8 {
	if m.Pools == 0 {
		return 0
	}
	return uint8(i%m.Pools) + 1
}

// begin returns the initial state of every run: a leader is active, and every host is up and idle, has staged an update
// and has published its wants.
func (m *model) begin() state {
	s := state{lease: lease{exists: true, holder: 1}, faults: int8(m.Faults)}
	s.terms[0] = term{live: true, listed: true}
	wants, drains := m.Plan.wants()
	for i := range m.Nodes {
		n := node{control: i < m.Control, pool: m.poolOf(i), boot: 1, version: 1, change: 2, pods: true, proc: true, started: 1, src: true, known: 2, vcur: true}
		o := object{uid: 1, boot: 1, ready: true}
		if !m.Absent {
			o.state = number(states, v1alpha1.StateIdle)
			o.wants = 1 + number(wantsList, wants)
			o.host = hostRecord{boot: 1, start: 1, uid: 1, managed: true, units: m.Units, drains: drains, change: 2, version: 1}
		}
		if m.Plan == Requested {
			n.change, n.known, n.asked = 0, 0, 1
			o.request, o.host.change, o.host.request = 1, 0, true
		}
		if m.Plan == ByClient {
			n.known, n.asking, n.open = 0, askingYes, true
			o.host.change, o.host.client = 0, true
		}
		n.api = m.object(o)
		if m.After && n.pool == canaryPool {
			n.follow(&object{uid: o.uid}, &o)
		}
		n.terms[0].vcur = true
		n.terms[1].vcur = m.Bug == CachedList
		s.n[i] = n
	}
	return s
}

// set makes o the Node's next version. A reader of the previous version now sees the past, and a write that was decided
// on it is dead. by is the slot of the term that wrote o, or byHost or byOther.
func (m *model) set(n *node, o object, by int) bool {
	id := m.object(o)
	if id == n.api {
		return false // for the API server this is not a write
	}
	old := n.api
	n.api = id
	if m.After && n.pool == canaryPool {
		n.follow(&m.objects[old], &o)
	}
	switch {
	case by == byHost:
		n.refusal = 0
	case n.proc && n.vcur:
		n.vcur, n.view = false, old
	}
	for k := range n.terms {
		t := &n.terms[k]
		if t.vcur && by != k && m.Lag {
			t.vcur, t.view = false, old
		}
		switch t.write {
		case toSend:
			drop(t)
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

// orphan leaves a write in flight whose writer died or lost the answer.
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

// event describes what a step did. The properties read it.
type event struct {
	action action
	// writer is the writer of the Node with the index node. "" means that the step wrote no Node.
	writer        writer
	node, term    int
	before, after object
	// host is the node before the step, including the host's reads.
	host node
	// reboots is true if the host calls for a reboot. turnSeen and grantSeen are the turn as the host sees it.
	reboots   bool
	turnSeen  uint8
	grantSeen grantRecord
	// permits is true if the host permits its FleetLock client to reboot.
	permits bool
	// evicts is true if the host evicts a pod that blocks.
	evicts bool
	// starts is what the host begins: hook units or a step of its plan, or "".
	starts step.Effect
	// publishes is true if the host's write contains wants.
	publishes bool
}

type writer string

const (
	hostWrites  writer = "host"
	leadWrites  writer = "coordinator"
	adminWrites writer = "admin"
	lateHost    writer = "host, late"
	lateLeader  writer = "coordinator, late"
)

// next yields every step that is possible in s.
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
