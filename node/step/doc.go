// Package step makes all decisions of a host. Step takes an [Observation], which is
// everything that a host knows at one moment, and returns a [Decision], which package
// node carries out.
//
// Step remembers nothing. A process that has just started, with the same facts, takes
// the same next step as one that has run for days. So a crash needs no recovery code.
//
// The package is pure: no client, no D-Bus, no file, no clock. Times are fields of the
// observation. It must not know other nodes or budgets.
package step
