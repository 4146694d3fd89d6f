// Package policy says what changes cost and how fast the fleet may roll: the
// cluster's DisruptionPolicies, checked and made ready to decide by.
//
// The package is pure: no client, no file, no clock. Data in, data out.
package policy

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Policy is a DisruptionPolicy that was read by [Compile]. The zero Policy
// allows nothing.
type Policy struct {
	Name       string
	Generation int64
	Priority   int32
	// Problems are what is wrong with it, in the order of its fields; a policy
	// with any is invalid, and grants nothing on any node that it selects.
	Problems []Problem

	// Observe: verdicts, no grants. Paused: no grants.
	Observe, Paused bool

	// Rules are what changes cost; see [Match.Plan].
	Rules []v1alpha1.Rule

	// MaxUnavailable is how many of the policy's nodes may be unavailable at
	// once, MaxUnavailableTotal how many of all nodes; nil is no such limit.
	MaxUnavailable      Limit
	MaxUnavailableTotal *Limit
	// MaxFailed is how many failed nodes, not cleared, stop the line when
	// exceeded; 0 to 10000.
	MaxFailed int
	// Order is how nodes are sorted. OrderLastTurn is among the keys.
	Order []v1alpha1.OrderKey
	// MaxTurnsPerDay is the most turns that a node is granted within 24 hours; 1 to
	// 48.
	MaxTurnsPerDay int
	// Settle is how long nothing is granted after the end of a turn, or after
	// a Node's creation; 0 to 24h.
	Settle time.Duration
	// Backoff is how long a node that was backed out waits for its next turn;
	// it doubles each time, up to BackoffMax. 1s to 24h.
	Backoff, BackoffMax time.Duration
	// ExpectedDuration is how long a turn takes, 1m to 24h: it has to fit into
	// what is left of a window.
	ExpectedDuration time.Duration
	// Windows are when turns may begin; none is always.
	Windows []Window
	// Gates must all be open for a turn to begin.
	Gates []v1alpha1.Gate

	// Terms are what each turn's grant records.
	Terms v1alpha1.Terms

	selector labels.Selector // nil selects every node
}

// Problem is one thing that is wrong with a policy.
type Problem struct {
	Field string // as kubectl explain has it: spec.rollout.windows[0].timeZone
	Text  string // what stands there, and what to write instead
}

// String returns the problem as "field: text".
func (p Problem) String() string { return p.Field + ": " + p.Text }

// Selects reports whether the policy is for nodes with these labels.
func (p *Policy) Selects(node map[string]string) bool {
	return p.selector == nil || p.selector.Matches(labels.Set(node))
}

// Zones finds a time zone by its IANA name; time.LoadLocation is one.
type Zones func(name string) (*time.Location, error)

// Compile reads a policy. Problems lists what is wrong with it, including what the API
// server's schema refuses, because objects may be older than the schema.
// It never fails: a policy with problems still selects its nodes.
func Compile(obj *v1alpha1.DisruptionPolicy, zones Zones) Policy {
	c := compiler{zones: zones}
	s := &obj.Spec
	r := &s.Rollout
	p := Policy{
		Name: obj.Name, Generation: obj.Generation, Priority: s.Priority,
		Observe: s.Mode == v1alpha1.PolicyModeObserve, Paused: s.Paused, Rules: s.Rules,
		MaxUnavailable: c.limit("spec.rollout.maxUnavailable", r.MaxUnavailable),
		MaxFailed:      int(r.MaxFailed), Order: r.Order, MaxTurnsPerDay: int(r.MaxTurnsPerDay),
		Settle: r.Settle.Duration, Backoff: r.Backoff.Duration, BackoffMax: r.BackoffMax.Duration,
		ExpectedDuration: r.ExpectedDuration.Duration, Gates: r.Gates,
		Terms: terms(s), selector: c.selector("spec.nodeSelector", s.NodeSelector),
	}
	if !slices.Contains(p.Order, v1alpha1.OrderLastTurn) {
		p.Order = slices.Insert(slices.Clone(p.Order), 0, v1alpha1.OrderLastTurn)
	}
	if r.MaxUnavailableTotal != nil {
		total := c.limit("spec.rollout.maxUnavailableTotal", *r.MaxUnavailableTotal)
		p.MaxUnavailableTotal = &total
	}
	c.check(obj.Name, s)
	p.Windows = c.windows(r.Windows)
	if n := len(v1alpha1.FormatRecord(&p.Terms)); n > maxTerms {
		// A grant that is too large to be read would be repaired indefinitely.
		c.wrong("spec", "hooks and drain take %d bytes in the record of each turn, expected at most %d: name fewer of them, or in fewer words", n, maxTerms)
	}
	p.Problems = c.problems
	return p
}

// maxTerms bounds, in bytes, what of a policy goes into each grant: with the
// changes of a turn it has to fit into an annotation that is read.
const maxTerms = 16 << 10

// terms are what of a policy goes into each grant.
func terms(s *v1alpha1.DisruptionPolicySpec) v1alpha1.Terms {
	t := v1alpha1.Terms{
		Seen: s.Timeouts.Seen, Draining: s.Drain.Timeout, DrainTimeout: s.Drain.OnTimeout,
		Rebooting: s.Timeouts.Rebooting, Applying: s.Timeouts.Applying, HostHooks: s.Timeouts.HostHooks,
		Uncordoning: s.Timeouts.Uncordoning, WaitForVolumeDetach: s.Hooks.WaitForVolumeDetach,
		Skip: s.Drain.Skip, Block: s.Drain.Block,
	}
	if s.Rollout.OnClose != v1alpha1.OnCloseFinish {
		t.OnClose = s.Rollout.OnClose
	}
	before := func(specs []v1alpha1.HookSpec) (hooks []v1alpha1.Hook) {
		for _, h := range specs {
			hooks = append(hooks, v1alpha1.Hook(h))
		}
		return hooks
	}
	t.BeforeDrain, t.BeforeReboot = before(s.Hooks.BeforeDrain), before(s.Hooks.BeforeReboot)
	for _, h := range s.Hooks.BeforeUncordon {
		t.BeforeUncordon = append(t.BeforeUncordon, v1alpha1.Hook(h))
	}
	return t
}

// compiler collects what is wrong.
type compiler struct {
	zones    Zones
	problems []Problem
}

func (c *compiler) wrong(field, format string, args ...any) {
	c.problems = append(c.problems, Problem{field, fmt.Sprintf(format, args...)})
}

func (c *compiler) selector(field string, s metav1.LabelSelector) labels.Selector {
	if len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0 {
		return nil
	}
	sel, err := metav1.LabelSelectorAsSelector(&s)
	if err != nil {
		c.wrong(field, "%v; until it is corrected, the policy holds all nodes", err)
		return nil
	}
	return sel
}
