package turns

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/lifecycle"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// Nodes with lifecycle conditions, as typesOf has them.
const (
	isPlanned  = "MaintenancePlanned"
	isInTurn   = "MaintenanceInProgress"
	isDraining = "MaintenanceInProgress DrainInProgress"
	isDrained  = "MaintenanceInProgress Drained"
)

// conditions are hosts that write lifecycle conditions.
var conditions = map[string]func(*scene){
	// Over a whole turn: the conditions come and go in their order, no write repeats what is there, nothing is left, and no other
	// condition is touched. The host and the coordinator have few conflicts.
	"lifecycle-of-a-turn": func(s *scene) {
		s.keep("by-hand")
		const hooks = "hooks: {beforeReboot: [{name: by-hand}]}\nrollout: {settle: 0s}\n"
		s.policy(hooks + "paused: true")
		h, proxy := s.proxied()
		s.idle(h)
		release := s.block(h)
		s.lifecycle(h, true)
		rec := s.recordConditions(h)
		s.stage(h)
		s.hasConditions(h, isPlanned)
		s.policy(hooks)
		s.hasConditions(h, isDraining)
		release()
		s.hasConditions(h, isDrained)
		s.confirm(h, "by-hand")
		s.ended(h, "Done: draining before-reboot rebooting uncordoning")
		s.hasConditions(h, "")
		changes := rec()
		s.checkConditions(changes, isPlanned, isDraining, isDrained, "")
		s.writtenOnce(h, proxy, changes)
		writes, conflicts := count(proxy, "nodes/status", h.Name())
		_, own := count(proxy, "nodes", h.Name())
		coordinator, others := count(s.coordinator, "nodes", h.Name())
		s.T.Logf("%d writes of conditions with %d conflicts; conflicts of the host's other writes: %d; of the coordinator's: %d of %d",
			writes, conflicts, own, others, coordinator)
		if conflicts > 4 || own > 4 || others > 4 {
			s.T.Error("too many conflicts")
		}
	},

	// lockkeeper is killed while it drains, and begins again without the key: one write removes what is left, and the turn ends as
	// any other. Nothing else is written to the Node's status.
	"lifecycle-killed": func(s *scene) {
		s.policy("rollout: {settle: 0s}")
		h, proxy := s.proxied()
		s.idle(h)
		release := s.block(h)
		s.lifecycle(h, true)
		rec := s.recordConditions(h)
		s.stage(h)
		s.hasConditions(h, isDraining)
		s.Must(h.Configure(func(c simhost.Config) { c.Set("", "lifecycle_conditions", false) }))
		h.Kill()
		s.hasConditions(h, "")
		release()
		s.ended(h, "Done: draining rebooting uncordoning")
		changes := rec()
		s.writtenOnce(h, proxy, changes)
		if typesOf(changes[0]) == isPlanned { // on a busy machine, the grant comes after the second that a write waits
			changes = changes[1:]
		}
		s.checkConditions(changes, isDraining, "")
	},

	// A node is released while its host drains it: one write removes the conditions, and none follows. What another tool has set is
	// not touched from the beginning to the end.
	"lifecycle-detached": func(s *scene) {
		s.policy("rollout: {settle: 0s}")
		h, proxy := s.proxied()
		s.idle(h)
		s.block(h)
		const theirs = `{"type":"Drained","status":"Unknown","reason":"Operator","message":"theirs"},{"type":"MaintenancePlanned","status":"True","reason":"Operator"}`
		s.patchStatus(h, `{"status":{"conditions":[`+theirs+`]}}`)
		s.lifecycle(h, true)
		rec := s.recordConditions(h)
		s.stage(h)
		s.hasConditions(h, "MaintenancePlanned "+isDraining+" Drained")
		s.detach(h, `{"reason":"scrapped","force":true}`)
		s.until(h, "to be released", func(n *turn.Node) bool { return n.State == v1alpha1.StateAbsent && n.Held == v1alpha1.ReasonDetached })
		s.hasConditions(h, "MaintenancePlanned Drained")
		// Another process changes nothing.
		s.Must(h.Configure(func(c simhost.Config) { c.Set("", "lifecycle_conditions", false) }))
		h.Kill()
		s.statusLineHas(h, string(v1alpha1.ReasonDetached))
		changes := rec()
		s.writtenOnce(h, proxy, changes)
		released := slices.IndexFunc(changes, func(n *corev1.Node) bool { return turn.FromNode(n).State == v1alpha1.StateAbsent })
		if released != len(changes)-1 {
			s.T.Errorf("%d changes of the conditions, of which number %d is the first after the release; expected the last", len(changes), released+1)
		}
		for _, n := range changes {
			var others []string
			for _, c := range lifecycleOf(n) {
				if c.Reason == "Operator" {
					others = append(others, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Message))
				}
			}
			slices.Sort(others)
			if got := strings.Join(others, ", "); got != "Drained=Unknown theirs, MaintenancePlanned=True " {
				s.T.Errorf("version %s has of the other tool's conditions %q", n.ResourceVersion, got)
			}
		}
	},
}

// count returns how many patches of the resource of that name the API server has stored, and how many conflicts there were.
func count(p *faultproxy.Proxy, resource, name string) (stored, conflicts int) {
	all, _ := p.Records()
	for i := range all {
		switch r := &all[i]; {
		case !r.Is("patch", resource) || r.Name != name:
		case r.Code == http.StatusOK:
			stored++
		case r.Code == http.StatusConflict:
			conflicts++
		}
	}
	return stored, conflicts
}

