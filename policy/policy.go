// Package policy compiles the cluster's DisruptionPolicies, which say what changes cost
// and how fast the fleet may roll. It checks them and prepares them for decisions.
//
// The package is pure: no client, no file, no clock. It must not know which nodes there are, in
// which states they are, or who decides.
package policy

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Policy is a DisruptionPolicy that [Compile] has checked. The zero Policy allows nothing.
type Policy struct {
	Name       string
	Generation int64
	Priority   int32
	// Problems are the mistakes in the policy, in the order of its fields. A policy with
	// a problem is invalid, and the nodes that it selects are granted nothing.
	Problems []Problem

	// RulesOnly: the policy has only Rules, and never decides about a node.
	RulesOnly bool
	// Observe: the policy gives verdicts, but no grants. Paused: no grants.
	Observe, Paused bool

	// Rules say what changes cost; see [Match.Plan].
	Rules []v1alpha1.Rule

	// MaxUnavailable is how many of the policy's nodes may be unavailable at once.
	// MaxUnavailableTotal is how many of all nodes may; nil means no limit.
	MaxUnavailable      Limit
	MaxUnavailableTotal *Limit
	// MaxFailed is how many nodes may have failed, and not been cleared, before the
	// policy halts; 0 to 10000.
	MaxFailed int
	// Order are the keys by which nodes are sorted. It contains OrderLastTurn.
	Order []v1alpha1.OrderKey
	// MaxTurnsPerDay is how many turns a node is granted within 24 hours at most; 1 to
	// 48.
	MaxTurnsPerDay int
	// Settle is how long nothing is granted after the end of a turn, or after
	// a Node's creation; 0 to 24h.
	Settle time.Duration
	// Backoff is how long a node waits for its next turn after one was backed out. It
	// doubles each time, up to BackoffMax. 1s to 24h.
	Backoff, BackoffMax time.Duration
	// ExpectedDuration is how long a turn takes; 1m to 24h. A turn begins only if that
	// fits into the rest of the window.
	ExpectedDuration time.Duration
	// Calendar is when turns may begin.
	Calendar
	// Gates must all be open for a turn to begin.
	Gates []v1alpha1.Gate

	// After are the policies whose nodes run an OS version first.
	After []After

	// Terms are recorded in the grant of each turn.
	Terms v1alpha1.Terms

	selector labels.Selector // nil selects every node
}

// After is a policy whose nodes have to have run an OS version for a time before the nodes
// of the policy that has it are granted a turn for that version.
type After struct {
	Policy string
	For    time.Duration // 0 to 720h
}

// Problem is one mistake in a policy.
type Problem struct {
	Field string // the path, as in kubectl explain: spec.rollout.windows[0].timeZone
	Text  string // the value of the field, and what to write instead
}

// String returns the problem as "field: text".
func (p Problem) String() string { return p.Field + ": " + p.Text }

// Selects reports whether the policy is for nodes with these labels.
func (p *Policy) Selects(node map[string]string) bool {
	return p.selector == nil || p.selector.Matches(labels.Set(node))
}

// Zones returns a time zone by its IANA name. time.LoadLocation is one.
type Zones func(name string) (*time.Location, error)

// Compile checks a policy and prepares it for decisions. It never fails: a policy with
// Problems still selects its nodes. Problems include what the API server's schema refuses,
// because objects may be older than the schema.
func Compile(obj *v1alpha1.DisruptionPolicy, zones Zones) Policy {
	c := compiler{zones: zones}
	s := &obj.Spec
	r := &s.Rollout
	p := Policy{
		Name: obj.Name, Generation: obj.Generation, Priority: s.Priority,
		RulesOnly: s.RulesOnly, Observe: s.Mode == v1alpha1.PolicyModeObserve, Paused: s.Paused, Rules: s.Rules,
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
	p.Windows, p.Blackouts = c.windows(r.Windows), c.blackouts(r.Blackouts)
	p.After = c.after(obj.Name, r.After)
	if n := len(v1alpha1.FormatRecord(&p.Terms)); n > maxTerms {
		// A grant that is too large to be read would be repaired indefinitely.
		c.wrong("spec", "hooks and drain take %d bytes in the record of each turn, expected at most %d: list fewer of them, or use shorter names", n, maxTerms)
	}
	p.Problems = c.problems
	return p
}

// maxTerms bounds the terms in a grant, in bytes. Together with the changes of a turn they
// have to fit into an annotation of the size that readers accept.
const maxTerms = 16 << 10

// terms returns the part of a policy that each grant records.
func terms(s *v1alpha1.DisruptionPolicySpec) v1alpha1.Terms {
	t := v1alpha1.Terms{
		Seen: s.Timeouts.Seen, Draining: s.Drain.Timeout, DrainTimeout: s.Drain.OnTimeout,
		Rebooting: s.Timeouts.Rebooting, Applying: s.Timeouts.Applying, HostHooks: s.Timeouts.HostHooks,
		Uncordoning: s.Timeouts.Uncordoning, WaitForVolumeDetach: s.Hooks.WaitForVolumeDetach,
		PodRules: s.Drain.PodRules, Exclusions: s.Drain.Exclusions,
	}
	if s.Drain.BlockTimeout != nil {
		t.BlockTimeout = *s.Drain.BlockTimeout
	}
	// The defaults need no room in the record of each turn.
	if s.Drain.OnBlockTimeout != v1alpha1.OnBlockTimeoutHold {
		t.OnBlockTimeout = s.Drain.OnBlockTimeout
	}
	if t.Unmanaged == v1alpha1.PodEvict {
		t.Unmanaged = ""
	}
	if t.EmptyDir == v1alpha1.PodEvict {
		t.EmptyDir = ""
	}
	if !t.ExcludeFromLoadBalancers {
		t.LoadBalancerDelay = metav1.Duration{}
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

// compiler collects the problems of one policy.
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
