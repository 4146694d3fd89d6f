// Package rollout makes all decisions of the coordinator. Decide takes a snapshot of the
// cluster and returns a verdict for every node: a move along the table of states (package
// turn), or a reason why the node is held.
//
// It remembers nothing between decisions. What a later leader needs to decide in the same
// way is on the Nodes: in the state, the grant and last.
//
// The package is pure: no client, no D-Bus, no file, no clock, no randomness. It writes
// nothing. Package coordinator carries out its moves, each with the resourceVersion of the
// Node that was decided about. The package must not know how a host does its work.
package rollout
