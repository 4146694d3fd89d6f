// Package identitytest has only tests: what each identity may do under the manifests on a real API server, and what it may
// not, with the layer that refuses it. Without the layer the act succeeds, so that no act is refused for another reason.
package identitytest
