package turns

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// frozenScenes are of reasons that a host gives in a turn, and that the coordinator acts on at once: so it is stopped with SIGSTOP between
// what prepare does and what the function that prepare returns does, until the reason has been read.
var frozenScenes = map[string]struct {
	reason  v1alpha1.Reason
	prepare func(*scene, *simhost.Host) (act func())
}{
	"reason-uncordoned": {v1alpha1.ReasonUncordoned, func(s *scene, h *simhost.Host) func() {
		s.inRebooting(h)
		return func() { s.patch(h, `{"spec":{"unschedulable":false}}`) }
	}},
	"reason-want-gone": {v1alpha1.ReasonWantGone, func(s *scene, h *simhost.Host) func() {
		s.inRebooting(h)
		return func() { s.cancel(h) }
	}},
	"reason-reboot-refused": {v1alpha1.ReasonRebootRefused, func(s *scene, h *simhost.Host) func() {
		h.Logind().OnReboot(simhost.Deny)
		return s.inRebooting(h)
	}},
	"reason-not-updated": {v1alpha1.ReasonNotUpdated, func(s *scene, h *simhost.Host) func() {
		h.SetNextBoot(simhost.NextBoot{Rollback: true})
		return s.inRebooting(h)
	}},
	// The file outlives the reboot.
	"reason-still-wanted": {v1alpha1.ReasonStillWanted, func(s *scene, h *simhost.Host) func() {
		s.Must(h.WriteFile(lasting, ""))
		return s.inRebooting(h)
	}},
	"reason-invalid-grant": {v1alpha1.ReasonInvalidGrant, func(s *scene, h *simhost.Host) func() {
		s.inRebooting(h)
		return func() { s.edit(h, "annotations", v1alpha1.AnnotationGrant, "{}") }
	}},
	"reason-plan-changed": {v1alpha1.ReasonPlanChanged, func(s *scene, h *simhost.Host) func() {
		s.inApplying(h)
		return func() {
			// A thief with the coordinator's credential wants another unit to be restarted.
			n := s.until(h, "to have a grant", func(n *turn.Node) bool { return n.Grant != nil })
			g := *n.Grant
			g.Steps = v1alpha1.StepsDigest([]v1alpha1.Action{{Type: v1alpha1.ActionRestart, Unit: "db.service"}})
			s.edit(h, "annotations", v1alpha1.AnnotationGrant, v1alpha1.FormatRecord(&g))
			s.Must(h.Continue())
			s.until(h, "to have refused", func(n *turn.Node) bool { return n.HasReport(v1alpha1.ReportRefused) })
			s.did(h, 0)
		}
	}},
	"reason-boot-changed": {v1alpha1.ReasonBootChanged, func(s *scene, h *simhost.Host) func() {
		s.inApplying(h)
		return func() { s.Must(h.Crash(simhost.CrashOptions{})) }
	}},
}

// lasting is a sentinel that a reboot does not remove.
const lasting = "/var/lib/reboot-required"

// inRebooting brings the host to where it waits for an inhibitor before its reboot, and returns what takes that away.
func (s *scene) inRebooting(h *simhost.Host) (release func()) {
	s.T.Helper()
	release = h.Logind().Hold(blocker)
	s.stage(h)
	s.reaches(h, v1alpha1.StateRebooting)
	s.statusLineHas(h, string(v1alpha1.ReasonInhibited))
	return release
}

// inApplying has a host that is stopped with SIGSTOP be granted the turn in which it would apply a file.
func (s *scene) inApplying(h *simhost.Host) {
	s.T.Helper()
	s.edit(h, "annotations", v1alpha1.AnnotationPaused, "until it is stopped")
	s.Must(h.WriteFile(appConf, "workers = 2\n"))
	s.published(h, v1alpha1.WantsApply, appConf)
	s.freeze(h)
	s.edit(h, "annotations", v1alpha1.AnnotationPaused, "")
	s.until(h, "to be applying", func(n *turn.Node) bool { return n.State == v1alpha1.StateApplying })
}

// freeze stops the host's lockkeeper with SIGSTOP, and returns when none of its threads runs any more.
func (s *scene) freeze(h *simhost.Host) {
	s.T.Helper()
	s.Must(h.Pause())
	s.Eventually("the process on "+h.Name()+" to be stopped", func(context.Context) (bool, error) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", h.PID()))
		if err != nil || len(threads) == 0 {
			return false, fmt.Errorf("it has %d threads: %v", len(threads), err)
		}
		for _, path := range threads {
			if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), "\nState:\tT") {
				return false, fmt.Errorf("%s: %v\n%s", path, err, text)
			}
		}
		return true, nil
	})
}

