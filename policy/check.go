package policy

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Bounds of durations in policies.
const (
	day         = 24 * time.Hour
	longestWait = 7 * day
	longestSoak = 30 * day

	shortestWindow = 10 * time.Minute
)

func (c *compiler) limit(field string, v intstr.IntOrString) Limit {
	l, err := parseLimit(v)
	if err != nil {
		c.wrong(field, "%v", err)
	}
	return l
}

// check reports values outside of their bounds, as the schema does.
func (c *compiler) check(name string, s *v1alpha1.DisruptionPolicySpec) {
	if s.Priority < v1alpha1.MinPriority || s.Priority > v1alpha1.MaxPriority {
		c.wrong("spec.priority", "%d, expected %d to %d", s.Priority, v1alpha1.MinPriority, v1alpha1.MaxPriority)
	}
	if s.Priority == v1alpha1.MinPriority && name != v1alpha1.DefaultPolicyName {
		c.wrong("spec.priority", "%d, expected more than that, which is the priority of %s", s.Priority, v1alpha1.DefaultPolicyName)
	}
	if s.Mode != v1alpha1.PolicyModeAct && s.Mode != v1alpha1.PolicyModeObserve {
		c.wrong("spec.mode", "%q, expected Act or Observe", s.Mode)
	}
	c.checkRules(s.Rules)
	if s.RulesOnly {
		c.checkRulesOnly(s)
	}
	if f := s.Rollout.MaxFailed; f < 0 || f > MaxNodes {
		c.wrong("spec.rollout.maxFailed", "%d, expected 0 to %d", f, MaxNodes)
	}
	for i, key := range s.Rollout.Order {
		if !slices.Contains([]v1alpha1.OrderKey{v1alpha1.OrderLastTurn, v1alpha1.OrderZone, v1alpha1.OrderOldestBoot, v1alpha1.OrderName}, key) {
			c.wrong("spec.rollout.order["+strconv.Itoa(i)+"]", "%q, expected LastTurn, Zone, OldestBoot or Name", key)
		}
	}
	if t := s.Rollout.MaxTurnsPerDay; t < 1 || t > v1alpha1.MaxTurnsPerDay {
		c.wrong("spec.rollout.maxTurnsPerDay", "%d, expected 1 to %d", t, v1alpha1.MaxTurnsPerDay)
	}
	if o := s.Rollout.OnClose; o != v1alpha1.OnCloseFinish && o != v1alpha1.OnCloseCancel {
		c.wrong("spec.rollout.onClose", "%q, expected Finish or Cancel", o)
	}
	c.checkDurations(s)
	switch s.Drain.OnTimeout {
	case v1alpha1.OnTimeoutWait, v1alpha1.OnTimeoutAbort, v1alpha1.OnTimeoutForce:
	default:
		c.wrong("spec.drain.onTimeout", "%q, expected Wait, Abort or Force", s.Drain.OnTimeout)
	}
	switch s.Drain.OnBlockTimeout {
	case "", v1alpha1.OnBlockTimeoutHold:
	case v1alpha1.OnBlockTimeoutEvict:
		if s.Drain.BlockTimeout == nil {
			c.wrong("spec.drain.blockTimeout", "missing, expected 1m to 168h with onBlockTimeout: Evict")
		}
	default:
		c.wrong("spec.drain.onBlockTimeout", "%q, expected Hold or Evict", s.Drain.OnBlockTimeout)
	}
	if d := s.Drain.BlockTimeout; d != nil && (d.Duration < time.Minute || d.Duration > longestWait) {
		c.wrong("spec.drain.blockTimeout", "%v, expected 1m to 168h", d.Duration)
	}
	r := &s.Rollout
	for i := range r.Windows {
		if d := r.Windows[i].Duration.Duration; d >= shortestWindow && d < r.ExpectedDuration.Duration {
			c.wrong("spec.rollout.windows["+strconv.Itoa(i)+"].duration", "%v, expected %v or more: a shorter window does not fit a turn, which takes spec.rollout.expectedDuration", d, r.ExpectedDuration.Duration)
		}
	}
	c.checkGates(r.Gates)
	if d := &s.Drain; d.ExcludeFromLoadBalancers && d.LoadBalancerDelay.Duration >= d.Timeout.Duration {
		c.wrong("spec.drain.loadBalancerDelay", "%v, expected less than spec.drain.timeout, of which it is a part: %v", d.LoadBalancerDelay.Duration, d.Timeout.Duration)
	}
	c.checkPodRule("spec.drain.unmanaged", s.Drain.Unmanaged)
	c.checkPodRule("spec.drain.emptyDir", s.Drain.EmptyDir)
	c.checkPods("spec.drain.skip", s.Drain.Skip)
	c.checkPods("spec.drain.block", s.Drain.Block)
	c.checkHooks(terms(s))
}

