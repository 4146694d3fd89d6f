package node

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// blockTerms returns terms whose drain must not evict the pods with the label app and one of the values.
func blockTerms(apps ...string) *v1alpha1.Terms {
	t := &v1alpha1.Terms{}
	t.Block = []v1alpha1.PodSelector{{Selector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "In", Values: apps}}}}}
	return t
}

// labeled is a running pod on n1.
func labeled(name, app string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": app}}, Spec: corev1.PodSpec{NodeName: "n1"}}
}

// TestPodsThatBlock checks which pods block the drain before a grant, and that one list serves every policy.
func TestPodsThatBlock(t *testing.T) {
	s, p := servePods(t)
	daemon, done, leaving, elsewhere := labeled("d", "job"), labeled("done", "job"), labeled("leaving", "job"), labeled("elsewhere", "job")
	daemon.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", UID: "u", Controller: new(true)}}
	done.Status.Phase = corev1.PodSucceeded
	leaving.DeletionTimestamp = new(metav1.Now())
	leaving.Finalizers = []string{"x"}
	elsewhere.Spec.NodeName = "n2" // a proxy ignores the selector
	s.pods = []corev1.Pod{labeled("b", "job"), labeled("a", "gpu"), labeled("web", "web"), daemon, done, leaving, elsewhere}
	p.poll(t.Context(), true)
	for name, c := range map[string]struct {
		own  *v1alpha1.Terms
		want string
	}{
		"no policy":     {},
		"no rule":       {&v1alpha1.Terms{}, ""},
		"one rule":      {blockTerms("job"), "the drain must not evict default/b (BlockedByPolicy)"},
		"another rule":  {blockTerms("gpu", "job"), "the drain must not evict default/b (BlockedByPolicy), default/a (BlockedByPolicy)"},
		"no such pod":   {blockTerms("batch"), ""},
		"all unmanaged": {&v1alpha1.Terms{PodRules: v1alpha1.PodRules{Unmanaged: v1alpha1.PodBlock}}, "the drain must not evict default/b (Unmanaged), default/a (Unmanaged), default/web (Unmanaged)"},
		"empty dir":     {&v1alpha1.Terms{PodRules: v1alpha1.PodRules{EmptyDir: v1alpha1.PodBlock}}, ""},
	} {
		if got, known := p.judge(c.own); got != c.want || !known {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if s.lists != 1 {
		t.Errorf("%d lists", s.lists)
	}
	s.pods = append(s.pods, labeled("c", "job"), labeled("d", "job"), labeled("e", "job"))
	must(t, p.refresh(t.Context(), 0))
	if got, _ := p.judge(blockTerms("job")); !strings.HasSuffix(got, "default/d (BlockedByPolicy), 1 more") {
		t.Errorf("four pods: %s", got)
	}
	p.poll(t.Context(), false)
	if got, known := p.judge(blockTerms("job")); got != "" || known {
		t.Error("pods are known, though nothing is wanted")
	}
}

// TestPodsThatBlockAreListedMoreOften checks the interval between two lists, and that a list that lacks a pod is not used.
func TestPodsThatBlockAreListedMoreOften(t *testing.T) {
	s, p := servePods(t)
	after := func(d time.Duration, lists int, what string) {
		t.Helper()
		p.read, p.tried = p.read.Add(-d), p.tried.Add(-d)
		p.poll(t.Context(), true)
		p.judge(blockTerms("job"))
		if s.lists != lists {
			t.Errorf("%s: %d lists, want %d", what, s.lists, lists)
		}
	}
	s.pods = []corev1.Pod{labeled("web", "web")}
	after(0, 1, "at first")
	after(4*time.Minute, 1, "nothing blocks, within five minutes")
	s.pods = append(s.pods, labeled("job", "job"))
	after(time.Minute, 2, "nothing blocks, after five minutes")
	after(50*time.Second, 2, "a pod blocks, within a minute")
	s.pods = s.pods[:1]
	after(10*time.Second, 3, "a pod blocks, after a minute")
	after(4*time.Minute, 3, "it is gone")
	p.outdated = true
	after(0, 4, "another list has shown more")
	after(0, 4, "and this list shows it too")
}

// blockJobs has the policy of the host's cluster block pods with the label app=job.
func blockJobs(spec *v1alpha1.DisruptionPolicySpec) { spec.Drain.Block = blockTerms("job").Block }

// TestBlockedBeforeTheGrant checks that the veto is there before a turn begins and not in one, and that it ends with the pod.
func TestBlockedBeforeTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, api, _ := newMemoryHost(t, v1alpha1.StateIdle, blockJobs)
		veto := func(what string, want v1alpha1.Reason, detail string) {
			t.Helper()
			if o := h.observe(t.Context()); o.Veto != want || o.VetoDetail != detail || o.Blocking.Off {
				t.Errorf("%s: veto %q (%s), want %q (%s)", what, o.Veto, o.VetoDetail, want, detail)
			}
		}
		const text = "the drain must not evict default/job (BlockedByPolicy)"
		api.pods = append(api.pods, labeled("job", "job"))
		veto("a job runs", v1alpha1.ReasonDrainBlocked, text)
		blockedBy := func(what, want string) {
			t.Helper()
			o := h.observe(t.Context())
			var got []string
			for _, b := range h.blockers.list(h.blockedBy(&o), time.Now()) {
				got = append(got, fmt.Sprintf("%s %s %s since %v: %s", b.Kind, b.Name, b.Pod, time.Since(b.Since.Time), b.Message))
			}
			if text := strings.Join(got, "\n"); text != want {
				t.Errorf("%s: blockers\n%s\nwant\n%s", what, text, want)
			}
		}
		const blocker = "Pod default/job default/job since %v: drain.block of its policy selects the pod, so it is not evicted; " +
			"wait until it has ended, delete it if its work may be lost, or change drain in the policy"
		blockedBy("a job runs", fmt.Sprintf(blocker, 0*time.Second))
		if got := strings.Join(api.since(), ", "); got != "list cached pods" {
			t.Errorf("it read %s, want one list of the pods", got)
		}
		n := h.view.Get("n1").DeepCopy()
		n.ResourceVersion, n.Labels[v1alpha1.LabelState] = "11", string(v1alpha1.StateDraining)
		h.view.Overlay(n)
		veto("in a turn", "", "")
		blockedBy("in a turn", "")
		n = n.DeepCopy()
		n.ResourceVersion, n.Labels[v1alpha1.LabelState] = "12", string(v1alpha1.StateIdle)
		h.view.Overlay(n)
		veto("after it", v1alpha1.ReasonDrainBlocked, text)
		time.Sleep(time.Second)
		blockedBy("after it", fmt.Sprintf(blocker, time.Second))
		undrained := h.observe(t.Context())
		undrained.Sources.Drains = false
		if got := h.blockedBy(&undrained); len(got) > 0 {
			t.Errorf("a plan without a drain is blocked by %v", got)
		}
		api.pods = api.pods[:1]
		time.Sleep(h.pods.every / 5)
		veto("the job has ended", "", "")
		blockedBy("the job has ended", "")
		api.pods = append(api.pods, labeled("job", "job"))
		time.Sleep(h.pods.every)
		veto("another one", v1alpha1.ReasonDrainBlocked, text)
		h.Reload(Settings{ManagedByDefault: true})
		must(t, h.sentinels.Read())
		veto("nothing is wanted", "", "")
		if len(h.pods.pods) > 0 {
			t.Error("it keeps what it knew of the pods")
		}
	})
}

