package virtual

import (
	"fmt"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// Unfinished says, a line for each, which hosts have not arrived: their Node is idle and schedulable, wants nothing, and
// the host runs the version that it staged last. It returns "" if all have.
func (f *Fleet) Unfinished() string {
	var lines []string
	for _, m := range f.hosts {
		if why := m.unfinished(); why != "" {
			lines = append(lines, m.name+": "+why)
		}
	}
	return strings.Join(lines, "\n")
}

func (m *Machine) unfinished() string {
	obj := m.f.Node(m.name)
	if obj == nil {
		return "it has no Node"
	}
	n := turn.FromNode(obj)
	describe := func(what string) string {
		return fmt.Sprintf("%s; state %q, wants %q, held %v, ack %v, cordoned %t, ready %t", what, n.State, n.Wants, n.Held, n.Ack, n.Unschedulable, n.Ready)
	}
	runs, staged := m.version(), m.stagedVersion()
	switch {
	case n.State != v1alpha1.StateIdle:
		return describe("it is not idle")
	case n.Unschedulable || n.Mark:
		return describe("it is cordoned")
	case n.Wants != v1alpha1.WantsNothing:
		return describe("it still wants something")
	case staged != "" && runs != staged:
		return describe(fmt.Sprintf("it runs %s, expected %s", runs, staged))
	case !n.Ready:
		return describe("it is not ready")
	}
	return ""
}

// Arrive waits until no host is unfinished, and returns what is unfinished after the limit. Meanwhile an admin clears the
// turns that ended in a failure which the host has observed: only these wait for a person.
func (f *Fleet) Arrive(within time.Duration) string {
	for end := time.Now().Add(within); ; {
		why := f.Unfinished()
		f.clearFailed()
		if why == "" || time.Now().After(end) || !sleep(f.ctx, 10*time.Second) {
			return why
		}
	}
}

// clearFailed clears the last turn of each node that is held because that turn failed.
func (f *Fleet) clearFailed() {
	for _, m := range f.hosts {
		obj := m.f.Node(m.name)
		if obj == nil {
			continue
		}
		n := turn.FromNode(obj)
		id := n.Turn
		if !n.InTurn() && n.Last != nil && n.Last.Result == v1alpha1.ResultFailed {
			id = n.Last.Turn
		} else if !n.InTurn() || !n.HasReport(v1alpha1.ReportFailed) {
			continue
		}
		if n.Retry != id {
			f.exec.people.patchNode(admin, m.name, annotate(v1alpha1.AnnotationRetry, id))
		}
	}
}

// Clean ends what admins began and the plan does not end: cordons of their own, or those that they took over with a node
// that they detached by force; budgets that block drains, which a store that was rewound has again.
func (f *Fleet) Clean() {
	for _, m := range f.hosts {
		if obj := f.Node(m.name); obj != nil && obj.Spec.Unschedulable && obj.Annotations[v1alpha1.AnnotationCordon] == "" {
			f.exec.people.patchNode(admin, m.name, cordon(false))
		}
		f.AllowDrains(m.name)
	}
}