// checkRulesOnly reports fields that a policy with rulesOnly must not set. A field that has
// its default counts as not set: the API server fills the defaults in.
func (c *compiler) checkRulesOnly(s *v1alpha1.DisruptionPolicySpec) {
	d := v1alpha1.DefaultPolicySpec()
	for _, f := range []struct {
		field       string
		is, expects any
	}{
		{"mode", s.Mode, d.Mode},
		{"paused", s.Paused, d.Paused},
		{"rollout", s.Rollout, d.Rollout},
		{"hooks", s.Hooks, d.Hooks},
		{"drain", s.Drain, d.Drain},
		{"timeouts", s.Timeouts, d.Timeouts},
	} {
		if !equality.Semantic.DeepEqual(f.is, f.expects) {
			c.wrong("spec."+f.field, "a policy with rulesOnly adds rules and decides nothing else; leave %s out, or leave rulesOnly out", f.field)
		}
	}
}

func (c *compiler) checkDurations(s *v1alpha1.DisruptionPolicySpec) {
	r, t := &s.Rollout, &s.Timeouts
	for _, d := range []struct {
		field    string
		d        time.Duration
		low, max time.Duration
	}{
		{"spec.rollout.settle", r.Settle.Duration, 0, day},
		{"spec.rollout.backoff", r.Backoff.Duration, time.Second, day},
		{"spec.rollout.backoffMax", r.BackoffMax.Duration, min(r.Backoff.Duration, day), day},
		{"spec.rollout.expectedDuration", r.ExpectedDuration.Duration, time.Minute, day},
		{"spec.drain.timeout", s.Drain.Timeout.Duration, time.Second, longestWait},
		{"spec.drain.loadBalancerDelay", s.Drain.LoadBalancerDelay.Duration, 0, v1alpha1.MaxLoadBalancerDelay},
		{"spec.timeouts.seen", t.Seen.Duration, time.Second, longestWait},
		{"spec.timeouts.hostHooks", t.HostHooks.Duration, time.Second, longestWait},
		{"spec.timeouts.rebooting", t.Rebooting.Duration, time.Second, longestWait},
		{"spec.timeouts.applying", t.Applying.Duration, time.Second, longestWait},
		{"spec.timeouts.uncordoning", t.Uncordoning.Duration, time.Second, longestWait},
	} {
		if d.d < d.low || d.d > d.max {
			c.wrong(d.field, "%v, expected %v to %v", d.d, d.low, d.max)
		}
	}
}

func (c *compiler) checkGates(gates []v1alpha1.Gate) {
	seen := map[string]bool{}
	for i, g := range gates {
		field := "spec.rollout.gates[" + strconv.Itoa(i) + "]"
		if len(validation.IsDNS1123Label(g.Name)) > 0 {
			c.wrong(field+".name", "%q, expected a DNS label: at most 63 lower-case letters, digits and -", g.Name)
		}
		if seen[g.Name] {
			c.wrong(field+".name", "another gate has the name %q too, expected a unique name", g.Name)
		}
		seen[g.Name] = true
		if strings.TrimSpace(g.Query) == "" {
			c.wrong(field+".query", "empty, expected a query of Prometheus that returns nothing while turns may begin")
		}
	}
}

