package virtual

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/referee"
)

// poolPolicy is the policy of the last hosts; see [Options.Pool].
const poolPolicy = "pool"

// labelPool is a label that kubelets put on their Nodes: poolPolicy on the last hosts, mainPool on the others.
const (
	labelPool = "example.com/pool"
	mainPool  = "main"
)

func (o *Options) pool(host int) string {
	if host >= o.Hosts-o.Pool {
		return poolPolicy
	}
	return mainPool
}

// splitPool returns a policy that is the same as p, for the hosts of the pool, with a budget of one.
func splitPool(p *v1alpha1.DisruptionPolicy) *v1alpha1.DisruptionPolicy {
	own := p.DeepCopy()
	own.Name, own.Spec.Priority = poolPolicy, 5
	own.Spec.NodeSelector.MatchLabels = map[string]string{labelPool: poolPolicy}
	own.Spec.Rollout.MaxUnavailable = intstr.FromInt(1)
	return own
}

// changesBudgets are the changes of a policy after which its hosts have another budget.
var changesBudgets = []string{"budget=2", "budget=100%", "deleted"}

// policyBudgets are the budgets of the two policies, for the judge, which takes only those that no fault of the plan changes.
func (o *Options) policyBudgets(main int) []referee.PolicyBudget {
	if o.Pool == 0 || slices.ContainsFunc(o.Plan.Faults, func(f Fault) bool { return f.Kind == kindPolicy && slices.Contains(changesBudgets, f.Mode) }) {
		return nil
	}
	return []referee.PolicyBudget{
		{Policy: poolPolicy, Labels: map[string]string{labelPool: poolPolicy}, Budget: 1},
		{Policy: v1alpha1.DefaultPolicyName, Labels: map[string]string{labelPool: mainPool}, Budget: main},
	}
}

// sumOfBudgets returns how many hosts all policies together let be disturbed, with this spec for the one. A policy that is gone counts as it was,
// because turns under it may continue.
func (f *Fleet) sumOfBudgets(policy string, spec *v1alpha1.DisruptionPolicySpec) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.budgets == nil {
		f.budgets = map[string]int{}
	}
	f.budgets[policy] = f.budget(spec)
	all := 0
	for _, n := range f.budgets {
		all += n
	}
	return all
}
