// Package controlplane builds and runs a real Kubernetes control plane from Go modules: etcd, the API server with the Node and RBAC
// authorizers and NodeRestriction, the controller manager, the scheduler, and KWOK, which simulates what kubelets do to pods. lockkeeper's
// tests and its demo run against it. It needs a Go toolchain and Linux, but no root and no containers.
//
// The package knows Kubernetes, not how lockkeeper works. Of lockkeeper it uses only what an administrator uses: the API types, the
// manifests and the coordinator's credential. No shipped package may import it.
//
// Every process that it starts ends with the process that started it, even if that process is killed. All files are in one directory, which
// Stop removes. If the owner ended without Stop (killed, a panic, a test that timed out), the next Start on the machine removes the
// directory.
package controlplane
