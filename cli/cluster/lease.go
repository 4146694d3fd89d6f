package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
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
	do := func(value *string, text, undo string) error {
		if o.DryRun {
			fmt.Fprintln(o.Out, "Dry run, nothing is changed. Without --dry-run:")
		}
		if err := s.annotateLease(ctx, value, o.DryRun); err != nil {
			return s.needsLease(o.Command, err)
		}
		fmt.Fprintf(o.Out, "%s\nThe same with kubectl: %s\n", text, s.kubectlLease(o, value))
		if !o.DryRun {
			fmt.Fprintf(o.Out, "To undo: %s\n", undo)
		}
		return nil
	}
	if o.Undo == "" { // resume
		if !set {
			fmt.Fprintln(o.Out, "The emergency stop is not set, nothing changed.")
			return nil
		}
		return do(nil, "The emergency stop is lifted. It was "+quoteText(current)+".", s.kubectlLease(o, &current))
	}
	reason := cmp.Or(o.Reason, "emergency stop")
	if by := s.user(ctx, o.Err); by != "" {
		reason += " (by " + by + ")"
	}
	switch {
	case set && (o.Reason == "" || reason == current):
		fmt.Fprintf(o.Out, "The emergency stop is already set, nothing changed: %s\n", quoteText(current))
		return nil
	case set: // to undo that is not to lift the stop, which may be another user's
		return do(&reason, "The emergency stop was already set. Its reason is now "+quoteText(reason)+". It was "+quoteText(current)+".", s.kubectlLease(o, &current))
	}
	return do(&reason, "The emergency stop is set: "+quoteText(reason)+"\n"+
		"No turn begins or advances, and no host commits to a cordon, an apply or a reboot. What was already committed continues.",
		"lockkeeper "+o.Undo+o.Own+" --cluster")
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

// lease reads the Lease, which must exist.
func (s *Source) lease(ctx context.Context) (*coordinationv1.Lease, error) {
	l, err := s.theLease(ctx)
	if kube.NoLease(err, s.LeaseName) {
		return nil, fmt.Errorf("lease %s/%s does not exist; without it no turn begins or advances; to create it: lockkeeper init", s.Namespace, s.LeaseName)
	}
	if err != nil {
		return nil, fmt.Errorf("reading Lease %s/%s: %w", s.Namespace, s.LeaseName, err)
	}
	return l, nil
}

// annotateLease sets or lifts the stop. The patch has no resourceVersion: a leader renews the
// Lease every few seconds, and a stop must not conflict with that.
func (s *Source) annotateLease(ctx context.Context, text *string, dryRun bool) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]*string{v1alpha1.AnnotationStop: text}}})
	if err != nil {
		return err
	}
	options := metav1.PatchOptions{FieldManager: kube.FieldManager("admin")}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	l, err := s.Client.CoordinationV1().Leases(s.Namespace).Patch(ctx, s.LeaseName, types.MergePatchType, patch, options)
	if err := kube.VerifyLease(l, err, s.LeaseName); err != nil { // otherwise the caller would say that all has stopped
		return fmt.Errorf("writing Lease %s/%s: %w", s.Namespace, s.LeaseName, err)
	}
	return nil
}

// InitOptions configures [Source.Init].
type InitOptions struct {
	// Lease is the Lease to create, with the namespace and the name of the [Source].
	Lease *coordinationv1.Lease
	// Confirm asks the user whether to create the Lease although lockkeeper has run in the cluster, with the
	// reason why that is dangerous. An error leaves the cluster as it is.
	Confirm func(why string) error
	// Tell is called with a sentence that says what Init waits for, and Within bounds all its waiting.
	Tell   func(string)
	Within time.Duration
	// DryRun has the API server check the Lease and store nothing.
	DryRun bool
}

// initEvery is how often Init tries again.
const initEvery = 2 * time.Second

