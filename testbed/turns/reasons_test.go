package turns

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/hookauthor"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// provokedBy are the scenes that provoke a reason and read it in all places that its row of the product's table lists.
var provokedBy = map[v1alpha1.Reason][]string{
	v1alpha1.ReasonBudget:            {"slot-of-a-cordon"},
	v1alpha1.ReasonControlPlane:      {"reason-control-plane"},
	v1alpha1.ReasonHalted:            {"reason-failed"},
	v1alpha1.ReasonBackoff:           {"hooks-abort"},
	v1alpha1.ReasonTurnLimit:         {"reason-turn-limit"},
	v1alpha1.ReasonNotReady:          {"reason-not-ready"},
	v1alpha1.ReasonVersionSkew:       {"reason-version"},
	v1alpha1.ReasonHandover:          {"reason-handover"},
	v1alpha1.ReasonNoPolicy:          {"reason-no-policy"},
	v1alpha1.ReasonInvalidPolicy:     {"reason-invalid-policy"},
	v1alpha1.ReasonWouldGrant:        {"reason-would-grant"},
	v1alpha1.ReasonGateClosed:        {"gate"},
	v1alpha1.ReasonStopped:           {"reason-stopped"},
	v1alpha1.ReasonPaused:            {"reason-paused"},
	v1alpha1.ReasonDetached:          {"reason-detached"},
	v1alpha1.ReasonHostSilent:        {"reason-host-silent"},
	v1alpha1.ReasonFailed:            {"reason-failed"},
	v1alpha1.ReasonOverdue:           {"hooks-late", "hooks-abort", "inhibited-overdue"},
	v1alpha1.ReasonUnknownState:      {"reason-unknown-state"},
	v1alpha1.ReasonInvalidGrant:      {"reason-invalid-grant"},
	v1alpha1.ReasonInvalidRecord:     {"reason-invalid-record"},
	v1alpha1.ReasonOwnCordonLeft:     {"reason-marked"},
	v1alpha1.ReasonSourceUnreadable:  {"reason-sources"},
	v1alpha1.ReasonInhibited:         {"hostupdate-blockers"},
	v1alpha1.ReasonSessions:          {"hostupdate-blockers"},
	v1alpha1.ReasonFleetLock:         {"reason-fleetlock"},
	v1alpha1.ReasonLoadBalancerDelay: {"exclusions-of-a-turn"},
	v1alpha1.ReasonHostPaused:        {"reason-host-paused"},
	v1alpha1.ReasonObserve:           {"reason-observe"},
	v1alpha1.ReasonWindow:            {"window-cancel"},
	v1alpha1.ReasonMinUptime:         {"reason-min-uptime"},
	v1alpha1.ReasonHeldBack:          {"reason-held-back"},
	v1alpha1.ReasonOtherManager:      {"reason-reboot-manager"},
	v1alpha1.ReasonNoCoordinator:     {"reason-no-coordinator"},
	v1alpha1.ReasonForbidden:         {"reason-forbidden"},
	v1alpha1.ReasonUncordoned:        {"reason-uncordoned"},
	v1alpha1.ReasonWantGone:          {"reason-want-gone"},
	v1alpha1.ReasonPlanChanged:       {"reason-plan-changed"},
	v1alpha1.ReasonBootChanged:       {"reason-boot-changed"},
	v1alpha1.ReasonRebootRefused:     {"reason-reboot-refused"},
	v1alpha1.ReasonHookFailed:        {"reason-hook-failed"},
	v1alpha1.ReasonApplyFailed:       {"reason-apply-failed"},
	v1alpha1.ReasonNotUpdated:        {"reason-not-updated"},
	v1alpha1.ReasonStillWanted:       {"reason-still-wanted"},
	v1alpha1.ReasonUnhealthy:         {"reason-unhealthy"},
	v1alpha1.ReasonUnmanaged:         {"reason-unmanaged"},
	v1alpha1.ReasonOverBudget:        {"reason-handover"},
	v1alpha1.ReasonReplaced:          {"reason-replaced"},
	v1alpha1.ReasonCleared:           {"reason-unhealthy"},
	v1alpha1.ReasonDrainBlocked:      {"reason-drain-blocked"},
	v1alpha1.ReasonCanary:            {"canary"},
}

// blockedIn is the scene in which each kind of blocker blocks a host.
var blockedIn = map[v1alpha1.BlockerKind]string{
	v1alpha1.BlockerBudget:    "hostupdate-blockers",
	v1alpha1.BlockerPod:       "hostupdate-more-blockers",
	v1alpha1.BlockerFinalizer: "hostupdate-blockers",
	v1alpha1.BlockerWebhook:   "hostupdate-more-blockers",
	v1alpha1.BlockerAPIServer: "blocked-by-api-server",
	v1alpha1.BlockerInhibitor: "hostupdate-blockers",
	v1alpha1.BlockerSession:   "hostupdate-blockers",
	v1alpha1.BlockerHook:      "hostupdate-blockers",
	v1alpha1.BlockerVolume:    "hostupdate-more-blockers",
	v1alpha1.BlockerUnit:      "hostupdate-more-blockers",
	v1alpha1.BlockerSource:    "hostupdate-more-blockers",
}

