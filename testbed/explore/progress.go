package explore

import (
	"fmt"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/policy"
)

// progress runs states on until nothing changes any more. No step fails, and every process is alive and acts in one
// fixed order. Then every turn must have ended or be held with a reason. After that the admins undo what they started
// (a pause, a stop), and the same must hold again.
type progress struct {
	*model
	good      map[key]bool
	ran, late int
	// held counts the reasons why turns were held at rest.
	held map[v1alpha1.Reason]int
}

func newProgress(m *model) *progress {
	return &progress{model: m, good: map[key]bool{}, held: map[v1alpha1.Reason]int{}}
}

// fair is the order of precedence of the steps; the steps of admins come last. Steps that are not listed never happen:
// for example, a write that may land late never lands.
var fair = []kind{
	heal, start, goDown, report, seeNode, readRest, poll, evicted, applied, confirm, sendWrite, settleWrite,
	watchLease, watch, list, campaign, stepHost, decide, expire,
	recreateNode, recreateLease, goOn, resume, attach, manage, clearTurn,
}

var fairRank = func() map[kind]int {
	ranks := map[kind]int{}
	for i, k := range fair {
		ranks[k] = i
	}
	return ranks
}()

const maxRun = 3000 // steps of one run

// run runs the state on and describes what is wrong at the end, or returns "".
func (p *progress) run(k key) string {
	var path []key
	s := p.unpack(k, p.Nodes)
	s.faults = 0
	onPath := map[key]int{}
	aged := 0
	lastWrite := -1
	for range maxRun {
		k := p.pack(&s, p.Nodes)
		if p.good[k] && aged == 0 {
			break
		}
		rest := false
		if at, again := onPath[k]; again {
			if lastWrite > at {
				return fmt.Sprintf("without faults it repeats the same %d steps indefinitely", len(path)-at)
			}
			rest = true // only the polls, every ten seconds, remain
		}
		onPath[k] = len(path)
		path = append(path, k)
		s = p.unpack(k, p.Nodes)
		next, wrote, ok := p.fairStep(&s, rest)
		if ok {
			if wrote {
				lastWrite = len(path)
			}
			s = next
			continue
		}
		waits, text := p.rest(&s)
		if text != "" {
			return text
		}
		if waits >= 0 && aged < 2*p.Nodes+2 {
			// The node waits without a reason, so a timeout has to end the wait.
			if aged++; aged == 1 {
				p.late++
			}
			p.ages(&s.n[waits])
			onPath = map[key]int{}
			continue
		}
		if waits >= 0 {
			return fmt.Sprintf("n%d waits indefinitely in %s, without a reason", waits+1, p.objects[s.n[waits].api].st())
		}
		if next, ok = p.adminEnds(&s); !ok {
			break
		}
		s, onPath = next, map[key]int{}
	}
	if len(path) >= maxRun {
		return fmt.Sprintf("without faults it is not at rest after %d steps", maxRun)
	}
	if aged == 0 {
		for _, k := range path {
			p.good[k] = true
		}
	}
	p.ran++
	return ""
}

var adminRank = fairRank[recreateNode]

// fairStep takes the first step in the fair order, except steps of admins.
func (p *progress) fairStep(s *state, rest bool) (next state, wrote, ok bool) {
	if rest {
		return next, false, false
	}
	return p.first(s, 0, adminRank)
}

// adminEnds takes the first step of an admin.
func (p *progress) adminEnds(s *state) (next state, ok bool) {
	next, _, ok = p.first(s, adminRank, len(fair))
	return next, ok
}

func (p *progress) first(s *state, from, to int) (next state, wrote, ok bool) {
	best := to
	p.next(s, func(e *event, t *state) {
		rank, known := fairRank[e.action.kind]
		if !known || rank < from || rank >= best {
			return
		}
		for i := range p.Nodes {
			if p.canonical(t.n[i]) != p.canonical(s.n[i]) || t.lease != s.lease || t.terms != s.terms {
				best, next, ok = rank, *t, true
				wrote = e.writer != "" || t.lease != s.lease
			}
		}
	})
	return next, wrote, ok
}

// rest checks a state in which no process has anything to do. waits is the index of a node that waits in its turn
// without a reason, or -1. text describes a violation, or is "".
func (p *progress) rest(s *state) (waits int, text string) {
	waits = -1
	snap := rollout.Snapshot{Now: now, Epoch: "e1", Stopped: s.terms[0].stopSeen || !s.lease.exists, Policies: policy.Set{p.policy}, Uncertain: map[string]bool{}}
	for i := range p.Nodes {
		if s.n[i].api != 0 {
			snap.Nodes = append(snap.Nodes, p.facts(s.n[i].api, id("n", uint8(i)+1)))
		}
	}
	for _, v := range p.Bug.decide(snap).Verdicts {
		i := int(num(v.Node)) - 1
		n := &s.n[i]
		o := &p.objects[n.api]
		switch {
		case !s.lease.exists || s.lease.stop:
			// The stop is the reason. The Lease records it.
		case v.Move != nil:
			text = fmt.Sprintf("n%d should move from %s to %s, but no process moves it", i+1, v.Move.From, v.Move.To)
		case o.st().InTurn() && v.Held == v1alpha1.ReasonNone:
			waits = i
		case o.st().InTurn():
			p.held[v.Held]++
		case o.mark && v.Held == v1alpha1.ReasonNone:
			text = fmt.Sprintf("n%d is in %s with the mark, without a reason", i+1, o.st())
		case o.st() == v1alpha1.StateIdle && n.change != 0 && v.Held == v1alpha1.ReasonNone:
			text = fmt.Sprintf("n%d is idle with wants, and waits without a reason", i+1)
		case o.st() == v1alpha1.StateAbsent && o.detached == 0 && o.managed == 0 && v.Held == v1alpha1.ReasonNone:
			text = fmt.Sprintf("n%d is managed, but no process admits it", i+1)
		}
	}
	return waits, text
}
