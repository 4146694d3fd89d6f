package credentialtest

import (
	"context"
	"fmt"
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

var (
	cp     *controlplane.ControlPlane
	binary string
)

func TestMain(m *testing.M) {
	var err error
	if binary, err = simhost.BuildLockkeeper(context.Background(), os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(controlplane.RunTests(m, controlplane.Options{
		Without: []controlplane.Component{controlplane.Scheduler, controlplane.Ballast, controlplane.Pods},
	}, func(c *controlplane.ControlPlane) { cp = c }))
}

// patience bounds every wait for something that is to happen.
const patience = 90 * time.Second

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// host starts a host that is closed at the end of the test.
func host(t *testing.T, o simhost.Options) *simhost.Host {
	t.Helper()
	must(t, cp.ApplyLockkeeper(t.Context()))
	o.Binary = binary
	_, err := cp.ApplyPolicy(t.Context(), controlplane.TestPolicy, "rollout: {settle: 1s}")
	must(t, err)
	h, err := simhost.Start(context.Background(), cp, o)
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

// until waits for a condition that no watch tells of; told says how things stand when it is waited for in vain.
func until(t *testing.T, what string, cond func() bool, told func() any) {
	t.Helper()
	deadline := time.After(patience)
	for !cond() {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			t.Fatalf("waited in vain for %s: %+v", what, told())
		}
	}
}

// allowed waits until somebody may do something, or may not: the API server's authorizers see roles and bindings a moment later.
func allowed(t *testing.T, asked authorizationv1.SubjectAccessReviewSpec, want bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, cp.WaitAllowed(ctx, asked, want))
}

// view is the host's last word on itself.
func view(h *simhost.Host) local.Status {
	s, _ := local.Read(filepath.Join(h.Root(), local.Dir)) // none yet: the zero Status
	return s
}

// is waits until the host's own view is as cond says.
func is(t *testing.T, h *simhost.Host, what string, cond func(local.Status) bool) (s local.Status) {
	t.Helper()
	until(t, what, func() bool { s = view(h); return cond(s) }, func() any { return s })
	return s // what was judged, and not what it says by now
}

func leads(s local.Status) bool { return s.Coordinator.Role == v1alpha1.RoleLeader }

func lease(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	l, err := cp.Client().CoordinationV1().Leases(controlplane.LockkeeperNamespace).Get(t.Context(), controlplane.LockkeeperLease, metav1.GetOptions{})
	must(t, err)
	return l
}

// place puts a kubeconfig where the host has its coordinator's.
func place(t *testing.T, h *simhost.Host, text []byte) {
	t.Helper()
	must(t, os.WriteFile(h.CoordinatorKubeconfig()+".new", text, 0o600))
	must(t, os.Rename(h.CoordinatorKubeconfig()+".new", h.CoordinatorKubeconfig()))
}
