package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// blockade is a pod that can run on only one host, with a PodDisruptionBudget that allows no eviction, so a drain waits
// for it.
type blockade struct{ namespace string }

var blockades int

func block(t *testing.T, h *realhost.Host) *blockade {
	t.Helper()
	blockades++
	b := &blockade{fmt.Sprint("blockade-", blockades)}
	none := intstr.FromInt32(0)
	t.Cleanup(func() {
		if err := cp.Client().CoreV1().Namespaces().Delete(context.Background(), b.namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	must(t, cp.CreateWorkload(within(t, soon), controlplane.Workload{
		Namespace: b.namespace, Name: "db", Replicas: 1, MaxUnavailable: &none,
		NodeSelector: map[string]string{corev1.LabelHostname: h.Name()},
	}))
	must(t, cp.WaitWorkload(within(t, soon), b.namespace, "db"))
	return b
}

// lift allows the eviction of the pod.
func (b *blockade) lift(t *testing.T) {
	t.Helper()
	_, err := cp.Client().PolicyV1().PodDisruptionBudgets(b.namespace).Patch(within(t, soon), "db", types.MergePatchType,
		[]byte(`{"spec":{"maxUnavailable":1}}`), metav1.PatchOptions{})
	must(t, err)
}

// drainBlocked stages an update on a host and waits until a blockade blocks its drain.
func (f *fleet) drainBlocked(t *testing.T, h *realhost.Host) (version string, b *blockade) {
	t.Helper()
	b = block(t, h)
	version = f.stage(t, h)
	f.draining(t, h)
	return version, b
}

// draining waits until the host drains, waits for its blockade, and reports that.
func (f *fleet) draining(t *testing.T, h *realhost.Host) {
	t.Helper()
	until(t, aTurn, h.Name(), "to drain", func(n *turn.Node) bool { return n.State == v1alpha1.StateDraining && n.Mark && n.Unschedulable })
	f.says(t, h, "draining", "PodDisruptionBudget")
}

// says waits until a host's status line contains all the words.
func (f *fleet) says(t *testing.T, h *realhost.Host, all ...string) {
	t.Helper()
	said := ""
	eventually(t, soon, fmt.Sprintf("%s to report %q", h.Name(), all), func(ctx context.Context) (bool, error) {
		out, err := h.Exec(ctx, "systemctl", "show", "--property=StatusText", "--value", "lockkeeper")
		said = strings.TrimSpace(out)
		for _, w := range all {
			if !strings.Contains(said, w) && err == nil {
				err = fmt.Errorf("its status is %q", said)
			}
		}
		return err == nil, err
	})
	t.Logf("%s says: %s", h.Name(), said)
}

// restarted waits until a process other than before runs, and returns its pid.
func restarted(t *testing.T, h *realhost.Host, before int) (now int) {
	t.Helper()
	eventually(t, soon, "lockkeeper on "+h.Name()+" to run again", func(ctx context.Context) (ok bool, err error) {
		now, err = pid(ctx, h)
		if err != nil || now == 0 || now == before {
			return false, err
		}
		state, err := h.Exec(ctx, "systemctl", "is-active", "lockkeeper")
		return strings.TrimSpace(state) == "active", err
	})
	t.Logf("lockkeeper on %s was process %d and is %d", h.Name(), before, now)
	return now
}

// kill kills lockkeeper, and returns when systemd has restarted it.
func kill(t *testing.T, h *realhost.Host) {
	t.Helper()
	before, err := pid(within(t, soon), h)
	must(t, err)
	_, err = h.Exec(within(t, soon), "systemctl", "kill", "--signal=KILL", "lockkeeper")
	must(t, err)
	restarted(t, h, before)
}

// inhibit makes root hold a block inhibitor against a shutdown of the host, as "somebody"; letGo releases it.
func inhibit(t *testing.T, h *realhost.Host) { inhibitAs(t, h, "root", "somebody") }

func letGo(t *testing.T, h *realhost.Host) { letGoOf(t, h, "somebody") }

// inhibitAs makes a user hold a block inhibitor against a shutdown of the host under the name who; letGoOf(who)
// releases it.
func inhibitAs(t *testing.T, h *realhost.Host, user, who string) {
	t.Helper()
	_, err := h.Exec(within(t, soon), "systemd-run", "--uid="+user, "--unit="+inhibitorUnit(who), "systemd-inhibit", "--what=shutdown",
		"--mode=block", "--who="+who, "--why=a backup runs", "sleep", "infinity")
	must(t, err)
	eventually(t, soon, "the inhibitor of "+who, func(ctx context.Context) (bool, error) {
		all, err := h.Inhibitors(ctx)
		return slices.ContainsFunc(all, func(i realhost.Inhibitor) bool { return i.Who == who && (i.UID == 0) == (user == "root") }), err
	})
}

func letGoOf(t *testing.T, h *realhost.Host, who string) {
	t.Helper()
	_, err := h.Exec(within(t, soon), "systemctl", "stop", inhibitorUnit(who))
	must(t, err)
}

func inhibitorUnit(who string) string { return "inhibitor-of-" + who + ".service" }
