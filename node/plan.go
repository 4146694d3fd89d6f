package node

import (
	"fmt"
	"slices"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/policy"
)

// match is what the cluster's policies say of this node; ok is false while they
// are not known. Policies that were broken or deleted change no plan: what held
// before holds on, and the coordinator grants nothing by them.
func (h *Host) match(n *turn.Node) (m policy.Match, ok bool) {
	if !h.policies.Listed() {
		return policy.Match{}, false
	}
	m = policy.NewSet(h.policies.Compiled()...).For(n.Labels)
	if m.Reason != "" && h.matched != nil {
		return *h.matched, true
	}
	if m.Reason == "" {
		h.matched = &m
	}
	return m, true
}

// ownTerms returns the terms of the policy that applies to this host, as the host
// has read it; nil if it has read none.
func (h *Host) ownTerms(n *turn.Node) *v1alpha1.Terms {
	m, ok := h.match(n)
	if !ok || m.Policy == nil || m.Reason != "" {
		return nil
	}
	return &m.Policy.Terms
}

func heldBack(p *policy.Plan) []v1alpha1.Change {
	var all []v1alpha1.Change
	for _, h := range p.HeldBack {
		all = append(all, h.Change)
	}
	return all
}

// maxPlanned is how many lines of a plan are published, and maxPlannedLine how
// many bytes each may have.
const (
	maxPlanned     = 16
	maxPlannedLine = 200
)

// planned is a plan for people, a line for each step and for each change that
// costs nothing: "Restart containerd.service: File /etc/containerd/config.toml
// by lockkeeper-default".
func planned(p *policy.Plan) []string {
	var lines []string
	add := func(what string, because []policy.Cause) {
		causes := make([]string, 0, len(because))
		for _, c := range because {
			causes = append(causes, c.String())
		}
		line := what + ": " + strings.Join(causes, "; ")
		if len(line) > maxPlannedLine {
			line = strings.ToValidUTF8(line[:maxPlannedLine-len("…")], "") + "…"
		}
		lines = append(lines, line)
	}
	for _, s := range p.Steps {
		add(s.Action.String(), s.Because)
	}
	for _, held := range p.HeldBack {
		add("held back by "+held.Pattern, []policy.Cause{held.Cause})
	}
	for _, c := range p.Nothing {
		add(string(v1alpha1.ActionNone), []policy.Cause{c})
	}
	if len(lines) > maxPlanned {
		lines = append(slices.Clip(lines[:maxPlanned-1]), fmt.Sprintf("and %d more", len(lines)-maxPlanned+1))
	}
	return lines
}
