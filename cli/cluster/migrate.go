package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/migrate"
	"lockkeeper.dev/lockkeeper/cli/page"
	"lockkeeper.dev/lockkeeper/kube"
)

// ReadMigration reads what another reboot manager has in the cluster: all Nodes, all
// DaemonSets and Deployments, the tool's pods and its lock.
func (s *Source) ReadMigration(ctx context.Context, tool migrate.Tool) (*migrate.Input, error) {
	in := &migrate.Input{Now: time.Now(), Zones: time.LoadLocation}
	if s.Skew != nil {
		if ahead, ok := s.Skew(); ok {
			in.Now = in.Now.Add(ahead)
		}
	}
	nodes, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	in.Nodes = nodes.Items
	selectors, err := s.workloads(ctx, in, tool)
	if err != nil {
		return nil, err
	}
	for _, sel := range selectors {
		pods, err := s.Client.CoreV1().Pods(sel.namespace).List(ctx, metav1.ListOptions{LabelSelector: sel.labels})
		if err != nil {
			return nil, fmt.Errorf("listing pods of %s: %w", tool, err)
		}
		for _, p := range pods.Items {
			if !slices.ContainsFunc(in.Pods, func(o corev1.Pod) bool { return o.UID == p.UID }) {
				in.Pods = append(in.Pods, p)
			}
		}
	}
	if tool != migrate.FLUO {
		return in, nil
	}
	named := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, migrate.LockName).String()}
	leases, err := s.Client.CoordinationV1().Leases(metav1.NamespaceAll).List(ctx, named)
	if err != nil {
		return nil, fmt.Errorf("listing Leases of FLUO: %w", err)
	}
	maps, err := s.Client.CoreV1().ConfigMaps(metav1.NamespaceAll).List(ctx, named)
	if err != nil {
		return nil, fmt.Errorf("listing ConfigMaps of FLUO: %w", err)
	}
	in.Leases, in.ConfigMaps = leases.Items, maps.Items
	return in, nil
}

// podSelector selects pods; an empty namespace means all.
type podSelector struct{ namespace, labels string }

// workloads adds all DaemonSets and Deployments to in. It returns how to find the tool's pods:
// by the labels of its manifests, and by the selectors of its workloads.
func (s *Source) workloads(ctx context.Context, in *migrate.Input, tool migrate.Tool) (selectors []podSelector, err error) {
	for _, l := range migrate.PodSelectors(tool) {
		selectors = append(selectors, podSelector{metav1.NamespaceAll, l})
	}
	add := func(kind string, m metav1.ObjectMeta, t corev1.PodTemplateSpec, sel *metav1.LabelSelector, wanted int32) {
		in.Workloads = append(in.Workloads, migrate.Workload{
			Kind: kind, Namespace: m.Namespace, Name: m.Name, Annotations: m.Annotations, Template: t, Wanted: wanted,
		})
		if migrate.Runs(tool, &t) {
			selectors = append(selectors, podSelector{m.Namespace, metav1.FormatLabelSelector(sel)})
		}
	}
	sets, err := s.Client.AppsV1().DaemonSets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing DaemonSets: %w", err)
	}
	for _, d := range sets.Items {
		add("DaemonSet", d.ObjectMeta, d.Spec.Template, d.Spec.Selector, d.Status.DesiredNumberScheduled)
	}
	deployments, err := s.Client.AppsV1().Deployments(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing Deployments: %w", err)
	}
	for _, d := range deployments.Items {
		add("Deployment", d.ObjectMeta, d.Spec.Template, d.Spec.Selector, wanted(&d))
	}
	return selectors, nil
}

