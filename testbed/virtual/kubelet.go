package virtual

import (
	"context"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
)

const (
	kubeletStarts  = 5 * time.Second
	kubeletStatus  = time.Minute // between two writes of the status
	kubeletRetries = 5 * time.Second
	kubeletReady   = 4 * time.Second // after its first status in a boot
	podStops       = 5 * time.Second
	silentAfter    = 40 * time.Second // then the node controller takes a node for dead
)

// kubelet is a host's kubelet during one boot.
type kubelet struct {
	m      *Machine
	client *kube.Client
	net    *Transport
	bootID string
	first  bool // it is the first one of its boot, and lockkeeper has run on the host before
	end    context.CancelFunc
	kick   chan struct{} // it writes its status now
}

// startKubelet starts the host's kubelet. The first one of a boot is not Ready in its first status, which has the new boot ID: containers need
// a runtime and a network first.
func (f *Fleet) startKubelet(m *Machine, first bool) *kubelet {
	k := &kubelet{m: m, bootID: m.mem.BootID(), first: first, kick: make(chan struct{}, 1)}
	user := "system:node:" + m.name
	k.net = f.exec.Transport(m.name, roleKubelet, f.Server.Client(user))
	k.client = f.client(k.net, "kubelet")
	var ctx context.Context
	ctx, k.end = context.WithCancel(f.ctx)
	f.tasks.Go(func() { k.run(ctx) })
	return k
}

func (k *kubelet) stop() {
	k.net.Sever()
	k.end()
}

func (k *kubelet) run(ctx context.Context) {
	if pause(ctx, kubeletStarts) != nil {
		return
	}
	for k.register(ctx) != nil { // the network is down
		if pause(ctx, kubeletRetries) != nil {
			return
		}
	}
	whole := true // a kubelet that starts writes its whole status
	for ctx.Err() == nil {
		next, ready := kubeletStatus, corev1.ConditionTrue
		switch {
		case k.m.sick.Load():
			ready = corev1.ConditionFalse
		case k.first:
			next, ready = kubeletReady, corev1.ConditionFalse
		}
		err := k.status(ctx, ready, whole)
		whole, k.first = whole && err != nil, k.first && err != nil
		if err != nil && !apierrors.IsNotFound(err) {
			next = kubeletRetries
		}
		select {
		case <-ctx.Done():
		case <-time.After(next):
		case <-k.kick:
		}
	}
}

// changed has the kubelet write its status.
func (k *kubelet) changed() {
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

// register creates the Node, if there is none.
func (k *kubelet) register(ctx context.Context) error {
	n := &corev1.Node{}
	n.Name = k.m.name
	n.Labels = map[string]string{corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux", labelPool: k.m.pool}
	if k.m.controlPlane {
		n.Labels[turn.LabelControlPlane] = ""
	}
	_, err := k.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// status writes the kubelet's part of the Node's status; without whole, only what changes.
func (k *kubelet) status(ctx context.Context, ready corev1.ConditionStatus, whole bool) error {
	status := map[string]any{
		"conditions": []corev1.NodeCondition{condition(k.m.f.Node(k.m.name), ready)},
		"nodeInfo":   map[string]string{"bootID": k.bootID, "operatingSystem": "linux"},
	}
	if whole {
		status["images"] = nil
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = k.client.CoreV1().Nodes().Patch(ctx, k.m.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// condition returns the condition Ready with its new status.
func condition(n *corev1.Node, ready corev1.ConditionStatus) corev1.NodeCondition {
	now := metav1.Now()
	c := corev1.NodeCondition{Type: corev1.NodeReady, Status: ready, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now}
	if n != nil {
		for _, old := range n.Status.Conditions {
			if old.Type == corev1.NodeReady && old.Status == ready {
				c.LastTransitionTime = old.LastTransitionTime
			}
		}
	}
	return c
}
