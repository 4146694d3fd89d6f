package explore

import (
	"fmt"
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
)

// progress runs states on until nothing changes any more. No step fails, and every process is alive and acts in one
// fixed order. Where a node waits, time passes for it. Then every turn must have ended, except for a cause in rests.
// After that the admins undo what they started (a pause, a stop), and in the end no node may be left that wants
// something.
type progress struct {
	*model
	good      [worldCount]map[key]bool
	ran, late int
	// held counts the turns that were left at rest, by their cause.
	held map[string]int
}

func newProgress(m *model) *progress {
	p := &progress{model: m, held: map[string]int{}}
	for w := range p.good {
		p.good[w] = map[key]bool{}
	}
	return p
}

// fair is the order of precedence of the steps; the steps of admins come last. Steps that are not listed never happen:
// for example, a write that may land late never lands.
var fair = []kind{
	heal, start, goDown, report, podEnds, blackoutEnds, offer, clientReboots, seeNode, readRest, poll, listPods, evicted, applied, ranHooks, confirm, settled,
	ranTime, blockTime, sendWrite, settleWrite,
	tryAgain, watchLease, watch, list, campaign, freeLease, stepHost, decide, ask, withdrawn, dueHooks, expire,
	recreateNode, rebootByHand, recreateLease, goOn, resume, attach, manage, clearTurn, unguard, policyEvicts,
}

var fairRank = func() map[kind]int {
	ranks := map[kind]int{}
	for i, k := range fair {
		ranks[k] = i
	}
	return ranks
}()

const maxRun = 3000 // steps of one run

// run runs the state on in the fair world and in one other, or in all if all is set, and describes what is wrong, or
// returns "". Where another world comes to rest, the state must run on in the fair one.
func (p *progress) run(k key, all bool) string {
	other := world(p.ran % (2 * int(worldCount-1)))
	for w := range worldCount {
		if w != fairWorld && w != other && !all || w == podsBlock && p.Blocks == NoBlocks || w == blackout && !p.Blackouts || w == clientStays && p.Plan != ByClient {
			continue
		}
		if text := p.runIn(w, k); text != "" {
			return text
		}
	}
	p.ran++
	return ""
}

// runIn runs the state on in one world.
func (p *progress) runIn(w world, k key) string {
	was := p.world
	p.world = w
	defer func() { p.world = was }()
	var path []key
	s := p.unpack(k, p.Nodes)
	s.faults, s.dark = 0, s.dark || w == blackout
	onPath := map[key]int{}
	lastWrite, aged := -1, false
	for {
		k := p.pack(&s, p.Nodes)
		if p.good[w][k] {
			break
		}
		rest := false
		if at, again := onPath[k]; again {
			if lastWrite > at {
				return fmt.Sprintf("without faults it repeats the same %d steps indefinitely", len(path)-at)
			}
			rest = true // only the polls, every ten seconds, remain
		}
		if onPath[k] = len(path); len(path) == maxRun {
			return fmt.Sprintf("without faults it is not at rest after %d steps", maxRun)
		}
		path = append(path, k)
		s = p.unpack(k, p.Nodes)
		next, wrote, ok := p.fairStep(w, &s, rest)
		if ok {
			if wrote {
				lastWrite = len(path)
			}
			s = next
			continue
		}
		next, timeout, text := p.goOn(w, &s)
		if text != "" {
			return text
		}
		if next == s {
			break
		}
		s, aged, onPath = next, aged || timeout, map[key]int{}
	}
	if aged {
		p.late++
	}
	for _, k := range path {
		p.good[w][k] = true
	}
	return ""
}

// goOn continues a run in a state in which no process has anything to do. It lets time pass for a node that waits, or
// else has an admin undo something. It returns the same state if nothing is left to do, and text if something is wrong.
func (p *progress) goOn(w world, s *state) (next state, timeout bool, text string) {
	next, undo := p.adminEnds(s)
	waits, text := p.rest(w, s, w == fairWorld && !undo)
	if waits >= 0 {
		aged := *s
		if p.ages(&aged.n[waits]); aged != *s {
			return aged, true, "" // a timeout has to end the wait
		}
	}
	switch {
	case text != "":
		return *s, false, text + worlds[w].text
	case w != fairWorld:
		return *s, false, p.runIn(fairWorld, p.pack(s, p.Nodes))
	case !undo:
		return *s, false, ""
	}
	return next, false, ""
}

var adminRank = fairRank[recreateNode]

// fairStep takes the first step in the fair order, except steps of admins and those that the world lacks.
func (p *progress) fairStep(w world, s *state, rest bool) (next state, wrote, ok bool) {
	if rest {
		return next, false, false
	}
	return p.first(s, 0, adminRank, worlds[w].lacks)
}

// adminEnds takes the first step of an admin.
func (p *progress) adminEnds(s *state) (next state, ok bool) {
	next, _, ok = p.first(s, adminRank, len(fair), nil)
	return next, ok
}

