// Package rollout is the second of the two pure cores: Decide takes a
// snapshot of the cluster and gives every node a verdict, to be moved along
// the table (package turn) or held with a reason.
//
// It has no memory between decisions. Whatever a later leader needs to decide
// alike stands on the Nodes: in the grant, in last, in the state.
//
// This room is pure: no client, no D-Bus, no file, no clock, no randomness. It
// does not write; package coordinator carries its moves out, each with the
// resourceVersion of the Node that was decided on.
package rollout
