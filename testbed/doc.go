// Package testbed is the root of lockkeeper's testbed: a module of its own that holds what lockkeeper is tested and shown
// against. The rooms are its subfolders; this package has no code.
//
//   - controlplane builds and runs a real Kubernetes control plane;
//   - controlplane/binaries is a module without packages: it pins the control plane's own sources, so that what the rest of the
//     testbed imports never changes, and never rebuilds, the control plane.
//
// Nothing that is shipped imports the testbed.
package testbed
