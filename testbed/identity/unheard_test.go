package identity

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	loop "lockkeeper.dev/lockkeeper/node"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/systemd"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// TestUnheardHost takes the coordinator away from a host that wants something, then its right to look at the Lease, then the Lease: it
// says so by itself. It is the loop of the product with less patience than ten minutes.
func TestUnheardHost(t *testing.T) {
	const name = "unheard"
	sim := simulated(t, name, nil)
	kubeconfig, err := cp.NodeKubeconfig(name)
	must(t, err)
	must(t, sim.WriteFile("/proc/uptime", "3600.00 7200.00\n"))
	must(t, sim.WriteFile("/run/reboot-required", ""))
	var mu sync.Mutex
	var line string
	bus := &systemd.Bus{Address: "unix:path=" + sim.Dir() + "/bus"}
	n, err := loop.New(loop.Options{
		Version:        "test",
		Connect:        kube.New(kube.Options{Identity: v1alpha1.IdentityHost, Paths: []string{kubeconfig}, Version: "test", QPS: 20, Burst: 40}).Client,
		LeaseNamespace: controlplane.LockkeeperNamespace, LeaseName: controlplane.LockkeeperLease,
		Root: sim.Root(), PollInterval: time.Second, Patience: 500 * time.Millisecond,
		Settings: loop.Settings{ManagedByDefault: true, Sentinels: []string{"/run/reboot-required"}, HealthTimeout: time.Minute},
		Logind:   systemd.Logind{Bus: bus}, Units: systemd.Units{Bus: bus},
		Log: slog.New(slog.DiscardHandler),
		Report: func(s local.Host) {
			mu.Lock()
			defer mu.Unlock()
			line = s.Text()
		},
	})
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer bus.Close()
		_ = n.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	says := func(text string) {
		t.Helper()
		until(t, text, func() (bool, error) {
			n.Reload(loop.Settings{ManagedByDefault: true, Sentinels: []string{"/run/reboot-required"}, HealthTimeout: time.Minute}) // it looks again
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(line, text), nil
		})
	}
	lease := func(spec coordinationv1.LeaseSpec) {
		t.Helper()
		l, err := leases(cp.Client()).Get(t.Context(), controlplane.LockkeeperLease, metav1.GetOptions{})
		must(t, err)
		l.Spec = spec
		_, err = leases(cp.Client()).Update(t.Context(), l, metav1.UpdateOptions{})
		must(t, err)
	}
	at := func(ago time.Duration) *metav1.MicroTime { return &metav1.MicroTime{Time: time.Now().Add(-ago)} }

	lease(coordinationv1.LeaseSpec{})
	says("no coordinator manages this node; waits: NoCoordinator (no instance holds the Lease lockkeeper/lockkeeper) since ")
	lease(coordinationv1.LeaseSpec{HolderIdentity: new("gone_1"), LeaseDurationSeconds: new(int32(30)), RenewTime: at(10 * time.Minute)})
	says("waits: NoCoordinator (no instance has renewed the Lease lockkeeper/lockkeeper since ")
	// Someone leads, and has not come to this node yet.
	lease(coordinationv1.LeaseSpec{HolderIdentity: new("there_1"), LeaseDurationSeconds: new(int32(3600)), RenewTime: at(0)})
	says("waits: NoCoordinator (no coordinator has taken this node in) since ")

	must(t, cp.Client().RbacV1().RoleBindings(controlplane.LockkeeperNamespace).Delete(t.Context(), "lockkeeper-host", metav1.DeleteOptions{}))
	t.Cleanup(func() { must(t, cp.ApplyLockkeeper(context.Background())) })
	says("waits: Forbidden (system:node:" + name + " may not get leases.coordination.k8s.io in namespace lockkeeper; apply the manifests: lockkeeper manifests | kubectl apply -f -) since ")
	must(t, cp.ApplyLockkeeper(t.Context()))
	says("waits: NoCoordinator (no coordinator has taken this node in) since ")
	must(t, leases(cp.Client()).Delete(t.Context(), controlplane.LockkeeperLease, metav1.DeleteOptions{}))
	says("waits: NoCoordinator (there is no Lease lockkeeper/lockkeeper; to create it: lockkeeper init")
	must(t, cp.ApplyLockkeeper(t.Context()))
	says("waits: NoCoordinator (no instance holds the Lease lockkeeper/lockkeeper) since ")

	// A coordinator that was there before, and is gone.
	_, err = asCoordinator(t).CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":{"lockkeeper.dev/state":"idle","lockkeeper.dev/held":"Budget"}}}`), metav1.PatchOptions{})
	must(t, err)
	says("idle; waits: NoCoordinator (no instance holds the Lease lockkeeper/lockkeeper) since ")
	must(t, sim.RemoveFile("/run/reboot-required"))
	says("idle; up to date since ")
}
