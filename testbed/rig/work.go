package rig

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// PlaceWork gives the fleet a Deployment of so many pods, of which a budget lets one go at a time, and returns when all are Ready.
func (r *Rig) PlaceWork(ctx context.Context, namespace, name string, replicas int32) error {
	one := intstr.FromInt32(1)
	err := r.ControlPlane.CreateWorkload(ctx, controlplane.Workload{Namespace: namespace, Name: name, Replicas: replicas, MaxUnavailable: &one})
	if err != nil {
		return err
	}
	return r.ControlPlane.WaitWorkload(ctx, namespace, name)
}

// ClearWork removes that, before another fleet comes whose nodes have the same names. It takes pods away that nobody ends, since
// their node is down.
func (r *Rig) ClearWork(ctx context.Context, namespace, name string) error {
	client, now := r.ControlPlane.Client(), int64(0)
	if err := client.AppsV1().Deployments(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting Deployment %s/%s: %w", namespace, name, err)
	}
	_, err := r.ControlPlane.WaitPods(ctx, namespace, "", "to be gone", func(pods []*corev1.Pod) bool {
		for _, p := range pods {
			_ = client.CoreV1().Pods(namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		}
		return len(pods) == 0
	})
	return err
}
