package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"lockkeeper.dev/lockkeeper/drain"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/faultproxy"
)

// A fleetJudge sees every version of every pod of a fleet, by a watch of its own, and every request of the drains. What it
// demands is in docs/drain.md. It asks the drains for nothing but their blockers.
type fleetJudge struct {
	f *fleet

	mu     sync.Mutex
	pods   map[types.UID]*seenPod
	byName map[string]*group // the group of each pod that ever had the name
	acts   map[types.UID]bool
	floors map[*group]int // how many pods each budget that is in force keeps available
	marker bool
	broken []string
}

// seenPod is a pod as the watch has shown it.
type seenPod struct {
	name, node string
	uid        types.UID
	group      *group
	ready      bool
	runs       bool
	deleting   time.Time // when the watch showed the deletion
	deadline   time.Time
	grace      int64
	evicted    bool // by the eviction API
	gone       bool
	created    time.Time
	successor  bool // it came after the drains began
}

func newFleetJudge(f *fleet) *fleetJudge {
	return &fleetJudge{f: f, pods: map[types.UID]*seenPod{}, byName: map[string]*group{}, acts: map[types.UID]bool{}, floors: map[*group]int{}}
}

// breaks records what broke.
func (j *fleetJudge) breaks(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.broke(format, args...)
}

func (j *fleetJudge) broke(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(j.broken, text) {
		j.broken = append(j.broken, text)
	}
}

// verdict returns what broke.
func (j *fleetJudge) verdict() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.broken)
}

// act says that a user is about to delete a pod.
func (j *fleetJudge) act(uid types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.acts[uid] = true
}

// follow watches until ctx ends.
func (j *fleetJudge) follow(ctx context.Context, version string) {
	pods := j.f.w.admin.CoreV1().Pods(j.f.w.space)
	for ctx.Err() == nil {
		w, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: version})
		if err != nil {
			pauseFor(ctx, 50*time.Millisecond)
			continue
		}
		for e := range w.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				if status := apierrors.FromObject(e.Object); apierrors.IsResourceExpired(status) || apierrors.IsGone(status) {
					j.breaks("the judge has missed versions of pods: %v", status)
					w.Stop()
					return
				}
				break // the next watch continues from the last version
			}
			version = p.ResourceVersion
			j.see(ctx, p, e.Type == watch.Deleted)
		}
		w.Stop()
	}
}

// see takes a version of a pod.
func (j *fleetJudge) see(ctx context.Context, p *corev1.Pod, gone bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if p.Name == markerName {
		j.marker = true
		return
	}
	s := j.pods[p.UID]
	if s == nil {
		s = &seenPod{name: p.Name, uid: p.UID, group: j.f.groupOf(p), created: time.Now(), successor: j.f.begun.Load()}
		j.pods[p.UID], j.byName[p.Name] = s, s.group
		if p.Spec.NodeName == "" && s.group != nil {
			j.f.place(ctx, p, s)
		}
	}
	s.node, s.ready, s.runs = p.Spec.NodeName, controlplane.PodReady(p), p.Status.Phase == corev1.PodRunning
	s.evicted = s.evicted || slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == "EvictionByEvictionAPI"
	})
	if p.DeletionTimestamp != nil && s.deadline.IsZero() {
		s.deadline = p.DeletionTimestamp.Time
	}
	if (p.DeletionTimestamp != nil || gone) && s.deleting.IsZero() {
		s.deleting = time.Now()
		if p.DeletionGracePeriodSeconds != nil {
			s.grace = *p.DeletionGracePeriodSeconds
		}
		j.deleted(s)
		if !gone {
			j.f.endPod(ctx, *s)
		}
	}
	s.gone = s.gone || gone
	j.available(s.group)
}

// deleted judges a deletion.
func (j *fleetJudge) deleted(s *seenPod) {
	h := j.f.hostOf(s.node)
	switch {
	case j.acts[s.uid] || s.group == nil || !j.f.begun.Load() || j.f.ended.Load():
	case h == nil:
		j.broke("pod %s was deleted on node %q, which is not drained", s.name, s.node)
	case s.group.fate != goes:
		j.broke("pod %s was deleted, and it %s (%s)", s.name, s.group.fate, s.group)
	case s.grace != max(s.group.grace, 1):
		j.broke("pod %s was deleted with a grace period of %d s (%s)", s.name, s.grace, s.group)
	}
}

// available judges a group's budget.
func (j *fleetJudge) available(g *group) {
	least, ok := j.floors[g]
	if !ok || j.f.ended.Load() {
		return
	}
	var well, ill []string
	for _, s := range j.pods {
		switch {
		case s.group != g || s.gone:
		case s.ready && s.deleting.IsZero():
			well = append(well, s.name)
		default:
			ill = append(ill, s.name)
		}
	}
	if len(well) < least {
		j.broke("%d pods of %s are available, and its budget keeps %d: not %v", len(well), g, least, ill)
	}
}

// running returns how many pods of a group run, and how many of them are ready.
func (j *fleetJudge) running(g *group) (runs, ready int32) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range j.pods {
		if s.group == g && s.runs && !s.gone {
			runs++
			if s.ready {
				ready++
			}
		}
	}
	return runs, ready
}

