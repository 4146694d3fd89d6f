package coordinator

import (
	"crypto/rand"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// newTurnID makes a turn's id: 16 of [a-z2-7], 80 random bits.
func newTurnID() string { return strings.ToLower(rand.Text())[:16] }

func empty(n *turn.Node) kube.Patch {
	return kube.Patch{
		Node: n.Name, ResourceVersion: n.ResourceVersion, Manager: kube.FieldManager("coordinator"),
		Labels: map[string]*string{}, Annotations: map[string]*string{},
	}
}

// heldPatch writes the reason why a node does not move, or takes it away.
func heldPatch(n *turn.Node, reason v1alpha1.Reason) kube.Patch {
	p := empty(n)
	p.Labels[v1alpha1.LabelHeld] = nil
	if reason != v1alpha1.ReasonNone {
		p.Labels[v1alpha1.LabelHeld] = new(string(reason))
	}
	return p
}

// patchOf is a move as one write.
func patchOf(n *turn.Node, v *rollout.Verdict) kube.Patch {
	m := v.Move
	p := heldPatch(n, v.Held)
	if m.To != m.From || !n.State.Known() {
		p.Labels[v1alpha1.LabelState] = nil
		if m.To != v1alpha1.StateAbsent {
			p.Labels[v1alpha1.LabelState] = new(string(m.To))
		}
	}
	for _, key := range m.Remove {
		p.Annotations[key] = nil
	}
	if m.Expired {
		p.Annotations[v1alpha1.AnnotationExpired] = new(time.Now().UTC().Format(time.RFC3339Nano))
	}
	switch {
	case m.LetGo:
		p.Annotations[v1alpha1.AnnotationTurn] = nil
		p.Annotations[v1alpha1.AnnotationGrant] = nil
		p.Annotations[v1alpha1.AnnotationLast] = nil
		p.Annotations[v1alpha1.AnnotationExpired] = nil
		labels, annotations := v1alpha1.ReleasedKeys()
		for _, key := range labels {
			p.Labels[key] = nil
		}
		for _, key := range annotations {
			p.Annotations[key] = nil
		}
	case m.Keep:
	case m.Grant == nil:
		p.Annotations[v1alpha1.AnnotationTurn] = nil
		p.Annotations[v1alpha1.AnnotationGrant] = nil
	default:
		g := *m.Grant
		if m.NewTurn {
			g.Turn = newTurnID()
		}
		p.Annotations[v1alpha1.AnnotationTurn] = &g.Turn
		p.Annotations[v1alpha1.AnnotationGrant] = new(v1alpha1.FormatRecord(&g))
	}
	if m.Last != nil {
		p.Annotations[v1alpha1.AnnotationLast] = new(v1alpha1.FormatRecord(m.Last))
	}
	return p
}
