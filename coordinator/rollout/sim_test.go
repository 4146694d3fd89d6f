package rollout_test

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// cluster is a model of a cluster in which both pure cores run: Node objects
// with resource versions, one Lease, machines, and a clock that stands still
// until it is moved. Nothing in it decides; it carries decisions out, logs
// them, and holds them against the promises (see promise).
type cluster struct {
	now      time.Time
	policies map[string]policy.Policy // by name
	gates    map[string]rollout.Gate
	nodes    map[string]*corev1.Node
	facts    map[string]knownFact
	hosts    map[string]*host
	lease    step.Lease
	// leads is false while no coordinator runs.
	leads bool
	// ledUntil is until when the last leader led; see rollout.Snapshot.
	ledUntil time.Time
	self     string
	version  int
	turns    int
	// uncertain are the nodes with a write whose outcome the leader does not
	// know, as it saw them before; see rollout.Snapshot.
	uncertain map[string]turn.Node
	// lose makes the leader's next write one of those: "dropped" or "landed".
	lose string
	// stale is set while a leader writes that is the leader no more.
	stale bool
	// confirms has all hooks confirm as soon as their stage is entered.
	confirms bool
	// edited is set where people edit the coordinator's keys. A grant that
	// they left on an idle node stays until the next turn.
	edited bool
	// taken are snapshots kept for a stale leader, by its epoch.
	taken map[string]rollout.Snapshot
	// until, where set, ends a run; it is asked after each write.
	until func() bool

	rooms  map[string]room // by turn
	were   map[string]int  // disturbed by turns of each policy, and of "" all, when they were last counted
	log    []string
	broken []string // promises broken
}

// host is a machine, its kubelet and its process of lockkeeper.
type host struct {
	name    string
	up      bool // the machine runs
	process bool // lockkeeper runs on it
	unread  bool // its sources cannot be read
	boots   int
	bootAt  time.Time
	upAt    time.Time // when a machine that is down comes up

	version string // of the OS that runs
	next    string // of the OS that the next boot brings
	pending string // the version that the update engine wants a reboot for
	file    bool   // /etc/app changed, which costs a drain and a restart

	pods        int
	stuck       bool // a budget blocks its evictions
	unhealthy   bool
	managed     bool
	drain       step.Drain
	drainOf     string // the turn and state that drain belongs to
	apply       step.Work
	look        *step.FreshRead
	goingDown   bool
	reboots     map[string]int // by turn
	adminCordon bool
	// claims, where not zero, is what a host that lies says of when it booted.
	claims time.Time
}

const (
	tick     = 10 * time.Second
	bootTime = time.Minute
)

func newCluster() *cluster {
	c := &cluster{
		now:      time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC),
		policies: map[string]policy.Policy{builtIn: newPolicy(builtIn, 0, nil)}, leads: true,
		gates: map[string]rollout.Gate{}, rooms: map[string]room{}, were: map[string]int{},
		nodes: map[string]*corev1.Node{}, facts: map[string]knownFact{}, hosts: map[string]*host{},
		lease:     step.Lease{Exists: true, Holder: "a"},
		uncertain: map[string]turn.Node{}, taken: map[string]rollout.Snapshot{},
	}
	return c
}

func (c *cluster) add(name string) (*corev1.Node, *host) {
	h := &host{
		name: name, up: true, process: true, boots: 1, bootAt: c.now.Add(-24 * time.Hour),
		version: "4.1", next: "4.1", pods: 3, managed: true, reboots: map[string]int{},
	}
	c.hosts[name] = h
	n := c.create(name, c.now.Add(-time.Hour))
	return n, h
}

func (c *cluster) create(name string, at time.Time) *corev1.Node {
	c.version++
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(fmt.Sprintf("%s-uid-%d", name, c.version)), CreationTimestamp: metav1.NewTime(at),
		Labels: map[string]string{}, Annotations: map[string]string{}, ResourceVersion: strconv.Itoa(c.version),
	}}
	c.nodes[name] = n
	c.hosts[name].adminCordon = false
	c.kubelet(c.hosts[name])
	return n
}

