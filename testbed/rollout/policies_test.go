package rollout

import (
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/referee"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// hostPool is a group of hosts that have its name as the label "pool".
type hostPool struct {
	name  string
	hosts int
	// controlPlane makes the nodes control-plane nodes.
	controlPlane bool
	// candidates is how many hosts may coordinate, counted from the first.
	candidates int
	// policy is the spec of their policy in YAML. "" means the policy in the manifests.
	policy string
	// budget is what the policy allows, for the referee.
	budget int
}

// spare is a pool with one host that coordinates and has no updates.
var spare = hostPool{name: "spare", hosts: 1, candidates: 1, budget: 1}

// These policies are used by several tests.
const (
	// web rolls one node at a time and waits for the hook check before each reboot. webUnhooked does not wait.
	web = `{priority: 10, nodeSelector: {matchLabels: {pool: web}}, rollout: {maxUnavailable: 1, settle: 0s},
		hooks: {beforeReboot: [{name: check}]}}`
	webUnhooked = `{priority: 10, nodeSelector: {matchLabels: {pool: web}}, rollout: {maxUnavailable: 1, settle: 0s}}`
	db          = `{priority: 20, nodeSelector: {matchLabels: {pool: db}}, rollout: {maxUnavailable: 1, settle: 0s}}`
)

// playPools starts a fleet of these pools. The total budget is budget. The hosts are node-1, node-2 and so on, in the
// order of the pools.
func playPools(t *testing.T, budget int, pools ...hostPool) *scene {
	t.Helper()
	o := rig.Options{
		Policies: map[string]string{},
		Budget:   budget,
		Fleet: simhost.FleetOptions{Host: simhost.Options{Binary: binary, RestartDelay: 300 * time.Millisecond, Config: func(c simhost.Config) {
			// A busy machine must not end the term, because a new term may back turns out. Other tests cover that.
			for key, d := range map[string]time.Duration{"duration": 60 * time.Second, "renew_deadline": 40 * time.Second} {
				c.Set("lease", key, d)
			}
		}}},
	}
	var of []*hostPool // by host
	var candidate []bool
	for i := range pools {
		p := &pools[i]
		for k := range p.hosts {
			of, candidate = append(of, p), append(candidate, k < p.candidates)
		}
		o.PolicyBudgets = append(o.PolicyBudgets, referee.PolicyBudget{Policy: p.name, Labels: map[string]string{"pool": p.name}, Budget: p.budget})
		if p.policy != "" {
			o.Policies[p.name] = p.policy
		}
	}
	o.Fleet.Hosts = len(of)
	o.Fleet.Each = func(i int, o *simhost.Options) {
		o.Labels = map[string]string{"pool": of[i].name}
		o.ControlPlane, o.Coordinator = of[i].controlPlane, candidate[i]
	}
	return &scene{Scene: rig.Play(t, pool.Take(t), o)}
}
