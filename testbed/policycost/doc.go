// Package policycost measures the admission policies of the manifests with the API server's own evaluator: what each expression
// costs of what the API server lets it cost, on usual Nodes and on the largest that it stores. An API server refuses a request when
// an expression of a policy that must not fail costs more, so that a Node's content could keep people from cordoning it.
//
// A cost is a number that depends on the expression and on what it reads, not on the machine.
package policycost
