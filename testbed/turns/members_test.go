package turns

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// members are Nodes that join and leave while the others take their turns.
var members = map[string]func(*scene){
	// Of three nodes that want a turn, one is in its turn when a fourth joins and one of the others leaves. Then the one in its turn is deleted: its
	// slot is free, and the others take their turns one after the other, the one that joined too.
	"members-change": func(s *scene) {
		s.keep("members-change")
		s.policy("rollout: {settle: 0s}\nhooks: {beforeDrain: [{name: members-change}]}")
		hosts := s.hosts(3)
		for _, h := range hosts {
			s.stage(h)
		}
		var inTurn *simhost.Host
		s.Eventually("a node to be in its turn", func(context.Context) (bool, error) {
			for _, h := range hosts {
				if n := s.Now(h.Name()); n != nil && n.State == v1alpha1.StateBeforeDrain {
					inTurn = h
				}
			}
			return inTurn != nil, nil
		})
		rest := slices.DeleteFunc(slices.Clone(hosts), func(h *simhost.Host) bool { return h == inTurn })
		leaves, stays := rest[0], rest[1]
		s.held(leaves, v1alpha1.ReasonBudget)

		joins := s.host(simhost.Options{Name: fmt.Sprintf("%s-%d", s.name, 4)})
		s.idle(joins)
		s.stage(joins)
		s.held(joins, v1alpha1.ReasonBudget)
		s.statusShows(joins, inTurn.Name()+" is in its turn")

		s.delete(leaves)
		s.delete(inTurn)
		for range 2 {
			var next *simhost.Host
			s.Eventually("the next node to be in its turn", func(context.Context) (bool, error) {
				for _, h := range []*simhost.Host{stays, joins} {
					if n := s.Now(h.Name()); n != nil && n.State == v1alpha1.StateBeforeDrain {
						next = h
					}
				}
				return next != nil, nil
			})
			s.confirm(next, "members-change")
			s.ended(next, "Done: before-drain draining rebooting uncordoning")
			s.did(next, 1)
		}
		for _, h := range []*simhost.Host{leaves, inTurn} {
			s.did(h, 0)
		}
		s.policyIs("to count two nodes, none of them unavailable", func(p *v1alpha1.DisruptionPolicy) bool {
			n := p.Status.Nodes
			return n.Selected == 2 && n.UpToDate == 2 && n.InTurn == 0 && n.Unavailable == 0
		})
	},
	// A Node that is deleted in the middle of its drain, and created again by its kubelet: the turn is void, its slot is free, and the new Node, which
	// has no cordon, gets a turn of its own.
	"members-replaced": func(s *scene) {
		s.policy("rollout: {settle: 0s}\ndrain: {excludeFromLoadBalancers: true, loadBalancerDelay: 10m, disableScaleDown: true}")
		hosts := s.hosts(2)
		h, other := hosts[0], hosts[1]
		s.stage(h)
		s.commits(h, v1alpha1.StateDraining)
		s.stage(other)
		s.held(other, v1alpha1.ReasonBudget)
		s.delete(h)
		s.commits(other, v1alpha1.StateDraining)
		h.StopKubelet()
		s.Must(h.StartKubelet())
		s.until(h, "to be back, without a cordon", func(n *turn.Node) bool {
			return n.State == v1alpha1.StateIdle && n.HostReported() && !n.Unschedulable && !n.Mark
		})
		s.excluded(h, "")
		s.held(h, v1alpha1.ReasonBudget)
		s.Must(other.ResetStatus())
		s.ended(other, "Cancelled WantGone: draining uncordoning")
		s.excluded(other, "")
		s.commits(h, v1alpha1.StateDraining)
		s.Must(h.ResetStatus())
		s.until(h, "to be idle again", func(n *turn.Node) bool { return n.State == v1alpha1.StateIdle && !n.Mark && !n.Unschedulable })
		s.excluded(h, "")
		s.did(h, 0)
	},
}

// delete is an admin or a cloud controller that deletes the host's Node.
func (s *scene) delete(h *simhost.Host) {
	s.T.Helper()
	s.Must(cp.Client().CoreV1().Nodes().Delete(s.soon(), h.Name(), metav1.DeleteOptions{}))
}
