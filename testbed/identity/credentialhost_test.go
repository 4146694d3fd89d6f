package identity

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// credentialPlane returns the control plane of the tests of credentials, which start hosts that coordinate. The other tests create
// Nodes without hosts, which would take up the budget.
func credentialPlane() *controlplane.ControlPlane { return credentialPool.Shared() }

// credentialPatience bounds every wait for something that is to happen.
const credentialPatience = 90 * time.Second

// host starts a host that is closed at the end of the test.
func host(t *testing.T, o simhost.Options) *simhost.Host {
	t.Helper()
	must(t, credentialPlane().ApplyLockkeeper(t.Context()))
	o.Binary = binary
	_, err := credentialPlane().ApplyPolicy(t.Context(), controlplane.TestPolicy, "rollout: {settle: 1s}")
	must(t, err)
	h, err := simhost.Start(context.Background(), credentialPlane(), o)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s:\n%s", h.Name(), h.LogTail(60))
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// waitForCredential polls until cond returns true. On a timeout it fails the test with the result of state.
func waitForCredential(t *testing.T, what string, cond func() bool, state func() any) {
	t.Helper()
	deadline := time.After(credentialPatience)
	for !cond() {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			t.Fatalf("timed out waiting for %s: %+v", what, state())
		}
	}
}

// allowed waits until someone may do something, or may not: the API server's authorizers see roles and bindings a moment later.
func allowed(t *testing.T, asked authorizationv1.SubjectAccessReviewSpec, want bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), credentialPatience)
	defer cancel()
	must(t, credentialPlane().WaitAllowed(ctx, asked, want))
}

// view is the host's last word on itself.
func view(h *simhost.Host) local.Status {
	s, _ := local.Read(filepath.Join(h.Root(), local.Dir)) // none yet: the zero Status
	return s
}

// is waits until the host's own view is as cond says.
func is(t *testing.T, h *simhost.Host, what string, cond func(local.Status) bool) (s local.Status) {
	t.Helper()
	waitForCredential(t, what, func() bool { s = view(h); return cond(s) }, func() any { return s })
	return s // what was judged, and not what it says by now
}

func leads(s local.Status) bool { return s.Coordinator.Role == v1alpha1.RoleLeader }

func credentialLease(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	l, err := credentialPlane().Client().CoordinationV1().Leases(controlplane.LockkeeperNamespace).Get(t.Context(), controlplane.LockkeeperLease, metav1.GetOptions{})
	must(t, err)
	return l
}

// place puts a kubeconfig where the host has its coordinator's.
func place(t *testing.T, h *simhost.Host, text []byte) {
	t.Helper()
	must(t, os.WriteFile(h.CoordinatorKubeconfig()+".new", text, 0o600))
	must(t, os.Rename(h.CoordinatorKubeconfig()+".new", h.CoordinatorKubeconfig()))
}