// kubelet reports the machine: boot id and Ready in one write.
func (c *cluster) kubelet(h *host) {
	n := c.nodes[h.name]
	if n == nil {
		return
	}
	status := corev1.ConditionFalse
	if h.up {
		status = corev1.ConditionTrue
		n.Status.NodeInfo.BootID = h.boot()
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	c.bump(n)
}

func (c *cluster) bump(n *corev1.Node) {
	c.version++
	n.ResourceVersion = strconv.Itoa(c.version)
}

func (h *host) boot() string { return fmt.Sprintf("%s-boot-%d", h.name, h.boots) }

func (c *cluster) names() []string { return slices.Sorted(maps.Keys(c.nodes)) }

// fact returns the facts of a Node. It reads them again only if the Node has changed, because most of a campaign's time would go into
// decoding the same records.
func (c *cluster) fact(name string) turn.Node {
	n := c.nodes[name]
	if n == nil {
		return turn.Node{}
	}
	f := c.facts[name]
	if f.of == nil || f.of.UID != n.UID || f.of.ResourceVersion != n.ResourceVersion || f.of.Spec.Unschedulable != n.Spec.Unschedulable ||
		!maps.Equal(f.of.Labels, n.Labels) || !maps.Equal(f.of.Annotations, n.Annotations) || !reflect.DeepEqual(f.of.Status, n.Status) {
		f.of = n.DeepCopy()
		f.node = turn.FromNode(f.of)
		c.facts[name] = f
	}
	return f.node
}

// knownFact is what [cluster.fact] returned last, and of which Node.
type knownFact struct {
	of   *corev1.Node
	node turn.Node
}

func (c *cluster) logf(format string, args ...any) {
	c.log = append(c.log, c.now.Format("15:04:05 ")+fmt.Sprintf(format, args...))
}

func (c *cluster) snapshot(epoch string) rollout.Snapshot {
	s := rollout.Snapshot{
		Now: c.now, Epoch: epoch, Self: c.self, Stopped: !c.lease.Exists || c.lease.Stopped, StopText: c.lease.StopText,
		LedUntil: c.ledUntil, Policies: c.set(), Gates: maps.Clone(c.gates), Uncertain: map[string]bool{},
	}
	for _, name := range c.names() {
		n := c.fact(name)
		if old, ok := c.uncertain[name]; ok {
			n, s.Uncertain[name] = old, true
		}
		s.Nodes = append(s.Nodes, n)
	}
	return s
}

// done reports whether a run is over.
func (c *cluster) done() bool { return c.until != nil && c.until() }

// lead lets the leader decide once and carries that out; it reports whether
// anything was written.
func (c *cluster) lead() bool {
	if !c.leads || !c.lease.Exists || c.lease.Holder == "" {
		return false
	}
	out := rollout.Decide(c.snapshot(c.lease.Holder))
	wrote := false
	for _, grants := range []bool{false, true} {
		for _, v := range out.Verdicts {
			if v.Move == nil || v.Move.Disturbs() != grants || c.done() || grants && len(c.uncertain) > 0 {
				continue
			}
			c.write(v)
			wrote = true
		}
	}
	for _, v := range out.Verdicts {
		if n := c.nodes[v.Node]; v.Move == nil && !c.done() && v.Held != v1alpha1.ReasonHandover && n.Labels[v1alpha1.LabelHeld] != string(v.Held) {
			c.hold(n, v)
			wrote = true
		}
	}
	return wrote
}

func (c *cluster) hold(n *corev1.Node, v rollout.Verdict) {
	if delete(n.Labels, v1alpha1.LabelHeld); v.Held != v1alpha1.ReasonNone {
		n.Labels[v1alpha1.LabelHeld] = string(v.Held)
		c.logf("%s held %s", n.Name, v.Held)
	}
	c.bump(n)
}

// write sends what the leader decided; the outcome may be lost.
func (c *cluster) write(v rollout.Verdict) {
	lose := c.lose
	if c.lose = ""; lose != "" {
		c.uncertain[v.Node] = c.fact(v.Node)
		c.logf("# the write to %s %s, and nobody knows", v.Node, lose)
	}
	if lose != "dropped" {
		c.move(v)
	}
}

// move writes what a leader decided.
func (c *cluster) move(v rollout.Verdict) {
	m, n := v.Move, c.nodes[v.Node]
	before := c.fact(v.Node)
	if delete(n.Labels, v1alpha1.LabelState); m.To != v1alpha1.StateAbsent {
		n.Labels[v1alpha1.LabelState] = string(m.To)
	}
	if delete(n.Labels, v1alpha1.LabelHeld); v.Held != v1alpha1.ReasonNone {
		n.Labels[v1alpha1.LabelHeld] = string(v.Held)
	}
	for _, key := range m.Remove {
		delete(n.Annotations, key)
	}
	switch {
	case m.Keep:
	case m.Grant == nil:
		delete(n.Annotations, v1alpha1.AnnotationTurn)
		delete(n.Annotations, v1alpha1.AnnotationGrant)
	default:
		g := *m.Grant
		if m.NewTurn {
			c.turns++
			g.Turn = fmt.Sprintf("t%d", c.turns)
		}
		n.Annotations[v1alpha1.AnnotationTurn] = g.Turn
		n.Annotations[v1alpha1.AnnotationGrant] = v1alpha1.FormatRecord(g)
	}
	if m.LetGo {
		for _, key := range []string{v1alpha1.AnnotationLast, v1alpha1.AnnotationRuns, v1alpha1.AnnotationHost, v1alpha1.AnnotationAck} {
			delete(n.Annotations, key)
		}
		delete(n.Labels, v1alpha1.LabelWants)
	}
	if m.Runs != nil {
		n.Annotations[v1alpha1.AnnotationRuns] = v1alpha1.FormatRecord(m.Runs)
	}
	if m.Last != nil {
		n.Annotations[v1alpha1.AnnotationLast] = v1alpha1.FormatRecord(m.Last)
	}
	c.bump(n)
	switch {
	case m.From != m.To:
		line := fmt.Sprintf("%s %s -> %s, %s", v.Node, m.From, m.To, cmp.Or(string(m.On), "mended"))
		if m.Reason != "" {
			line += " (" + string(m.Reason) + ")"
		}
		if m.Last != nil {
			line += "; last=" + string(m.Last.Result)
		}
		c.logf("%s", line)
	case m.Grant != nil && m.Grant.Force && !before.Grant.Force:
		c.logf("%s is to force its drain", v.Node)
	case v.Held != "":
		c.logf("%s held %s", v.Node, v.Held)
	case m.Reason == v1alpha1.ReasonHandover:
		c.logf("%s taken over by %s", v.Node, m.Grant.Epoch)
	}
	if m.On == turn.Granted || m.Reason == v1alpha1.ReasonHandover {
		c.room(v.Node)
	}
	if m.On == turn.Granted && !c.stale {
		c.promiseGrant(v)
	}
	c.promiseMove(before, v)
}

// observe is what the host knows now.
func (c *cluster) observe(h *host) step.Observation {
	o := step.Observation{
		Node:             c.fact(h.name),
		Self:             v1alpha1.Host{Version: "test", BootID: h.boot(), BootTime: h.bootAt, Started: h.bootAt, OSVersion: h.version},
		ManagedByDefault: h.managed,
		Sources:          step.Sources{Complete: true, Wants: v1alpha1.WantsNothing},
		Shutdown:         step.ShutdownNone,
		Health:           step.Health{Healthy: !h.unhealthy, Detail: "a unit failed", Overdue: c.now.Sub(h.bootAt) > 15*time.Minute},
		Fresh:            h.look,
	}
	if !h.claims.IsZero() {
		o.Self.BootTime = h.claims
	}
	if c.leads && (len(c.nodes) == 1 || c.self == h.name) {
		o.Term = c.lease.Holder
	}
	if h.pending != "" {
		o.Sources.Changes = append(o.Sources.Changes, v1alpha1.Change{Source: v1alpha1.SourceOSUpdate, Version: h.pending})
	}
	if h.file {
		o.Sources.Changes = append(o.Sources.Changes, v1alpha1.Change{Source: v1alpha1.SourceFile, Name: "/etc/app", Version: "1"})
	}
	if len(o.Sources.Changes) > 0 {
		plan := policy.MakePlan(fileCosts, o.Sources.Changes)
		o.Sources.Wants, o.Sources.Drains = plan.Wants, plan.Drains
		for _, s := range plan.Steps {
			o.Sources.Steps = append(o.Sources.Steps, s.Action)
		}
	}
	if h.unread {
		o.Sources = step.Sources{Missing: "update_engine"}
	}
	if h.goingDown {
		o.Shutdown = step.ShutdownUnderway
	}
	if h.drainOf == o.Node.Turn+string(o.Node.State) {
		o.Drain = h.drain
	}
	if o.Node.State == v1alpha1.StateApplying {
		o.Apply = h.apply
	} else {
		h.apply = step.Work{}
	}
	return o
}

// fileCosts is what a change of a file costs.
var fileCosts = []policy.OwnedRule{{Policy: builtIn, Rule: v1alpha1.Rule{Source: v1alpha1.SourceFile, Path: "/etc/app",
	Actions: []v1alpha1.Action{{Type: v1alpha1.ActionDrain}, {Type: v1alpha1.ActionRestart, Unit: "app.service"}}}}}

// step lets a host take one step; it reports whether it wrote, or read.
func (c *cluster) step(h *host) bool {
	if !h.up || !h.process {
		return false
	}
	o := c.observe(h)
	d := step.Step(o)
	if d.Do != step.DoDrain {
		h.drain.Running = false
	}
	switch {
	case d.Read == step.ReadEviction:
		h.look = &step.FreshRead{Lease: c.lease}
		return true
	case d.Read == step.ReadCommit:
		h.look = &step.FreshRead{Lease: c.lease, Commit: true, Evictable: h.pods}
		return true
	case d.Write != nil:
		c.hostWrite(h, d.Write)
		return true
	case d.Do == step.DoDrain:
		if key := o.Node.Turn + string(o.Node.State); h.drainOf != key || !h.drain.Running {
			h.drainOf, h.drain = key, step.Drain{Running: true}
		}
	case d.Do == step.DoApply && !h.apply.Done:
		h.apply.Running = true
	case d.Do == step.DoReboot && !h.goingDown:
		h.goingDown = true
		c.logf("%s reboots", h.name)
		c.promiseReboot(h, o.Node)
	}
	return false
}

func (c *cluster) hostWrite(h *host, w *step.Write) {
	n := c.nodes[h.name]
	before := c.fact(h.name)
	for key, v := range w.Labels {
		if delete(n.Labels, key); v != nil {
			n.Labels[key] = *v
		}
	}
	for key, v := range w.Annotations {
		if delete(n.Annotations, key); v != nil {
			n.Annotations[key] = *v
		}
	}
	var did []string
	if w.Unschedulable != nil {
		n.Spec.Unschedulable = *w.Unschedulable
		did = append(did, map[bool]string{true: "cordons", false: "uncordons"}[*w.Unschedulable])
		if !*w.Unschedulable {
			h.pods = 3
		}
	}
	if w.Ack != (v1alpha1.Ack{}) {
		say := "says " + string(w.Ack.State) + "/" + string(w.Ack.Report)
		if w.Ack.Reason != "" {
			say += ":" + string(w.Ack.Reason)
		}
		did = append(did, say)
	}
	if v, ok := w.Labels[v1alpha1.LabelWants]; ok && v != nil && *v != string(before.Wants) {
		did = append(did, "wants "+*v)
	}
	if len(did) > 0 {
		c.logf("%s %s", h.name, strings.Join(did, ", "))
	}
	c.bump(n)
	c.promiseHost(h, before, w)
}

// settle lets everybody act until nobody has anything to do at this moment,
// or the run is over.
func (c *cluster) settle() {
	for range 200 {
		busy := c.confirm() || c.lead()
		for _, name := range slices.Sorted(maps.Keys(c.hosts)) {
			for range 12 {
				if c.done() || !c.step(c.hosts[name]) {
					break
				}
				busy = true
			}
		}
		if c.done() || !busy {
			return
		}
	}
	c.broken = append(c.broken, fmt.Sprintf("%s never comes to rest:\n%s", c.now, strings.Join(c.log[max(0, len(c.log)-20):], "\n")))
}

// confirm has the hooks of all nodes' stages confirm, if they are to do so.
func (c *cluster) confirm() (busy bool) {
	for _, name := range c.names() {
		n := c.fact(name)
		if !c.confirms || n.Grant == nil {
			continue
		}
		for _, hook := range n.Grant.Terms.Hooks(n.State) {
			if n.Hooks[hook.Name] != n.Turn {
				c.nodes[name].Annotations[v1alpha1.HookAnnotation(hook.Name)] = n.Turn
				c.bump(c.nodes[name])
				busy = true
			}
		}
	}
	return busy
}

// pass moves the clock by one tick: drains evict, machines go down and up.
func (c *cluster) pass() {
	c.now = c.now.Add(tick)
	for _, name := range slices.Sorted(maps.Keys(c.hosts)) {
		h := c.hosts[name]
		h.look = nil // a look is good for 10 s
		if h.drain.Running && h.up {
			c.promiseEvict(h)
			if g := c.fact(h.name).Grant; !h.stuck || g != nil && g.Force {
				h.pods = 0
			}
			h.drain.Complete = h.pods == 0
		}
		if h.apply.Running && h.up {
			h.apply, h.file = step.Work{Done: true}, false
		}
		switch {
		case h.goingDown && h.up:
			c.down(h)
		case !h.up && !h.upAt.IsZero() && !c.now.Before(h.upAt):
			c.boot(h)
		}
	}
}

func (c *cluster) down(h *host) {
	h.up, h.goingDown, h.drain, h.drainOf, h.apply, h.upAt = false, false, step.Drain{}, "", step.Work{}, c.now.Add(bootTime)
	c.logf("%s is down", h.name)
	c.kubelet(h)
}

func (c *cluster) boot(h *host) {
	h.up, h.upAt, h.bootAt = true, time.Time{}, c.now
	h.boots++
	h.version, h.pending = h.next, ""
	c.logf("%s is up with %s", h.name, h.version)
	c.kubelet(h)
}

// run moves the clock until cond holds, and at most for limit; it reports
// whether cond came to hold.
func (c *cluster) run(limit time.Duration, cond func() bool) bool {
	c.until = cond
	defer func() { c.until = nil }()
	for _, h := range c.hosts {
		h.look = nil // whatever a script did in between took longer than 10 s
	}
	for end := c.now.Add(limit); ; {
		c.settle()
		if cond != nil && cond() {
			return true
		}
		if !c.now.Before(end) {
			return false
		}
		c.pass()
	}
}
