package turns

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// taken are slots that a node takes outside of a turn.
var taken = map[string]func(*scene){
	// An admin's cordon takes the policy's only slot. The policy, and `lockkeeper status` in its first three lines, name the node.
	"slot-of-a-cordon": func(s *scene) {
		s.policy("rollout: {settle: 0s}")
		hosts := s.hosts(2)
		taker, waiter := hosts[0], hosts[1]
		s.cordon(taker, true)
		s.stage(waiter)
		s.reads(waiter, v1alpha1.ReasonBudget)
		name := taker.Name() + " is cordoned by another owner"
		s.makesNoProgress(v1alpha1.ReasonBudget, "1 unavailable, 1 allowed: "+name)
		s.statusShows(waiter, name)
		s.statusShows(taker, "takes a slot: it is cordoned by another owner")
		s.Eventually("lockkeeper status to name the node in its first three lines", func(context.Context) (bool, error) {
			out, err := s.lockkeeper("status")
			lines := strings.SplitAfterN(out, "\n", 4)
			return strings.Contains(strings.Join(lines[:min(len(lines), 3)], ""), name), fmt.Errorf("it says (%v)\n%s", err, out)
		})
		s.did(waiter, 0)
		s.cordon(taker, false)
		s.ended(waiter, "Done: draining rebooting uncordoning")
		s.did(waiter, 1)
	},
}

// cordon is an admin's.
func (s *scene) cordon(h *simhost.Host, is bool) {
	s.T.Helper()
	if is {
		s.Referee.AdminCordon(h.Name())
	} else {
		s.Referee.AdminUncordon(h.Name())
	}
	body := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, is)
	_, err := cp.Client().CoreV1().Nodes().Patch(s.soon(), h.Name(), types.MergePatchType, body, metav1.PatchOptions{FieldManager: "an-admin"})
	s.Must(err)
}
