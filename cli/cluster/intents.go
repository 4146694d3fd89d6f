package cluster

import (
	"context"
	"encoding/json"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// defaultStopText stands on the Lease when nobody gave a reason.
const defaultStopText = "emergency stop"

// MaxStopText bounds the reason of a stop, in bytes.
const MaxStopText = 1024

// Stop sets the emergency stop, whoever coordinates: nothing is promoted and no
// host commits until [Source.Go]. It returns what to tell the admin. A stop that
// is set already stays, with its new reason if one is given.
func (s *Source) Stop(ctx context.Context, reason string) (string, error) {
	if len(reason) > MaxStopText {
		return "", fmt.Errorf("a reason of %d bytes, expected at most %d", len(reason), MaxStopText)
	}
	lease, err := s.lease(ctx)
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("there is no Lease %s/%s to carry the stop. Without one nothing is promoted and no host commits anyway; that ends when the manifests are applied", s.Namespace, s.LeaseName)
	}
	if err != nil {
		return "", err
	}
	const undo = "Undo it with: lockkeeper go\n"
	text, stopped := lease.Annotations[v1alpha1.AnnotationStop]
	if stopped && (reason == "" || reason == text) {
		return fmt.Sprintf("Stopped already, nothing changed: %s\n%s", quoteText(text), undo), nil
	}
	if reason == "" {
		reason = defaultStopText
	}
	if err := s.annotate(ctx, &reason); err != nil {
		return "", err
	}
	if stopped {
		return fmt.Sprintf("Stopped already; the reason was %s and is now %s\n%s", quoteText(text), quoteText(reason), undo), nil
	}
	return fmt.Sprintf("Stopped: %s on Lease %s/%s is %s\n"+
		"Nothing is promoted, and no host commits a cordon, an apply or a reboot. What was committed before goes on.\n%s",
		v1alpha1.AnnotationStop, s.Namespace, s.LeaseName, quoteText(reason), undo), nil
}

// Go ends the emergency stop. It returns what to tell the admin.
func (s *Source) Go(ctx context.Context) (string, error) {
	lease, err := s.lease(ctx)
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("there is no Lease %s/%s, which is a stop by itself; apply the manifests to go on", s.Namespace, s.LeaseName)
	}
	if err != nil {
		return "", err
	}
	text, stopped := lease.Annotations[v1alpha1.AnnotationStop]
	if !stopped {
		return "Not stopped, nothing changed.\n", nil
	}
	if err := s.annotate(ctx, nil); err != nil {
		return "", err
	}
	return fmt.Sprintf("Going on: the stop %s is gone from Lease %s/%s.\nUndo it with: lockkeeper stop [REASON]\n", quoteText(text), s.Namespace, s.LeaseName), nil
}

func quoteText(s string) string {
	b, err := json.Marshal(page.Cell(s))
	if err != nil {
		return `""` // a string always can
	}
	return string(b)
}

func (s *Source) lease(ctx context.Context) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, kube.Timeout)
	defer cancel()
	l, err := s.Client.CoordinationV1().Leases(s.Namespace).Get(ctx, s.LeaseName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading lease %s/%s: %w", s.Namespace, s.LeaseName, err)
	}
	return l, nil
}

// annotate sets or removes the stop. It has no resourceVersion: a leader renews
// the Lease every few seconds, and a stop must not lose against that.
func (s *Source) annotate(ctx context.Context, text *string) error {
	ctx, cancel := context.WithTimeout(ctx, kube.Timeout)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]*string{v1alpha1.AnnotationStop: text}}})
	if err != nil {
		return err
	}
	if _, err := s.Client.CoordinationV1().Leases(s.Namespace).Patch(ctx, s.LeaseName, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: kube.FieldManager("admin")}); err != nil {
		return fmt.Errorf("writing lease %s/%s: %w", s.Namespace, s.LeaseName, err)
	}
	return nil
}

