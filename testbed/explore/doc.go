// Package explore checks the protocol by exhaustive search. It calls the two pure cores, step.Step and rollout.Decide,
// on every state that a model of the environment can reach within bounds. It checks each step against the safety
// properties. From a sample of the states it runs on without further faults and checks that each turn ends, except for
// the causes in [Rests].
//
// The cores are the real ones. The model passes their inputs and outputs through real labels and annotations. The model
// covers:
//
//   - one API server with Nodes and a Lease;
//   - machines with a boot, a kubelet, an update engine and pods;
//   - a host's process with its sources, its watch, its drain, its hook units, the steps of its plan and its reads before
//     a commit (the Node, then the Lease, the sources and the pods);
//   - up to two living terms of coordinators;
//   - writes that are lost, late, or that land after their writer has died;
//   - writes that the API server refuses (a Node that an admission webhook or policy guards), and reads that fail;
//   - admins, with their intents and their requests for reboots.
//
// The model must not know how a core reaches a decision. The properties are in properties.go and progress.go, and the
// steps in the other files. Neither imports any lockkeeper package except the pure ones.
//
// # What one step is
//
// A step is one write, one read of the API server, or one change of a machine. The model uses larger steps only where
// they hide no behavior:
//
//   - A host's decision to write and the landing of that write are one step. The host does nothing else until it gets
//     the answer, its observation does not change in the meantime, and its write lands only if the Node still has the
//     version that the host decided on. So a late decision is equivalent to a slow host.
//   - A host's write whose process dies (crash, KILL) or whose answer is lost (LOSE-HOST) may land later, until the Node
//     has another version (lands-late). A proxy's answer is not the API server's, so it is a lost answer too. After it, a
//     living host does what package node does: it stops the drain, drops its reads and decides again from the version
//     that it knows. So it may send the same write again, or another one.
//   - A host reads the Lease, the sources and the pods in one step: no step elsewhere connects the sources or the pods
//     to the Lease.
//   - A host restarts the two units of its plan one after the other. After the first, its read may be too old, and it
//     reads again. The record of what is done survives its process and not its boot. A step that a dead process began is
//     done again. All units of a hook stage are one run, which is lost with the process and with the boot; what they did
//     elsewhere is not.
//   - A host's watch lags only while the host has, or makes, the reads before a commit. In every other case, what the
//     host does with an older Node is either a write, which conflicts, or a read, which returns the current Node. The
//     remaining case is an eviction, and no property here is about evictions.
//   - A term sees the current Nodes when it decides. Each of its writes may be in flight for any time afterwards,
//     independently of the others. A term runs one round at a time and sends grants last. This covers a lagging view:
//     to decide on a past state is to have decided at that time and to be slow. It does not cover a view in which some
//     Nodes are old while others already contain the term's own writes. Config.Lag adds that case, within smaller
//     bounds.
//   - A write with an unknown outcome (LOSE) may land at any time until the term settles it. When a term ends, it
//     leaves at most one write in flight, from its current round or from the round that it was about to start.
//   - What kube.Write does not recognize as an answer of the API server is a lost answer: a proxy's 5xx, 401, 403 or
//     HTML 404, and a 404 or conflict that the read after it does not confirm. A confirmed 404 is a deleted Node, and a
//     confirmed conflict is a decision on a past version.
//   - A refusal (403, 422, a webhook's 409) lasts from GUARD to unguard, for the coordinator or for the host. The
//     coordinator then writes nothing to the node for a while (until try-again), and Decide receives the refusal. A
//     refusal settles no lost write: the first try may have passed admission, so it may still land. A refused host drops
//     its reads, as in look-expires, and tries again, so its refused write is not a step.
//   - A host's read of the Lease, the sources or the pods before a commit may fail (FAIL-READ), because of an error or
//     a proxy's answer. A read that fails earlier or elsewhere only delays.
//   - The next process on the host of a leader that died frees the Lease (free-lease), at any time. It knows that the leader is
//     dead: it holds the lock that the leader held, in the same boot. What would fool it is in BLANK-LEASE: the Lease of a term that
//     lives has no holder.
//   - A term that lost the Lease decides at most Config.Stale rounds before it notices. The elector of client-go stops
//     it at the renew deadline, before a successor can win, unless the process was frozen. A frozen process can only
//     finish the round that it was in.
//
// The model has no numeric resourceVersions: a write that was decided on a past version is dead. It leaves out writes
// that change nothing that it keeps (the held reason, a kubelet's heartbeat). Such a write could only invalidate other
// writes and reads, which the model allows anyway. Time is a fault (AGE): for one Node, longer than every timeout
// passes. A new term does not know when the previous one last renewed the Lease, as after the Lease was deleted and
// created again: it counts no time of a turn before it took the turn over. Equal candidates (by zone, boot time, name)
// occur in every order, because the model calls Decide under each naming of the nodes. The settle time is 0, or passes
// in a step of its own at any time.
//
// # What is explored by subject
//
// Some parts are explored in configurations of their own, because each multiplies the states, and none of them reads what
// another writes:
//
//   - Hook units, with the faults that end a process or a turn. The other faults meet a hook stage in the configurations
//     with hooks of others: the coordinator's decisions are the same, and those of the host differ only while it runs
//     units.
//   - Requests, on hosts that begin with one and without an update. A turn does not treat the two kinds of changes
//     differently, except at its end.
//   - Steps of a plan, in the plans without a reboot.
//   - The settle time, control-plane nodes and several policies: they decide which turn begins or is backed out, and
//     nothing about a turn. Nodes do not move between policies.
//   - Pods that block the drain. There is one on each node at most: what matters is whether there is one. The host's list of
//     its pods is a step of its own, so it may be as old as it likes. drain.blockTimeout passes in two steps, first by the
//     host's clock, which is ahead, and then by the leader's. A policy that changes to Hold, and a grant in which someone
//     forges that Block is off, are faults. Block without a time is Block before its time is over, so go test explores only
//     the first.
//   - Canaries are the nodes of the first of two policies. That a node has run its version for the time (ran-time) is a step
//     that is always possible, for one node: it covers every order of clocks. A node that is not Ready for a moment (BLIP), a
//     host that reports another version than it runs (LIE), and a newer version (NEWER) are faults. An update engine finds
//     every version that another has found, or the others would wait for it indefinitely.
//   - FleetLock clients reboot their hosts. A client with an update asks (ask), and its request may end without an answer at any
//     time (hang-up). It may reboot the host at any time after it was given permission, or never: another world of progress is
//     one in which no client does. A host's process knows only of the requests that were sent to it. That the client does not ask
//     for long enough (withdrawn) is a step once it has no update; that it reports steady-state before (STEADY), and an answer that
//     it does not receive (LOSE-ANSWER), are faults. A turn ends in the same way no matter who rebooted the host, so go test allows two
//     faults together only of the kinds that change what a client asks for, or could free the slot of a host that it may reboot.
//   - Blackouts begin and end at any time. Every term knows the time, so the one that decides in a blackout grants nothing.
//
// # Symmetry
//
// The ids of turns, boots, processes, UIDs and of epochs without a living term are compared only for equality and only
// within one node. So the model numbers them in the order of their first occurrence. Nodes are interchangeable: a state
// is its Lease, its terms and the sorted numbers of its nodes, each with everything that concerns the node. The search
// keeps states whole instead of their hashes, so it never takes two different states for the same one.
//
// # Progress
//
// Safety is checked for every step that the model allows, and progress for one fair schedule of steps from each state. A
// run to rest takes the steps of processes and machines in a fixed order, and lets time pass for a node that waits. It is
// repeated in worlds in which something that a turn may wait for never comes: a hook's confirmation, an eviction, the
// machine. A turn may rest only for the cause of its world, or for an intent. From that rest, the state runs on in the
// fair world, where the admins undo what they began: then no turn may be left, and no node that wants something.
//
// # Faults
//
// A run has a fixed number of faults. A step that undoes a fault (resume, go, recreate) is free. The search is breadth
// first, so the first violation that it finds has a shortest script. [Replay] runs a script again.
//
// With all kinds of faults, go test explores one fault on two and three nodes, and every pair of faults on one node. A
// soak run explores every pair on two nodes. Two faults on two nodes take too long for go test, so they are split by
// subject. Each subject has the kinds that act on the same clauses:
//
//   - the protocol between hosts and terms: crashes, lost writes and changes of the leader;
//   - answers: what is refused, lost or made up by a proxy, before and after a change of the leader, because a guarded
//     Node matters to other nodes only while its turn is foreign;
//   - intents before and after the leader crashes, which makes the turns foreign. Nodes have intents independently of
//     each other, and meet only in the budget. A living stale leader (TAKE-OVER) adds late grants; a crash leaves one
//     late grant too;
//   - a missing Lease with lost writes and time that passes, with three faults, on one node. It stops every node in the
//     same way, whatever the others do. What it means for the budget takes one fault on two nodes: the deletion may come
//     between any two writes, and the writes in flight may still land.
package explore
