package referee

import (
	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// excluded judges the exclusions in a write of the host: one that sets or removes the mark, or reports something. Any other write may be a
// user's, who may change them as they like.
func (e *engine) excluded(n *node, before, after *turn.Node) {
	marks, unmarks := !before.Mark && after.Mark, before.Mark && !after.Mark
	if !marks && !unmarks && before.Ack == after.Ack && before.RawHost == after.RawHost {
		return
	}
	for _, x := range v1alpha1.AllExclusions() {
		was, had := before.Excluded[x.Name]
		is, has := after.Excluded[x.Name]
		changed := had != has || was != is
		switch {
		case marks && after.Cordon.Has(x.Name):
			if had || !has || is != x.Value {
				e.breaks(Exclusion, n.name, "the mark names %s, and %s was there before, or is not there now", x.Name, x.Key)
			}
		case unmarks && before.Cordon.Has(x.Name) && had && was == x.Value:
			// A detached node is its new owner's with all that is on it.
			if has && before.Detached == nil {
				e.breaks(Exclusion, n.name, "the mark was removed, and %s stayed", x.Key)
			}
		case changed:
			e.breaks(Exclusion, n.name, "%s was changed from %q to %q, and the mark does not name it", x.Key, was, is)
		}
	}
}
