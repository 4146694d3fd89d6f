// Package turn is the first of the two pure cores: the one table of states,
// and Step, which says what a host does next.
//
// Step takes an [Observation], everything a host can know at one moment, and
// returns a [Decision], data that the node package carries out. It remembers
// nothing: a process that was started a moment ago, with the same facts, takes
// the same next step. That is what makes a crash a fact and no accident.
//
// The table says which state follows which on what event. The coordinator's
// core (package rollout) moves nodes along it and along nothing else; the
// referee of the test bed checks that; docs/node-states.md is rendered from
// it.
//
// This room is pure: no client, no D-Bus, no file, no clock. The time, where
// it matters, is a field of the observation.
package turn