// keep puts a budget in force; floor is how many pods it keeps available. A negative one takes it out of force.
func (j *fleetJudge) keep(g *group, floor int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if floor < 0 {
		delete(j.floors, g)
		return
	}
	j.floors[g] = floor
}

// on returns the pods of a group that are on drained nodes, except those whose drain is over.
func (j *fleetJudge) on(g *group) (all []seenPod) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range j.pods {
		if h := j.f.hostOf(s.node); s.group == g && !s.gone && h != nil {
			all = append(all, *s)
		}
	}
	return all
}

func (j *fleetJudge) groupNamed(pod string) *group {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.byName[pod]
}

// critical judges the eviction of a critical pod at its arrival, by a list from the quorum: all others have to be gone, or
// blocked.
func (j *fleetJudge) critical(h *fleetHost, r *faultproxy.Request) {
	list, err := j.f.w.admin.CoreV1().Pods(j.f.w.space).List(j.f.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + h.node})
	if err != nil {
		return // the fleet has ended
	}
	const slack = 500 * time.Millisecond
	for i := range list.Items {
		p := &list.Items[i]
		g := j.f.groupOf(p)
		if g == nil || g.critical() || g.fate == stays || g.fate == blocks || time.Since(p.CreationTimestamp.Time) < 5*time.Second+j.f.slack() && j.came(p.UID) {
			continue
		}
		if d := p.DeletionTimestamp; d != nil && time.Since(j.deadline(p)) > 10*time.Second-slack || d == nil && g.returns > 1 && j.came(p.UID) {
			continue
		}
		h.mu.Lock()
		since, refused := h.refused[p.UID]
		h.mu.Unlock()
		// The host does not know of a deletion of this moment yet. Its time has whole seconds.
		deleted := p.DeletionTimestamp != nil && time.Since(p.DeletionTimestamp.Add(-time.Duration(*p.DeletionGracePeriodSeconds)*time.Second)) > 2*time.Second
		if refused && !deleted && r.Time.Sub(since) > 30*time.Second-slack {
			continue
		}
		j.breaks("the critical pod %s was to be evicted while %s was on the node (%s)", r.Name, p.Name, g)
	}
}

// deadline returns when a pod that is being deleted should have ended: the end of an obstacle may delete it once more, which
// moves its timestamp.
func (j *fleetJudge) deadline(p *corev1.Pod) time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	if s := j.pods[p.UID]; s != nil && !s.deadline.IsZero() && s.deadline.Before(p.DeletionTimestamp.Time) {
		return s.deadline
	}
	return p.DeletionTimestamp.Time
}

// came reports whether the pod came after the drains began.
func (j *fleetJudge) came(uid types.UID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.pods[uid]
	return s == nil || s.successor
}

// early judges the pods that are left on a node although a run of its drain has ended: only pods that its watch could not
// have shown may be.
func (j *fleetJudge) early(h *fleetHost, left []drain.Left) {
	late := 5*time.Second + j.f.slack()
	h.mu.Lock()
	unread := h.unread
	h.mu.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, l := range left {
		s := j.pods[l.UID]
		if s == nil || time.Since(s.created) < late || !unread.IsZero() && unread.After(s.created.Add(-late)) {
			continue
		}
		j.broke("a run of the drain of %s was over, and pod %s had been there for %v (%s)", h.node, s.name, time.Since(s.created).Round(time.Second), s.group)
	}
}

// unnamed returns the pods on a node that are neither named by a blocker nor about to leave.
func (j *fleetJudge) unnamed(h *fleetHost) (all []string) {
	blockers := h.drain.Progress().Blockers
	j.mu.Lock()
	defer j.mu.Unlock()
	others := false
	for _, s := range j.pods {
		others = others || s.node == h.node && !s.gone && s.group != nil && s.group.fate != stays && !s.group.critical()
	}
	for _, s := range j.pods {
		switch {
		case s.node != h.node || s.gone || s.group == nil || s.group.fate == stays:
		case slices.ContainsFunc(blockers, func(b drain.Blocker) bool { return b.UID == s.uid }):
		case !s.deadline.IsZero() && time.Since(s.deadline) < 12*time.Second+j.f.slack(), time.Since(s.created) < 5*time.Second+j.f.slack(), others && s.group.critical():
		default:
			all = append(all, s.name)
		}
	}
	return all
}

