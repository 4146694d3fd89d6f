// Package referee watches a cluster and reports violations of lockkeeper's safety properties: the budget, the table, the commit, the
// cordons, the evictions, the reboots. Every test on a real control plane uses it, and so does the demo.
//
// The referee reads etcd itself with one watch, from the revision of the first list on. It therefore receives Nodes, the Lease and pods in the one
// order in which they were written, and bypasses the API server's caches and any fault proxy of the test. If the referee misses a write, the run
// fails ([Gap]): etcd counts the versions of every key, and each version must follow the one before it.
//
// The engine judges. It takes data and returns verdicts, and has no clock and no client. For each of its rules, a test shows that the rule
// catches a planted offender. A rule may demand only what the order of writes can prove:
//
//   - A host or a leader names, in every write to a Node, the resourceVersion on which it decided. The version before a
//     write is therefore the Node that the writer had read. The referee can check the write against exactly the labels,
//     annotations and Ready condition of that version.
//   - A host reads its Node first, then the Lease and its pods, and writes last. Between the version before a commit and
//     the commit there must therefore be a moment in which the Lease named the turn's epoch without a stop, and a moment
//     in which nothing evictable was on the node.
//   - Order alone proves nothing else about two objects. Times help there: the referee writes a mark into the same stream
//     twice a second. The mark gives the earliest time of the writes after it; the time of receipt gives the latest. A
//     rule with a time limit is broken only if the shortest possible elapsed time exceeds the limit.
//
// The package imports lockkeeper's API types and state table, and none of its other code.
package referee
