package explore

import (
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// Blocks is what the policy does with pods that the drain must not evict.
type Blocks uint8

// These are the cases.
const (
	NoBlocks    Blocks = iota // there are no such pods
	BlocksHold                // they hold a turn for as long as they are there
	BlocksEvict               // Block is off for the next turn after blockTimeout
)

const (
	blockTimeout = 100 * time.Hour
	blockingPod  = "jobs/one"
	// aheadBy is by how much the hosts' clocks are ahead of the coordinators'.
	aheadBy = time.Hour
)

// blockedSince are since when pods have blocked a host, by its record: they do not, they began to just now, blockTimeout is
// over by the host's clock alone, and it is over by every clock.
var blockedSince = [...]time.Time{{}, now.Add(aheadBy), now.Add(aheadBy - blockTimeout), now.Add(-eon)}

const (
	blockedOverForHost uint8 = 2
	blockedLong        uint8 = 3
)

func blockedNum(t time.Time) uint8 {
	for i := range blockedSince {
		if blockedSince[i].Equal(t) {
			return uint8(i)
		}
	}
	panic("explore: unknown time of a block: " + t.String())
}

// setBlocks gives the terms the rules for pods that block.
func (m *model) setBlocks(t *v1alpha1.Terms) {
	if m.Blocks == NoBlocks {
		return
	}
	t.Block = []v1alpha1.PodSelector{{Namespace: "jobs"}}
	t.BlockTimeout.Duration = blockTimeout
	if m.Blocks == BlocksEvict {
		t.OnBlockTimeout = v1alpha1.OnBlockTimeoutEvict
	}
}

// own returns the terms of the policy as the host read it last.
func (m *model) own(holds bool) *v1alpha1.Terms {
	t := m.policy.Terms
	if holds {
		t.OnBlockTimeout = ""
	}
	return &t
}

// observeBlocks completes the host's observation, as package node does, by what the host knows of pods that block.
func (m *model) observeBlocks(o *step.Observation, k *seen) {
	if m.Blocks == NoBlocks {
		return
	}
	pods := ""
	if k.listed == 2 {
		pods = blockingPod
	}
	o.Own = m.own(k.holds)
	o.Blocking = o.BlockingBy(pods, k.listed != 0, now.Add(aheadBy))
	vetoes := step.Vetoes{}
	if !o.Node.InTurn() {
		vetoes.Blocked = o.Blocking.Veto(o.Own)
	}
	if o.Veto == "" {
		o.Veto, o.VetoDetail = vetoes.First(&o.Sources)
	}
}

// blockOff reports whether the host's eviction evicts pods that block.
func (m *model) blockOff(n *node) bool {
	facts, own := m.facts(n.seen(), n.pool, "n"), m.own(n.holds)
	m.Bug.evict(&facts, own)
	e := step.EvictionBy(&facts, own)
	for i := range e.Rules {
		if len(e.Rules[i].Block) > 0 {
			return false
		}
	}
	return true
}

// evictSteps yields the end of an eviction. It waits for a pod that blocks, unless Block is off.
func (m *model) evictSteps(n *node, do doer) {
	if !n.blocks || m.blockOff(n) {
		do(evicted, 0, func(t *node, e *event) {
			e.evicts = t.blocks
			t.pods, t.blocks, t.drain = false, false, 2
		})
		return
	}
	do(evicted, 1, func(t *node, _ *event) { t.pods = false })
}

// blockSteps yields what happens to pods that block, their time, and the policy that limits it. A pod may come to a
// cordoned node too: it tolerates the cordon. It stays over a reboot.
func (m *model) blockSteps(s *state, n *node, do doer, write func(func(*object)) func(*node, *event)) {
	if n.blocks {
		do(podEnds, 0, func(t *node, _ *event) { t.blocks = false })
	} else if m.fault(s, blockPod) {
		do(blockPod, 0, func(t *node, _ *event) { t.blocks = true })
	}
	if m.objects[n.api].host.blocked != 0 {
		do(blockTime, 0, func(t *node, _ *event) {
			m.each(t, func(o *object) {
				for _, h := range []*hostRecord{&o.host, &o.last.digest} {
					if h.blocked != 0 {
						h.blocked = min(h.blocked+1, blockedLong)
					}
				}
			})
		})
	}
	if n.holds {
		do(policyEvicts, 0, func(t *node, _ *event) { t.holds = false })
	} else if m.Blocks == BlocksEvict && m.fault(s, policyHolds) {
		do(policyHolds, 0, func(t *node, _ *event) { t.holds = true })
	}
	if o := &m.objects[n.api]; o.turn != 0 && !o.grant.blockOff && m.fault(s, forgeBlockOff) {
		do(forgeBlockOff, 0, write(func(o *object) { o.grant.blockOff = true }))
	}
}

// mayEvict reports whether a pod that blocks may be evicted: Block is off by the grant, the host's own record and its
// policy, as the host knows them.
func (m *model) mayEvict(n *node) bool {
	o := &m.objects[n.seen()]
	return m.Blocks == BlocksEvict && !n.holds && o.grant.blockOff && o.host.blockOff
}

// blockedNodes checks that no leader grants a turn to a node whose host reports that pods block its drain, and that no
// host cordons its Node, or runs its hook units before the drain, while its last reads show such a pod.
func blockedNodes(m *model, e *event, before, s *state) string {
	for i := range m.granted(e, s) {
		if reasons[m.objects[before.n[i].api].host.veto] == v1alpha1.ReasonDrainBlocked {
			return "a node is granted its turn while pods block its drain"
		}
	}
	if e.node < 0 || !e.host.lbKept {
		return ""
	}
	o := &m.objects[e.host.seen()]
	switch {
	case e.writer == hostWrites && e.after.unsched && !e.before.unsched:
		return "the host cordons its Node while a pod blocks"
	case e.writer == hostWrites && e.after.st() == v1alpha1.StateDraining && e.after.says(v1alpha1.ReportCommitted) && !e.before.says(v1alpha1.ReportCommitted):
		return "the host commits to the drain while a pod blocks"
	case e.starts == step.DoHooks && o.st() == v1alpha1.StateBeforeDrain:
		return "the host runs hook units before the drain while a pod blocks"
	}
	return ""
}

// blockKept checks that Block is off only for one turn, and only after blockTimeout by both clocks and policies: in the
// host's record, in the grant, and for what the host evicts.
func blockKept(m *model, e *event, before, s *state) string {
	for i, obj := range m.granted(e, s) {
		o, g := &m.objects[before.n[i].api], &m.objects[obj].grant
		if g.blockOff && (m.Blocks != BlocksEvict || !o.host.blockOff || o.host.blocked != blockedLong) {
			return "a turn is granted with Block off, and no pod has blocked the node for that long"
		}
	}
	b, a := &e.before, &e.after
	if e.writer == hostWrites && a.host.blockOff && !b.host.blockOff && (e.host.holds || b.st().InTurn() || a.host.blocked < blockedOverForHost) {
		return "the host says that Block is off, and it is not"
	}
	if o := &m.objects[e.host.seen()]; e.evicts && (!m.mayEvict(&e.host) || !o.unsched || !o.st().InTurn()) {
		return "the host evicts a pod that blocks"
	}
	return ""
}

// granted returns the objects that the term is about to write, by node, if e is its decision and it grants these nodes
// their turns.
func (m *model) granted(e *event, s *state) map[int]uint32 {
	if e.action.kind != decide || m.Lag {
		return nil
	}
	var all map[int]uint32
	for i := range m.Nodes {
		if w := &s.n[i].terms[e.term]; w.write == toSend && w.grant {
			if all == nil {
				all = map[int]uint32{}
			}
			all[i] = w.obj
		}
	}
	return all
}

// evict changes what the host's eviction depends on.
func (b Bug) evict(n *turn.Node, own *v1alpha1.Terms) {
	if h := n.Host; h != nil && b == BlockOffByGrant {
		said := *h
		said.BlockOff = true
		n.Host = &said
	}
	if b == BlockOffByOldPolicy {
		own.OnBlockTimeout = v1alpha1.OnBlockTimeoutEvict
	}
}

// showBlocks changes what the coordinator sees of pods that block.
func (b Bug) showBlocks(n *turn.Node) {
	h := n.Host
	if h == nil {
		return
	}
	seen := *h
	switch {
	case b == BlockVetoIgnored && h.Veto == v1alpha1.ReasonDrainBlocked:
		seen.Veto = v1alpha1.ReasonNone
	case b == BlockOffUnchecked && h.BlockOff && !h.BlockedSince.IsZero(), b == BlockOffStays && h.BlockOff && h.BlockedSince.IsZero():
		seen.BlockedSince = blockedSince[blockedLong]
	case b == BlockNeverOff && h.BlockOff:
		seen.BlockedSince = now
	}
	n.Host = &seen
}
