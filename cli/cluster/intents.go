package cluster

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// defaultStopText is the reason of a stop for which the user gives none.
const defaultStopText = "emergency stop"

// MaxStopText bounds the reason of a stop, in bytes.
const MaxStopText = 1024

// Stop sets the emergency stop: nothing is promoted and no host commits until [Source.Go].
// It returns what to print. If the stop is set already, Stop changes only its reason.
func (s *Source) Stop(ctx context.Context, reason string) (string, error) {
	if len(reason) > MaxStopText {
		return "", fmt.Errorf("the reason has %d bytes, expected at most %d", len(reason), MaxStopText)
	}
	text, stopped, err := s.stopText(ctx)
	if err != nil {
		return "", err
	}
	const undo = "To undo: lockkeeper go\n"
	if stopped && (reason == "" || reason == text) {
		return fmt.Sprintf("Already stopped, nothing changed: %s\n%s", quoteText(text), undo), nil
	}
	if reason == "" {
		reason = defaultStopText
	}
	if err := s.annotateLease(ctx, &reason); err != nil {
		return "", err
	}
	if stopped {
		return fmt.Sprintf("Already stopped; changed the reason from %s to %s\n%s", quoteText(text), quoteText(reason), undo), nil
	}
	return fmt.Sprintf("Stopped: set %s=%s on Lease %s/%s\n"+
		"No turn begins or advances, and no host commits to a cordon, an apply or a reboot. What was already committed continues.\n%s",
		v1alpha1.AnnotationStop, quoteText(reason), s.Namespace, s.LeaseName, undo), nil
}

// Go ends the emergency stop. It returns what to print.
func (s *Source) Go(ctx context.Context) (string, error) {
	text, stopped, err := s.stopText(ctx)
	if err != nil {
		return "", err
	}
	if !stopped {
		return "Not stopped, nothing changed.\n", nil
	}
	if err := s.annotateLease(ctx, nil); err != nil {
		return "", err
	}
	return fmt.Sprintf("Stop ended: removed %s from Lease %s/%s\nTo undo: lockkeeper stop [REASON]\n", quoteText(text), s.Namespace, s.LeaseName), nil
}

func quoteText(s string) string {
	b, _ := json.Marshal(page.Cell(s)) // a string can always be encoded
	return string(b)
}

// stopText reads the reason of the stop from the Lease.
func (s *Source) stopText(ctx context.Context) (text string, stopped bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, kube.Timeout)
	defer cancel()
	l, err := s.Client.CoordinationV1().Leases(s.Namespace).Get(ctx, s.LeaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", false, fmt.Errorf("lease %s/%s does not exist; without it no turn begins or advances, until you apply the manifests", s.Namespace, s.LeaseName)
	}
	if err != nil {
		return "", false, fmt.Errorf("reading Lease %s/%s: %w", s.Namespace, s.LeaseName, err)
	}
	text, stopped = l.Annotations[v1alpha1.AnnotationStop]
	return text, stopped, nil
}

// annotateLease sets or removes the stop. The patch has no resourceVersion: a leader renews the
// Lease every few seconds, and a stop must not conflict with that.
func (s *Source) annotateLease(ctx context.Context, text *string) error {
	ctx, cancel := context.WithTimeout(ctx, kube.Timeout)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]*string{v1alpha1.AnnotationStop: text}}})
	if err != nil {
		return err
	}
	if _, err := s.Client.CoordinationV1().Leases(s.Namespace).Patch(ctx, s.LeaseName, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: kube.FieldManager("admin")}); err != nil {
		return fmt.Errorf("writing Lease %s/%s: %w", s.Namespace, s.LeaseName, err)
	}
	return nil
}

// retries bounds how often a Node is read again after a conflict.
const retries = 5