func (p *progress) first(s *state, from, to int, lacks []kind) (next state, wrote, ok bool) {
	best := to
	p.next(s, func(e *event, t *state) {
		rank, known := fairRank[e.action.kind]
		if !known || rank < from || rank >= best || slices.Contains(lacks, e.action.kind) && (e.action.kind != evicted || e.host.pods) {
			return
		}
		if e.action.kind == tryAgain && s.n[e.node].guard&guardLeaders != 0 {
			return // it would be refused again, and the same again
		}
		for i := range p.Nodes {
			if p.canonical(t.n[i]) != p.canonical(s.n[i]) || t.lease != s.lease || t.terms != s.terms || t.dark != s.dark {
				best, next, ok = rank, *t, true
				wrote = e.writer != "" || t.lease != s.lease
			}
		}
	})
	return next, wrote, ok
}

// rest checks a state in which no process has anything to do. waits is the index of a node that waits without a cause
// that is in rests, or -1. text describes what is wrong if no timeout ends the wait, or is "". end is set if the admins
// have undone everything: then no node may be left that wants something, unless a cordon takes the budget.
func (p *progress) rest(w world, s *state, end bool) (waits int, text string) {
	snap, cordoned, unsettled := p.snapshot(s)
	if !s.lease.exists || s.lease.stop {
		// The Lease records the stop, and no leader has to see it.
		for i := range p.Nodes {
			if p.objects[s.n[i].api].st().InTurn() {
				p.held[rests[0].Cause]++
			}
		}
		return -1, ""
	}
	waits = -1
	for _, v := range p.Bug.decide(snap).Verdicts {
		i := int(num(v.Node)) - 1
		n := &s.n[i]
		o := &p.objects[n.api]
		dead := w == deadHosts && n.dead() || n.guard != 0
		switch {
		case n.guard&guardLeaders != 0:
			// The node stays as it is, and the others do not wait for it.
			if o.st().InTurn() {
				p.held[rests[1].Cause]++
			}
		case o.st() == v1alpha1.StateIdle && v.Held == v1alpha1.ReasonHandover && unsettled:
		case o.st() == v1alpha1.StateIdle && v.Held == v1alpha1.ReasonHandover:
			return -1, fmt.Sprintf("n%d is idle and waits for a handover that does not end", i+1)
		case v.Move != nil:
			return -1, fmt.Sprintf("n%d should move from %s to %s, but no process moves it", i+1, v.Move.From, v.Move.To)
		case o.st().InTurn():
			if r := p.restOf(w, s, i, v.Held); r != nil {
				p.held[r.Cause]++
				continue
			}
			return i, fmt.Sprintf("n%d waits indefinitely in %s, held=%s", i+1, o.st(), v.Held)
		case o.mark && v.Held == v1alpha1.ReasonNone:
			return -1, fmt.Sprintf("n%d is in %s with the mark, without a reason", i+1, o.st())
		case o.st() == v1alpha1.StateAbsent && o.detached == 0 && o.managed == 0 && v.Held == v1alpha1.ReasonNone && !dead:
			return -1, fmt.Sprintf("n%d is managed, but no process admits it", i+1)
		case o.st() != v1alpha1.StateIdle || n.change == 0 && !o.requested() || dead:
		case v.Held == v1alpha1.ReasonNone:
			return -1, fmt.Sprintf("n%d is idle with wants, and waits without a reason", i+1)
		case v.Held == v1alpha1.ReasonDrainBlocked && w == podsBlock && p.Blocks == BlocksEvict && !n.holds:
			return -1, fmt.Sprintf("n%d waits for pods that block, and drain.blockTimeout is over", i+1)
		case end && !cordoned:
			never := fmt.Sprintf("n%d wants something and never gets its turn, held=%s", i+1, v.Held)
			if v.Held != v1alpha1.ReasonCanary {
				return i, never
			}
			waits, text = i, never // for another node, which may wait itself
		}
	}
	return waits, text
}

// snapshot returns what a leader decides on that sees everything. cordoned is set if a Node is unschedulable, and unsettled if a
// write is lost that the API server refuses.
func (p *progress) snapshot(s *state) (snap rollout.Snapshot, cordoned, unsettled bool) {
	snap = rollout.Snapshot{Now: now, Epoch: "e1", Stopped: s.terms[0].stopSeen || !s.lease.exists, Policies: p.policiesIn(s.dark), Uncertain: map[string]bool{}, Refused: map[string]string{}}
	for i := range p.Nodes {
		if s.n[i].api != 0 {
			n := p.facts(s.n[i].api, s.n[i].pool, id("n", uint8(i)+1))
			n.ControlPlane = s.n[i].control
			snap.Nodes = append(snap.Nodes, n)
			if s.n[i].guard&guardLeaders != 0 {
				snap.Refused[n.Name] = "explored"
				if w := s.n[i].terms[0].write; w == unknown || w == unknownOf {
					// Nothing is granted before that write is settled, which the API server refuses.
					snap.Uncertain[n.Name], unsettled = true, true
				}
			}
			cordoned = cordoned || p.objects[s.n[i].api].unsched
		}
	}
	return snap, cordoned, unsettled
}
