package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// Options is an [Intent] command as a user gave it.
type Options struct {
	*Intent
	// Names, Selector, Policy and Stop say what to change; exactly one is set. Policy selects
	// the nodes whose rollout this policy decides.
	Names    []string
	Selector labels.Selector
	Policy   string
	Stop     bool // the emergency stop, and no node
	// Reason has at most [MaxReason] bytes. Until is what [ParseUntil] accepts, or "".
	Reason, Until string
	Force         bool
	// DryRun has the API server check every write and store none.
	DryRun bool
	// Selected, if not nil, is called with the names of the nodes before anything else is done.
	Selected func(names []string)
	// Confirm asks the user about several nodes. An error leaves all nodes as they are.
	Confirm func(names []string) error
	Printer
}

// minUntil and maxUntil bound how far ahead an intent can end.
const minUntil, maxUntil = time.Minute, 365 * 24 * time.Hour

// ParseUntil returns the end of an intent: a time in RFC 3339, or a duration from now, see
// [page.ParseDuration]. It is at least a minute and at most 365 days ahead, in UTC and whole seconds.
func ParseUntil(text string, now time.Time) (time.Time, error) {
	end, err := time.Parse(time.RFC3339, text)
	if d, e := page.ParseDuration(text); e == nil {
		end, err = now.Add(d), nil
	}
	if ahead := end.Sub(now); err != nil || ahead < minUntil || ahead > maxUntil {
		return time.Time{}, fmt.Errorf("%q, expected a time such as %s or a duration such as 2h or 7d, from 1m to 365d ahead",
			text, now.Add(2*time.Hour).UTC().Format(time.RFC3339))
	}
	return end.UTC().Truncate(time.Second), nil
}

// Apply carries out a command and prints what it did: a line for each node, the kubectl commands that
// do the same, and the commands that undo it. A node that cannot be changed does not keep the
// others from being changed, unless the API server does not answer. The error says on how
// many nodes the command failed.
func (s *Source) Apply(ctx context.Context, o Options) error {
	if len(o.Reason) > MaxReason {
		return fmt.Errorf("the reason has %d bytes, expected at most %d", len(o.Reason), MaxReason)
	}
	if o.Stop {
		return s.stop(ctx, o)
	}
	nodes, err := s.nodes(ctx, o)
	if err != nil {
		return o.needs(err)
	}
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name
	}
	if o.Selected != nil {
		o.Selected(names)
	}
	if len(nodes) > 1 && o.NeedsReason && o.Reason == "" {
		return fmt.Errorf("%s of %d nodes requires --reason; nothing was changed", o.Command, len(nodes))
	}
	p := &v1alpha1.Intent{Reason: o.Reason, Force: o.Force}
	if o.Until != "" {
		end, err := ParseUntil(o.Until, s.now())
		if err != nil {
			return fmt.Errorf("--until %w", err)
		}
		p.Until = &end
	}
	if len(nodes) > 1 && !o.DryRun {
		if err := o.Confirm(names); err != nil {
			return err
		}
	}
	if o.HasReason {
		p.By = s.user(ctx, o.Err)
	}
	return s.each(ctx, o, nodes, func(n *turn.Node) (edit, error) {
		e, err := o.edit(n, p)
		e.key, e.label = o.Key, o.Label
		return e, err
	})
}

// each edits the nodes one after the other.
func (s *Source) each(ctx context.Context, o Options, nodes []*corev1.Node, decide func(*turn.Node) (edit, error)) error {
	if o.DryRun {
		fmt.Fprintln(o.Out, "Dry run, nothing is changed. Without --dry-run:")
	}
	var do, undo commands
	var errs []error
	for i, node := range nodes {
		e, old, err := s.edit(ctx, node, o.DryRun, decide)
		if err != nil {
			err = o.needs(err)
			errs = append(errs, err)
			unknown := errors.Is(err, errUnknown)
			switch {
			case len(nodes) == 1:
			case unknown:
				fmt.Fprintf(o.Err, "lockkeeper: %s: %v\n", node.Name, err)
			default:
				fmt.Fprintf(o.Err, "lockkeeper: %s was not changed: %v\n", node.Name, err)
			}
			if rest := len(nodes) - i - 1; rest > 0 && (ctx.Err() != nil || unknown) {
				fmt.Fprintf(o.Err, "lockkeeper: %s\n", notTried(rest))
				errs = append(errs, make([]error, rest)...)
				break
			}
			continue
		}
		if e.same {
			fmt.Fprintf(o.Out, "%s: %s, nothing changed.\n", node.Name, e.text)
			continue
		}
		replaced := ""
		if old != nil && e.value != nil && !e.label {
			replaced = " It replaces " + quoteText(*old) + "."
		}
		fmt.Fprintf(o.Out, "%s: %s.%s\n", node.Name, e.text, replaced)
		do.add(o.kubectl(e, e.value), node.Name)
		switch {
		case e.final || o.DryRun:
		case old == nil && o.Undo != "":
			undo.add(command{head: "lockkeeper " + o.Undo + o.Own}, node.Name)
		default:
			undo.add(o.kubectl(e, old), node.Name)
		}
	}
	do.print(o.Out, "The same with kubectl: ")
	undo.print(o.Out, "To undo: ")
	switch {
	case len(errs) == 0:
		return nil
	case len(nodes) == 1:
		return errs[0]
	}
	return fmt.Errorf("%s failed on %d of %s", o.Command, len(errs), page.Plural(len(nodes), "node"))
}