// end judges the end of a host's drain, by a list from the quorum and all its requests.
func (j *fleetJudge) end(h *fleetHost) {
	list, err := j.f.w.admin.CoreV1().Pods(metav1.NamespaceAll).List(j.f.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + h.node})
	if err != nil {
		j.breaks("listing the pods of %s: %v", h.node, err)
		return
	}
	there := map[types.UID]bool{}
	for i := range list.Items {
		p := &list.Items[i]
		there[p.UID] = true
		if g := j.f.groupOf(p); g == nil || g.fate != stays {
			j.breaks("the drain of %s is over, and pod %s is on the node (%v)", h.node, p.Name, g)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range j.pods {
		if s.node == h.node && s.group != nil && s.group.fate == stays && !j.acts[s.uid] && !there[s.uid] {
			j.broke("pod %s is gone from %s, and it stays (%s)", s.name, h.node, s.group)
		}
	}
	j.requests(h)
}

// requests judges what a host has sent.
func (j *fleetJudge) requests(h *fleetHost) {
	all, _ := h.proxy.Records()
	slices.SortFunc(all, func(a, b faultproxy.Record) int { return a.Time.Compare(b.Time) })
	last := map[types.UID]*faultproxy.Record{} // the last write about each pod
	sent := map[types.UID]bool{}               // deletions
	for i := range all {
		r := &all[i]
		if !r.Write() {
			j.read(h, r)
			continue
		}
		if h.stoppedAt(r.Time) {
			j.broke("%s was sent, and no drain ran", r)
		}
		uid, grace := targetOf(r.Label)
		s := j.pods[uid]
		if !r.Is("create", "pods/eviction") && !r.Is("delete", "pods") || s == nil || s.node != h.node || s.group == nil || s.group.fate != goes || s.name != r.Name {
			j.broke("%s sent %s: pod %+v", h.node, r, s)
			continue
		}
		if grace != "" && (s.group.grace != 0 || grace != "1") {
			j.broke("%s set a grace period of %s s (%s)", r, grace, s.group)
		}
		j.again(h, s, last[uid], r)
		last[uid] = r
		sent[uid] = sent[uid] || r.Verb == "delete"
	}
	for uid, s := range j.pods {
		if s.node == h.node && s.group != nil && s.group.fate == goes && !j.acts[uid] && !s.evicted && !sent[uid] {
			j.broke("pod %s left without an eviction", s.name)
		}
	}
}

// again judges a write after the one before it about the same pod.
func (j *fleetJudge) again(h *fleetHost, s *seenPod, was, r *faultproxy.Record) {
	if r.Verb == "delete" {
		switch {
		case !h.forcedAt(r.Time):
			j.broke("pod %s was deleted without onTimeout: Force", s.name)
		case was == nil || was.Verb == "delete" || !overruled(was, s.group):
			j.broke("pod %s was deleted after %v, which is no refusal", s.name, was)
		}
		return
	}
	if was == nil || h.restarted(was.Time, r.Time) {
		return
	}
	pause := r.Time.Sub(was.Time.Add(was.Took))
	least := 950 * time.Millisecond // the drain's shortest delay is 1 s
	if was.Outcome == faultproxy.Answered && was.Code/100 == 2 {
		least = 25 * time.Second
	}
	for _, l := range h.later {
		if l.uid == s.uid && l.at.Equal(was.Time) {
			least = max(least, l.d-50*time.Millisecond)
		}
	}
	if pause < least-j.f.slack()/10 {
		j.broke("pod %s was asked for again after %v, expected at least %v: %v, then %v", s.name, pause.Round(time.Millisecond), least, was, r)
	}
}

// overruled reports whether the answer to an eviction lets Force delete the pod.
func overruled(was *faultproxy.Record, g *group) bool {
	if was.Outcome == faultproxy.Refused {
		return was.Code == http.StatusInternalServerError
	}
	switch was.Code {
	case http.StatusTooManyRequests:
		return g.budget.text != "" || g.obstacle == guard429
	case http.StatusForbidden, http.StatusInternalServerError:
		return true
	}
	return false
}

// read judges a request that reads.
func (j *fleetJudge) read(h *fleetHost, r *faultproxy.Record) {
	u, err := url.Parse(r.URI)
	q := u.Query()
	if err != nil || !r.Is("list", "pods") && !r.Is("watch", "pods") || q.Get("fieldSelector") != "spec.nodeName="+h.node ||
		r.Verb == "list" && q.Get("resourceVersion") != "" {
		j.broke("%s sent %s (%s)", h.node, r, r.URI)
	}
}

// waitMarker waits until the judge has seen everything that was written before.
func (j *fleetJudge) waitMarker(ctx context.Context) error {
	p := j.f.w.pod(markerName)
	p.Spec.NodeName = ""
	if _, err := j.f.w.admin.CoreV1().Pods(j.f.w.space).Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return err
	}
	for ctx.Err() == nil {
		j.mu.Lock()
		seen := j.marker
		j.mu.Unlock()
		if seen {
			return nil
		}
		pauseFor(ctx, 10*time.Millisecond)
	}
	return errors.New("the judge's watch has not shown everything")
}

// markerName is the name of the last pod of a fleet.
const markerName = "marker"

// left describes the pods that a host's drain still has to do with.
func (j *fleetJudge) left(h *fleetHost) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var all []string
	for _, s := range slices.SortedFunc(maps.Values(j.pods), func(a, b *seenPod) int { return strings.Compare(a.name, b.name) }) {
		if s.node == h.node && !s.gone && s.group != nil && s.group.fate != stays {
			all = append(all, fmt.Sprintf("%s (deleting %t)", s.name, !s.deleting.IsZero()))
		}
	}
	return strings.Join(all, ", ")
}
