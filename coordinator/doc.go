// Package coordinator is the part of the one instance that is elected: it
// stands for the Lease, and while it holds it, watches all Nodes, asks the
// pure core (package rollout) for a verdict on each, and writes what that
// says.
//
// Nothing here decides about a node. This room must not know how a host does
// what its state asks of it.
package coordinator
