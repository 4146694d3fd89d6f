// Package referee watches a cluster and says whether lockkeeper kept its promises: the budget, the table, the commit, the
// cordons, the evictions, the reboots. It stands next to every test on a real control plane and next to the demo.
//
// It reads what is stored, not what someone serves: one watch on etcd, from the revision of the first list on, so that Nodes,
// the Lease and pods come in the one order in which they were written, past the API server's caches and past any proxy
// that a test puts before it. Nothing is missed without the run being failed for it ([Gap]): etcd counts the versions of
// every key, and each has to be the one after the last.
//
// What is judged is data in, verdicts out (type engine): it has no clock and no client, and each of its rules is shown to
// catch a planted offender. What a rule may demand is what can be proven from the order of writes:
//
//   - Every write of a host or a leader to a Node names the resourceVersion that it was decided on. So the version before a
//     write is the very Node that its writer had read, and its labels, annotations and Ready can be held against it exactly.
//   - A host reads its Node first and the Lease and its pods after it, and its write comes last. So between the version
//     before a commit and the commit there must be a moment in which the Lease named the turn's epoch without a stop, and
//     one in which nothing evictable was on the node.
//   - Nothing else between two objects can be proven by order alone; there a time helps. A mark put into the same stream
//     twice a second tells the earliest time of what comes after it, receiving tells the latest; a rule with a bound
//     breaks only if the shortest time that can have passed is longer than the bound.
//
// It imports the words and the table of lockkeeper and none of its machinery.
package referee
