package rig

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// namespaces counts the namespaces of workloads. Each rig has its own namespace, because the namespaces of earlier rigs may still be terminating.
var namespaces atomic.Int64

// Spread returns a workload for [Options.Work] that has the given number of replicas. Its PodDisruptionBudget allows one eviction at a time.
func Spread(replicas int32) *controlplane.Workload {
	one := intstr.FromInt32(1)
	return &controlplane.Workload{Replicas: replicas, MaxUnavailable: &one}
}

// startWork creates the rig's workload and returns when all its pods are Ready.
func (r *Rig) startWork(ctx context.Context, w controlplane.Workload) error {
	w.Name, w.Namespace = "db", fmt.Sprint("rig-", namespaces.Add(1))
	r.work = &w
	if err := r.ControlPlane.CreateWorkload(ctx, w); err != nil {
		return err
	}
	return r.WaitWork(ctx)
}

// WaitWork waits until all pods of the rig's workload are Ready.
func (r *Rig) WaitWork(ctx context.Context) error {
	return r.ControlPlane.WaitWorkload(ctx, r.work.Namespace, r.work.Name)
}

// removeWork removes the workload before another fleet with the same node names starts. It deletes pods without a grace period, because a node that
// is down has no kubelet to end its pods.
func (r *Rig) removeWork(ctx context.Context) error {
	if r.work == nil {
		return nil
	}
	client, now := r.ControlPlane.Client(), int64(0)
	err := client.AppsV1().Deployments(r.work.Namespace).Delete(ctx, r.work.Name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	_, waited := r.ControlPlane.WaitPods(ctx, r.work.Namespace, "", "to be gone", func(pods []*corev1.Pod) bool {
		for _, p := range pods {
			_ = client.CoreV1().Pods(r.work.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		}
		return len(pods) == 0
	})
	return errors.Join(err, waited)
}
