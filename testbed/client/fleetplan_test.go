package client

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/drain"
)

// fate is what must happen to a pod that is on a node when it is drained.
type fate string

const (
	goes   fate = "goes"   // it is evicted
	waits  fate = "waits"  // it terminates already, and the drain waits for it
	blocks fate = "blocks" // the drain waits for it and must not touch it
	stays  fate = "stays"  // the drain must not touch it, and does not wait for it
)

// kind is what a pod is to Kubernetes.
type kind string

const (
	replica  kind = "ReplicaSet's"
	member   kind = "StatefulSet's" // comes back under its name, on another node
	bare     kind = "unmanaged"
	daemon   kind = "DaemonSet's"
	mirror   kind = "mirror"
	finished kind = "finished"
	leaving  kind = "terminating" // unmanaged, and deleted by a user just before the drain
)

// obstacle is what keeps pods from leaving, until a user does something about it. named is how the drain must name it for each
// of the pods; BUDGET stands for the name of the group's budget.
type obstacle struct {
	name    string
	reason  drain.Reason
	message string
	budget  bool // the blocker's field Budget has the budget too
	// overruled: with Force, the pod is deleted.
	overruled bool
	kinds     []kind
	asked     bool // the drain asks again and again for the pod's eviction, until the obstacle is gone
}

// guardText is what the webhook says when it refuses.
const guardText = "this pod is guarded"

// The obstacles, from docs/drain.md and docs/reasons.md.
var (
	tightBudget = &obstacle{name: "a budget that allows nothing", reason: drain.PodDisruptionBudget, budget: true, overruled: true,
		message: "The disruption budget BUDGET needs", kinds: []kind{replica, member}, asked: true}
	twoBudgets = &obstacle{name: "two budgets", reason: drain.PodDisruptionBudget, overruled: true,
		message: "leave one budget that selects this pod", kinds: []kind{replica, member}, asked: true}
	notReady = &obstacle{name: "a budget and pods that are not ready", reason: drain.PodDisruptionBudget, budget: true, overruled: true,
		message: "this pod itself is not Ready", kinds: []kind{replica, member}, asked: true}
	guard403 = &obstacle{name: "a webhook that forbids", reason: drain.Refused, overruled: true,
		message: guardText, kinds: []kind{replica, member, bare}, asked: true}
	guard429 = &obstacle{name: "a webhook that refuses for now", reason: drain.Refused, overruled: true,
		message: guardText, kinds: []kind{replica, member, bare}, asked: true}
	guard500 = &obstacle{name: "a webhook that fails", reason: drain.Refused, overruled: true,
		message: guardText, kinds: []kind{replica, member, bare}, asked: true}
	guardAll = &obstacle{name: "a webhook that forbids deletions too", reason: drain.Refused,
		message: guardText, kinds: []kind{replica, member, bare}, asked: true}
	finalizer = &obstacle{name: "a finalizer", reason: drain.Finalizer,
		message: "it has finalizers: example.com/held", kinds: []kind{replica, bare, leaving}}
	deadKubelet = &obstacle{name: "a kubelet that does not end the pod", reason: drain.Terminating,
		message: "this node's kubelet has not ended it", kinds: []kind{member, bare, leaving}}
	byPolicy = &obstacle{name: "its policy's block", reason: drain.BlockedByPolicy,
		message: "drain.block of its policy selects the pod", kinds: []kind{replica, bare}}
	byUnmanaged = &obstacle{name: "its policy's unmanaged: Block", reason: drain.Unmanaged, message: "drain.unmanaged: Block"}
	byEmptyDir  = &obstacle{name: "its policy's emptyDir: Block", reason: drain.EmptyDir, message: "drain.emptyDir: Block"}
)

// deck has the obstacles that fleets are dealt, some twice. nil stands for a budget that allows some evictions.
var deck = []*obstacle{nil, nil, tightBudget, tightBudget, twoBudgets, notReady, guard403, guard429, guard500, guardAll, finalizer, deadKubelet, byPolicy}

// cards is how many of them a fleet is dealt.
const cards = 3

// budgetSpec is a budget. keeps is how many of the replicas it keeps available.
type budgetSpec struct {
	text     string // of minAvailable or maxUnavailable
	replicas int32
	keeps    int
}

// Budgets that allow some evictions, with what they keep by the rules of Kubernetes: percentages are rounded up.
var someBudgets = []budgetSpec{
	{"minAvailable 2", 3, 2}, {"maxUnavailable 1", 4, 3}, {"maxUnavailable 50%", 3, 1}, {"minAvailable 60%", 4, 3}, {"maxUnavailable 2", 3, 1},
}

var noBudgets = []budgetSpec{{"minAvailable 2", 2, 2}, {"maxUnavailable 0", 2, 2}, {"minAvailable 100%", 3, 3}, {"maxUnavailable 0%", 3, 3}}

