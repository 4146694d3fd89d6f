package drain

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/kube"
)

// facts is what the drain keeps of a pod: a few kilobytes for a node's pods instead of
// megabytes.
type facts struct {
	Pod
	verdict    Verdict
	priority   int32
	controller types.UID // "" without one
	grace      time.Duration
	unready    string    // why it is not Ready; "" if it is
	deadline   time.Time // of a terminating pod: the end of its grace period, by the API server's clock
	// deletionGrace is the grace period of a terminating pod's deletion; nil if the API server does not say.
	deletionGrace *time.Duration
	finalizers    string // of a terminating pod that its kubelet has ended, comma separated
}

// maxFinalizers bounds how many finalizers of a pod are named.
const maxFinalizers = 4

// maxGrace bounds the grace period that the drain uses, in seconds: the author of a pod may set
// any number.
const maxGrace = 7 * 24 * 3600

func factsOf(p *corev1.Pod, v Verdict) facts {
	f := facts{Pod: identify(p), verdict: v, unready: unreadyText(p)}
	if p.Spec.Priority != nil {
		f.priority = *p.Spec.Priority
	}
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		f.controller = ref.UID
	}
	if p.Spec.TerminationGracePeriodSeconds != nil {
		f.grace = time.Duration(min(max(*p.Spec.TerminationGracePeriodSeconds, 0), maxGrace)) * time.Second
	}
	if p.DeletionTimestamp != nil {
		f.deadline = p.DeletionTimestamp.Time
		if s := p.DeletionGracePeriodSeconds; s != nil {
			f.deletionGrace = new(time.Duration(min(max(*s, 0), maxGrace)) * time.Second)
		}
		// The kubelet sets the grace period to 0 when the pod's containers have ended. Before that,
		// the pod would not leave without its finalizers either.
		if s := p.DeletionGracePeriodSeconds; s == nil || *s == 0 {
			f.finalizers = strings.Join(p.Finalizers[:min(len(p.Finalizers), maxFinalizers)], ", ")
		}
	}
	return f
}

// podWatch holds the facts of the pods that matter to the drain, by namespace/name.
type podWatch = kube.Watch[*corev1.Pod, facts]

// watchPods makes a podWatch of the node's pods.
func (d *Drainer) watchPods(changed func()) *podWatch {
	return kube.NewWatch(d.Client.CoreV1().Pods(metav1.NamespaceAll), kube.WatchOptions[*corev1.Pod, facts]{
		Name: "pods", FieldSelector: d.selector(), Keep: d.keep, Changed: changed,
	})
}

// keep returns what is kept of a pod, and whether it is one to evict or to wait for.
// The field selector already restricts list and watch to the node. That keep checks
// it again costs nothing, and a server or proxy that ignores the selector cannot have
// the pods of a whole cluster evicted.
func (d *Drainer) keep(p *corev1.Pod) (facts, bool) {
	verdict := d.Policy.Judge(p)
	if p.Spec.NodeName != d.Node || verdict.Class == Leave {
		return facts{}, false
	}
	return factsOf(p, verdict), true
}

// snapshot is what is known of the pods at one moment.
type snapshot struct {
	pods   []facts // in the order of their names
	synced bool    // they are those of a complete list
	err    error
}