func (w *world) frozen(t *testing.T) {
	type played struct {
		*scene
		h      *simhost.Host
		reason v1alpha1.Reason
		act    func()
	}
	all := map[string]*played{}
	for name, f := range frozenScenes {
		all[name] = &played{scene: w.ownedScene(t, name), reason: f.reason}
	}
	if !parallel(t, "prepare", all, func(t *testing.T, name string, p *played) {
		p.T = t
		p.policy(atOnceAll)
		p.h = p.host(simhost.Options{Name: name + "-1", Config: func(c simhost.Config) { c.Set("sources", "sentinels", []string{flagged, lasting}) }})
		p.idle(p.h)
		p.act = frozenScenes[name].prepare(p.scene, p.h)
	}) {
		return
	}
	w.scene(t, "").freeze(w.leader)
	parallel(t, "frozen", all, func(t *testing.T, _ string, p *played) {
		p.T = t
		p.act()
		p.reads(p.h, p.reason)
	})
	must(t, w.leader.Continue())
	parallel(t, "ends", all, func(t *testing.T, _ string, p *played) {
		p.T = t
		if slices.Contains(p.reason.Places(), v1alpha1.PlaceAck) {
			p.reported(p.h, p.reason)
		}
		p.endsFor(p.h, p.reason)
	})
}

// stopped sets the emergency stop, and lifts it.
func stopped(s *scene) {
	s.policy(atOnceAll)
	h := s.hosts(1)[0]
	s.stop(`"the network is rebuilt"`)
	s.stage(h)
	s.reads(h, v1alpha1.ReasonStopped)
	s.has(v1alpha1.DefaultLeaseName, v1alpha1.ReasonStopped)
	s.event(v1alpha1.DefaultLeaseName, string(v1alpha1.ReasonStopped), "the network is rebuilt")
	s.stop("null")
	s.saw(h, "to have had its turn", func(n *turn.Node) bool { return n.Last != nil && n.Last.Result == v1alpha1.ResultDone })
}

func (s *scene) stop(text string) {
	s.T.Helper()
	body := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, v1alpha1.AnnotationStop, text)
	_, err := cp.Client().CoordinationV1().Leases(v1alpha1.DefaultLeaseNamespace).Patch(s.soon(), v1alpha1.DefaultLeaseName, types.MergePatchType, body, metav1.PatchOptions{})
	s.Must(err)
}

// handover has a new leader find two turns where its policy allows one: it backs one out and meanwhile takes over nothing.
func handover(s *scene) {
	policy := func(budget int) string {
		return fmt.Sprintf("rollout: {settle: 0s, maxUnavailable: %d}\nhooks: {beforeUncordon: [{name: %s}]}", budget, s.name)
	}
	s.keep(s.name)
	s.policy(policy(2))
	hosts := s.hosts(3)
	first, second, waits := hosts[0], hosts[1], hosts[2]
	release := second.Logind().Hold(blocker)
	first.Logind().Hold(blocker)
	for _, h := range []*simhost.Host{first, second} {
		s.stage(h)
	}
	for _, h := range []*simhost.Host{first, second} {
		s.reaches(h, v1alpha1.StateRebooting)
	}
	s.stage(waits)
	s.held(waits, v1alpha1.ReasonBudget)
	s.leader.StopLockkeeper()
	_, err := s.tryPolicy(policy(1))
	s.Must(err)
	s.Must(s.leader.StartLockkeeper())
	s.reads(waits, v1alpha1.ReasonHandover)
	s.authors.Release(s.name)
	s.endsFor(first, v1alpha1.ReasonOverBudget)
	release()
}

// refuseGrants has an admission policy refuse that the host's node leaves idle.
func (s *scene) refuseGrants(h *simhost.Host) {
	s.T.Helper()
	s.refuse(admissionv1.Update, "nodes", admissionv1.ValidatingAdmissionPolicySpec{
		MatchConditions: []admissionv1.MatchCondition{{Name: "guarded", Expression: fmt.Sprintf("object.metadata.name == %q", h.Name())}},
		Validations: []admissionv1.Validation{{
			Expression: fmt.Sprintf("object.metadata.?labels[?%q].orValue(%q) == %q", v1alpha1.LabelState, v1alpha1.StateIdle, v1alpha1.StateIdle),
			Message:    "this machine is guarded",
		}},
	})
	coordinator, err := cp.NodeWriter(h.Name(), v1alpha1.LabelState)
	s.Must(err)
	s.Must(cp.WaitRefused(s.soon(), "this machine is guarded", func(ctx context.Context) error {
		try := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"draining"}}}`, v1alpha1.LabelState)
		_, err := coordinator.CoreV1().Nodes().Patch(ctx, h.Name(), types.MergePatchType, try,
			metav1.PatchOptions{FieldManager: kube.FieldManager("coordinator"), DryRun: []string{metav1.DryRunAll}})
		return err
	}))
}

// refuse creates an admission policy that the API server applies to an operation on a resource of the core group, until the test ends.
func (s *scene) refuse(op admissionv1.OperationType, resource string, spec admissionv1.ValidatingAdmissionPolicySpec) {
	s.T.Helper()
	spec.MatchConstraints = &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{op},
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource}},
	}}}}
	policies, bindings := cp.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies(), cp.Client().AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	_, err := policies.Create(s.soon(), &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Spec: spec}, metav1.CreateOptions{})
	s.Must(err)
	_, err = bindings.Create(s.soon(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: s.name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, metav1.CreateOptions{})
	s.Must(err)
	s.T.Cleanup(func() {
		s.Must(bindings.Delete(context.Background(), s.name, metav1.DeleteOptions{}))
		s.Must(policies.Delete(context.Background(), s.name, metav1.DeleteOptions{}))
	})
}