// wanted is the number of pods of a Deployment; the API server's default is 1.
func wanted(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

// Migration is what [Source.Migrate] is to do.
type Migration struct {
	Tool   migrate.Tool
	DryRun bool
	// Confirm asks the user about these nodes, if there is more than one.
	Confirm func(nodes []string) error
	Out     io.Writer
	Err     io.Writer
}

// Migrate carries over paused nodes and removes what the tool left on Nodes. It changes
// nothing while the tool is active. A Node that changes meanwhile is read again, together
// with everything else: the tool may have come back.
func (s *Source) Migrate(ctx context.Context, m Migration) error {
	by, asked := "", false
	var confirmed []string
	for try := 1; ; try++ {
		in, err := s.ReadMigration(ctx, m.Tool)
		if err != nil {
			return err
		}
		if by == "" {
			by = s.user(ctx, m.Err)
		}
		in.By = by
		r, err := migrate.From(m.Tool, in)
		if err != nil {
			return err
		}
		if len(r.Active) > 0 {
			var signs []string
			for _, a := range r.Active {
				signs = append(signs, strings.TrimSpace(a.Text+" "+a.Command))
			}
			more := ""
			if asked {
				more = "more "
			}
			return fmt.Errorf("%s is active, nothing %swas changed: %s", m.Tool, more, v1alpha1.OneLine(page.Named(signs, 5), maxRefusal))
		}
		if len(r.Changes) == 0 {
			if !asked {
				fmt.Fprintf(m.Out, "Nothing of %s is left on the nodes.\n", m.Tool)
			}
			return s.migrated(m, r)
		}
		// After a conflict, the user is asked again only about nodes that are new.
		names := r.ChangedNodes()
		fresh := slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(confirmed, name) })
		if fresh && !m.DryRun && (asked || len(names) > 1) {
			if err := m.Confirm(names); err != nil {
				return err
			}
		}
		asked, confirmed = true, append(confirmed, names...)
		again, err := s.applyChanges(ctx, m, r.Changes)
		switch {
		case err != nil:
			return err
		case !again:
			return s.migrated(m, r)
		case try == retries:
			return errors.New("some nodes changed again and again while they were written; run the command again")
		}
	}
}

// maxRefusal bounds the text of a refusal, in bytes.
const maxRefusal = 2048

// applyChanges writes the changes. again means that a Node has changed since it was read.
func (s *Source) applyChanges(ctx context.Context, m Migration, changes []migrate.Change) (again bool, err error) {
	done := ""
	if m.DryRun {
		done = "would "
	}
	for i := range changes {
		c := &changes[i]
		_, outcome, err := kube.Write(ctx, s.Client, changePatch(c, m.DryRun))
		switch {
		case outcome == kube.Written:
			node, what, _ := strings.Cut(c.String(), ": ")
			fmt.Fprintf(m.Out, "%s: %s%s\n", node, done, what)
		case outcome == kube.Conflict, outcome == kube.Gone:
			again = true
		case outcome == kube.Unknown:
			return again, fmt.Errorf("%w; %w", err, errUnknown)
		default:
			return again, fmt.Errorf("%w; `lockkeeper migrate --apply` requires permission to patch nodes, and the verb pause on nodes.lockkeeper.dev for paused nodes", err)
		}
	}
	return again, nil
}

func changePatch(c *migrate.Change, dryRun bool) kube.Patch {
	p := kube.Patch{
		Node: c.Node, ResourceVersion: c.ResourceVersion, Manager: kube.FieldManager("admin"), DryRun: dryRun,
		Labels: map[string]*string{}, Annotations: map[string]*string{},
	}
	for _, key := range c.Labels {
		p.Labels[key] = nil
	}
	for _, key := range c.Annotations {
		p.Annotations[key] = nil
	}
	if c.Paused != "" {
		p.Annotations[v1alpha1.AnnotationPaused] = &c.Paused
	}
	if c.Uncordon {
		p.Unschedulable = new(false)
	}
	if len(c.Taints) > 0 {
		p.Taints = new(slices.Concat([]corev1.Taint{}, c.Keep))
	}
	return p
}

// migrated prints what is left to the user.
func (s *Source) migrated(m Migration, r *migrate.Result) error {
	for _, t := range r.Left {
		fmt.Fprintf(m.Out, "Left to you: %s\n  %s\n", v1alpha1.OneLine(t.Text, maxRefusal), t.Command)
	}
	return nil
}
