// Package controlplane builds and runs a real Kubernetes control plane from Go modules: etcd, the API server with the Node
// and RBAC authorizers and NodeRestriction, the controller manager, the scheduler, and KWOK for what kubelets do to pods. It
// is what lockkeeper's tests and its demo run against. It needs a Go toolchain and Linux, no root and no containers.
//
// It knows Kubernetes, not lockkeeper: all it has of lockkeeper is the namespace, the Lease and the RBAC that an administrator
// would apply. It must not import any package of lockkeeper's, and nothing that is shipped may import it.
//
// Every process that it starts dies with the process that started it, whatever kills that one. Everything on disk is in one
// directory, which goes with Stop; when its owner ended without one (killed, a panic, a test that timed out) it goes with the next
// Start on the machine.
package controlplane
