// Package draintest holds the tests of package drain against a real API server, under the identity that it has on a host, and those
// of what `lockkeeper plan` foresees of a drain. It is a package of its own because the control plane belongs to this module and
// drain to the other.
package draintest
