// Package faults lets things go wrong during rollouts and has the referee watch. At the end, every host has to be updated and back.
//
// Campaigns (TestCampaigns): random faults meet rollouts. Faults break the connections (every process of every host is behind a
// proxy), the control plane, what runs next to lockkeeper on a host, and the hosts themselves, or are a person's doing.
//
// Kills (TestKillAtEveryWrite): a process is killed at its writes. For every write that a host or a coordinator sends to the API
// server in a turn, it is killed right before the write is sent, after it was carried out and before the writer knows, and right
// after the answer. The turn has to end as if nothing had happened, with one reboot. Every write has a class in a table that is
// written by hand; a write without a class fails the run. So whoever adds a write to lockkeeper adds its class, and the test kills
// there as well.
//
// Leaders (TestRounds): the leader is stopped (SIGSTOP) for longer than its Lease lasts, or is cut off by the network. A successor
// takes over, and the old leader comes back with all that it had under way. Meanwhile a person deletes the Lease, blanks it or
// edits it. Some rounds are aimed: each at the one moment that one clause of fencing and commit exists for (DESIGN section 4). The
// product passes them (TestAims). Binaries from which that clause was compiled out are caught by the same rounds and the same
// referee (TestMutants).
//
// LOCKKEEPER_SEED makes other campaigns, kills and rounds, LOCKKEEPER_SOAK says how many, LOCKKEEPER_CAMPAIGN and LOCKKEEPER_ROUND
// run a single one. A seed repeats what is done and when, as requests and states of the rollout. It does not repeat the machine's
// timing.
package faults
