package turns

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/hostupdate"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// published are HostUpdates.
var published = map[string]func(*scene){
	// Over a whole turn: the conditions pass in their order, no time runs backwards, no write repeats what is there, the stages
	// add up to the turn, and there are few writes.
	"hostupdate-of-a-turn": func(s *scene) {
		s.keep("by-hand")
		s.policy("rollout: {settle: 0s}\nhooks: {beforeReboot: [{name: by-hand}]}")
		h := s.hosts(1)[0]
		release := s.block(h)
		s.update(h, "to be there", func(u *v1alpha1.HostUpdateStatus) bool { return u.Wants == v1alpha1.WantsNothing && u.State == "idle" })
		rec := s.record(h)
		s.stage(h)
		s.blockedBy(h, v1alpha1.BlockerBudget, h.Name()+"/work")
		release()
		s.reaches(h, v1alpha1.StateBeforeReboot)
		s.confirm(h, "by-hand")
		n := s.ended(h, "Done: draining before-reboot rebooting uncordoning")
		last := s.update(h, "to say that the turn is complete", func(u *v1alpha1.HostUpdateStatus) bool {
			return len(u.History) == 1 && u.Wants == v1alpha1.WantsNothing && u.State == "idle" && string(u.BootID) == h.BootID()
		})
		s.checkRecord(h, rec(last), maxWrites)
		turn := last.History[0]
		states, total := []string{}, int64(0)
		for _, stage := range turn.Stages {
			states, total = append(states, string(stage.State)), total+stage.Seconds
		}
		if got := strings.Join(states, " "); got != "draining before-reboot rebooting uncordoning" {
			s.T.Errorf("the stages are %q", got)
		}
		if took := int64(turn.Ended.Sub(turn.Started.Time).Seconds()); total > took || total < took-int64(len(states)) { // each is cut to a second
			s.T.Errorf("the stages last %d s together, and the turn %d s", total, took)
		}
		if string(turn.Turn) != n.Last.Turn || turn.Result != "Done" || last.OS.Version != newVersion {
			s.T.Errorf("turn %s %s, OS %s; the Node has %s", turn.Turn, turn.Result, last.OS.Version, n.Last.Turn)
		}
		if out, err := s.lockkeeper("history", h.Name()); err != nil || !containsAll(out, []string{h.Name(), "Done", "OSUpdate@" + newVersion, "draining", "uncordoning"}) {
			s.T.Errorf("lockkeeper history: %v\n%s", err, out)
		}
	},

	// What blocks a host is in the HostUpdate, in kubectl get hu, in lockkeeper status, in the status line and in the metrics.
	"hostupdate-blockers": func(s *scene) {
		s.keep("ease-out")
		s.policy("rollout: {settle: 0s}\nhooks: {beforeDrain: [{name: ease-out}]}")
		h := s.hosts(1)[0]
		s.Must(h.Configure(func(c simhost.Config) { c["reboot"]["session_delay"] = time.Hour }))
		s.Must(h.Signal(syscall.SIGHUP))
		release := s.block(h)
		let := h.Logind().Hold(simhost.Inhibitor{What: "shutdown", Who: "backup", Why: "writing a tape", Mode: "block", PID: 1})
		anna, err := h.Logind().Login("1", "anna")
		s.Must(err)
		s.stage(h)

		s.blockedBy(h, v1alpha1.BlockerHook, "ease-out", "lockkeeper confirm "+h.Name()+" ease-out")
		s.confirm(h, "ease-out")

		b := s.blockedBy(h, v1alpha1.BlockerBudget, h.Name()+"/work", "The disruption budget work needs 1 healthy pods and has 1 currently")
		s.statusShows(h, "blocked by", "PodDisruptionBudget "+h.Name()+"/work (pod "+string(b.Pod)+")", "needs 1 healthy pods and has 1 currently; another of its pods is not Ready, or the budget never allows an eviction")
		s.statusLineHas(h, string(b.Pod))
		s.statusLineHas(h, "The disruption budget work needs 1 healthy pods")
		s.serves(h, fmt.Sprintf(`lockkeeper_host_blocked_since_timestamp_seconds{kind="PodDisruptionBudget",name="%s/work",pod="%s"} `, h.Name(), b.Pod),
			`lockkeeper_host_blockers{kind="PodDisruptionBudget"} 1`)
		if out := s.kubectl("get", "hu", h.Name()); !containsAll(out, []string{"WANTS", "STATE", "BLOCKED BY", h.Name(), "reboot", "draining", h.Name() + "/work"}) {
			s.T.Errorf("kubectl get hu:\n%s", out)
		}
		if out, err := s.lockkeeper("status"); !strings.Contains(out, "blocked by PodDisruptionBudget "+h.Name()+"/work") {
			s.T.Errorf("lockkeeper status (%v):\n%s", err, out)
		}
		stuck := s.finalized(h) // not earlier: the status line names the pod that has been blocked longest
		release()
		s.blockedBy(h, v1alpha1.BlockerFinalizer, h.Name()+"/stuck", "finalizers: example.com/stuck; have their owner remove them")
		stuck()
		s.blockedBy(h, v1alpha1.BlockerInhibitor, "backup", "writing a tape")
		s.reads(h, v1alpha1.ReasonInhibited)
		let()
		s.blockedBy(h, v1alpha1.BlockerSession, "anna", "logged in on ")
		s.reads(h, v1alpha1.ReasonSessions)
		s.Must(anna.Logout())
		s.ended(h, "Done: before-drain draining rebooting uncordoning")
		u := s.update(h, "to be blocked by nothing", func(u *v1alpha1.HostUpdateStatus) bool { return len(u.Blockers) == 0 && len(u.History) == 1 })
		if c := meta.FindStatusCondition(u.Conditions, v1alpha1.ConditionBlocked); c == nil || c.Status != metav1.ConditionFalse {
			s.T.Errorf("Blocked is %+v", c)
		}
	},

	// The process is killed during the drain, and stopped before the reboot: what blocks the host keeps its time, no stage is lost, and
	// nothing is published that is not so.
	"hostupdate-after-a-kill": func(s *scene) {
		s.policy("rollout: {settle: 0s}")
		h := s.hosts(1)[0]
		release := s.block(h)
		let := h.Logind().Hold(simhost.Inhibitor{What: "shutdown", Who: "backup", Why: "writing a tape", Mode: "block", PID: 1})
		s.update(h, "to be there", func(u *v1alpha1.HostUpdateStatus) bool { return u.Wants == v1alpha1.WantsNothing && u.State == "idle" })
		rec := s.record(h)
		s.stage(h)
		b := s.blockedBy(h, v1alpha1.BlockerBudget, h.Name()+"/work")
		s.passes(2 * time.Second) // times are published to the second
		s.Must(h.Signal(syscall.SIGKILL))
		s.statusLineHas(h, string(b.Pod)) // another process, which has met it again
		s.passes(10 * time.Second)        // it publishes what it knows within 8 s
		release()
		i := s.blockedBy(h, v1alpha1.BlockerInhibitor, "backup")
		s.Must(h.Signal(syscall.SIGTERM))
		s.statusLineHas(h, "backup")
		let()
		s.ended(h, "Done: draining rebooting uncordoning")
		last := s.update(h, "to say that the turn is complete", func(u *v1alpha1.HostUpdateStatus) bool {
			return len(u.History) == 1 && u.Wants == v1alpha1.WantsNothing && u.State == "idle" && string(u.BootID) == h.BootID()
		})
		all := rec(last)
		s.checkRecord(h, all, maxWrites+2) // each new process may write once more
		if got := fmt.Sprintf("%d %s", len(last.History[0].Stages), last.History[0].Stages[0].State); got != "3 draining" {
			s.T.Errorf("the stages are %+v", last.History[0].Stages)
		}
		for n, u := range all {
			for _, now := range u.Blockers {
				for _, was := range []v1alpha1.Blocker{b, i} {
					if now.Kind == was.Kind && now.Name == was.Name && now.Pod == was.Pod && !now.Since.Equal(&was.Since) {
						s.T.Errorf("write %d: %s %s blocks since %v, and before the restart since %v", n, now.Kind, now.Name, now.Since, was.Since)
					}
				}
			}
		}
	},

	"hostupdate-more-blockers": func(s *scene) {
		s.policy("rollout: {settle: 0s}\nhooks: {waitForVolumeDetach: true}\ndrain: {block: [{selector: {matchLabels: {keep: " + s.name + "}}}]}")
		h := s.hosts(1)[0]
		s.Must(h.Configure(func(c simhost.Config) { c["health"]["units"] = []string{"db.service"} }))
		s.Must(h.Signal(syscall.SIGHUP))
		s.Must(h.Units().Set("update-engine.service", simhost.Unit{Load: "loaded", Active: "active"})) // it may come back
		guarded := s.barePod(h, "guarded", nil)
		s.refuseEvictions(h.Name() + "-guarded")
		s.attached(h, `[{"name":"csi-1","devicePath":""}]`)
		s.stage(h)
		s.commits(h, v1alpha1.StateDraining) // before that, the pod would hold the node
		kept := s.barePod(h, "kept", map[string]string{"keep": s.name})

		s.blockedBy(h, v1alpha1.BlockerPod, "default/"+h.Name()+"-kept", "drain.block of its policy selects the pod")
		s.blockedBy(h, v1alpha1.BlockerWebhook, "default/"+h.Name()+"-guarded", "ValidatingAdmissionPolicy", "not this pod")
		s.statusShows(h, "Pod default/"+h.Name()+"-kept", "Webhook default/"+h.Name()+"-guarded")
		kept()
		guarded()

		s.blockedBy(h, v1alpha1.BlockerVolume, "csi-1", "is attached to the node")
		h.Engine().Stop()
		s.blockedBy(h, v1alpha1.BlockerSource, "update_engine", "does not confirm it now")
		s.Must(h.Engine().Start())
		s.Must(h.Units().Set("db.service", simhost.Unit{Load: "loaded", Active: "failed"}))
		s.attached(h, "null")

		s.blockedBy(h, v1alpha1.BlockerUnit, "db.service", "db.service is failed")
		s.statusShows(h, "Unit db.service")
		s.Must(h.Units().Set("db.service", simhost.Unit{Load: "loaded", Active: "active"}))
		s.ended(h, "Done: draining before-reboot rebooting uncordoning")
	},
}