// TestBlockedBeforeTheCordon checks that the reads before the cordon list the pods from the quorum: a job that began since the host's
// last list keeps the node from being cordoned, and is a veto after the turn.
func TestBlockedBeforeTheCordon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, api, _ := newMemoryHost(t, v1alpha1.StateDraining, blockJobs)
		api.node.Spec.Unschedulable = false
		delete(api.node.Annotations, v1alpha1.AnnotationCordon)
		delete(api.node.Annotations, v1alpha1.AnnotationAck)
		api.change()
		if o := h.observe(t.Context()); o.Own == nil || len(o.Own.Block) != 1 {
			t.Fatalf("the policy: %+v", o.Own)
		}
		api.pods = append(api.pods, labeled("job", "job"))
		if _, err := h.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		n := h.facts()
		if n.Ack.Report != v1alpha1.ReportRefused || n.Ack.Reason != v1alpha1.ReasonDrainBlocked || n.Unschedulable || n.Mark {
			t.Errorf("ack %s, unschedulable %t, mark %t", n.Ack, n.Unschedulable, n.Mark)
		}
		if got, _ := h.pods.judge(blockTerms("job")); got == "" {
			t.Error("the host does not know the job after its refusal")
		}
	})
}

// TestPlansWithoutADrainAreNotBlocked checks that a reboot without a drain does not wait for jobs.
func TestPlansWithoutADrainAreNotBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, api, _ := newMemoryHost(t, v1alpha1.StateIdle, blockJobs, func(spec *v1alpha1.DisruptionPolicySpec) {
			spec.Rules = []v1alpha1.Rule{{Source: v1alpha1.SourceSentinel, Actions: []v1alpha1.Action{{Type: v1alpha1.ActionReboot}}, Drain: v1alpha1.DrainNever}}
		})
		api.pods = append(api.pods, labeled("job", "job"))
		if o := h.observe(t.Context()); o.Veto != "" || o.Sources.Drains {
			t.Errorf("veto %q (%s), drains %t", o.Veto, o.VetoDetail, o.Sources.Drains)
		}
	})
}