// group is pods of the same kind.
type group struct {
	name     string
	kind     kind
	here     int // how many of them are on drained nodes at first
	replicas int32
	grace    int64         // s
	stops    time.Duration // between the deletion and the end
	priority string
	emptyDir bool
	mark     string // the value of the label that the policy's selectors select
	budget   budgetSpec
	obstacle *obstacle
	returns  int // how many of their successors come to the drained node
	fate     fate
}

func (g *group) critical() bool { return strings.HasPrefix(g.priority, "system-") }

func (g *group) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d/%d %s, grace %ds, stops in %v, %s", g.name, g.here, g.replicas, g.kind, g.grace, g.stops.Round(time.Millisecond), g.fate)
	for _, s := range []struct {
		on   bool
		text string
	}{
		{g.priority != "", g.priority}, {g.emptyDir, "emptyDir"}, {g.mark != "", "marked " + g.mark},
		{g.budget.text != "", g.budget.text}, {g.returns > 0, fmt.Sprintf("%d return", g.returns)}, {g.obstacle != nil, ""},
	} {
		if s.on && s.text != "" {
			b.WriteString(", " + s.text)
		}
	}
	if g.obstacle != nil {
		b.WriteString(", held by " + g.obstacle.name)
	}
	return b.String()
}

// fleetPlan is what a seed makes.
type fleetPlan struct {
	seed, number uint64
	drains       int // nodes that are drained at once
	rules        []v1alpha1.PodRules
	onTimeout    v1alpha1.OnTimeout
	abortAfter   time.Duration
	together     bool          // obstacles go only once all are named
	stubborn     time.Duration // how long they stay after that
	late         int           // pods that come to the node during the drain
	faults       int
	long         bool // it may last longer than a minute
	groups       []*group
}

func (p *fleetPlan) String() string {
	r := p.rules[0]
	text := fmt.Sprintf("fleet %d of seed %d: %d drained, unmanaged %s, emptyDir %s, %d rules, onTimeout %s, together %t, stubborn %v, %d late, %d faults",
		p.number+1, p.seed, p.drains, r.Unmanaged, r.EmptyDir, len(p.rules), p.onTimeout, p.together, p.stubborn, p.late, p.faults)
	for _, g := range p.groups {
		text += "\n    " + g.String()
	}
	return text
}

// composeFleet makes the fleet with this number.
func composeFleet(seed, number uint64, long bool) *fleetPlan {
	rng := rand.New(rand.NewPCG(seed, number))
	one := func(of ...string) string { return of[rng.IntN(len(of))] }
	podRule := func() v1alpha1.PodRule {
		return v1alpha1.PodRule(one("Evict", "Evict", "Block", "Skip"))
	}
	marked := func(value string) []v1alpha1.PodSelector {
		return []v1alpha1.PodSelector{{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"mark": value}}}}
	}
	p := &fleetPlan{
		seed: seed, number: number, drains: 1 + rng.IntN(3)/2, late: rng.IntN(3), long: long, faults: 4 + rng.IntN(12),
		rules:      []v1alpha1.PodRules{{Unmanaged: podRule(), EmptyDir: podRule(), Skip: marked("skip"), Block: marked("block")}},
		onTimeout:  v1alpha1.OnTimeout(one("Wait", "Wait", "Abort", "Force")),
		abortAfter: time.Duration(100+rng.IntN(2500)) * time.Millisecond,
	}
	if rng.IntN(4) == 0 {
		p.rules = append(p.rules, v1alpha1.PodRules{}) // the grant and the host's own policy differ
	}
	p.together = p.onTimeout == v1alpha1.OnTimeoutForce || long && rng.IntN(2) == 0
	if long {
		if rng.IntN(5) == 0 {
			p.together, p.stubborn = true, 35*time.Second
		}
	}
	for i := range uint64(cards) { // the seed shuffles the deck again and again, so that a few fleets have all obstacles
		card := number*cards + i
		shuffled := rand.New(rand.NewPCG(seed, 1<<63+card/uint64(len(deck)))).Perm(len(deck))
		p.add(rng, deck[shuffled[card%uint64(len(deck))]], long)
	}
	for range 2 + rng.IntN(3) {
		g := &group{kind: kind(one(string(replica), string(member), string(bare), string(daemon), string(mirror), string(finished), string(leaving)))}
		if g.kind == replica || g.kind == member || g.kind == bare {
			g.mark, g.returns = one("", "", "", "skip"), 0
			if g.kind == replica && rng.IntN(3) == 0 {
				g.returns = 1 + rng.IntN(2)
			}
		}
		g.emptyDir = rng.IntN(3) == 0
		p.finish(rng, g, true)
	}
	return p
}

// add adds the group of a card.
func (p *fleetPlan) add(rng *rand.Rand, o *obstacle, long bool) {
	g := &group{obstacle: o}
	if o == nil {
		g.kind, g.budget = []kind{replica, member}[rng.IntN(2)], someBudgets[rng.IntN(len(someBudgets))]
	} else {
		g.kind = o.kinds[rng.IntN(len(o.kinds))]
	}
	switch o {
	case tightBudget, twoBudgets:
		g.budget = noBudgets[rng.IntN(len(noBudgets))]
	case notReady:
		g.budget = budgetSpec{"minAvailable 2", 2, 0}
	case byPolicy:
		g.mark = "block"
	}
	// What blocks critical pods is found only when all others are gone, or have been blocked for 30 s.
	p.finish(rng, g, o == nil || long)
}

