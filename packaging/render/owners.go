package render

import (
	"fmt"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Owners returns docs/other-owners.md: the marks of other programs on Nodes, and what they
// mean for a turn.
func Owners() string {
	var b strings.Builder
	b.WriteString("# Other owners of a node\n\n" + generated + ownersIntro +
		"| owner | kind | key | value | meaning |\n| --- | --- | --- | --- | --- |\n")
	for _, m := range v1alpha1.Marks() {
		fmt.Fprintf(&b, "| %s | %s | `%s` | %s | %s |\n", m.Owner, m.Kind, m.Key, m.Condition(), m.Means)
	}
	b.WriteString(ownersEnd)
	return b.String()
}

const ownersIntro = `This page lists the marks by which lockkeeper recognizes that another program works on a node, and
what lockkeeper does then.

Other programs drain, reboot, replace and delete nodes too. While a Node has one of the marks below,
the coordinator grants it no turn: ` + "`held=OtherManager`" + `. ` + "`lockkeeper status NODE`" + ` and the Event name the
owner and the mark. The node gets its turn once the mark is gone.

- **A mark holds only the node that it is on.** A kubelet can set annotations of its own Node, so a
  mark cannot hold the rest of the fleet. The authors of pods can set no marks.
- **A mark takes no slot of the budget.** The node counts as unavailable while it is not Ready or
  cordoned, like any other node.
- **A turn under way continues.** To break it off would disturb the node and its pods twice. At the
  end of the turn, lockkeeper undoes its own cordon, even if the other owner wants the node cordoned
  too. It grants no further turn while the mark is there. To hand the node over at once, set
  ` + "`lockkeeper.dev/detached`" + `.
- **A mark that its owner has left behind still counts.** lockkeeper cannot see whether the owner is
  gone. Remove the key: ` + "`kubectl annotate node NODE KEY-`, `kubectl label node NODE KEY-` or\n  `kubectl taint node NODE KEY-`" + `.

`

const ownersEnd = `
These keys hold no node, because they do not say that a program works on the node now:

- what another reboot manager leaves on a node: ` + "`reboot-needed`, `status`, `last-checked-time`" + ` and the
  value ` + "`false`" + ` of every key of the Flatcar Linux Update Operator; kured's
  ` + "`kured-most-recent-reboot-needed`" + `;
- taints that ask the scheduler to avoid a node that may be replaced at some time:
  ` + "`DeletionCandidateOfClusterAutoscaler`" + `, ` + "`UpdateInProgress`" + ` of the machine config operator and
  ` + "`node.cluster.x-k8s.io/outdated-revision`" + `.

A host also finds [other reboot managers that run on it](manners.md#other-reboot-managers).
`
