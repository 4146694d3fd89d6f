package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NodeSpec describes a Node to create. The Node has room for 110 pods, 32 CPUs and 64 GiB.
type NodeSpec struct {
	Name         string
	ControlPlane bool // sets the label of a control-plane node, but no taint, because the testbed does not need it
	Ballast      bool // KWOK simulates all of it; otherwise KWOK simulates only its pods, and the test must set Ready
	Labels       map[string]string
	Annotations  map[string]string
}

// CreateNode creates a Node. The Node of a host is not Ready until its simulated kubelet reports it.
func (cp *ControlPlane) CreateNode(ctx context.Context, spec NodeSpec) (*corev1.Node, error) {
	room := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("32"),
		corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        spec.Name,
			Labels:      map[string]string{corev1.LabelHostname: spec.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64"},
			Annotations: map[string]string{},
		},
		Status: corev1.NodeStatus{Capacity: room, Allocatable: room},
	}
	if spec.ControlPlane {
		node.Labels["node-role.kubernetes.io/control-plane"] = ""
	}
	if spec.Ballast {
		node.Annotations[BallastAnnotation] = BallastFake
	} else {
		node.Labels[PodsLabel] = PodsPlayed
	}
	maps.Copy(node.Labels, spec.Labels)
	maps.Copy(node.Annotations, spec.Annotations)
	node, err := cp.admin.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating Node %s: %w", spec.Name, err)
	}
	return node, nil
}

// SetNodeReady writes Ready, the boot ID and PodsLabel in one status write, as a kubelet does. If bootID is "", the boot ID does not
// change. SetNodeReady writes once: the caller must renew the node's Lease in kube-node-lease or write its status again, or else the
// controller manager marks the node as not ready after the grace period.
func (cp *ControlPlane) SetNodeReady(ctx context.Context, name, bootID string, ready bool) error {
	now := metav1.NewTime(time.Now())
	condition := corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
		LastHeartbeatTime: now, LastTransitionTime: now,
	}
	pods := PodsPlayed
	if !ready {
		condition.Status, condition.Reason, pods = corev1.ConditionFalse, "KubeletNotReady", PodsHeld
	}
	status := map[string]any{"conditions": []corev1.NodeCondition{condition}}
	if bootID != "" {
		status["nodeInfo"] = map[string]any{"bootID": bootID}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": map[string]string{PodsLabel: pods}},
		"status":   status,
	})
	if err != nil {
		return fmt.Errorf("encoding the status of Node %s: %w", name, err)
	}
	_, err = cp.admin.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("writing the status of Node %s: %w", name, err)
	}
	return nil
}

// Workload describes a Deployment and its PodDisruptionBudget.
type Workload struct {
	Namespace      string // created if it does not exist
	Name           string // of both; the pods carry it as the label "app"
	Replicas       int32
	MaxUnavailable *intstr.IntOrString // of the PodDisruptionBudget; nil: no PodDisruptionBudget
	NodeSelector   map[string]string
	PodAnnotations map[string]string // see ReadyAnnotation and StopsAfterAnnotation
}

// CreateWorkload creates a Deployment, spread over the nodes if possible, and its PodDisruptionBudget. [ControlPlane.WaitWorkload] waits
// for its pods.
func (cp *ControlPlane) CreateWorkload(ctx context.Context, w Workload) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.Namespace}}
	if _, err := cp.admin.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating Namespace %s: %w", w.Namespace, err)
	}
	labels := map[string]string{"app": w.Name}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	if w.MaxUnavailable != nil {
		budget := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: w.Name},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selector, MaxUnavailable: w.MaxUnavailable},
		}
		if _, err := cp.admin.PolicyV1().PodDisruptionBudgets(w.Namespace).Create(ctx, budget, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating PodDisruptionBudget %s/%s: %w", w.Namespace, w.Name, err)
		}
	}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: w.Name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &w.Replicas,
			Selector: selector,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: w.PodAnnotations},
				Spec: corev1.PodSpec{
					NodeSelector: w.NodeSelector,
					TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
						MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: selector,
					}},
					Containers: []corev1.Container{{Name: "app", Image: "example.invalid/app"}},
				},
			},
		},
	}
	if _, err := cp.admin.AppsV1().Deployments(w.Namespace).Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating Deployment %s/%s: %w", w.Namespace, w.Name, err)
	}
	return nil
}

// PodReady reports whether the pod's condition Ready is True.
func PodReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
