package forecast

import (
	"slices"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// minSeen is how many finished turns are needed before their median duration
// replaces the policy's expectedDuration.
const minSeen = 3

// turnKind returns a key that is equal for turns of one policy for the same sources. It
// leaves out versions, because the content of a file differs from host to host.
func turnKind(l *line, changes []v1alpha1.Change) string {
	var parts []string
	for _, c := range changes {
		parts = append(parts, string(c.Source)+" "+c.Name)
	}
	slices.Sort(parts)
	return l.figures.Name + "\x00" + strings.Join(parts, "\x00")
}

// recordLast records how long the node's last turn took, if its result is Done.
func (c *simulation) recordLast(n *turn.Node, l *line) {
	if n.Last == nil || n.Last.Result != v1alpha1.ResultDone || len(n.Last.Turns) == 0 {
		return
	}
	took := n.Last.End.Sub(n.Last.Turns[len(n.Last.Turns)-1])
	if age := c.now.Sub(n.Last.End); took > 0 && age >= 0 && age < 24*time.Hour {
		kind := turnKind(l, n.Last.Changes)
		c.seen[kind] = append(c.seen[kind], took)
	}
}

// turnDuration returns how long a turn for the changes is expected to take, and from how
// many finished turns that was computed; 0: from none.
func (c *simulation) turnDuration(l *line, changes []v1alpha1.Change) (d time.Duration, seen int) {
	took := c.seen[turnKind(l, changes)]
	if len(took) < minSeen {
		return l.ExpectedDuration, 0
	}
	slices.Sort(took)
	return took[len(took)/2], len(took)
}
