package simhost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// KubeletOptions configure a simulated kubelet. The zero value is a fast kubelet with a shutdown manager.
type KubeletOptions struct {
	// Heartbeat is the interval at which the kubelet renews its Lease and checks its Node; 0 means 2 s.
	Heartbeat time.Duration
	// NotReadyFor is how long the kubelet reports not ready after its first status, which already has the boot ID.
	NotReadyFor time.Duration
	// Silent removes the shutdown manager: the kubelet writes nothing when it exits, and the controller manager must
	// detect that. Otherwise the kubelet holds a delay inhibitor and marks its Node as not ready on
	// PrepareForShutdown.
	Silent bool
}

// statusEvery is the interval at which the kubelet writes an unchanged Node.
const statusEvery = 5 * time.Minute

// kubelet is one run of a host's kubelet.
type kubelet struct {
	h      *Host
	bootID string
	client kubernetes.Interface
	end    context.CancelFunc
	done   chan struct{}

	mu        sync.Mutex // held during a status write, so that the last write has the last decision
	ready     bool       // the reported condition
	reason    string
	lastWrite time.Time
	announced bool
}

func (h *Host) newKubelet(bootID string) *kubelet {
	k := &kubelet{h: h, bootID: bootID, client: h.kubeletClient, done: make(chan struct{})}
	var ctx context.Context
	ctx, k.end = context.WithCancel(context.Background())
	go func() {
		defer close(k.done)
		k.run(ctx)
	}()
	return k
}

// stop ends the kubelet without a final status.
func (k *kubelet) stop() {
	k.end()
	<-k.done
}

func (k *kubelet) run(ctx context.Context) {
	o := k.h.opts.Kubelet
	k.mu.Lock()
	k.ready, k.reason = o.NotReadyFor == 0, "KubeletNotReady"
	k.mu.Unlock()
	for registered := false; !registered; {
		err := k.register(ctx)
		registered = err == nil
		k.complain("registering", err)
		if !registered && !pause(ctx, 200*time.Millisecond) {
			return
		}
	}
	var becomeReady <-chan time.Time
	if o.NotReadyFor > 0 {
		becomeReady = time.After(o.NotReadyFor)
	}
	tick := time.NewTicker(o.Heartbeat)
	defer tick.Stop()
	for {
		k.complain("renewing its Lease", k.renew(ctx))
		k.complain("updating its Node", k.sync(ctx))
		select {
		case <-ctx.Done():
			return
		case <-becomeReady:
			k.mu.Lock()
			k.ready = true
			k.mu.Unlock()
		case <-tick.C:
		}
	}
}

func (k *kubelet) complain(what string, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		k.h.logf("kubelet: %s: %v", what, err)
	}
}

// register creates the Node if it does not exist. An existing Node keeps its labels.
func (k *kubelet) register(ctx context.Context) error {
	o := &k.h.opts
	labels := map[string]string{
		corev1.LabelHostname: o.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		controlplane.PodsLabel: controlplane.PodsHeld,
	}
	if o.Zone != "" {
		labels[corev1.LabelTopologyZone] = o.Zone
	}
	maps.Copy(labels, o.Labels)
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods: resource.MustParse("110"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, Labels: labels},
		Status:     corev1.NodeStatus{Capacity: room, Allocatable: room},
	}
	_, err := k.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return k.h.labelAsAdmin(ctx)
}

// renew creates or renews the Lease. The controller manager checks this Lease to decide whether the node is alive.
func (k *kubelet) renew(ctx context.Context) error {
	leases := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now := metav1.NewMicroTime(time.Now())
	lease, err := leases.Get(ctx, k.h.opts.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		node, err := k.client.CoreV1().Nodes().Get(ctx, k.h.opts.Name, metav1.GetOptions{})
		if err != nil {
			return ignoreNotFound(err) // a running kubelet does not recreate a deleted Node
		}
		seconds := int32(40)
		lease = &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: node.Name, OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
			}},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &node.Name, LeaseDurationSeconds: &seconds, RenewTime: &now},
		}
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	lease.Spec.RenewTime = &now
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		return nil // the next renewal tries again
	}
	return ignoreNotFound(err)
}

// sync writes the status if the Node differs, or if the last write is too old. It reads from the API server's cache, as the real kubelet
// does.
func (k *kubelet) sync(ctx context.Context) error {
	node, err := k.client.CoreV1().Nodes().Get(ctx, k.h.opts.Name, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return ignoreNotFound(err)
	}
	first, err := k.writeIfDue(ctx, node)
	if first {
		k.h.emit(NodeReady, k.bootID, "")
	}
	return ignoreNotFound(err)
}

// writeIfDue reports whether it wrote this kubelet's first Ready status.
func (k *kubelet) writeIfDue(ctx context.Context, node *corev1.Node) (first bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	want := corev1.ConditionFalse
	if k.ready {
		want = corev1.ConditionTrue
	}
	same := node.Status.NodeInfo.BootID == k.bootID && readyOf(node) == want
	if same && !k.lastWrite.IsZero() && time.Since(k.lastWrite) < statusEvery {
		return false, nil
	}
	if err := k.write(ctx); err != nil {
		return false, err
	}
	first = k.ready && !k.announced
	k.announced = k.announced || first
	return first, nil
}

// write is the only status write: it sets the boot ID, Ready, and the label that names the simulator of the pods. The
// caller must hold mu.
func (k *kubelet) write(ctx context.Context) error {
	now := metav1.Now()
	condition := corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now,
	}
	pods := controlplane.PodsPlayed
	if !k.ready {
		condition.Status, condition.Reason, pods = corev1.ConditionFalse, k.reason, controlplane.PodsHeld
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": map[string]string{controlplane.PodsLabel: pods}},
		"status": map[string]any{
			"conditions": []corev1.NodeCondition{condition},
			"nodeInfo": map[string]string{
				"bootID": k.bootID, "osImage": "Flatcar Container Linux by Kinvolk " + k.h.Version(),
				"operatingSystem": "linux", "architecture": "amd64", "kubeletVersion": "v1.37.2",
			},
		},
	})
	if err != nil {
		return err
	}
	_, err = k.client.CoreV1().Nodes().Patch(ctx, k.h.opts.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return err
	}
	k.lastWrite = time.Now()
	return nil
}

// prepareForShutdown is the kubelet's shutdown manager: it marks the node as not ready, and lets the shutdown continue.
func (k *kubelet) prepareForShutdown(ctx context.Context) {
	k.mu.Lock()
	k.ready, k.reason = false, "NodeShutdown"
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	k.complain("marking its Node not ready", k.write(short))
	cancel()
	k.mu.Unlock()
}

func readyOf(node *corev1.Node) corev1.ConditionStatus {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// pause waits for d. It reports whether the whole time passed before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// labelAsAdmin sets the labels on the Node that NodeRestriction forbids a kubelet to set.
func (h *Host) labelAsAdmin(ctx context.Context) error {
	if !h.opts.ControlPlane {
		return nil
	}
	patch := `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`
	_, err := h.cp.Client().CoreV1().Nodes().Patch(ctx, h.opts.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("labelling Node %s as a control-plane node: %w", h.opts.Name, err)
	}
	return nil
}

// holdPods stops the simulation of the host's pods while its kubelet is down and cannot do it. A real crash has no such write, so the
// testbed makes it once and only if necessary.
func (h *Host) holdPods(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, controlplane.PodsLabel, controlplane.PodsHeld)
	_, err := h.cp.Client().CoreV1().Nodes().Patch(ctx, h.opts.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if ignoreNotFound(err) != nil {
		h.logf("holding its pods: %v", err)
	}
}
