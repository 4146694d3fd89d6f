package virtual

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// canaryPolicy is the policy of n1, for which the others wait; see [Options.Canary].
const canaryPolicy = "canary"

// canaryHost is the only node of that policy.
const canaryHost = "n1"

// span is a time, counted from the start of the fleet.
type span struct{ from, to time.Duration }

// fleetsBegin is when the clock of every bubble begins.
var fleetsBegin = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// blackout returns the fleet's blackout.
func (o *Options) blackout() v1alpha1.Blackout {
	at := func(d time.Duration) string { return fleetsBegin.Add(d).Format("2006-01-02T15:04") }
	return v1alpha1.Blackout{Start: at(o.Blackout.from), End: at(o.Blackout.to), TimeZone: "UTC"}
}

// splitCanary has p wait for another policy, which is the same for canaryHost, and returns that one. Both together have the budget that p
// has alone.
func (f *Fleet) splitCanary(p *v1alpha1.DisruptionPolicy) *v1alpha1.DisruptionPolicy {
	first := p.DeepCopy()
	first.Name, first.Spec.Priority = canaryPolicy, 10
	first.Spec.NodeSelector.MatchLabels = map[string]string{corev1.LabelHostname: canaryHost}
	total := intstr.FromInt(f.budget(&p.Spec))
	p.Spec.Rollout.MaxUnavailableTotal = &total
	p.Spec.Rollout.After = []v1alpha1.AfterPolicy{{Policy: canaryPolicy, For: metav1.Duration{Duration: f.opts.Canary}}}
	return first
}

// canary is what canaryHost has run.
type canary struct {
	mu    sync.Mutex
	boots []boot
	seen  map[string]bool // turns and the versions that they are for
}

type boot struct {
	at      time.Time
	version string
}

func (c *canary) booted(m *Machine) {
	if m.name != canaryHost {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.boots = append(c.boots, boot{time.Now(), m.mem.Version()})
}

// ran reports whether the host had run the version for so long at that time. It knows the machine, and nothing that lockkeeper wrote.
func (c *canary) ran(version string, long time.Duration, at time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range slices.Backward(c.boots) {
		if !b.at.After(at) {
			return b.version == version && at.Sub(b.at) >= long
		}
	}
	return false
}

// first reports whether it is asked for the first time about the turn and the version.
func (c *canary) first(turn, version string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]bool{}
	}
	key := turn + " " + version
	was := c.seen[key]
	c.seen[key] = true
	return !was
}

// judgeGrant checks the grant on a Node, by the time at which the leader decided on it: no turn begins in the blackout, and none is for an
// OS version before canaryHost has run that version for long enough.
func (f *Fleet) judgeGrant(obj *corev1.Node) {
	if obj == nil || f.opts.Canary == 0 && f.opts.Blackout == (span{}) {
		return
	}
	n := turn.FromNode(obj)
	g := n.Grant
	if g == nil || !n.InTurn() || !g.Wants.Something() {
		return
	}
	after := g.StartedAt.Sub(fleetsBegin)
	if b := f.opts.Blackout; after >= b.from && after < b.to && (g.Request == nil || !g.Request.Now) && f.ahead.first(g.Turn, "") {
		f.problem("Blackout: %s was granted the turn %s at %s, in the blackout from %s to %s", n.Name, g.Turn, after, b.from, b.to)
	}
	// A turn of canaryHost that began while its policy was deleted may take a new version once the policy is back.
	if f.opts.Canary == 0 || g.Policy == canaryPolicy || n.Name == canaryHost && g.StageAt.After(g.StartedAt) {
		return
	}
	for _, c := range g.Changes {
		if c.Source == v1alpha1.SourceOSUpdate && f.ahead.first(g.Turn, c.String()) && !f.ahead.ran(c.Version, f.opts.Canary, g.StageAt) {
			f.problem("Canary: %s has a turn for %s since %s, and %s had not run that for %s", n.Name, c.Version, g.StageAt.Sub(fleetsBegin), canaryHost, f.opts.Canary)
		}
	}
}

// followCanary has the update engines of the other hosts replace what they have staged by the version that canaryHost runs: otherwise they
// would wait for a version that it no longer runs. With a version, every host replaces what it has staged by that one.
func (f *Fleet) followCanary(version string) {
	if f.opts.Canary == 0 {
		return
	}
	target := version
	if target == "" {
		target = f.machine(canaryHost).mem.Version()
	}
	for _, m := range f.hosts {
		if runs, staged := m.mem.Version(), m.stagedVersion(); staged != target && runs != target && (version != "" || m.name != canaryHost) {
			m.withdraw()
			m.stage(target)
		}
	}
}