// passes lets time pass in which something must not happen.
func (s *scene) passes(d time.Duration) {
	s.T.Helper()
	select {
	case <-time.After(d):
	case <-s.soon().Done():
		s.T.Fatal("the test is over")
	}
}

// barePod puts a pod on the host's node that no controller has, and that remove takes away.
func (s *scene) barePod(h *simhost.Host, name string, labels map[string]string) (remove func()) {
	s.T.Helper()
	pods := cp.Client().CoreV1().Pods("default")
	name = h.Name() + "-" + name
	_, err := pods.Create(s.soon(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PodSpec{NodeName: h.Name(), TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{Name: "c", Image: "example.invalid/c"}}},
	}, metav1.CreateOptions{})
	s.Must(err)
	return func() {
		s.T.Helper()
		s.Must(pods.Delete(s.soon(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	}
}

// refuseEvictions has an admission policy refuse evictions of the pod of that name.
func (s *scene) refuseEvictions(pod string) {
	s.T.Helper()
	s.refuse(admissionv1.Create, "pods/eviction", admissionv1.ValidatingAdmissionPolicySpec{
		Validations: []admissionv1.Validation{{Expression: fmt.Sprintf("object.metadata.name != %q", pod), Message: "not this pod"}},
	})
	s.Must(cp.WaitRefused(s.soon(), "not this pod", func(ctx context.Context) error {
		return cp.Client().PolicyV1().Evictions("default").Evict(ctx, &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
		})
	}))
}

// updates is where the HostUpdates are.
func (s *scene) updates() dynamic.ResourceInterface {
	s.T.Helper()
	client, err := dynamic.NewForConfig(cp.AdminConfig())
	s.Must(err)
	return client.Resource(v1alpha1.HostUpdateResource)
}

func statusOf(obj any) (*v1alpha1.HostUpdateStatus, error) {
	text, err := json.Marshal(obj)
	if err != nil {
		return nil, err
	}
	u := &v1alpha1.HostUpdate{}
	return &u.Status, json.Unmarshal(text, u)
}

// update waits until what the host has published is as cond wants it.
func (s *scene) update(h *simhost.Host, what string, cond func(*v1alpha1.HostUpdateStatus) bool) (found *v1alpha1.HostUpdateStatus) {
	s.T.Helper()
	s.Eventually("the HostUpdate of "+h.Name()+" "+what, func(ctx context.Context) (bool, error) {
		obj, err := s.updates().Get(ctx, h.Name(), metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if found, err = statusOf(obj); err != nil {
			return false, err
		}
		text, err := json.MarshalIndent(found, "", " ")
		if err != nil {
			return false, err
		}
		return cond(found), fmt.Errorf("it is %s", text)
	})
	return found
}

// blockedBy waits until the host publishes that this blocks it, with these words. That it does so within seconds is the test of package
// node; here the machine has other tests.
func (s *scene) blockedBy(h *simhost.Host, kind v1alpha1.BlockerKind, name string, words ...string) (found v1alpha1.Blocker) {
	s.T.Helper()
	u := s.update(h, fmt.Sprintf("to name %s %s: %q", kind, name, words), func(u *v1alpha1.HostUpdateStatus) bool {
		i := slices.IndexFunc(u.Blockers, func(b v1alpha1.Blocker) bool {
			return b.Kind == kind && string(b.Name) == name && containsAll(string(b.Message), words)
		})
		if i >= 0 {
			found = u.Blockers[i]
		}
		return i >= 0
	})
	c := meta.FindStatusCondition(u.Conditions, v1alpha1.ConditionBlocked)
	if c == nil || c.Status != metav1.ConditionTrue {
		s.T.Errorf("it is blocked by %s %s, and Blocked is %+v", kind, name, c)
	}
	s.readBlocker(h, &found)
	return found
}

// finalized puts a pod on the host's node that is being deleted and has a finalizer, which remove takes off.
func (s *scene) finalized(h *simhost.Host) (remove func()) {
	s.T.Helper()
	pods := cp.Client().CoreV1().Pods(h.Name())
	_, err := pods.Create(s.soon(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "stuck", Finalizers: []string{"example.com/stuck"}},
		Spec: corev1.PodSpec{NodeName: h.Name(), TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{Name: "c", Image: "example.invalid/c"}}},
	}, metav1.CreateOptions{})
	s.Must(err)
	return func() {
		s.T.Helper()
		_, err := pods.Patch(s.soon(), "stuck", types.JSONPatchType, []byte(`[{"op":"remove","path":"/metadata/finalizers"}]`), metav1.PatchOptions{})
		s.Must(err)
	}
}

