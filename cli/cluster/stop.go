package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/kube"
)

// stop sets the emergency stop, an annotation on the Lease with a reason as its value, or lifts it.
func (s *Source) stop(ctx context.Context, o Options) error {
	l, err := s.lease(ctx)
	if err != nil {
		return s.needsLease(o.Command, err)
	}
	current, set := l.Annotations[v1alpha1.AnnotationStop]
	do := func(value *string, text string) error {
		if o.DryRun {
			fmt.Fprintln(o.Out, "Dry run, nothing is changed. Without --dry-run:")
		}
		if err := s.annotateLease(ctx, value, o.DryRun); err != nil {
			return s.needsLease(o.Command, err)
		}
		fmt.Fprintf(o.Out, "%s\nThe same with kubectl: %s\n", text, s.kubectlLease(o, value))
		return nil
	}
	if o.Undo == "" { // resume
		if !set {
			fmt.Fprintln(o.Out, "The emergency stop is not set, nothing changed.")
			return nil
		}
		if err := do(nil, "The emergency stop is lifted. It was "+quoteText(current)+"."); err != nil || o.DryRun {
			return err
		}
		fmt.Fprintf(o.Out, "To undo: %s\n", s.kubectlLease(o, &current))
		return nil
	}
	reason := cmp.Or(o.Reason, "emergency stop")
	if by := s.user(ctx, o.Err); by != "" {
		reason += " (by " + by + ")"
	}
	switch {
	case set && (o.Reason == "" || reason == current):
		fmt.Fprintf(o.Out, "The emergency stop is already set, nothing changed: %s\n", quoteText(current))
	case set:
		err = do(&reason, "The emergency stop was already set. Its reason is now "+quoteText(reason)+". It was "+quoteText(current)+".")
	default:
		err = do(&reason, "The emergency stop is set: "+quoteText(reason)+"\n"+
			"No turn begins or advances, and no host commits to a cordon, an apply or a reboot. What was already committed continues.")
	}
	if err == nil && !o.DryRun {
		fmt.Fprintf(o.Out, "To undo: lockkeeper %s%s --cluster\n", o.Undo, o.Own)
	}
	return err
}

// kubectlLease returns the kubectl command that sets the stop to a value; nil lifts it.
func (s *Source) kubectlLease(o Options, value *string) string {
	return fmt.Sprintf("kubectl%s annotate lease -n %s %s %s", o.Kubectl, s.Namespace, s.LeaseName, assignment(v1alpha1.AnnotationStop, value))
}

// needsLease adds to a refusal what the command requires.
func (s *Source) needsLease(command string, err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	return fmt.Errorf("%w; `lockkeeper %s --cluster` requires permission to get and patch Lease %s in namespace %s", err, command, s.LeaseName, s.Namespace)
}

func quoteText(s string) string {
	b, _ := json.Marshal(page.Cell(s)) // a string can always be encoded
	return string(b)
}

// lease reads the Lease.
func (s *Source) lease(ctx context.Context) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, kube.Timeout)
	defer cancel()
	l, err := s.Client.CoordinationV1().Leases(s.Namespace).Get(ctx, s.LeaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("lease %s/%s does not exist; without it no turn begins or advances, until you apply the manifests", s.Namespace, s.LeaseName)
	}
	if err != nil {
		return nil, fmt.Errorf("reading Lease %s/%s: %w", s.Namespace, s.LeaseName, err)
	}
	return l, nil
}

// annotateLease sets or lifts the stop. The patch has no resourceVersion: a leader renews the
// Lease every few seconds, and a stop must not conflict with that.
func (s *Source) annotateLease(ctx context.Context, text *string, dryRun bool) error {
	ctx, cancel := context.WithTimeout(ctx, kube.Timeout)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]*string{v1alpha1.AnnotationStop: text}}})
	if err != nil {
		return err
	}
	options := metav1.PatchOptions{FieldManager: kube.FieldManager("admin")}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	if _, err := s.Client.CoordinationV1().Leases(s.Namespace).Patch(ctx, s.LeaseName, types.MergePatchType, patch, options); err != nil {
		return fmt.Errorf("writing Lease %s/%s: %w", s.Namespace, s.LeaseName, err)
	}
	return nil
}
