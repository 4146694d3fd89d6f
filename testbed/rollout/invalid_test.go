package rollout

import (
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

const (
	// onMars is web with a window in a time zone that does not exist. The schema cannot check that.
	onMars = `{priority: 10, nodeSelector: {matchLabels: {pool: web}}, hooks: {beforeReboot: [{name: check}]},
		rollout: {maxUnavailable: 1, settle: 0s, windows: [{start: "00:00", duration: 24h, timeZone: Mars/Olympus}]}}`
	// onEarth is the same with a valid time zone without clock changes, and a window that is always open.
	onEarth = `{priority: 10, nodeSelector: {matchLabels: {pool: web}},
		rollout: {maxUnavailable: 1, settle: 0s, windows: [{start: "00:00", duration: 24h, timeZone: Asia/Tokyo}]}}`
)

// TestInvalidDuringRollout makes a policy invalid while a node of the policy waits for a hook in its turn. The turn must
// continue with the terms in its grant and end well. No other turn of that policy may begin, while nodes of another
// policy roll. When the policy is valid again, the other nodes roll.
func TestInvalidDuringRollout(t *testing.T) {
	rig.Sample(t, 3)
	t.Parallel()
	s := playPools(t, 2,
		hostPool{name: "web", hosts: 3, budget: 1, policy: web},
		hostPool{name: "db", hosts: 1, budget: 1, policy: db},
		spare)
	s.stage("node-1")
	s.Reaches("node-1", v1alpha1.StateBeforeReboot)
	s.stage("node-2", "node-3")
	s.heldIdle(v1alpha1.ReasonBudget, "node-2", "node-3")

	s.policy("web", onMars)
	s.heldIdle(v1alpha1.ReasonInvalidPolicy, "node-2", "node-3")
	p := s.policyShows("web", "selected 3, up to date 0, wanting 3, in turn 1, unavailable 1, failed 0, allowed 1; "+
		"Valid False InvalidPolicy; Progressing True InTurn; Halted False WithinMaxFailed")
	for _, c := range p.Status.Conditions {
		if c.Type == v1alpha1.ConditionValid && (!strings.HasPrefix(c.Message, "spec.rollout.windows[0].timeZone: ") || !strings.Contains(c.Message, "Mars/Olympus")) {
			t.Errorf("message about the invalid policy: %q", c.Message)
		}
	}
	s.kubectlShows("web", "Name=web Priority=10 Mode=Act Selected=3 UpToDate=0 InTurn=1 Allowed=1 Valid=False Progressing=InTurn",
		"Failed=0 Wanting=3 Unavailable=1 Paused=false RulesOnly=false Halted=False")
	s.lockkeeper("confirm", "node-1", "check")
	s.back("node-1")
	s.stage("node-4")
	s.back("node-4")
	s.policyShows("web", "selected 3, up to date 1, wanting 2, in turn 0, unavailable 0, failed 0, allowed 1; "+
		"Valid False InvalidPolicy; Progressing False InvalidPolicy; Halted False WithinMaxFailed")
	s.nothingBegins("node-5", "node-2", "node-3")

	s.policy("web", onEarth)
	s.back("node-2", "node-3")
	s.policyShows("web", "selected 3, up to date 3, wanting 0, in turn 0, unavailable 0, failed 0, allowed 1; "+
		"Valid True Valid; Progressing False UpToDate; Halted False WithinMaxFailed")
}
