package drain

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// severalBudgets is in the API server's answer to the eviction of a pod that more than one budget selects; see
// pkg/registry/core/pod/storage/eviction.go in Kubernetes.
const severalBudgets = "more than one PodDisruptionBudget"

// budgetFigures finds in the API server's message how many healthy pods a budget needs, and how many it has.
var budgetFigures = regexp.MustCompile(`needs (\d+) healthy pods and has (\d+) currently`)

// explain returns the message of a Blocker for an answer to the pod's eviction. For a budget it adds what the answer
// means for this pod and what to do. It uses only the answer and the pod, because the kubelet's identity may not read a
// budget.
func (f *facts) explain(a answer) string {
	if a.reason != PodDisruptionBudget {
		return a.message
	}
	figures := budgetFigures.FindStringSubmatch(a.message)
	needs, has := 0, 0
	if figures != nil {
		needs, _ = strconv.Atoi(figures[1])
		has, _ = strconv.Atoi(figures[2])
	}
	switch {
	case strings.Contains(a.message, severalBudgets):
		return advise(a.message, "leave one budget that selects this pod: kubectl get pdb -n "+f.Namespace)
	case figures == nil || has > needs: // the budget's controller has not counted yet, or has just allowed another eviction
		return a.message
	case f.unready != "":
		return advise(a.message, fmt.Sprintf("this pod itself is not Ready (%s): fix it, or set unhealthyPodEvictionPolicy: "+
			"AlwaysAllow in the budget (the default, IfHealthyBudget, keeps it while the budget is not met)", f.unready))
	case has == needs:
		return advise(a.message, "another of its pods is not Ready, or the budget never allows an eviction "+
			"(maxUnavailable: 0, or minAvailable as high as the replicas): fix that pod, or change the budget or the replicas")
	default:
		return advise(a.message, "other pods of the budget are missing or not Ready: bring them back, "+
			"or lower minAvailable if it is higher than the replicas")
	}
}

// whyBlocked is why a Policy's verdict keeps a pod on the node.
var whyBlocked = map[Reason]string{
	BlockedByPolicy: "drain.block of its policy selects the pod, so it is not evicted",
	Unmanaged:       "no controller creates the pod again, and its policy has drain.unmanaged: Block, so it is not evicted",
	EmptyDir:        "the pod has emptyDir data, and its policy has drain.emptyDir: Block, so it is not evicted",
}

// blockMessage returns the message of the Blocker for a pod that a Policy's verdict keeps on the node.
func blockMessage(r Reason) string {
	return advise(cmp.Or(whyBlocked[r], "its policy does not let the pod be evicted"),
		"wait until it has ended, delete it if its work may be lost, or change drain in the policy")
}

// explainStuck returns the message of the Blocker for a pod that is terminating and should be gone.
func (f *facts) explainStuck() string {
	if f.finalizers != "" {
		return advise("the pod's grace period is over, but it has finalizers: "+f.finalizers,
			"have their owner remove them, or remove them by hand if it is gone")
	}
	return advise("the pod's grace period is over, but this node's kubelet has not ended it",
		"on the host, see `systemctl status kubelet` and the container runtime")
}

// advise returns a message with what to do. If the message is too long, it is cut, and not what to do.
func advise(message, do string) string {
	return strings.TrimSuffix(tidy(message, maxMessage-len(do)-2), ".") + "; " + do
}

// unreadyText returns why the pod is not Ready, or "" if it is. Of several containers it names the one that has
// restarted most often.
func unreadyText(p *corev1.Pod) string {
	why := "no status from its kubelet"
	if i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady }); i >= 0 {
		c := &p.Status.Conditions[i]
		if c.Status == corev1.ConditionTrue {
			return ""
		}
		why = cmp.Or(c.Reason, "Ready is "+string(c.Status))
	}
	restarts := int32(-1)
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if c.Ready || c.RestartCount <= restarts {
			continue
		}
		restarts = c.RestartCount
		state := "not ready"
		switch {
		case c.State.Waiting != nil:
			state = cmp.Or(c.State.Waiting.Reason, "waiting")
		case c.State.Terminated != nil:
			state = cmp.Or(c.State.Terminated.Reason, "terminated")
		}
		why = fmt.Sprintf("container %s: %s, restart count %d", tidy(c.Name, maxName), tidy(state, maxName), restarts)
	}
	return tidy(why, maxUnready)
}

// Bounds of the text of unreadyText, and of a container's name and state in it, in bytes.
const (
	maxUnready = 120
	maxName    = 40
)
