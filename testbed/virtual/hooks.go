package virtual

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/memhost"
)

// hookStages are the states whose hook units a host runs; see docs/hook-units.md.
var hookStages = []v1alpha1.State{v1alpha1.StateBeforeDrain, v1alpha1.StateBeforeReboot, v1alpha1.StateBeforeUncordon}

// hooks is what a host's hook units have done. The machine's mutex guards it.
type hooks struct {
	state   v1alpha1.State // of the Node
	turn    string         // of the Node
	part    bool           // the host wanted something, or its cordon was on the Node, at some time of that turn
	undo    string         // what a unit did that before-uncordon has not undone; "" if nothing
	undoing bool           // the unit of before-uncordon runs, and began after that
	// running has the stages whose unit runs, and whether it began while the host had a single process. Of two, the one whose watch is
	// behind may run the unit of before-uncordon once more when the turn is over already.
	running map[v1alpha1.State]bool
	began   map[v1alpha1.State]string // the turn in which each unit began last
	done    map[hookOf]bool           // the stages whose unit has succeeded
}

// hookOf is a hook stage of a turn.
type hookOf struct {
	turn  string
	stage v1alpha1.State
}

// unitModes are the units of a host, each with what its starts may do.
func unitModes() (modes []string) {
	units := []string{service, service} // every stage has a unit, and only one has the service
	for _, stage := range hookStages {
		units = append(units, hookUnit(stage))
	}
	for _, unit := range units {
		modes = append(modes, unit+","+string(unitFails), unit+","+string(unitHangs))
	}
	return modes
}

// unit returns the unit that a fault of a unit happens to, and what its starts do.
func (f Fault) unit() (name string, mode unitMode) {
	name, how, _ := strings.Cut(f.Mode, ",")
	return name, unitMode(how)
}

func hookUnit(stage v1alpha1.State) string { return "hook-" + string(stage) + ".service" }

// defineHooks defines the host's hook units and their targets.
func (m *Machine) defineHooks() {
	m.hooks.running, m.hooks.began, m.hooks.done = map[v1alpha1.State]bool{}, map[v1alpha1.State]string{}, map[hookOf]bool{}
	for stage, takes := range m.f.opts.Hooks {
		m.mem.Units().Set("lockkeeper-"+string(stage)+".target", memhost.Unit{Wants: []string{hookUnit(stage)}})
		m.mem.Units().Set(hookUnit(stage), memhost.Unit{
			StartTakes: takes, StopTakes: time.Second,
			Began: func(r memhost.Run) { m.hookBegan(stage, r) }, Ended: func(r memhost.Run) { m.hookEnded(stage, r) },
		})
	}
}

// hookBegan takes the start of a hook unit.
func (m *Machine) hookBegan(stage v1alpha1.State, r memhost.Run) {
	m.f.logf("%s runs %s", m.name, r.Unit)
	during := ""
	if obj := m.f.Node(m.name); obj != nil {
		during = obj.Annotations[v1alpha1.AnnotationTurn]
	}
	m.f.mu.Lock()
	rewound := m.f.rewound
	m.f.mu.Unlock()
	m.mu.Lock()
	if !m.hooks.part && m.f.attacks().Thief {
		defer m.f.problem("Hooks: %s wants nothing in the turn %q, and %s runs", m.name, m.hooks.turn, r.Unit)
	}
	m.hooks.running[stage], m.hooks.began[stage] = len(m.agents) < 2, during
	switch {
	case stage == v1alpha1.StateBeforeUncordon:
		m.hooks.undoing = true
	case !rewound.IsZero() && time.Since(rewound) <= mostAge: // the host has read what is gone
	default:
		m.hooks.undo, m.hooks.undoing = r.Unit+" ran", false
	}
	m.mu.Unlock()
	m.f.exec.start(func() { m.f.exec.Happened(m.f.ctx, m.name, "hook,"+string(stage)) })
}

// hookEnded takes the end of a hook unit.
func (m *Machine) hookEnded(stage v1alpha1.State, r memhost.Run) {
	m.f.logf("%s: the end of %s: %s", m.name, r.Unit, r.Result)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.hooks.running, stage)
	if r.Result != "success" {
		return
	}
	m.hooks.done[hookOf{m.hooks.began[stage], stage}] = true
	if stage == v1alpha1.StateBeforeUncordon && m.hooks.undoing {
		m.hooks.undo = ""
	}
}

// hooksLeft says what hook units have done, or do, that has to be undone before the node is idle; "" for nothing.
func (m *Machine) hooksLeft() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hooksLeftLocked()
}

func (m *Machine) hooksLeftLocked() string {
	for _, stage := range hookStages {
		if alone, runs := m.hooks.running[stage]; runs && (alone || stage != v1alpha1.StateBeforeUncordon) {
			return hookUnit(stage) + " still runs"
		}
	}
	if _, undoes := m.f.opts.Hooks[v1alpha1.StateBeforeUncordon]; undoes && m.hooks.undo != "" && !m.f.attacked(m.name) {
		return m.hooks.undo + ", and before-uncordon has not undone that"
	}
	return ""
}

// forgetHooks forgets what is to be undone: the turn is gone in a way that no host can follow.
func (m *Machine) forgetHooks() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hooks.undo = ""
	clear(m.hooks.running)
}

// restoredHooks forgets what hook units have done in a store that was set back. A host that has read its Node just before may still
// begin a unit for the state that the Node is no longer in, so the state is the one that the store has again.
func (m *Machine) restoredHooks(obj *corev1.Node) {
	m.forgetHooks()
	if obj == nil {
		return
	}
	n := turn.FromNode(obj)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hooks.state = n.State
}