// annotateNode sets an annotation of a Node, by a write that conflicts if the Node has changed
// since it was read. It then reads and decides again. decide returns the annotation, and the
// text to print; without an annotation nothing is written.
func (s *Source) annotateNode(ctx context.Context, name string, decide func(*turn.Node) (key, value, text string, err error)) (string, error) {
	for try := 1; ; try++ {
		node, err := kube.Find(ctx, s.Client, name)
		if err == nil && node == nil {
			err = report.NotFound(name)
		}
		if err != nil {
			return "", err
		}
		n := turn.FromNode(node)
		key, value, text, err := decide(&n)
		if err != nil || key == "" {
			return text, err
		}
		_, outcome, err := kube.Write(ctx, s.Client, kube.Patch{
			Node: name, ResourceVersion: n.ResourceVersion, Manager: kube.FieldManager("admin"),
			Annotations: map[string]*string{key: &value},
		})
		switch {
		case outcome == kube.Written:
			return text, nil
		case outcome == kube.Conflict && try < retries:
			continue
		case outcome == kube.Unknown:
			return "", fmt.Errorf("%w; the outcome of the write is unknown, it is safe to run the command again", err)
		}
		return "", err
	}
}

// Retry clears the failed turn of a node. It returns what to print, and an error if there is
// nothing to clear.
func (s *Source) Retry(ctx context.Context, name string) (string, error) {
	return s.annotateNode(ctx, name, func(n *turn.Node) (key, value, text string, err error) {
		id, text, err := clearable(n)
		if err == nil && n.Retry == id {
			return "", "", fmt.Sprintf("%s: turn %s is already cleared, nothing changed.\n", name, id), nil
		}
		return v1alpha1.AnnotationRetry, id, fmt.Sprintf("%s: %s\nTo undo: kubectl annotate node %s %s-\n", name, text, name, v1alpha1.AnnotationRetry), err
	})
}

// clearable returns the turn of the node that a retry clears, and what happens then. The error
// says why there is none.
func clearable(n *turn.Node) (id, text string, err error) {
	if !n.InTurn() {
		l := n.Last
		switch {
		case l == nil:
			return "", "", fmt.Errorf("nothing to retry: %s has had no turn", n.Name)
		case n.Held == v1alpha1.ReasonTurnLimit:
			return l.Turn, "the node may get another turn, although it has reached its policy's maxTurnsPerDay.", nil
		case l.Result != v1alpha1.ResultFailed && l.Result != v1alpha1.ResultBackedOut:
			return "", "", fmt.Errorf("nothing to retry: the last turn of %s ended as %s; only Failed and BackedOut hold a node", n.Name, l.Result)
		}
		return l.Turn, fmt.Sprintf("turn %s, which ended as %s (%s), is cleared; the node may get another turn.", l.Turn, l.Result, l.Reason), nil
	}
	failed := n.HasAck(n.State) && n.Ack.Report == v1alpha1.ReportFailed
	held := n.Held == v1alpha1.ReasonFailed || n.Held == v1alpha1.ReasonOverdue
	switch {
	case !n.Ours():
		return "", "", fmt.Errorf("nothing to retry: %s is in %s with an unreadable grant, which the coordinator repairs", n.Name, n.State)
	case failed && n.State == v1alpha1.StateBeforeUncordon:
		return n.Turn, fmt.Sprintf("turn %s: the host now runs its hook units of before-uncordon again; it repeats them at least every 10 minutes without a retry.", n.Turn), nil
	case n.Grant.Result == v1alpha1.ResultFailed:
	case n.State != v1alpha1.StateRebooting && n.State != v1alpha1.StateApplying:
		return "", "", fmt.Errorf("nothing to retry: %s is in %s, and retry only ends turns that failed in rebooting or applying", n.Name, n.State)
	case !failed && !held:
		return "", "", fmt.Errorf("nothing to retry: the turn of %s is in %s and has not failed", n.Name, n.State)
	case !failed && n.State == v1alpha1.StateRebooting && !n.Rebooted():
		return n.Turn, fmt.Sprintf("turn %s is cleared and no longer counts as failed. It ends when the host reports from a new boot; the reboot may still happen.", n.Turn), nil
	}
	return n.Turn, fmt.Sprintf("turn %s is cleared: the coordinator ends it and returns the node to the cluster.", n.Turn), nil
}
