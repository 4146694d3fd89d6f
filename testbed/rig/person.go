package rig

import (
	"context"
	"encoding/json"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// KubectlManager is the field manager for what a person writes in a test. The referee attributes a cordon by kubectl to a person, so a test does not
// have to declare it.
const KubectlManager = "kubectl-testbed"

// Patch edits a Node as a person. A nil value removes the field.
func (s *Scene) Patch(name string, doc map[string]any) {
	s.T.Helper()
	s.Must(s.patch(name, doc))
}

// TryPatch is [Scene.Patch] for a document that has a resourceVersion. It reports whether the Node still had that resourceVersion.
func (s *Scene) TryPatch(name string, doc map[string]any) bool {
	s.T.Helper()
	err := s.patch(name, doc)
	if apierrors.IsConflict(err) {
		return false
	}
	s.Must(err)
	return true
}

func (s *Scene) patch(name string, doc map[string]any) error {
	body, err := json.Marshal(doc)
	if err == nil {
		_, err = s.ControlPlane.Client().CoreV1().Nodes().Patch(s.Within(Soon), name, types.MergePatchType, body,
			metav1.PatchOptions{FieldManager: KubectlManager})
	}
	return err
}

// Annotate sets an annotation of a Node as a person; nil removes it.
func (s *Scene) Annotate(name, key string, value any) {
	s.T.Helper()
	s.Patch(name, map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
}

// Label sets a label of a Node as a person; nil removes it.
func (s *Scene) Label(name, key string, value any) {
	s.T.Helper()
	s.Patch(name, map[string]any{"metadata": map[string]any{"labels": map[string]any{key: value}}})
}

// Cordon cordons a Node as a person.
func (s *Scene) Cordon(name string) {
	s.T.Helper()
	s.Patch(name, map[string]any{"spec": map[string]any{"unschedulable": true}})
}

// Uncordon uncordons a Node as a person. It declares the uncordon to the referee, because a Node does not record who removed a field.
func (s *Scene) Uncordon(name string) {
	s.T.Helper()
	s.Referee.AdminUncordon(name)
	s.Patch(name, map[string]any{"spec": map[string]any{"unschedulable": nil}})
}

// PatchLease edits the Lease as a person.
func (s *Scene) PatchLease(doc map[string]any) {
	s.T.Helper()
	s.Must(s.TryPatchLease(doc))
}

// TryPatchLease is like [Scene.PatchLease], but returns the error.
func (s *Scene) TryPatchLease(doc map[string]any) error {
	body, err := json.Marshal(doc)
	if err == nil {
		_, err = s.ControlPlane.Client().CoordinationV1().Leases(v1alpha1.DefaultLeaseNamespace).Patch(s.Within(Soon),
			v1alpha1.DefaultLeaseName, types.MergePatchType, body, metav1.PatchOptions{FieldManager: KubectlManager})
	}
	return err
}

// Stop sets the emergency stop with a reason; nil lifts it.
func (s *Scene) Stop(reason any) {
	s.T.Helper()
	s.PatchLease(map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationStop: reason}}})
}

// Epoch returns the epoch of the current term. It returns "" if the Lease does not exist or has no epoch.
func (s *Scene) Epoch() string {
	s.T.Helper()
	epoch, err := s.LeaseHolder(s.Within(Soon))
	s.Must(err)
	return epoch
}

// LeaseHolder is like [Scene.Epoch], but any goroutine may call it.
func (r *Rig) LeaseHolder(ctx context.Context) (string, error) {
	l, err := r.ControlPlane.Client().CoordinationV1().Leases(v1alpha1.DefaultLeaseNamespace).Get(ctx, v1alpha1.DefaultLeaseName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil || l.Spec.HolderIdentity == nil:
		return "", err
	}
	return *l.Spec.HolderIdentity, nil
}
