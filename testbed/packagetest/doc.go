// Package packagetest tests the artefacts of `make packages`, built for it from the tree that it is in: what is in them, what
// linters say of them, that a second build gives the same bytes, and what installing, upgrading and removing them does in a root
// of its own. Nothing is booted here; package realhost is for that.
//
// It has no code but tests.
package packagetest
