package e2e

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// TestPackage takes the package through its life on a host: install, reload, upgrade, stop and upgrade, remove, purge.
// It uses the packaged command line and configuration.
// When the package is removed, and not when it is upgraded, the host gives its node up. No coordinator runs; the test plays it.
func TestPackage(t *testing.T) {
	leftOut(t)
	must(t, cp.ApplyLockkeeper(within(t, soon))) // a host publishes nothing before it has read the policies
	fleet, err := realhost.StartFleet(t.Context(), lab, cp, realhost.FleetOptions{Hosts: 1, Prefix: "spare-", Host: realhost.Options{
		Files: map[string][]byte{dropInPath: []byte(ownProc)},
	}})
	must(t, err)
	t.Cleanup(fleet.Close)
	h := fleet.Hosts[0]
	is := func(property, want string) {
		t.Helper()
		out, err := h.Exec(within(t, soon), "systemctl", property, "lockkeeper")
		if _, exited := errors.AsType[*realhost.ExecError](err); !exited {
			must(t, err)
		}
		if got := strings.TrimSpace(out); got != want {
			t.Errorf("systemctl %s lockkeeper: %q, expected %q", property, got, want)
		}
	}
	do := func(args ...string) string {
		t.Helper()
		out, err := h.Exec(within(t, soon), args...)
		t.Logf("# %s\n%s", strings.Join(args, " "), out)
		must(t, err)
		return out
	}
	put := func(deb string) {
		t.Helper()
		out, err := install(within(t, soon), h, deb)
		t.Logf("# dpkg -i\n%s", out)
		must(t, err)
		if strings.Contains(out, " leaves") {
			t.Errorf("the host leaves although the package was installed or upgraded: %s", out)
		}
	}

	put(debs.older)
	is("is-enabled", "enabled")
	is("is-active", "active")
	until(t, soon, h.Name(), "to have published", func(n *turn.Node) bool { return n.Host != nil && n.Host.Version == "v"+olderVersion })

	if out := do("systemctl", "show", "--property=ExecStart", "--value", "lockkeeper"); !strings.Contains(out, "argv[]=/usr/bin/lockkeeper run ;") {
		t.Errorf("the command line differs from the package: %s", out)
	}

	const edited = "# edited by an administrator"
	do("sh", "-c", "echo '"+edited+"' >>/etc/lockkeeper/lockkeeper.toml")
	before, err := pid(within(t, soon), h)
	must(t, err)
	do("systemctl", "reload", "lockkeeper")
	eventually(t, soon, "the reload to be in the journal", func(ctx context.Context) (bool, error) {
		said, err := h.Journal(ctx, "lockkeeper.service")
		return strings.Contains(said, "configuration reloaded"), err
	})
	if now, err := pid(within(t, soon), h); err != nil || now != before {
		t.Errorf("PID %d (%v) after a reload, before %d", now, err, before)
	}

	put(debs.newer)
	restarted(t, h, before)
	until(t, soon, h.Name(), "to be upgraded", func(n *turn.Node) bool { return n.Host != nil && n.Host.Version == "v"+newerVersion })
	if text := do("cat", "/etc/lockkeeper/lockkeeper.toml"); !strings.Contains(text, edited) {
		t.Error("the administrator's edit is gone after an upgrade")
	}

	do("systemctl", "stop", "lockkeeper")
	put(debs.older) // a downgrade
	is("is-active", "inactive")
	do("systemctl", "start", "lockkeeper")
	until(t, soon, h.Name(), "to be downgraded", func(n *turn.Node) bool { return n.Host != nil && n.Host.Version == "v"+olderVersion })

	coordinate(t, h.Name(), `{"metadata":{"labels":{"lockkeeper.dev/state":"idle"}}}`)
	released := make(chan error, 1)
	go func() {
		_, err := cp.WaitNode(within(t, soon), h.Name(), "to say that it is not managed", func(n *corev1.Node) bool {
			return n != nil && strings.Contains(n.Annotations[v1alpha1.AnnotationHost], `"managed":false`)
		})
		released <- err
		coordinate(t, h.Name(), `{"metadata":{"labels":{"lockkeeper.dev/state":null,"lockkeeper.dev/wants":null,"lockkeeper.dev/held":"Unmanaged"},`+
			`"annotations":{"lockkeeper.dev/host":null}}}`)
	}()
	out := do("dpkg", "-r", "lockkeeper")
	must(t, <-released)
	if !strings.Contains(out, h.Name()+" leaves; waiting up to 2m") || !strings.Contains(out, h.Name()+" has left.") {
		t.Error("dpkg -r does not say that the host has left")
	}
	if got := ourKeys(t, h.Name()); got != "held" {
		t.Errorf("after its removal the Node has %q, expected only held", got)
	}
	is("is-active", "inactive")
	do("sh", "-c", "test ! -e /usr/bin/lockkeeper && grep -q '"+edited+"' /etc/lockkeeper/lockkeeper.toml")
	put(debs.older)
	is("is-enabled", "enabled")
	is("is-active", "active")
	until(t, soon, h.Name(), "to be published again after its removal", func(n *turn.Node) bool { return n.Host != nil && n.Host.Managed })
	do("dpkg", "-P", "lockkeeper") // no coordinator has adopted it, so the host removes its keys
	if got := ourKeys(t, h.Name()); got != "held" {
		t.Errorf("purged, the Node has %q, expected only held", got)
	}
	do("sh", "-c", "test ! -e /etc/lockkeeper && test ! -e /var/cache/lockkeeper && test ! -e /etc/systemd/system/multi-user.target.wants/lockkeeper.service")
	if out := do("systemctl", "--failed", "--no-legend"); strings.Contains(out, "lockkeeper") {
		t.Errorf("systemd still knows the unit: %s", out)
	}
}

// coordinate patches a Node as the coordinator.
func coordinate(t *testing.T, name, patch string) {
	t.Helper()
	config, err := cp.CoordinatorConfig()
	must(t, err)
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	_, err = client.CoreV1().Nodes().Patch(within(t, soon), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "lockkeeper-coordinator"})
	if err != nil {
		t.Error(err)
	}
}

// ourKeys returns lockkeeper's labels and annotations on a Node, sorted, without their prefix.
func ourKeys(t *testing.T, name string) string {
	t.Helper()
	n, err := cp.Client().CoreV1().Nodes().Get(within(t, soon), name, metav1.GetOptions{})
	must(t, err)
	var keys []string
	for _, m := range []map[string]string{n.Labels, n.Annotations} {
		for key := range m {
			if short, ours := strings.CutPrefix(key, v1alpha1.Prefix); ours {
				keys = append(keys, short)
			}
		}
	}
	slices.Sort(keys)
	return strings.Join(keys, " ")
}
