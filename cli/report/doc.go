// Package report makes and prints what `lockkeeper status`, plan, wait and history show, and
// does the writes of retry, confirm, stop and go.
//
// [Build] is a pure function that makes a [Report] of what was read. The text and the JSON,
// whose form is stable, are rendered from a Report alone.
//
// The package decides nothing about the fleet: reasons and figures come from the same
// rollout.Decide that the coordinator runs, without an epoch. It uses the caller's own
// credential. It must not know the hosts' files, nor of an election more than the Lease says.
package report
