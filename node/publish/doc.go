// Package publish writes the host's reports about itself to the API server: its HostUpdate, the
// lifecycle conditions of its Node, and Events about a blocked drain. Each writer has its own
// goroutine and never delays the host: if a write fails, the host continues without it.
//
// The package must not know how the host decides.
package publish
