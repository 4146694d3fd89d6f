package virtual

import (
	"bytes"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/apiserver"
)

// blockRules are the pods that the fleet's policy blocks. The zero value blocks none.
type blockRules struct {
	// selected blocks the jobs by their label; unmanaged and emptyDir by what they are.
	selected, unmanaged, emptyDir bool
	// timeout is the policy's blockTimeout, 0 for none. With evict, Block is off after it.
	timeout time.Duration
	evict   bool
}

// Variants of a job.
const (
	jobSelected = "selected" // drain.block selects its label
	jobBare     = "bare"     // it has no controller
	jobScratch  = "scratch"  // it has an emptyDir volume
)

var jobModes = []string{jobSelected, jobBare, jobScratch}

// job is the value of the label app that drain.block selects.
const job = "job"

func (b *blockRules) set(s *v1alpha1.DisruptionPolicySpec) {
	if b.selected {
		s.Drain.Block = []v1alpha1.PodSelector{{Namespace: namespace, Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": job}}}}
	}
	if b.unmanaged {
		s.Drain.Unmanaged = v1alpha1.PodBlock
	}
	if b.emptyDir {
		s.Drain.EmptyDir = v1alpha1.PodBlock
	}
	if b.timeout > 0 {
		s.Drain.BlockTimeout = &metav1.Duration{Duration: b.timeout}
		if b.evict {
			s.Drain.OnBlockTimeout = v1alpha1.OnBlockTimeoutEvict
		}
	}
}

// has reports whether the policy blocks the pod.
func (b *blockRules) has(p *corev1.Pod) bool {
	scratch := slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil })
	return b.selected && p.Labels["app"] == job || b.unmanaged && metav1.GetControllerOf(p) == nil || b.emptyDir && scratch
}

func jobOf(host, mode string) *corev1.Pod {
	p := newPod(mode, mode+"-"+host, host, "Job")
	switch mode {
	case jobSelected:
		p.Labels["app"] = job
	case jobBare:
		p.OwnerReferences = nil
	case jobScratch:
		p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	return p
}

// AddJob runs a job on the Node, whether the Node is cordoned or not.
func (f *Fleet) AddJob(host, mode string) {
	_, err := f.Admin.CoreV1().Pods(namespace).Create(f.ctx, jobOf(host, mode), metav1.CreateOptions{})
	f.mustOr(err, apierrors.IsAlreadyExists) // a store that was rewound has it again, or it is about to end
}

// EndJob ends it.
func (f *Fleet) EndJob(host, mode string) {
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	f.mustOr(f.Admin.CoreV1().Pods(namespace).Delete(f.ctx, jobOf(host, mode).Name, now), gone)
}

// blocker is a pod that the policy blocks.
type blocker struct {
	node  string
	since time.Time
}

// blocks is what the fleet knows of pods that block, and of turns in which they do not. Fleet.mu guards it.
type blocks struct {
	pods map[types.UID]blocker
	off  map[string]time.Time // when Block was off on a Node last
}

// followBlocks remembers whether Block is off in the turn of a Node: by its grant, its host's record and the policy.
func (f *Fleet) followBlocks(obj *corev1.Node) {
	if obj == nil || !f.opts.Blocks.evict {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := turn.FromNode(obj); blockOff(&n) {
		f.blocks.off[n.Name] = time.Now()
	}
}

func blockOff(n *turn.Node) bool {
	return n.InTurn() && n.Ours() && n.Grant.BlockOff && n.Host != nil && n.Host.NodeUID == n.UID && n.Host.BlockOff
}

// mayEvict reports whether Block is off in the turn of the Node, or was until what its host has sent since can still land. The caller holds mu.
func (f *Fleet) mayEvict(node string) bool {
	n := f.nodes[node]
	return f.opts.Blocks.evict && (blockOff(&n) || time.Since(f.blocks.off[node]) <= f.opts.Lag)
}

// judgeEviction judges the first moment of an eviction by a host: no pod that blocks is evicted, unless Block is off in the turn.
func (f *Fleet) judgeEviction(w *apiserver.Write) {
	p, _ := w.Object.(*corev1.Pod)
	old, _ := w.Old.(*corev1.Pod)
	f.mu.Lock()
	defer f.mu.Unlock()
	if old != nil && (p == nil || p.UID != old.UID || p.DeletionTimestamp != nil) {
		delete(f.blocks.pods, old.UID)
	}
	if p == nil || !f.opts.Blocks.has(p) {
		return
	}
	if p.DeletionTimestamp == nil {
		if _, known := f.blocks.pods[p.UID]; !known {
			f.blocks.pods[p.UID] = blocker{p.Spec.NodeName, time.Now()}
		}
		return
	}
	if old != nil && old.DeletionTimestamp == nil && w.User == "system:node:"+p.Spec.NodeName &&
		!slices.Contains(f.attack.Liars, p.Spec.NodeName) && !f.mayEvict(p.Spec.NodeName) {
		f.problems = append(f.problems, "Block: "+p.Spec.NodeName+" evicted "+p.Name+", which its policy blocks, in "+f.nodes[p.Spec.NodeName].State.String())
	}
}

var drainCommitted = []byte("/" + string(v1alpha1.StateDraining) + "/" + string(v1alpha1.ReportCommitted))

// cordons checks that the host sends no commit to a drain, and with it its cordon, while a pod that blocks is on its Node: it lists its pods at
// most 10 s before.
func (m *Machine) cordons(patch []byte) {
	if !bytes.Contains(patch, drainCommitted) {
		return
	}
	m.mu.Lock()
	thawed := time.Since(m.reads.thawed) < clockSlack // what was sent before the process was frozen
	m.mu.Unlock()
	f := m.f
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.blocks.pods {
		if age := time.Since(p.since); p.node == m.name && age > mostAge+clockSlack && !thawed && !f.mayEvict(m.name) {
			f.problems = append(f.problems, "Block: "+m.name+" cordons its Node, and a pod that blocks has been there for "+age.Round(time.Second).String())
		}
	}
}

// restoredBlocks forgets what was before the store was set back. What hosts have sent since may still land.
func (f *Fleet) restoredBlocks() {
	pods := f.Server.List("pods") // it takes a lock that is taken before f.mu
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.blocks.pods)
	for _, obj := range pods {
		if p := obj.(*corev1.Pod); p.DeletionTimestamp == nil && f.opts.Blocks.has(p) {
			f.blocks.pods[p.UID] = blocker{p.Spec.NodeName, time.Now()}
		}
	}
	for _, m := range f.hosts {
		f.blocks.off[m.name] = time.Now()
	}
}
