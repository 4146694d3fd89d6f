// Package policytest has only tests: what the API server refuses of a DisruptionPolicy, what it writes into one that says
// little, and what it tells of them in `kubectl get`, all on a real API server. Each counter-example is also read by
// policy.Compile, so that the two do not drift apart: an object may be older than the schema, and the schema is not all.
//
// How policies are obeyed is tested elsewhere.
package policytest