// followTurn records whether the host takes part in the turn that the Node is in. In a store that was set back, it may have taken part before.
// The caller has the mutex.
func (h *hooks) followTurn(n turn.Node, rewound bool) {
	if n.Turn != h.turn {
		h.turn, h.part = n.Turn, rewound
	}
	h.part = h.part || n.Wants.Something() || n.Mark
}

// judge takes a new version of the host's Node. A nil obj means that the Node was deleted.
func (m *Machine) judge(obj *corev1.Node) {
	if obj == nil {
		m.forgetHooks()
		m.judgeHeld(&turn.Node{})
		m.judgeApplying(&turn.Node{})
		return
	}
	n := turn.FromNode(obj)
	m.judgeHooks(&n)
	m.judgeHeld(&n)
	m.judgeApplying(&n)
}

// continued returns the hook stage that a turn has left toward its disruption, or "".
func continued(from, to v1alpha1.State) v1alpha1.State {
	if from == v1alpha1.StateBeforeDrain && to == v1alpha1.StateDraining || from == v1alpha1.StateBeforeReboot && to == v1alpha1.StateRebooting {
		return from
	}
	return ""
}

// judgeHooks checks that a turn continues only after the stage's hook unit has succeeded and, when the turn is over, that before-uncordon has
// undone what the host's other hooks did. A turn that an admin ended by force, or with the Node, is not undone. Nor is one that an attacker
// ended (docs/security.md): a later turn, without an attacker, undoes it.
func (m *Machine) judgeHooks(n *turn.Node) {
	if n.State == v1alpha1.StateAbsent || n.Detached != nil && n.Detached.Force {
		m.forgetHooks()
	}
	m.mu.Lock()
	stage := v1alpha1.State("")
	if n.Turn == m.hooks.turn {
		stage = continued(m.hooks.state, n.State)
	}
	_, has := m.f.opts.Hooks[stage]
	undone := has && !m.hooks.done[hookOf{n.Turn, stage}]
	m.hooks.followTurn(*n, m.f.wasRewound())
	ended := n.State == v1alpha1.StateIdle && m.hooks.state != n.State
	m.hooks.state = n.State
	left := m.hooksLeftLocked()
	m.mu.Unlock()
	if undone && !m.f.attacked(m.name) {
		m.f.problem("Hooks: %s continues from %s to %s, and %s has not succeeded in the turn %s", m.name, stage, n.State, hookUnit(stage), n.Turn)
	}
	if ended && left != "" && !m.f.attacked(m.name) {
		m.f.problem("Hooks: %s is idle again, and %s", m.name, left)
	}
}

// evictions is a process's way to the API server. It checks that no pod is evicted again after the host was told that its eviction was
// accepted. Only the process that was told may, after a while: its watch may be too slow to show that the pod is terminating.
type evictions struct {
	a    *agentRun
	next http.RoundTripper
}

// accepted is the end of an eviction.
type accepted struct {
	by *agentRun
	at time.Time
}

// evictsAgain is how long the drain waits for an evicted pod to terminate before it evicts it again.
const evictsAgain = 30 * time.Second

// evictsWithin is how old the last read of the Lease may be when a host evicts a pod. It reads the Lease every 11 s, and waits 10 s for the answer.
// The rest is for D-Bus calls in the same round that are slow.
const evictsWithin = 40 * time.Second

// evicts checks that the process evicts only while it reads the Lease again and again: otherwise it would not see an emergency stop. A frozen
// process has not really sent it, and what it was reading may take as long after that as a read may.
func (a *agentRun) evicts() {
	m := a.m
	m.mu.Lock()
	age := time.Since(m.reads.lease)
	thawed := time.Since(m.reads.thawed) <= mostAge+clockSlack
	m.mu.Unlock()
	if age > evictsWithin && !thawed && a.frozen() == nil && !a.killed() {
		m.f.problem("Fresh: %s: it evicts a pod %v after its last read of the Lease", m.name, age.Round(time.Second))
	}
}

// RoundTrip implements [http.RoundTripper].
func (e evictions) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/eviction") || r.Body == nil {
		return e.next.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	uid := evictedUID(body)
	f := e.a.m.f
	f.mu.Lock()
	first, again := f.evicted[uid] // conditional reports an eviction without a UID
	f.mu.Unlock()
	ago := time.Since(first.at)
	successor := again && first.by != e.a && first.by.killed() && e.a.began.After(first.at)
	if again && !e.a.killed() && (first.by == e.a && ago < evictsAgain || successor) {
		f.problem("Evict: %s sends %s, which %s was told %v ago was accepted", e.a.root, r.URL.Path, first.by.root, ago)
	}
	sent := time.Now()
	e.a.evicts()
	resp, err := e.next.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusCreated && !e.a.killed() {
		f.mu.Lock()
		if sent.After(f.rewound) { // otherwise the pod may be back
			f.evicted[uid] = accepted{e.a, time.Now()}
		}
		f.mu.Unlock()
	}
	return resp, err
}

// evictedUID returns the UID that an eviction names, or "".
func evictedUID(body []byte) string {
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	v, is := obj.(*policyv1.Eviction)
	if err != nil || !is || v.DeleteOptions == nil || v.DeleteOptions.Preconditions == nil || v.DeleteOptions.Preconditions.UID == nil {
		return ""
	}
	return string(*v.DeleteOptions.Preconditions.UID)
}
