package referee

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// evictionByAPI is the reason of the condition DisruptionTarget that the eviction API writes before it deletes a pod. A deletion by the taint
// manager, the pod garbage collector or a controller has another reason, or none.
const evictionByAPI = "EvictionByEvictionAPI"

type pod struct {
	key, uid, node string
	evictable      bool // a drain would evict it or wait for it
	evicted        bool
	kured          bool   // it runs kured in kube-system
	since          moment // it has been kured on the node
}

// kuredListAge is how old a host's list of its node's pods may be at a commit.
const kuredListAge = time.Minute

// runsKured reports whether another reboot manager runs in the pod that no host may ignore.
func runsKured(p *corev1.Pod) bool {
	return p.Namespace == metav1.NamespaceSystem && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed &&
		slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return slices.Contains(c.Command, "/usr/bin/kured") })
}

// besideKured checks that the host commits only if it could not have seen that kured runs on its node.
func (e *engine) besideKured(n *node, state v1alpha1.State) {
	for _, p := range e.pods {
		if p.kured && p.node == n.name && e.now.elapsed(p.since) > kuredListAge+e.lag {
			e.breaks(Commit, n.name, "committed in %s, and kured runs in the pod %s", state, p.key)
		}
	}
}

// onPod takes a version of a pod. A nil obj means that the pod is gone.
func (e *engine) onPod(m moment, key string, obj *corev1.Pod) {
	e.now = m
	if !e.first {
		e.report.PodEvents++
	}
	before := e.pods[key]
	if obj == nil {
		delete(e.pods, key)
		e.counted(before, nil)
		return
	}
	after := &pod{
		key: key, uid: string(obj.UID), node: obj.Spec.NodeName, evictable: evictable(obj),
		evicted: before != nil && before.uid == string(obj.UID) && before.evicted,
		kured:   runsKured(obj), since: m,
	}
	if before != nil && before.uid == after.uid && before.node == after.node && before.kured {
		after.since = before.since
	}
	for _, c := range obj.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == evictionByAPI && !after.evicted {
			after.evicted = true
			if !e.first {
				e.evicted(after, obj)
			}
		}
	}
	e.pods[key] = after
	e.counted(before, after)
}

// evictable reports whether a drain is incomplete while the pod is on the node. A drain also waits for a pod that is terminating.
func evictable(p *corev1.Pod) bool {
	return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed && !stays(p)
}

// stays reports whether no drain may evict the pod: it is a static pod or belongs to a DaemonSet.
func stays(p *corev1.Pod) bool {
	if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return true
	}
	c := metav1.GetControllerOfNoCopy(p)
	return c != nil && c.Kind == "DaemonSet" && strings.HasPrefix(c.APIVersion, "apps/")
}

// counted updates the count of evictable pods on the nodes that a pod was and is on.
func (e *engine) counted(before, after *pod) {
	add := func(p *pod, d int) {
		if p == nil || !p.evictable || p.node == "" {
			return
		}
		n := e.node(p.node)
		if n.evictable == 0 {
			n.nonzeroSince = e.now
		}
		n.evictable += d
		e.updateWindows(n)
	}
	if before != nil && after != nil && before.node == after.node && before.evictable == after.evictable {
		return
	}
	add(after, 1)
	add(before, -1)
}

func (e *engine) podsOn(node string) string {
	var keys []string
	for key, p := range e.pods {
		if p.node == node && p.evictable {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	if len(keys) > 5 {
		keys = append(keys[:5], "…")
	}
	return strings.Join(keys, ", ")
}

// mayEvict reports whether the host has committed to a drain and the commit still holds. Pods that come after the drain are evicted before the
// reboot, and before the steps of a plan.
func (e *engine) mayEvict(n *node) bool {
	c := n.cur
	return c != nil && (c.State == v1alpha1.StateDraining || c.State == v1alpha1.StateRebooting || c.State == v1alpha1.StateApplying) &&
		c.Ours() && c.Grant.Drains && c.Unschedulable && n.turn != nil && n.turn.committed
}

// always is a time in the far future.
var always = time.Unix(1<<40, 0)

// followEvictions updates evictUntil. A host whose turn is backed out sees that in its watch and cancels its requests, but requests in
// flight still land. After the host has acked uncordoning as done it sends no more evictions.
func (e *engine) followEvictions(n *node) {
	switch {
	case e.mayEvict(n):
		n.evictUntil = always
	case n.evictUntil.Equal(always):
		n.evictUntil = e.now.by.Add(2*rereadEvery + e.lag)
	}
	if c := n.cur; c != nil && c.State == v1alpha1.StateUncordoning && c.HasAck(c.State) && c.Ack.Report == v1alpha1.ReportDone {
		if soon := e.now.by.Add(e.lag); soon.Before(n.evictUntil) {
			n.evictUntil = soon
		}
	}
}

// evicted judges an eviction. A stop or a pause applies from the host's next read on.
func (e *engine) evicted(p *pod, obj *corev1.Pod) {
	e.report.Evictions++
	if p.node == "" {
		return // the pod is on no node
	}
	n := e.node(p.node)
	e.logLine(n.name, "pod %s evicted", p.key)
	state := v1alpha1.StateAbsent
	if n.cur != nil {
		state = n.cur.State
	}
	switch {
	case stays(obj):
		e.breaks(Evict, n.name, "pod %s was evicted, a DaemonSet's or the kubelet's own", p.key)
	case !n.evictUntil.After(e.now.after):
		e.breaks(Evict, n.name, "pod %s was evicted in %s, and no commit to a drain is in effect", p.key, state)
	}
	if since, ok := e.stoppedSince(); ok && e.now.elapsed(since) > 2*rereadEvery+e.lag {
		e.breaks(Stop, n.name, "pod %s was evicted %v after the stop", p.key, e.now.elapsed(since).Round(time.Second))
	}
	if since := n.pausedSince; since != (moment{}) && e.now.elapsed(since) > rereadEvery+e.lag &&
		(n.cur.Managed == nil || *n.cur.Managed) {
		e.breaks(Paused, n.name, "pod %s was evicted %v after the pause", p.key, e.now.elapsed(since).Round(time.Second))
	}
}
