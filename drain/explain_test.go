package drain

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// denied returns the API server's answer to an eviction that a budget does not allow.
func denied(cause string) error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause, Message: cause}}
	return err
}

// conditionReady sets the pod's Ready condition.
func conditionReady(status corev1.ConditionStatus, reason string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status, Reason: reason}}
	}
}

// container adds the status of a container that is not ready.
func container(name string, restarts int32, state corev1.ContainerState) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: name, RestartCount: restarts, State: state})
	}
}

// texts returns the reasons and messages of blockers.
func texts(all []Blocker) string {
	var out []string
	for _, b := range all {
		out = append(out, string(b.Reason)+": "+b.Message)
	}
	return strings.Join(out, "\n")
}

func waiting(reason string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
}

// TestTheFirstAnswerIsExplained checks what the first report after a pod's first eviction says.
func TestTheFirstAnswerIsExplained(t *testing.T) {
	const allReady = "needs 3 healthy pods and has 3 currently"
	const tooFew = "needs 3 healthy pods and has 2 currently"
	const allow = ": fix it, or set unhealthyPodEvictionPolicy: AlwaysAllow in the budget (the default, IfHealthyBudget, keeps it while the budget is not met)"
	isReady, isNot := conditionReady(corev1.ConditionTrue, ""), conditionReady(corev1.ConditionFalse, "ContainersNotReady")
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		err  error
		want string
	}{
		"a budget that has what it needs": {aPod("web-0", isReady), denied("The disruption budget web " + allReady),
			"The disruption budget web needs 3 healthy pods and has 3 currently; another of its pods is not Ready, or the budget never allows an eviction (maxUnavailable: 0, or minAvailable as high as the replicas): fix that pod, or change the budget or the replicas"},
		"a budget that lacks pods": {aPod("web-0", isReady), denied("The disruption budget web " + tooFew),
			"The disruption budget web needs 3 healthy pods and has 2 currently; other pods of the budget are missing or not Ready: bring them back, or lower minAvailable if it is higher than the replicas"},
		"a budget that has just allowed another eviction": {aPod("web-0", isReady), denied("The disruption budget web needs 2 healthy pods and has 3 currently"),
			"The disruption budget web needs 2 healthy pods and has 3 currently"},
		"the same, of a pod that is not ready": {aPod("web-0", isNot), denied("The disruption budget web is still being processed by the server."),
			"The disruption budget web is still being processed by the server."},
		"a budget that its controller has not seen": {aPod("web-0", isReady), denied("The disruption budget web is still being processed by the server."),
			"The disruption budget web is still being processed by the server."},
		"a crash loop": {aPod("web-0", isNot, container("app", 7, waiting("CrashLoopBackOff"))), denied("The disruption budget web " + tooFew),
			"The disruption budget web needs 3 healthy pods and has 2 currently; this pod itself is not Ready (container app: CrashLoopBackOff, restart count 7)" + allow},
		"a container that ended": {aPod("web-0", isNot, container("app", 1, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled"}})),
			denied("The disruption budget web " + tooFew),
			"The disruption budget web needs 3 healthy pods and has 2 currently; this pod itself is not Ready (container app: OOMKilled, restart count 1)" + allow},
		"the container that restarts": {aPod("web-0", isNot,
			container("proxy", 0, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}), container("app", 2, waiting("CrashLoopBackOff")), container("log", 1, waiting("x")),
			func(p *corev1.Pod) {
				p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: "old", RestartCount: 9, Ready: true})
			}),
			denied("The disruption budget web " + tooFew),
			"The disruption budget web needs 3 healthy pods and has 2 currently; this pod itself is not Ready (container app: CrashLoopBackOff, restart count 2)" + allow},
		"a probe that fails": {aPod("web-0", isNot, container("app", 0, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})),
			denied("The disruption budget web " + tooFew),
			"The disruption budget web needs 3 healthy pods and has 2 currently; this pod itself is not Ready (container app: not ready, restart count 0)" + allow},
		"a readiness gate": {aPod("web-0", conditionReady(corev1.ConditionFalse, "ReadinessGatesNotReady")), denied("The disruption budget web " + tooFew),
			"The disruption budget web needs 3 healthy pods and has 2 currently; this pod itself is not Ready (ReadinessGatesNotReady)" + allow},
		"a silent node": {aPod("web-0", conditionReady(corev1.ConditionUnknown, "")), denied("The disruption budget web " + tooFew),
			"The disruption budget web needs 3 healthy pods and has 2 currently; this pod itself is not Ready (Ready is Unknown)" + allow},
		"not Ready under a budget that needs none": {aPod("web-0"), denied("The disruption budget web needs 0 healthy pods and has 0 currently"),
			"The disruption budget web needs 0 healthy pods and has 0 currently; this pod itself is not Ready (no status from its kubelet)" + allow},
		"several budgets": {aPod("web-0", isNot), &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 500,
			Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."}},
			"This pod has more than one PodDisruptionBudget, which the eviction subresource does not support; leave one budget that selects this pod: kubectl get pdb -n default"},
	} {
		s := scheduleOf(1, nil, factsOf(c.pod, Verdict{Evict, Managed}))
		s.started(t, 0, "web-0")
		s.answered(start, c.pod.UID, "", answerOf(c.err))
		b := s.progress(start).Blockers
		if len(b) != 1 || b[0].Reason != PodDisruptionBudget || b[0].Message != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, texts(b), c.want)
		}
	}
}