// after checks the policies for which the policy of the given name waits. Whether these
// wait for each other depends on all policies, so only the coordinator can say.
func (c *compiler) after(name string, specs []v1alpha1.AfterPolicy) []After {
	const list = "spec.rollout.after"
	if len(specs) > v1alpha1.MaxAfter {
		c.wrong(list, "%d policies, expected at most %d", len(specs), v1alpha1.MaxAfter)
		return nil
	}
	var all []After
	for i, a := range specs {
		field := list + "[" + strconv.Itoa(i) + "]"
		switch {
		case len(validation.IsDNS1123Subdomain(a.Policy)) > 0:
			c.wrong(field+".policy", "%q, expected the name of a policy: lower-case letters, digits, - and .", a.Policy)
		case a.Policy == name:
			c.wrong(field+".policy", "%q waits for itself, expected the name of another policy", a.Policy)
		case slices.ContainsFunc(all, func(other After) bool { return other.Policy == a.Policy }):
			c.wrong(field+".policy", "%q is in the list already, expected each policy once", a.Policy)
		}
		if d := a.For.Duration; d < 0 || d > longestSoak {
			c.wrong(field+".for", "%v, expected 0s to 720h", d)
		}
		all = append(all, After{a.Policy, a.For.Duration})
	}
	return all
}

func (c *compiler) checkPodRule(field string, r v1alpha1.PodRule) {
	switch r {
	case "", v1alpha1.PodEvict, v1alpha1.PodBlock, v1alpha1.PodSkip:
	default:
		c.wrong(field, "%q, expected Evict, Block or Skip", r)
	}
}

func (c *compiler) checkPods(field string, all []v1alpha1.PodSelector) {
	for i, pods := range all {
		at := field + "[" + strconv.Itoa(i) + "]"
		if pods.Namespace != "" && len(validation.IsDNS1123Label(pods.Namespace)) > 0 {
			c.wrong(at+".namespace", "%q, expected the name of a namespace, or nothing for all", pods.Namespace)
		}
		c.selector(at+".selector", pods.Selector)
	}
}

// stages maps each hook stage to its field in the spec.
var stages = []struct {
	state v1alpha1.State
	field string
}{
	{v1alpha1.StateBeforeDrain, "spec.hooks.beforeDrain"},
	{v1alpha1.StateBeforeReboot, "spec.hooks.beforeReboot"},
	{v1alpha1.StateBeforeUncordon, "spec.hooks.beforeUncordon"},
}

func (c *compiler) checkHooks(t v1alpha1.Terms) {
	seen := map[string]string{}
	for _, stage := range stages {
		for i, h := range t.Hooks(stage.state) {
			field := stage.field + "[" + strconv.Itoa(i) + "]"
			if err := v1alpha1.ValidateHookName(h.Name); err != nil {
				c.wrong(field+".name", "%v", err)
			}
			if other, twice := seen[h.Name]; twice {
				// The annotation does not name the stage, so the confirmation of the
				// first stage would also confirm the second.
				c.wrong(field+".name", "%q stands in %s already, expected a name in one stage only: give this hook another", h.Name, strings.TrimPrefix(other, "spec.hooks."))
			}
			seen[h.Name] = field
			if d := h.Timeout.Duration; d < time.Second || d > longestWait {
				c.wrong(field+".timeout", "%v, expected 1s to 168h", d)
			}
			switch {
			case h.OnTimeout == v1alpha1.OnTimeoutWait, h.OnTimeout == v1alpha1.OnTimeoutContinue:
			case h.OnTimeout == v1alpha1.OnTimeoutAbort && stage.state != v1alpha1.StateBeforeUncordon:
			case h.OnTimeout == v1alpha1.OnTimeoutAbort:
				c.wrong(field+".onTimeout", "Abort is not possible where a turn that is aborted goes, expected Wait or Continue")
			default:
				c.wrong(field+".onTimeout", "%q, expected Wait, Continue or Abort", h.OnTimeout)
			}
		}
	}
}