// Init creates the Lease that coordinators are elected by. It never changes a Lease that exists, and
// returns it with created unset. While the namespace does not exist, or the API server is too busy to
// list policies, as in the first seconds after their kind was created, Init waits; the error is
// [ErrTimeout] if it waits for too long.
//
// A Lease that is missing may be one that a user deleted to stop the cluster. Creating it ends that
// stop, so Init asks for a confirmation if lockkeeper has left a trace in the cluster.
func (s *Source) Init(ctx context.Context, o InitOptions) (l *coordinationv1.Lease, created bool, err error) {
	if l, err = s.existing(ctx); l != nil || err != nil {
		return l, false, err
	}
	ended := time.NewTimer(o.Within)
	defer ended.Stop()
	why, err := s.traces(ctx)
	for told := false; apierrors.IsTooManyRequests(err); told = true {
		if !told {
			o.Tell(fmt.Sprintf("the API server is busy (%v); waiting for it", err))
		}
		if err := waitInit(ctx, ended.C); err != nil {
			return nil, false, err
		}
		why, err = s.traces(ctx)
	}
	if err != nil {
		return nil, false, err
	}
	if why != "" {
		if err := o.Confirm(why); err != nil {
			return nil, false, err
		}
	}
	for told := false; ; told = true {
		l, err = s.createLease(ctx, o)
		switch {
		case err == nil:
			return l, true, nil
		case apierrors.IsAlreadyExists(err): // another user was faster
			if l, err = s.existing(ctx); l == nil && err == nil {
				err = fmt.Errorf("lease %s/%s was created and deleted by another user; run the command again", s.Namespace, s.LeaseName)
			}
			return l, false, err
		case !s.noNamespace(err):
			return nil, false, s.notCreated(ctx, err)
		}
		if !told {
			o.Tell(fmt.Sprintf("namespace %s does not exist yet, or is being deleted; waiting for it. It is in the manifests: lockkeeper manifests --without-lease", s.Namespace))
		}
		if err := waitInit(ctx, ended.C); err != nil {
			return nil, false, err
		}
	}
}

// waitInit waits until Init is to try again.
func waitInit(ctx context.Context, ended <-chan time.Time) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-ended:
		return ErrTimeout
	case <-time.After(initEvery):
		return nil
	}
}

// existing returns the Lease, and nil only if the API server itself says that it does not exist.
func (s *Source) existing(ctx context.Context) (*coordinationv1.Lease, error) {
	l, refused, err := s.getLease(ctx)
	switch {
	case err == nil && refused != nil:
		err = s.needsInit(refused)
	case l != nil && l.DeletionTimestamp != nil:
		err = fmt.Errorf("lease %s/%s is being deleted and waits for its finalizers (%s); run the command again when it is gone", s.Namespace, s.LeaseName, page.Named(l.Finalizers, 5))
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// traces says what lockkeeper has left in the cluster; "" means that it has never run there.
func (s *Source) traces(ctx context.Context) (string, error) {
	list, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", s.needsInit(fmt.Errorf("listing nodes: %w", err))
	}
	labels, annotations := v1alpha1.CoordinatorKeys()
	hosts, led := 0, 0
	for i := range list.Items {
		n := &list.Items[i]
		if _, runs := n.Annotations[v1alpha1.AnnotationHost]; runs {
			hosts++
		}
		if hasAny(n.Labels, labels) || hasAny(n.Annotations, annotations) {
			led++
		}
	}
	view := s.WatchPolicies(nil)
	if err := view.Load(ctx); err != nil && !errors.Is(err, kube.ErrNotServed) {
		return "", s.needsInit(err)
	}
	switch {
	case led > 0:
		return fmt.Sprintf("a coordinator has written to %s", page.Plural(led, "node")), nil
	case len(view.Progressing()) > 0:
		return "a coordinator has written the status of policies", nil
	case hosts > 0:
		return fmt.Sprintf("lockkeeper runs on %s", page.Plural(hosts, "host")), nil
	}
	return "", nil
}

func hasAny(m map[string]string, keys []string) bool {
	for _, key := range keys {
		if _, ok := m[key]; ok {
			return true
		}
	}
	return false
}

// createLease sends the Lease once.
func (s *Source) createLease(ctx context.Context, o InitOptions) (*coordinationv1.Lease, error) {
	options := metav1.CreateOptions{FieldManager: kube.FieldManager("admin")}
	if o.DryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	l, err := s.Client.CoordinationV1().Leases(s.Namespace).Create(ctx, o.Lease, options)
	return l, kube.VerifyLease(l, err, s.LeaseName)
}

// noNamespace reports whether the API server refused the Lease because its namespace does not exist
// or is being deleted.
func (s *Source) noNamespace(err error) bool {
	return kube.IsGone(err, corev1.Resource("namespaces"), s.Namespace) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// notCreated explains why the Lease was not created, or that it may have been.
func (s *Source) notCreated(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case kube.IsRefused(err):
		return s.needsInit(fmt.Errorf("creating Lease %s/%s: %w", s.Namespace, s.LeaseName, err))
	}
	return fmt.Errorf("creating Lease %s/%s: %w; it may have been created: run the command again to see", s.Namespace, s.LeaseName, err)
}

// needsInit adds to a refusal what `lockkeeper init` requires.
func (s *Source) needsInit(err error) error {
	if !denied(err) {
		return err
	}
	return fmt.Errorf("%w; `lockkeeper init` requires permission to get and create Leases in namespace %s, and to list nodes and disruptionpolicies", err, s.Namespace)
}