// node reads a Node from the quorum.
func (s *Source) node(ctx context.Context, name string) (*corev1.Node, error) {
	n, err := kube.Find(ctx, s.Client, name)
	if err == nil && n == nil {
		err = fmt.Errorf("there is no node %s", name)
	}
	return n, err
}

// retries bounds how often a Node that changed meanwhile is read again.
const retries = 5

// Retry clears the failed turn of a node. It returns what to tell the admin,
// and refuses when there is nothing to clear.
func (s *Source) Retry(ctx context.Context, name string) (string, error) {
	for try := 1; ; try++ {
		n, err := s.node(ctx, name)
		if err != nil {
			return "", err
		}
		f := turn.FromNode(n)
		id, text, err := clearable(&f)
		if err != nil {
			return "", err
		}
		if f.Retry == id {
			return fmt.Sprintf("%s: turn %s is cleared already, nothing changed.\n", name, id), nil
		}
		_, outcome, err := kube.Write(ctx, s.Client, kube.Patch{
			Node: name, ResourceVersion: f.ResourceVersion, Manager: kube.FieldManager("admin"),
			Annotations: map[string]*string{v1alpha1.AnnotationRetry: &id},
		})
		switch {
		case outcome == kube.Written:
			return fmt.Sprintf("%s: %s\nUndo it with: kubectl annotate node %s %s-\n", name, text, name, v1alpha1.AnnotationRetry), nil
		case outcome == kube.Conflict && try < retries:
			continue // it is another version: look again whether this is still meant
		case outcome == kube.Unknown:
			return "", fmt.Errorf("%w; whether it was written is not known, and saying it again does no harm", err)
		}
		return "", err
	}
}

// clearable returns the turn that a retry of the node would clear, and in
// words what comes of it. The error says why there is none.
func clearable(n *turn.Node) (id, text string, err error) {
	if !n.InTurn() {
		l := n.Last
		switch {
		case l == nil:
			return "", "", fmt.Errorf("nothing to retry: %s has had no turn", n.Name)
		case n.Held == v1alpha1.ReasonTurnLimit:
			return l.Turn, "the node may have its next turn, although it has had as many within 24 hours as its policy allows.", nil
		case l.Result != v1alpha1.ResultFailed && l.Result != v1alpha1.ResultBackedOut:
			return "", "", fmt.Errorf("nothing to retry: the last turn of %s ended as %s, and only Failed and BackedOut hold a node", n.Name, l.Result)
		}
		return l.Turn, fmt.Sprintf("turn %s, which ended as %s (%s), is cleared; the node may have its next turn.", l.Turn, l.Result, l.Reason), nil
	}
	failed := n.HasAck(n.State) && n.Ack.Report == v1alpha1.ReportFailed
	held := n.Held == v1alpha1.ReasonFailed || n.Held == v1alpha1.ReasonOverdue
	switch {
	case !n.Ours():
		return "", "", fmt.Errorf("nothing to retry: %s is in %s under a grant that cannot be read, which the coordinator mends", n.Name, n.State)
	case failed && n.State == v1alpha1.StateBeforeUncordon:
		return n.Turn, fmt.Sprintf("turn %s: the host runs the hook units of before-uncordon again now; after that they come again by themselves, every 10 minutes at the latest.", n.Turn), nil
	case n.Grant.Result == v1alpha1.ResultFailed:
	case n.State != v1alpha1.StateRebooting && n.State != v1alpha1.StateApplying:
		return "", "", fmt.Errorf("nothing to retry: %s is in %s, and a retry ends turns that failed in rebooting or applying only", n.Name, n.State)
	case !failed && !held:
		return "", "", fmt.Errorf("nothing to retry: the turn of %s is in %s and has not failed", n.Name, n.State)
	case !failed && n.State == v1alpha1.StateRebooting && !n.Rebooted():
		return n.Turn, fmt.Sprintf("turn %s is cleared and no longer counts as failed. It ends when the host speaks from a new boot: its reboot may still come.", n.Turn), nil
	}
	return n.Turn, fmt.Sprintf("turn %s is cleared: the coordinator ends it and gives the node back.", n.Turn), nil
}
