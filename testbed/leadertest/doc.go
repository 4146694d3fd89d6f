// Package leadertest takes the leader away from rollouts, in rounds that a seed makes: its process is stopped (SIGSTOP) for longer than
// its Lease lasts, or it is cut off by the network, a successor takes over, and the old one comes back with all that it had under
// way; meanwhile a person deletes the Lease, blanks it or edits it. The referee watches, and every round ends with all hosts updated.
//
// Some rounds are aimed: each at the one moment that one clause of fencing and commit is there for (DESIGN section 4). The product passes them,
// and binaries from which that clause was compiled out are caught, by the same rounds and the same referee.
//
// LOCKKEEPER_SEED makes other rounds, LOCKKEEPER_SOAK says how many, LOCKKEEPER_ROUND plays one of them alone. A seed repeats what is done
// and when, as requests and states of the rollout; what it meets there to the millisecond depends on the machine.
package leadertest