func notTried(n int) string {
	if n == 1 {
		return "1 more node was not tried"
	}
	return fmt.Sprintf("%d more nodes were not tried", n)
}

// nodes reads the nodes that a command is about, sorted by name unless the user named them. All of them
// exist.
func (s *Source) nodes(ctx context.Context, o Options) ([]*corev1.Node, error) {
	var nodes []*corev1.Node
	if len(o.Names) > 0 {
		for i, name := range o.Names {
			if slices.Contains(o.Names[:i], name) {
				continue
			}
			n, err := kube.Find(ctx, s.Client, name)
			if err == nil && n == nil {
				err = report.NotFound(name)
			}
			if err != nil {
				return nil, err
			}
			nodes = append(nodes, n)
		}
		return nodes, nil
	}
	list, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	selects, what := func(l map[string]string) bool { return o.Selector.Matches(labels.Set(l)) }, fmt.Sprintf("-l %s", o.Selector)
	if o.Policy != "" {
		if selects, err = s.decidedBy(ctx, o.Policy); err != nil {
			return nil, err
		}
		what = "policy " + o.Policy
	}
	for i := range list.Items {
		if n := &list.Items[i]; selects(n.Labels) {
			nodes = append(nodes, n)
		}
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("no node matches %s", what)
	}
	return nodes, nil
}

// decidedBy returns a function that reports whether the policy decides the rollout of a node
// with these labels.
func (s *Source) decidedBy(ctx context.Context, name string) (func(map[string]string) bool, error) {
	view := s.WatchPolicies(nil)
	if err := view.Load(ctx); err != nil {
		return nil, err
	}
	set := policy.NewSet(view.Compiled()...)
	if set.Named(name) == nil {
		return nil, fmt.Errorf("policy %q not found", name)
	}
	return func(l map[string]string) bool {
		p := set.For(l).Policy
		return p != nil && p.Name == name
	}, nil
}

// user returns the name under which the API server knows the caller, "" if it does not say.
func (s *Source) user(ctx context.Context, errOut io.Writer) string {
	ctx, cancel := context.WithTimeout(ctx, kube.Timeout)
	defer cancel()
	r, err := s.Client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err == nil && r.Status.UserInfo.Username == "" {
		err = errors.New("its answer has no user name")
	}
	if err != nil {
		fmt.Fprintf(errOut, "lockkeeper: the API server does not say who you are, so your name is not recorded: %v\n", err)
		return ""
	}
	return v1alpha1.OneLine(r.Status.UserInfo.Username, v1alpha1.MaxRequestBy)
}

// needs adds to a refusal what the command requires. The admission policy names the verb itself.
func (o *Options) needs(err error) error {
	if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "needs the verb") {
		return err
	}
	list := ""
	if o.Selector != nil {
		list = "list nodes, "
	}
	if o.Policy != "" {
		list = "list nodes and disruptionpolicies.lockkeeper.dev, "
	}
	return fmt.Errorf("%w; `lockkeeper %s` requires permission to %sget and patch nodes, and the verb %s on nodes.lockkeeper.dev", err, o.Command, list, o.Verb)
}

// errUnknown is the error of a write that the API server did not answer.
var errUnknown = errors.New("the outcome of the write is unknown, it is safe to run the command again")

// retries bounds how often a Node is read again after a conflict.
const retries = 5

// edit writes what decide returns to a Node, unless it is the same already. The write conflicts
// if the Node has changed since it was read. edit then reads it and decides again. old is the
// value before the write, nil for none.
func (s *Source) edit(ctx context.Context, node *corev1.Node, dryRun bool, decide func(*turn.Node) (edit, error)) (e edit, old *string, err error) {
	for try := 1; ; try++ {
		n := turn.FromNode(node)
		if e, err = decide(&n); err != nil || e.same {
			return e, nil, err
		}
		p := kube.Patch{Node: n.Name, ResourceVersion: n.ResourceVersion, Manager: kube.FieldManager("admin"), DryRun: dryRun}
		current := node.Annotations
		if e.label {
			current, p.Labels = node.Labels, map[string]*string{e.key: e.value}
		} else {
			p.Annotations = map[string]*string{e.key: e.value}
		}
		if value, set := current[e.key]; set {
			old = &value
		}
		fresh, outcome, err := kube.Write(ctx, s.Client, p)
		switch {
		case outcome == kube.Written:
			return e, old, nil
		case outcome == kube.Conflict && try < retries:
			node, old = fresh, nil
			continue
		case outcome == kube.Unknown:
			err = fmt.Errorf("%w; %w", err, errUnknown)
		}
		return edit{}, nil, err
	}
}
