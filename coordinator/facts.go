package coordinator

import (
	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/node/turn"
)

// facts are what the core knows of each Node, by name, read once for each
// version of it: one of five thousand Nodes changes many times a second, and
// reading the records of all the others again would be most of a leader's work.
type facts map[string]fact

type fact struct {
	from *corev1.Node // as the view handed it out: shared, and never changed
	node turn.Node
}

// of returns the facts of the Nodes, in their order, and forgets all others.
// What it returns shares the records that the facts point to, which nobody
// changes.
func (f *facts) of(nodes []*corev1.Node) []turn.Node {
	if *f == nil || len(*f) > len(nodes) {
		kept := make(facts, len(nodes))
		for _, n := range nodes {
			if known, ok := (*f)[n.Name]; ok {
				kept[n.Name] = known
			}
		}
		*f = kept
	}
	all := make([]turn.Node, 0, len(nodes))
	for _, n := range nodes {
		known := (*f)[n.Name]
		if known.from != n {
			known = fact{n, turn.FromNode(n)}
			(*f)[n.Name] = known
		}
		all = append(all, known.node)
	}
	return all
}