// record keeps all versions of what the host publishes, until the one that is given to what it returns.
func (s *scene) record(h *simhost.Host) func(last *v1alpha1.HostUpdateStatus) []*v1alpha1.HostUpdateStatus {
	s.T.Helper()
	first, err := s.updates().Get(s.soon(), h.Name(), metav1.GetOptions{})
	s.Must(err)
	w, err := s.updates().Watch(s.soon(), metav1.ListOptions{FieldSelector: "metadata.name=" + h.Name(), ResourceVersion: first.GetResourceVersion()})
	s.Must(err)
	var mu sync.Mutex
	var all []*v1alpha1.HostUpdateStatus
	add := func(obj any) {
		u, err := statusOf(obj)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			all = append(all, u)
		}
	}
	add(first)
	go func() {
		for e := range w.ResultChan() {
			if e.Type == watch.Modified {
				add(e.Object)
			}
		}
	}()
	return func(last *v1alpha1.HostUpdateStatus) []*v1alpha1.HostUpdateStatus {
		s.T.Helper()
		defer w.Stop()
		s.Eventually("the watch to show the last HostUpdate", func(context.Context) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			now := all[len(all)-1]
			return hostupdate.Compare(now, last) == hostupdate.Same && len(now.History) == len(last.History), nil
		})
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

