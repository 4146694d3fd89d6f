// Package simulate rolls a described fleet in virtual time. It shows how long a rollout takes, how many nodes it
// disrupts at once, and where it would stop. It needs no cluster and no hosts, and it never waits.
//
// The decisions are real: rollout.Decide for the leader, step.Step for each host, and policy.Compile for the policies.
// The inputs are simulated: how long a drain, a reboot or a hook takes, what fails, and when a gate closes. The fleet's
// file defines all of that, and there are no other assumptions. The same file with the same seed gives the same run.
//
// It leaves out lost and late writes, a change of leaders, crashes, and admins who cordon; package virtual of the testbed
// has those. Here every process sees a write at the instant of the write. The coordinator's own host rolls last, as in a cluster, but
// its turn does not delay other nodes.
package simulate
