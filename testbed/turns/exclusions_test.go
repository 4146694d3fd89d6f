package turns

import (
	"context"
	"fmt"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

const (
	noBalancers   = "node.kubernetes.io/exclude-from-external-load-balancers"
	noScaleDown   = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	noRemediation = "remediation.medik8s.io/exclude-from-remediation"
)

// excludes is a policy with all exclusions.
func excludes(delay string) string {
	return "rollout: {settle: 0s}\ndrain: {excludeFromLoadBalancers: true, loadBalancerDelay: " + delay + ", disableScaleDown: true, excludeFromRemediation: true}\n"
}

// exclusions are what turns set on their Nodes for other programs. The hosts have kubelets' identities, which NodeRestriction limits.
var exclusions = map[string]func(*scene){
	// All are set with the cordon and gone with it. The first pod is evicted when load balancers have had their time, which a crash of
	// lockkeeper does not begin again.
	"exclusions-of-a-turn": func(s *scene) {
		const delay = 20 * time.Second
		s.policy(excludes(delay.String()))
		h := s.hosts(1)[0]
		s.work(h, 1)
		s.stage(h)
		s.commits(h, v1alpha1.StateDraining)
		mark := s.mark(h)
		s.excluded(h, noBalancers+"= "+noScaleDown+"=true "+noRemediation+"=true")
		if !mark.Ours() || len(mark.Set) != 4 || time.Since(mark.At) > delay/2 {
			s.T.Errorf("the mark is %v", mark)
		}
		s.reads(h, v1alpha1.ReasonLoadBalancerDelay)
		time.Sleep(time.Until(mark.At.Add(delay / 2)))
		h.Kill()
		s.Eventually("a pod to be evicted", func(context.Context) (bool, error) {
			return s.evictions(h) > 0, fmt.Errorf("none is, %v after the cordon", time.Since(mark.At))
		})
		if after := time.Since(mark.At); after < delay || after > delay+delay/3 {
			s.T.Errorf("the first pod was evicted %v after the cordon, expected %v", after, delay)
		}
		s.ended(h, "Done: draining rebooting uncordoning")
		s.excluded(h, "")
		s.did(h, 1)
	},
	// What an admin set before stays, and so does what an admin changes. Load balancers need no time if the label was there before.
	"exclusions-of-an-admin": func(s *scene) {
		s.policy(excludes("10m"))
		h := s.hosts(1)[0]
		s.Label(h.Name(), noBalancers, "")
		s.Annotate(h.Name(), noScaleDown, "true")
		release := s.block(h)
		s.stage(h)
		s.commits(h, v1alpha1.StateDraining)
		s.excluded(h, noBalancers+"= "+noScaleDown+"=true "+noRemediation+"=true")
		s.Label(h.Name(), noRemediation, "until-monday")
		release()
		s.ended(h, "Done: draining rebooting uncordoning")
		s.excluded(h, noBalancers+"= "+noScaleDown+"=true "+noRemediation+"=until-monday")
		s.did(h, 1)
	},
	// A pause takes precedence over the delay, and a turn that is backed out does not wait for it.
	"exclusions-backed-out": func(s *scene) {
		s.policy(excludes("10m"))
		h := s.hosts(1)[0]
		s.work(h, 1)
		s.stage(h)
		s.statusLineHas(h, "LoadBalancerDelay")
		s.Annotate(h.Name(), v1alpha1.AnnotationPaused, "wait")
		s.statusLineHas(h, "Paused")
		s.Annotate(h.Name(), v1alpha1.AnnotationPaused, nil)
		s.statusLineHas(h, "LoadBalancerDelay")
		s.Must(h.ResetStatus())
		s.ended(h, "Cancelled WantGone: draining uncordoning")
		s.excluded(h, "")
		if n := s.evictions(h); n > 0 {
			s.T.Errorf("%d pods were evicted", n)
		}
	},
	// An admin's cordon stays as it is, and the node is excluded all the same.
	"exclusions-of-a-cordon": func(s *scene) {
		s.policy(excludes("0s") + "hooks: {beforeUncordon: [{name: exclusions-of-a-cordon}]}")
		s.keep("exclusions-of-a-cordon")
		h := s.hosts(1)[0]
		s.cordon(h, true)
		s.stage(h)
		s.reaches(h, v1alpha1.StateBeforeUncordon)
		if mark := s.mark(h); mark.Ours() || len(mark.Set) != 3 {
			s.T.Errorf("the mark is %v", mark)
		}
		s.excluded(h, noBalancers+"= "+noScaleDown+"=true "+noRemediation+"=true")
		s.statusShows(h, "cordoned by another owner")
		s.confirm(h, "exclusions-of-a-cordon")
		n := s.until(h, "to be idle", func(n *turn.Node) bool { return n.State == v1alpha1.StateIdle && n.Last != nil })
		if !n.Unschedulable || n.Mark || n.Last.Result != v1alpha1.ResultDone {
			s.T.Errorf("cordoned %t, marked %t, the last turn %+v", n.Unschedulable, n.Mark, n.Last)
		}
		s.excluded(h, "")
		s.did(h, 1)
	},
	// A node that leaves during the delay is given back as it was.
	"exclusions-unmanaged": func(s *scene) {
		s.policy(excludes("10m"))
		h := s.hosts(1)[0]
		s.stage(h)
		s.statusLineHas(h, "LoadBalancerDelay")
		s.Label(h.Name(), v1alpha1.LabelManaged, "false")
		s.until(h, "to be released", func(n *turn.Node) bool { return n.State == v1alpha1.StateAbsent && !n.Mark && !n.Unschedulable })
		s.excluded(h, "")
	},
}

func (s *scene) mark(h *simhost.Host) v1alpha1.Cordon {
	s.T.Helper()
	return v1alpha1.ParseCordon(s.node(h).Annotations[v1alpha1.AnnotationCordon])
}

// excluded checks which exclusions the host's Node has.
func (s *scene) excluded(h *simhost.Host, want string) {
	s.T.Helper()
	n := s.node(h)
	var got []string
	for _, key := range []string{noBalancers, noScaleDown, noRemediation} {
		for _, from := range []map[string]string{n.Labels, n.Annotations} {
			if v, ok := from[key]; ok {
				got = append(got, key+"="+v)
			}
		}
	}
	if strings.Join(got, " ") != want {
		s.T.Errorf("%s has %q, expected %q", h.Name(), got, want)
	}
}
