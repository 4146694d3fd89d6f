package coordinator

import (
	"lockkeeper.dev/lockkeeper/coordinator/gate"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/policy"
)

// gatesOf are the gates that somebody waits for: those of the policies that have
// a node which wants something and is in no turn. Nobody asks the others, and so
// the first turn of a rollout waits for a first answer.
func gatesOf(policies policy.Set, figures []rollout.PolicyFigures) []gate.Query {
	waits := map[string]bool{}
	for i := range figures {
		waits[figures[i].Name] = figures[i].Wanting > figures[i].InTurn
	}
	var all []gate.Query
	for i := range policies {
		p := &policies[i]
		if !waits[p.Name] || len(p.Problems) > 0 {
			continue
		}
		for _, g := range p.Gates {
			all = append(all, gate.Query{Key: gate.Key{Policy: p.Name, Gate: g.Name}, Expr: g.Query})
		}
	}
	return all
}

// answered are the answers to the gates, as a decision takes them.
func answered(gates *gate.Gates) map[string]rollout.Gate {
	all := map[string]rollout.Gate{}
	for key, a := range gates.Answers() {
		all[rollout.GateKey(key.Policy, key.Gate)] = rollout.Gate{Open: a.Open, Detail: a.Detail}
	}
	return all
}
