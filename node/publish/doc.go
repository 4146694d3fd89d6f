// Package publish writes what the host reports about itself to the API server: its
// HostUpdate, the lifecycle conditions of its Node, and Events about a drain that is
// blocked. Each writer has its own goroutine and delays nothing: where it cannot write,
// the host continues without it.
//
// The package must not know how anything is decided.
package publish