// maxWrites is how many writes a turn may have, those for progress not counted. On a quiet machine there are 7 or 8; on a slow one, steps
// last long enough to be written that are otherwise over before the next write: the drain has listed no pods yet, a budget is met again.
const maxWrites = 10

func (s *scene) checkRecord(h *simhost.Host, all []*v1alpha1.HostUpdateStatus, maxWrites int) {
	s.T.Helper()
	order := v1alpha1.UpdateConditions()
	writes := 0
	for i, u := range all[1:] {
		was := all[i]
		switch hostupdate.Compare(was, u) {
		case hostupdate.Same:
			if len(was.Offline) == len(u.Offline) {
				s.T.Errorf("write %d of the HostUpdate of %s repeats what is there", i, h.Name())
			}
		case hostupdate.News:
			writes++
		}
		at := -1
		for _, c := range u.Conditions {
			if next := slices.Index(order, c.Type); next <= at {
				s.T.Errorf("write %d: condition %s is out of order", i, c.Type)
			} else {
				at = next
			}
			if c.Status == metav1.ConditionUnknown {
				s.T.Errorf("write %d: condition %s is Unknown", i, c.Type)
			}
			if old := meta.FindStatusCondition(was.Conditions, c.Type); old != nil && c.LastTransitionTime.Before(&old.LastTransitionTime) {
				s.T.Errorf("write %d: the time of %s runs backwards", i, c.Type)
			}
		}
	}
	if writes > maxWrites {
		for _, u := range all {
			s.T.Logf("%s", u.Message)
		}
		s.T.Errorf("%d writes that are not for progress, expected at most %d", writes, maxWrites)
	}
	// What the turn passed became True in the order of the table.
	var before metav1.Time
	for _, kind := range []string{v1alpha1.ConditionCordoned, v1alpha1.ConditionDrained, v1alpha1.ConditionRebooted, v1alpha1.ConditionUncordoned, v1alpha1.ConditionComplete} {
		c := meta.FindStatusCondition(all[len(all)-1].Conditions, kind)
		if c == nil || c.Status != metav1.ConditionTrue || c.LastTransitionTime.Before(&before) {
			s.T.Fatalf("%s is %+v at the end; the one before it became True at %v", kind, c, before)
		}
		before = c.LastTransitionTime
	}
	s.T.Logf("%d writes, %d of them not for progress", len(all)-1, writes)
}

func (s *scene) kubectl(args ...string) string {
	s.T.Helper()
	admin, err := cp.Kubeconfig("testbed:admin", "system:masters")
	s.Must(err)
	out, err := exec.CommandContext(s.soon(), cp.Binaries().Kubectl, append([]string{"--kubeconfig", admin}, args...)...).CombinedOutput()
	if err != nil {
		s.T.Errorf("kubectl %v: %v\n%s", args, err, out)
	}
	return string(out)
}
