// Package simulate rolls a fleet that someone describes, in virtual time: how
// long a rollout takes, how many nodes are disrupted at once, and where it
// would stop. It needs no cluster and no hosts, and it never waits.
//
// What decides is the real thing: rollout.Decide for the leader, step.Step for
// each host, policy.Compile for the policies. What is made up is what they
// decide about: how long a drain, a reboot, a hook takes, what fails, when a
// gate closes. All of that stands in the fleet's file; nothing else is assumed.
// The same file with the same seed gives the same run.
//
// Left out is what other parts of the test bed are for: lost and late writes, a
// change of leaders, crashes, people who cordon. A write is seen by everyone in
// the instant in which it is made. The coordinator's own host comes last as it
// does in a cluster, and its turn costs no one time.
package simulate
