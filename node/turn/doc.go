// Package turn has what the host and the coordinator must agree on: the one table of
// states, and [Node], which is what a Node object says about a turn.
//
// The table lists which state follows which, and on what event. The coordinator's
// decisions (package rollout) move nodes along it and along nothing else. The test bed
// checks every change of the label against it, and docs/node-states.md is rendered from
// it.
//
// The package is pure: no client, no D-Bus, no file, no clock. It must not know who
// decides what.
package turn
