package rollout

import (
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestStatus follows what a policy shows in its status and to kubectl, from before the update to the end of its
// rollout. At first the hosts only observe, and no node moves.
func TestStatus(t *testing.T) {
	t.Parallel()
	const rest = `, priority: 10, nodeSelector: {matchLabels: {pool: web}},
		rollout: {maxUnavailable: 50%, order: [Name], settle: 0s}, hooks: {beforeReboot: [{name: check}]}}`
	s := playPools(t, 2, hostPool{name: "web", hosts: 4, budget: 2, policy: "{mode: Observe" + rest}, spare)
	s.policyShows("web", "selected 4, up to date 4, wanting 0, in turn 0, unavailable 0, failed 0, allowed 2; "+
		"Valid True Valid; Progressing False UpToDate; Halted False WithinMaxFailed")
	s.kubectlShows("web", "Name=web Priority=10 Mode=Observe Selected=4 UpToDate=4 InTurn=0 Allowed=2 Valid=True Progressing=UpToDate",
		"Failed=0 Wanting=0 Unavailable=0 Paused=false RulesOnly=false Halted=False")

	s.stage("node-1", "node-2", "node-3", "node-4")
	s.heldIdle(v1alpha1.ReasonWouldGrant, "node-1", "node-2")
	s.heldIdle(v1alpha1.ReasonBudget, "node-3", "node-4")
	s.policyShows("web", "selected 4, up to date 0, wanting 4, in turn 0, unavailable 0, failed 0, allowed 2; "+
		"Valid True Valid; Progressing False WouldGrant; Halted False WithinMaxFailed")
	s.kubectlShows("web", "Name=web Priority=10 Mode=Observe Selected=4 UpToDate=0 InTurn=0 Allowed=2 Valid=True Progressing=WouldGrant",
		"Failed=0 Wanting=4 Unavailable=0 Paused=false RulesOnly=false Halted=False")
	s.nothingBegins("node-5", "node-1", "node-2", "node-3", "node-4")

	s.policy("web", "{mode: Act"+rest)
	s.Reaches("node-1", v1alpha1.StateBeforeReboot)
	s.Reaches("node-2", v1alpha1.StateBeforeReboot)
	s.policyShows("web", "selected 4, up to date 0, wanting 4, in turn 2, unavailable 2, failed 0, allowed 2; "+
		"Valid True Valid; Progressing True InTurn; Halted False WithinMaxFailed")
	s.kubectlShows("web", "Name=web Priority=10 Mode=Act Selected=4 UpToDate=0 InTurn=2 Allowed=2 Valid=True Progressing=InTurn",
		"Failed=0 Wanting=4 Unavailable=2 Paused=false RulesOnly=false Halted=False")

	s.lockkeeper("confirm", "node-1", "check")
	s.back("node-1")
	s.Reaches("node-3", v1alpha1.StateBeforeReboot)
	s.policyShows("web", "selected 4, up to date 1, wanting 3, in turn 2, unavailable 2, failed 0, allowed 2; "+
		"Valid True Valid; Progressing True InTurn; Halted False WithinMaxFailed")

	for _, name := range []string{"node-2", "node-3", "node-4"} {
		s.Reaches(name, v1alpha1.StateBeforeReboot)
		s.lockkeeper("confirm", name, "check")
	}
	s.back("node-2", "node-3", "node-4")
	s.policyShows("web", "selected 4, up to date 4, wanting 0, in turn 0, unavailable 0, failed 0, allowed 2; "+
		"Valid True Valid; Progressing False UpToDate; Halted False WithinMaxFailed")
	s.kubectlShows("web", "Name=web Priority=10 Mode=Act Selected=4 UpToDate=4 InTurn=0 Allowed=2 Valid=True Progressing=UpToDate",
		"Failed=0 Wanting=0 Unavailable=0 Paused=false RulesOnly=false Halted=False")
}
