// Package explore tries everything: it calls the two pure cores, step.Step and
// rollout.Decide, on every state that a model of the rest can come to within
// bounds, holds each step against the promises, and runs states on, without
// further faults, to see that each turn ends or is held with a reason.
//
// The cores are the real ones, read from and written to real labels and
// annotations. The rest is a model: one API server with Nodes and a Lease;
// machines with a boot, a kubelet, an update engine and pods; a host's process
// with its sources, its watch, its look (the Node, then the Lease, the sources
// and the pods) and its drain; up to two living terms of coordinators; writes
// that are lost, late, or land when their writer is dead; admins. It must not
// know how a core comes to a decision: promises are in properties.go and
// progress.go, steps in the other files, and neither imports anything of
// lockkeeper but its pure rooms.
//
// # What is one step
//
// A step is one write, one read of the API server, or one change of a machine.
// Larger steps are taken only where nothing is lost:
//
//   - A host's decision to write and the landing of that write are one step. A
//     host does nothing else until it is answered, its observation does not
//     change meanwhile, and its write lands only if the Node is the version
//     that was decided on: to decide late is the same as to be slow. A write
//     that lands after its process died is a step of its own (crash, KILL,
//     then lands-late).
//   - The Lease, the sources and the pods of a look are read in one step: no
//     step elsewhere ties the last two to the first.
//   - A host's watch lags only while the host has, or takes, a commit's look.
//     Otherwise what it does with an older Node is a write, which conflicts,
//     or a look, which reads the Node again; or it evicts, which no promise here
//     is about.
//   - A term sees the Nodes as they are when it decides, and its writes may be
//     on their way for any time after, each by itself; one round at a time, grants
//     last. That is how a lagging view shows: to decide on what was is to have
//     decided then and to be slow. What this leaves out is a view in which some
//     Nodes are past and others, by the term's own writes, present; Config.Lag
//     puts that in, for smaller bounds.
//   - A write with an unknown outcome (LOSE) may land at any time until it is
//     settled. A term that ends leaves, or does not leave, one write of its round
//     or of the round that it was about to begin.
//   - A term that lost the Lease decides at most Config.Stale rounds before it
//     notices: client-go's elector stops it at the renew deadline, before a
//     successor can win, unless the process stood still, and then what it can
//     still do is what it was in the middle of.
//
// resourceVersions are no numbers here: what is decided on a version that is
// past is dead. A write that changes nothing of what the model keeps (held, a
// kubelet's heartbeat) is left out: all it does is to kill writes and looks,
// which the model lets happen anyway. Time is a fault (AGE) by which longer than
// every timeout passes for one Node. The order of equals (zones, boot times,
// names) is every order: Decide is called under each naming of the nodes. The
// settle time is 0, no node is a control-plane node, and no one asks for a
// reboot by annotation; the hosts have no hook units of their own.
//
// # Symmetry
//
// Ids of turns, boots, processes, UIDs and of epochs that no living term has are compared
// for equality and within one node only, so they are numbered by where they
// first occur. Nodes are interchangeable: a state is its Lease, its terms and the
// sorted numbers of its nodes, each with everything that is about it. States are
// kept whole, not as hashes: two that differ are never taken for one.
//
// # Faults
//
// A run has a number of faults; what ends one (resume, go, recreate) is free.
// The search is breadth first, so the first violation that it comes to is one
// with the shortest script. [Replay] takes a script back.
package explore
