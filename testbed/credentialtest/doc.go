// Package credentialtest has only tests: the coordinator's credential is minted, renews itself, ends and is refused, on a real
// API server; and what a process serves of itself, its metrics and its health.
package credentialtest