// finish chooses the rest and adds the group.
func (p *fleetPlan) finish(rng *rand.Rand, g *group, critical bool) {
	g.name = fmt.Sprintf("g%d", len(p.groups))
	g.grace = int64(rng.IntN(3))
	g.stops = time.Duration(100+rng.IntN(int(max(g.grace, 1))*900)) * time.Millisecond
	g.priority = []string{"", "", "fleet-low", "fleet-high", "system-cluster-critical"}[rng.IntN(5)]
	if g.critical() && !critical {
		g.priority = ""
	}
	switch g.replicas = g.budget.replicas; {
	case g.kind != replica && g.kind != member:
		g.replicas = 1
	case g.replicas == 0:
		g.replicas = int32(1 + rng.IntN(3))
	}
	g.here = 1 + rng.IntN(int(g.replicas))
	if g.kind == mirror {
		g.priority = "" // the kubelet's own
	}
	g.fate = g.mustBe(p.rules)
	switch {
	case g.fate == stays:
		g.obstacle = nil
	case g.fate == blocks:
		g.returns = 0 // a successor on the drained node would block it again, for good
		g.obstacle = cmp.Or(map[drain.Reason]*obstacle{drain.Unmanaged: byUnmanaged, drain.EmptyDir: byEmptyDir}[g.blockedBy(p.rules)], byPolicy)
	}
	p.groups = append(p.groups, g)
}

// said returns what rules say about the group's pods, in the order that docs/policy-reference.md gives: "Block" with its reason,
// "Skip", or "Evict".
func (g *group) said(r v1alpha1.PodRules) (v1alpha1.PodRule, drain.Reason) {
	unmanaged := g.kind == bare || g.kind == leaving
	switch {
	case g.mark == "block" && len(r.Block) > 0:
		return "Block", drain.BlockedByPolicy
	case g.mark == "skip" && len(r.Skip) > 0:
		return "Skip", ""
	case unmanaged && r.Unmanaged == "Block":
		return "Block", drain.Unmanaged
	case g.emptyDir && r.EmptyDir == "Block":
		return "Block", drain.EmptyDir
	case unmanaged && r.Unmanaged == "Skip", g.emptyDir && r.EmptyDir == "Skip":
		return "Skip", ""
	}
	return "Evict", ""
}

// mustBe returns the fate of the group's pods: a pod blocks if one of the policies says so, and is skipped if all do.
func (g *group) mustBe(rules []v1alpha1.PodRules) fate {
	var said []v1alpha1.PodRule
	for _, r := range rules {
		s, _ := g.said(r)
		said = append(said, s)
	}
	switch {
	case g.kind == daemon || g.kind == mirror || g.kind == finished:
		return stays
	case slices.Contains(said, "Block") && g.kind != leaving:
		return blocks
	case !slices.Contains(said, "Block") && !slices.Contains(said, "Evict"):
		return stays
	case g.kind == leaving:
		return waits
	}
	return goes
}

func (g *group) blockedBy(rules []v1alpha1.PodRules) drain.Reason {
	for _, r := range rules {
		if s, why := g.said(r); s == "Block" {
			return why
		}
	}
	return ""
}

// TestFleetsHaveAll checks that the fleets of `make test` have every obstacle, every kind of pod, each fate and each onTimeout.
func TestFleetsHaveAll(t *testing.T) {
	missing := map[string]bool{"Wait": true, "Abort": true, "Force": true, "two nodes": true, "critical": true, "returns": true, "late": true, "two rules": true}
	for _, o := range append(slices.Clone(deck), byUnmanaged, byEmptyDir) {
		if o != nil {
			missing[o.name] = true
		}
	}
	for _, k := range []kind{replica, member, bare, daemon, mirror, finished, leaving} {
		missing[string(k)] = true
	}
	for _, f := range []fate{goes, waits, blocks, stays} {
		missing[string(f)] = true
	}
	for n := range uint64(fleetCount) {
		p := composeFleet(fleetSeed, n, false)
		delete(missing, string(p.onTimeout))
		for name, has := range map[string]bool{"two nodes": p.drains == 2, "late": p.late > 0, "two rules": len(p.rules) == 2} {
			if has {
				delete(missing, name)
			}
		}
		for _, g := range p.groups {
			delete(missing, string(g.kind))
			delete(missing, string(g.fate))
			if g.obstacle != nil {
				delete(missing, g.obstacle.name)
			}
			if g.critical() && g.fate == goes {
				delete(missing, "critical")
			}
			if g.returns > 0 && g.fate == goes {
				delete(missing, "returns")
			}
		}
	}
	if len(missing) > 0 {
		t.Errorf("no fleet of seed %d has: %v", fleetSeed, slices.Sorted(maps.Keys(missing)))
	}
}
