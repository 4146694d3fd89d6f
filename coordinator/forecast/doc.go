// Package forecast says what would become of nodes if changes came to them, and
// what those come to that are pending now: what `lockkeeper plan` shows.
//
// Nothing of it is its own. What changes cost is said by package policy, what holds
// a node by the coordinator's own Decide, what becomes of a pod by package drain; a
// forecast puts to them the question of how it would be. What it adds is what an
// eviction would meet, from the budgets as they are, and how far down the queue a
// node stands.
//
// [Ends] estimates when the rollout that is under way is over: it plays the rest of it by
// the rules of Decide. `lockkeeper status` shows that.
//
// It must not know where its input is from, and neither writes nor reads anything:
// nodes, policies, pods and budgets in, a Forecast out.
package forecast
