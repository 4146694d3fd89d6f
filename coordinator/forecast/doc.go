// Package forecast predicts what changes would cause on nodes, and what the changes that
// are pending now will cause. `lockkeeper plan` shows the result.
//
// The package has no rules of its own. Package policy says what changes cost, the
// coordinator's Decide says what holds a node, and package drain says what a drain does
// with a pod. The forecast calls them with the changes applied. It adds which
// PodDisruptionBudgets would refuse evictions now, and each node's position in the queue.
//
// [Ends] estimates when the current rollout will be over. It simulates the rest of the
// rollout by the rules of Decide. `lockkeeper status` shows the estimate.
//
// The package is pure: nodes, policies, pods and budgets in, a Forecast out. It must not
// know where its input comes from.
package forecast
