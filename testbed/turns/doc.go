// Package turns tests what policies make of a single turn: windows and gates
// that close in the middle of it, hooks of pods and people, changes of files and
// units, and wants that grow, weaken and vanish in each of its states. It also tests
// what admins' intents do in each state, and what another owner does with a node that
// is detached (docs/intents.md). The real
// binary runs on simulated hosts, which a policy for each test selects by a label;
// all of them share one control plane, one coordinator and one referee.
//
// The package also provokes each reason and each kind of blocker of the product's
// tables, and reads it in each place that its row lists. It fails if one was not
// read everywhere, unless go test -run selects a part of the tests.
package turns