// TestEveryReasonHasAScene fails for a reason or a kind of blocker without an entry above, and for an entry that is of nothing in the
// product's tables. That the scenes read what they are to read is checked when all tests are over.
func TestEveryReasonHasAScene(t *testing.T) {
	rest := maps.Clone(provokedBy)
	for _, d := range v1alpha1.ReasonDocs() {
		if len(provokedBy[d.Reason]) == 0 {
			t.Errorf("no scene provokes the reason %s", d.Reason)
		}
		delete(rest, d.Reason)
	}
	if len(rest) > 0 {
		t.Errorf("the product does not have %v", rest)
	}
	kinds := maps.Clone(blockedIn)
	for _, k := range v1alpha1.BlockerKinds() {
		if blockedIn[k] == "" {
			t.Errorf("no scene has a blocker of the kind %s", k)
		}
		delete(kinds, k)
	}
	if len(kinds) > 0 {
		t.Errorf("the product does not have %v", kinds)
	}
}

// TestReasons provokes the reasons that no scene of TestTurns does. There is no referee here: some scenes are edits that no coordinator
// and no host would make.
func TestReasons(t *testing.T) {
	ctx := context.Background()
	must(t, cp.ApplyLockkeeper(ctx))
	w := &world{
		prom: newPrometheus(t), rig: &rig.Rig{ControlPlane: cp}, nodes: follow(t),
		start: func(ctx context.Context, o simhost.Options) (*simhost.Host, error) { return simhost.Start(ctx, cp, o) },
	}
	var err error
	w.binary, err = simhost.BuildLockkeeper(ctx, flag.CommandLine.Output())
	must(t, err)
	_, err = cp.ApplyPolicy(ctx, "costs", costs)
	must(t, err)
	_, err = cp.ApplyPolicy(ctx, v1alpha1.DefaultPolicyName, "{nodeSelector: {matchLabels: {turns: nobody}}}")
	must(t, err)
	w.authors, err = hookauthor.Start(cp.Client(), func(text string) { t.Log(text) })
	must(t, err)
	t.Cleanup(w.authors.Close)

	w.noCoordinator(t)
	parallel(t, "scenes", reasons, func(t *testing.T, name string, play func(*scene)) { play(w.scene(t, name)) })
	t.Run("reason-stopped", func(t *testing.T) { stopped(w.scene(t, "reason-stopped")) })
	w.frozen(t)
	t.Run("reason-handover", func(t *testing.T) { handover(w.scene(t, "reason-handover")) })
}

// noCoordinator has a host want something before there is a coordinator, and then starts the coordinator.
func (w *world) noCoordinator(t *testing.T) {
	t.Run("reason-no-coordinator", func(t *testing.T) {
		s := w.scene(t, "reason-no-coordinator")
		h := s.host(simhost.Options{Name: s.name + "-1"})
		s.stage(h)
		s.until(h, "to want a reboot", func(n *turn.Node) bool { return n.HostReported() && n.Wants == v1alpha1.WantsReboot })
		s.reads(h, v1alpha1.ReasonNoCoordinator)
	})
	var err error
	w.leader, err = simhost.Start(context.Background(), cp, simhost.Options{
		Name: "lead-1", Coordinator: true, Binary: w.binary, RestartDelay: time.Second, Labels: map[string]string{sceneLabel: "nobody"},
		Config: func(c simhost.Config) {
			c.Set("", "log_level", "info")
			c.Set("metrics", "listen", "127.0.0.1:0")
			for key, d := range map[string]time.Duration{"duration": 5 * time.Minute, "renew_deadline": 4 * time.Minute} {
				c.Set("lease", key, d) // it is stopped for a while
			}
		},
	})
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the leader's log:\n%s", w.leader.LogTail(80))
		}
		must(t, w.leader.Close())
	})
}

// parallel plays all side by side. It returns when they are over, and reports whether none failed.
func parallel[T any](t *testing.T, what string, all map[string]T, play func(*testing.T, string, T)) bool {
	return t.Run(what, func(t *testing.T) {
		slots := make(chan struct{}, 2*atOnce)
		for name, x := range all {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				slots <- struct{}{}
				t.Cleanup(func() { <-slots })
				play(t, name, x)
			})
		}
	})
}

// edit sets an annotation or a label of the host's Node with a credential that may write the key; "" removes it.
func (s *scene) edit(h *simhost.Host, field, key, value string) {
	s.T.Helper()
	text := "null"
	if value != "" {
		text = fmt.Sprintf("%q", value)
	}
	s.patch(h, fmt.Sprintf(`{"metadata":{%q:{%q:%s}}}`, field, key, text), key)
}

// patch patches the host's Node with a credential that may write these keys, or as a person if there are none.
func (s *scene) patch(h *simhost.Host, body string, keys ...string) {
	s.T.Helper()
	client, err := cp.NodeWriter(h.Name(), keys...)
	s.Must(err)
	_, err = client.CoreV1().Nodes().Patch(s.soon(), h.Name(), types.MergePatchType, []byte(body), metav1.PatchOptions{FieldManager: kube.FieldManager("coordinator")})
	s.Must(err)
}