// writtenOnce checks that the host has sent as many writes of its conditions as there were changes of them.
func (s *scene) writtenOnce(h *simhost.Host, p *faultproxy.Proxy, changes []*corev1.Node) {
	s.T.Helper()
	if writes, _ := count(p, "nodes/status", h.Name()); writes != len(changes) {
		s.T.Errorf("%d writes of conditions for %d changes of them", writes, len(changes))
	}
}

// lifecycle has the running host write lifecycle conditions, or not any more.
func (s *scene) lifecycle(h *simhost.Host, on bool) {
	s.T.Helper()
	s.Must(h.Configure(func(c simhost.Config) { c.Set("", "lifecycle_conditions", on) }))
	s.Must(h.Signal(syscall.SIGHUP))
}

func (s *scene) patchStatus(h *simhost.Host, patch string) {
	s.T.Helper()
	_, err := cp.Client().CoreV1().Nodes().Patch(s.soon(), h.Name(), types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "operator"}, "status")
	s.Must(err)
}

func (s *scene) detach(h *simhost.Host, value string) {
	s.T.Helper()
	body := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationDetached, value)
	_, err := cp.Client().CoreV1().Nodes().Patch(s.soon(), h.Name(), types.MergePatchType, body, metav1.PatchOptions{FieldManager: "an-admin"})
	s.Must(err)
}

// typesOf returns the types of the Node's lifecycle conditions, in the order of a turn.
func typesOf(n *corev1.Node) string {
	var all []string
	for _, kind := range lifecycle.Types {
		if slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind }) {
			all = append(all, string(kind))
		}
	}
	return strings.Join(all, " ")
}

// hasConditions waits until the Node has lifecycle conditions of these types.
func (s *scene) hasConditions(h *simhost.Host, want string) {
	s.T.Helper()
	_, err := cp.WaitNode(s.soon(), h.Name(), fmt.Sprintf("to have the conditions %q", want), func(n *corev1.Node) bool { return n != nil && typesOf(n) == want })
	s.Must(err)
}

// recordConditions follows the Node. What it returns ends that, and returns the versions in which a lifecycle condition differs from
// the version before.
func (s *scene) recordConditions(h *simhost.Host) func() []*corev1.Node {
	s.T.Helper()
	nodes := cp.Client().CoreV1().Nodes()
	before, err := nodes.Get(s.soon(), h.Name(), metav1.GetOptions{})
	s.Must(err)
	w, err := nodes.Watch(s.T.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + h.Name(), ResourceVersion: before.ResourceVersion})
	s.Must(err)
	var mu sync.Mutex
	var changes []*corev1.Node
	seen := ""
	go func() {
		for e := range w.ResultChan() {
			now, is := e.Object.(*corev1.Node)
			if e.Type != watch.Modified || !is {
				continue
			}
			mu.Lock()
			if !slices.Equal(lifecycleOf(before), lifecycleOf(now)) {
				changes = append(changes, now)
			}
			if before, seen = now, now.ResourceVersion; !slices.ContainsFunc(now.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady }) {
				s.T.Errorf("version %s has no condition Ready", seen)
			}
			mu.Unlock()
		}
	}()
	return func() []*corev1.Node {
		s.T.Helper()
		defer w.Stop()
		last, err := nodes.Get(s.soon(), h.Name(), metav1.GetOptions{})
		s.Must(err)
		s.Eventually("the watch to show the last version", func(context.Context) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			return seen == last.ResourceVersion || len(seen) > len(last.ResourceVersion) || len(seen) == len(last.ResourceVersion) && seen > last.ResourceVersion, fmt.Errorf("it is at %s", seen)
		})
		mu.Lock()
		defer mu.Unlock()
		return changes
	}
}

func lifecycleOf(n *corev1.Node) []corev1.NodeCondition {
	var all []corev1.NodeCondition
	for _, c := range n.Status.Conditions {
		if slices.Contains(lifecycle.Types, c.Type) {
			all = append(all, c)
		}
	}
	return all
}

// checkConditions checks that the Node has had these conditions one after the other, that all are well formed, and that a
// condition that stays keeps its time. That a turn is in progress may be all that there is to say, for a moment.
func (s *scene) checkConditions(changes []*corev1.Node, want ...string) {
	s.T.Helper()
	var got []string
	var before *corev1.Node
	for _, n := range changes {
		if kinds := typesOf(n); kinds != isInTurn {
			got = append(got, kinds)
		}
		for _, c := range lifecycleOf(n) {
			if c.Status != corev1.ConditionTrue || !v1alpha1.Reason(c.Reason).Valid() || !strings.HasPrefix(c.Message, "lockkeeper: ") || c.LastTransitionTime.IsZero() {
				s.T.Errorf("version %s has %+v", n.ResourceVersion, c)
			}
			if before == nil {
				continue
			}
			for _, old := range lifecycleOf(before) {
				if old.Type == c.Type && !old.LastTransitionTime.Equal(&c.LastTransitionTime) {
					s.T.Errorf("%s is True since %v, and then since %v", c.Type, old.LastTransitionTime, c.LastTransitionTime)
				}
			}
		}
		before = n
	}
	if !slices.Equal(got, want) {
		s.T.Errorf("the conditions were\n\t%q\nexpected\n\t%q", got, want)
	}
}
