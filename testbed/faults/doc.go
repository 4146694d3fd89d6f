// Package faults injects faults into rollouts while the referee watches. At the end, every host must be updated and
// back.
//
// Campaigns (TestCampaigns) inject random faults into rollouts. Faults break connections (every process of every host
// is behind a proxy), the control plane, the programs next to lockkeeper on a host, or the hosts themselves. Some
// faults are actions of an admin.
//
// Kills (TestKillAtEveryWrite) kill a process at its writes. For every write that a host or a coordinator sends to the
// API server in a turn, the test kills the writer at three moments: right before it sends the write; after the write
// took effect but before the writer knows; and right after the answer. The turn must end as if nothing had happened,
// with one reboot. Every write has a class in a hand-written table, and a write without a class fails the run. So
// a developer who adds a write to lockkeeper has to add its class, and then the test kills there too.
//
// Leaders (TestRounds): the leader is stopped (SIGSTOP) for longer than its Lease lasts, or is cut off from the
// network. A successor takes over, and the old leader comes back with all its writes in flight. In the meantime an
// admin deletes, blanks or edits the Lease. Some rounds are aimed: each at the one moment that one clause of fencing
// and commit exists for (DESIGN section 4). The product must pass them (TestAims). Binaries that were compiled without
// that clause must fail the same rounds with the same referee (TestMutants).
//
// LOCKKEEPER_SEED selects other campaigns, kills and rounds, and LOCKKEEPER_SOAK their number. LOCKKEEPER_CAMPAIGN and
// LOCKKEEPER_ROUND run a single one. A seed repeats the actions and their moments, which are defined by requests and by
// states of the rollout. It does not repeat the timing of the machine.
package faults
