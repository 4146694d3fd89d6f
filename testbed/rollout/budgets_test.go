package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/hookauthor"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

// TestBudgets rolls thirty nodes in three policies: 16 in web, with a percentage; 9 in db, with a number; and 5
// control-plane nodes in infra, whose policy allows all at once. A total budget covers all of them. At first every turn
// waits for a hook, so that the test can check how many turns run at once and why the other nodes wait. Then the whole
// fleet rolls. The referee checks the budget of each policy at all times.
func TestBudgets(t *testing.T) {
	rig.Sample(t, 3)
	t.Parallel()
	spec := func(name, rollout string) string {
		return fmt.Sprintf(`{priority: 10, nodeSelector: {matchLabels: {pool: %s}}, rollout: {settle: 0s, %s}, hooks: {beforeReboot: [{name: check}]}}`, name, rollout)
	}
	s := playPools(t, 6,
		hostPool{name: "web", hosts: 16, budget: 4, policy: spec("web", "maxUnavailable: 30%, maxUnavailableTotal: 6")}, // 4.8
		hostPool{name: "db", hosts: 9, budget: 2, policy: spec("db", "maxUnavailable: 2")},
		hostPool{name: "infra", hosts: 5, budget: 5, policy: spec("infra", "maxUnavailable: 100%"), controlPlane: true, candidates: 2})
	authors, err := hookauthor.Start(s.ControlPlane.Client(), func(text string) { t.Log(text) }, "check")
	s.Must(err)
	t.Cleanup(authors.Close)

	s.stagePool("infra")
	s.poolIsHeld("infra", 1, v1alpha1.ReasonControlPlane)
	s.stagePool("db")
	s.poolIsHeld("db", 2, v1alpha1.ReasonBudget)
	s.stagePool("web")
	s.poolIsHeld("web", 3, v1alpha1.ReasonBudget) // together with the three other nodes, the whole total
	s.policyShows("infra", "selected 5, up to date 0, wanting 5, in turn 1, unavailable 1, failed 0, allowed 5; "+
		"Valid True Valid; Progressing True InTurn; Halted False WithinMaxFailed")
	s.policyShows("web", "selected 16, up to date 0, wanting 16, in turn 3, unavailable 3, failed 0, allowed 4; "+
		"Valid True Valid; Progressing True InTurn; Halted False WithinMaxFailed")

	s.Referee.SetBudget(7)
	s.policy("web", spec("web", "maxUnavailable: 30%"))
	s.poolIsHeld("web", 4, v1alpha1.ReasonBudget)

	authors.Release("check")
	s.Must(s.Fleet.WaitUpdated(s.Within(rig.Rolled), newVersion))
	s.Must(s.Referee.Sync(s.Within(rig.Soon)))
	if r := s.Referee.Report(); len(r.Updated) != 30 || r.Reboots != 30 || r.MaxDisturbed != 7 {
		t.Errorf("%s; expected all updated, 30 reboots, 7 at once", r.Summary(30))
	}
}

// stagePool stages the new version on the hosts of a pool.
func (s *scene) stagePool(name string) {
	s.T.Helper()
	list, err := s.ControlPlane.Client().CoreV1().Nodes().List(s.Within(rig.Soon), metav1.ListOptions{LabelSelector: "pool=" + name})
	s.Must(err)
	for i := range list.Items {
		s.stage(list.Items[i].Name)
	}
}

// poolIsHeld waits until inTurn nodes of a pool are drained and wait for the hook, and the other nodes of the pool are
// held for the reason.
func (s *scene) poolIsHeld(pool string, inTurn int, reason v1alpha1.Reason) {
	s.T.Helper()
	s.Eventually(fmt.Sprintf("%d nodes of %s to be in a turn, and the others to be held: %s", inTurn, pool, reason), func(ctx context.Context) (bool, error) {
		list, err := s.ControlPlane.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "pool=" + pool})
		if err != nil {
			return false, err
		}
		there, held := 0, 0
		var saw strings.Builder
		for i := range list.Items {
			switch n := turn.FromNode(&list.Items[i]); {
			case n.State == v1alpha1.StateBeforeReboot && n.Mark:
				there++
			case n.State == v1alpha1.StateIdle && n.Held == reason:
				held++
			default:
				fmt.Fprintf(&saw, "%s is %s, held %q\n", n.Name, n.State, n.Held)
			}
		}
		fmt.Fprintf(&saw, "%d of %d in a turn, %d held for the reason", there, len(list.Items), held)
		return there == inTurn && there+held == len(list.Items), errors.New(saw.String())
	})
}