// TestAnOverduePodBlocksFromTheFirstReport checks a pod that should be gone when the drain begins.
func TestAnOverduePodBlocksFromTheFirstReport(t *testing.T) {
	const kubelet = "the pod's grace period is over, but this node's kubelet has not ended it; on the host, see `systemctl status kubelet` and the container runtime"
	end := metav1.NewTime(start.Add(-overdue))
	for name, c := range map[string]struct {
		grace      int64
		finalizers []string
		reason     Reason
		want       string
	}{
		"its kubelet does not end it": {30, nil, Terminating, kubelet},
		// It would not leave without the finalizer either.
		"its kubelet does not end it, and it has a finalizer": {30, []string{"example.com/volume"}, Terminating, kubelet},
		"ended, with finalizers": {0, []string{"example.com/volume", "example.com/dns"}, Finalizer,
			"the pod's grace period is over, but it has finalizers: example.com/volume, example.com/dns; have their owner remove them, or remove them by hand if it is gone"},
	} {
		p := aPod("web-0", func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds, p.Finalizers = &end, &c.grace, c.finalizers
		})
		b := scheduleOf(1, nil, factsOf(p, Verdict{Wait, Terminating})).progress(start).Blockers
		if len(b) != 1 || b[0].Reason != c.reason || b[0].Message != c.want || !b[0].Since.Equal(end.Time) {
			t.Errorf("%s:\n got %s\nwant %s", name, texts(b), c.want)
		}
	}
}

// TestExplanationsAreBounded checks that texts which a pod's author or its kubelet chooses keep no one from reading
// what to do, and do not get into the message as they are.
func TestExplanationsAreBounded(t *testing.T) {
	const hostile = "a\x1b[2Kb\n\u202ec"
	end := metav1.NewTime(start.Add(-time.Hour))
	long := strings.Repeat(hostile, 1000)
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		has  string
		last string // what the message ends with
	}{
		"a container": {aPod("p", conditionReady(corev1.ConditionFalse, long), container(long, 1<<31-1, waiting(long))), ", restart count 2147483647): fix it", "keeps it while the budget is not met)"},
		"a condition": {aPod("p", conditionReady(corev1.ConditionFalse, long)), "not Ready (a [2Kb ca [2Kb c", "keeps it while the budget is not met)"},
		"finalizers": {aPod("p", func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = &end, []string{long, long}
		}), "finalizers: a [2Kb ca [2Kb c", "remove them by hand if it is gone"},
	} {
		s := scheduleOf(1, nil, factsOf(c.pod, Classify(c.pod)))
		if p, ok := s.next(start); ok {
			s.answered(start, p.UID, "", answerOf(denied("The disruption budget "+strings.Repeat("x", 253)+" needs 3 healthy pods and has 2 currently")))
		}
		b := s.progress(start).Blockers
		if len(b) != 1 {
			t.Fatalf("%s: %+v", name, b)
		}
		m := b[0].Message
		if len(m) > maxMessage || len(m) < 300 || !utf8.ValidString(m) || strings.ContainsAny(m, "\x1b\n\u202e") || !strings.Contains(m, c.has) || !strings.HasSuffix(m, c.last) {
			t.Errorf("%s: %d bytes: %q", name, len(m), m)
		}
	}
}