// TestBlockTimeout checks that pods stop being a veto when the policy's time is over, counted from what the host has published, and that
// the next turn's drain evicts them if the grant says so too; otherwise the host refuses.
func TestBlockTimeout(t *testing.T) {
	for grants, want := range map[bool]v1alpha1.Report{true: v1alpha1.ReportCommitted, false: v1alpha1.ReportRefused} {
		synctest.Test(t, func(t *testing.T) {
			h, api, _ := newMemoryHost(t, v1alpha1.StateIdle, blockJobs, func(spec *v1alpha1.DisruptionPolicySpec) {
				spec.Drain.BlockTimeout, spec.Drain.OnBlockTimeout = &metav1.Duration{Duration: time.Hour}, v1alpha1.OnBlockTimeoutEvict
			})
			api.node.Spec.Unschedulable = false
			for _, key := range []string{v1alpha1.AnnotationCordon, v1alpha1.AnnotationAck, v1alpha1.AnnotationTurn, v1alpha1.AnnotationGrant} {
				delete(api.node.Annotations, key)
			}
			api.change()
			must(t, h.view.Load(t.Context()))
			api.pods = append(api.pods, labeled("job", "job"))
			began := time.Now()
			round := func(what string, veto v1alpha1.Reason, off bool) {
				t.Helper()
				if _, err := h.round(t.Context()); err != nil {
					t.Fatal(err)
				}
				if n := h.facts(); n.Host == nil || n.Host.Veto != veto || n.Host.BlockOff != off || !n.Host.BlockedSince.Equal(began) {
					t.Errorf("%s: published %s", what, n.RawHost)
				}
			}
			round("a job runs", v1alpha1.ReasonDrainBlocked, false)
			time.Sleep(30 * time.Minute)
			h.pods = newNodePods(h.client, "n1", h.PollInterval) // as in a process that has just started
			round("after half of the time", v1alpha1.ReasonDrainBlocked, false)
			time.Sleep(30*time.Minute - time.Second)
			round("right before its end", v1alpha1.ReasonDrainBlocked, false)
			time.Sleep(time.Second)
			round("after the time", "", true)

			now := metav1.NewMicroTime(time.Now())
			api.lease.Spec.RenewTime = &now
			api.node.Labels[v1alpha1.LabelState] = string(v1alpha1.StateDraining)
			api.node.Annotations[v1alpha1.AnnotationTurn] = "t1"
			g := v1alpha1.Grant{Turn: "t1", Epoch: "e1", NodeUID: "uid", BootID: bootID, Wants: v1alpha1.WantsReboot, Drains: true, BlockOff: grants, StartedAt: time.Now(), StageAt: time.Now()}
			api.node.Annotations[v1alpha1.AnnotationGrant] = v1alpha1.FormatRecord(g)
			api.change()
			must(t, h.view.Load(t.Context()))
			h.pods = newNodePods(h.client, "n1", h.PollInterval) // a crash in between
			t.Cleanup(h.drain.Stop)
			round("in the turn", "", true)
			if n := h.facts(); n.Ack.Report != want || n.Unschedulable != grants {
				t.Errorf("the grant says so %t: ack %s, unschedulable %t", grants, n.Ack, n.Unschedulable)
			}
			h.drain.Stop()
		})
	}
}

// TestBlockTimeoutOfAClockThatIsSet checks that the time of pods that block is not over when a host's clock is set that was behind
// after a boot.
func TestBlockTimeoutOfAClockThatIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, api, _ := newMemoryHost(t, v1alpha1.StateIdle, blockJobs, func(spec *v1alpha1.DisruptionPolicySpec) {
			spec.Drain.BlockTimeout, spec.Drain.OnBlockTimeout = &metav1.Duration{Duration: time.Hour}, v1alpha1.OnBlockTimeoutEvict
		})
		api.node.Spec.Unschedulable = false
		for _, key := range []string{v1alpha1.AnnotationCordon, v1alpha1.AnnotationAck, v1alpha1.AnnotationTurn, v1alpha1.AnnotationGrant} {
			delete(api.node.Annotations, key)
		}
		api.change()
		api.ahead = 2 * time.Hour
		must(t, h.view.Load(t.Context()))
		api.pods = append(api.pods, labeled("job", "job"))
		round := func(what string, veto v1alpha1.Reason, off bool) {
			t.Helper()
			if _, err := h.round(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := h.facts(); n.Host == nil || n.Host.Veto != veto || n.Host.BlockOff != off {
				t.Errorf("%s: published %s", what, n.RawHost)
			}
		}
		round("two hours behind", v1alpha1.ReasonDrainBlocked, false)
		// To set the host's clock is to let time pass here, and not there.
		time.Sleep(2 * time.Hour)
		api.ahead = 0
		round("set", v1alpha1.ReasonDrainBlocked, false)
		time.Sleep(time.Hour)
		round("after the time", "", true)
	})
}
