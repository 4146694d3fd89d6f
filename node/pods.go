package node

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/drain"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/source"
	"lockkeeper.dev/lockkeeper/node/step"
)

// podPrograms are the reboot managers that run in a pod on each node, by the program that
// their container runs. A label proves nothing: the author of any pod may set it.
var podPrograms = map[string]string{
	"/usr/bin/kured":    "kured",
	"/bin/update-agent": "the agent of the Flatcar Linux Update Operator",
}

// podImages are the programs that images with these names run if the pod names none.
var podImages = map[string]string{"kured": "/usr/bin/kured"}

const (
	// podsPolls is how many poll intervals pass between two lists of the pods while the host
	// waits for its turn; at most maxPodsAge. A host that wants nothing lists none.
	podsPolls  = 10
	maxPodsAge = time.Hour
	// commitPodsAge is how old the list may be at a commit.
	commitPodsAge = time.Minute
)

// podManager is a reboot manager that runs in a pod of this node.
type podManager struct {
	namespace string
	source.Manager
}

// nodePods lists the pods of this host's node, and finds among them the other reboot managers, and
// those that block a drain. Only the loop's goroutine uses it.
type nodePods struct {
	client kube.API
	node   string
	every  time.Duration // between two lists

	managers []podManager
	pods     []*corev1.Pod // outlines of those that a drain evicts if no rule says otherwise
	// blockers are those of the pods that blocked the drain when they were last judged, at most
	// drain.MaxBlockers. The pods are then listed more often, because the node can have its turn
	// when they are gone.
	blockers []drain.Blocker
	outdated bool      // a later list has shown pods that the last list did not
	read     time.Time // began the last list that succeeded; zero if none did
	tried    time.Time
	err      error // of the last list
}

func newNodePods(client kube.API, node string, poll time.Duration) *nodePods {
	return &nodePods{client: client, node: node, every: min(podsPolls*poll, maxPodsAge)}
}

// refresh lists the pods if the last list is older than age, and returns why that fails.
// After a failure, the result of the last list remains valid.
func (p *nodePods) refresh(ctx context.Context, age time.Duration) error {
	if !p.read.IsZero() && time.Since(p.read) < age && !p.outdated {
		return nil
	}
	p.tried = time.Now()
	ctx, cancel := context.WithTimeout(ctx, kube.Timeout)
	defer cancel()
	// Resource version 0 has the API server answer from its cache, which has an index by node.
	// A list from etcd would read the pods of all nodes, for each of thousands of hosts.
	pods, err := p.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", p.node).String(), ResourceVersion: "0",
	})
	if err == nil {
		err = kube.VerifyList(pods)
	}
	if err != nil {
		p.err = fmt.Errorf("pods of node %s cannot be read, so it is not known whether another reboot manager or a pod that blocks a drain is among them: %w", p.node, err)
		return p.err
	}
	p.managers, p.pods, p.outdated, p.read, p.err = nil, nil, false, p.tried, nil
	for i := range pods.Items {
		pod := &pods.Items[i]
		if m, ok := managerIn(pod); ok && !slices.Contains(p.managers, m) {
			p.managers = append(p.managers, m)
		}
		// The selector may be ignored by a proxy, which would return the pods of a whole cluster.
		if pod.Spec.NodeName == p.node && drain.Classify(pod).Class == drain.Evict {
			p.pods = append(p.pods, drain.Outline(pod))
		}
	}
	return nil
}

// poll lists the pods if the host wants something, or is in a turn, and the last list is old.
// After a failure, and while a pod blocks the drain, the interval is a fifth.
func (p *nodePods) poll(ctx context.Context, wanted bool) {
	switch {
	case !wanted:
		// What was found may be gone by the time when the host wants something.
		*p = nodePods{client: p.client, node: p.node, every: p.every}
	case p.err == nil || time.Since(p.tried) >= p.every/5:
		age := p.every
		if len(p.blockers) > 0 {
			age /= 5
		}
		_ = p.refresh(ctx, age) // addVetoes has the error
	}
}

// addVetoes adds the vetoes because of what runs in the namespaces. A list that cannot be read is a
// veto if there was none for two intervals.
func (p *nodePods) addVetoes(v *step.Vetoes, namespaces []string) {
	for _, m := range p.managers {
		if m.namespace == metav1.NamespaceSystem || slices.Contains(namespaces, m.namespace) {
			v.Managers = append(v.Managers, m.String())
		}
	}
	if p.err != nil && (p.read.IsZero() || time.Since(p.read) > 2*p.every) {
		v.Unread = p.err.Error()
	}
}

// judge finds the pods that block a drain by the terms of the host's policy, which may be nil, and
// names them; "" if none does. known is false if the pods have not been listed.
func (p *nodePods) judge(own *v1alpha1.Terms) (text string, known bool) {
	var all []drain.Left
	if own != nil {
		judge := drain.Selecting(own.PodRules)
		for _, pod := range p.pods {
			all = append(all, drain.Left{Pod: drain.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, Verdict: judge.Judge(pod)})
		}
	}
	all = blocking(all)
	p.blockers = nil
	for _, l := range all[:min(len(all), drain.MaxBlockers)] {
		p.blockers = append(p.blockers, l.Blocker())
	}
	return blockedText(all), !p.read.IsZero()
}

// blocking returns the pods whose verdict is Block.
func blocking(pods []drain.Left) []drain.Left {
	return slices.DeleteFunc(slices.Clone(pods), func(l drain.Left) bool { return l.Verdict.Class != drain.Block })
}

// blockedText names the pods whose verdict is Block, at most three of them; "" if there is none.
func blockedText(pods []drain.Left) string {
	if pods = blocking(pods); len(pods) == 0 {
		return ""
	}
	return "the drain must not evict " + listUpTo(3, pods, func(l drain.Left) string {
		return fmt.Sprintf("%s (%s)", l.Pod, l.Verdict.Reason)
	}, ", ")
}

// managerIn returns the reboot manager that runs in the pod.
func managerIn(pod *corev1.Pod) (podManager, bool) {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return podManager{}, false
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		words := slices.Concat(c.Command, c.Args)
		if len(c.Command) == 0 { // the image's own program
			image, _, _ := strings.Cut(path.Base(c.Image), ":")
			image, _, _ = strings.Cut(image, "@")
			words = append(words, podImages[image])
		}
		for _, word := range words {
			name, ok := podPrograms[word]
			if !ok {
				continue
			}
			// Name what a user deletes to stop it. An owner may have any name.
			kind, owner := "Pod", pod.Name
			if ref := metav1.GetControllerOf(pod); ref != nil && ref.Kind == "DaemonSet" && len(validation.IsDNS1123Subdomain(ref.Name)) == 0 {
				kind, owner = ref.Kind, ref.Name
			}
			return podManager{pod.Namespace, source.Manager{
				Name: fmt.Sprintf("%s (%s %s/%s)", name, kind, pod.Namespace, owner),
				Off:  fmt.Sprintf("kubectl -n %s delete %s %s", pod.Namespace, kind, owner),
			}}, true
		}
	}
	return podManager{}, false
}
