package e2e

import (
	"context"
	"errors"
	"maps"
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

// shell is an administrator's shell on a host.
type shell struct {
	*testing.T
	host *realhost.Host
}

// do runs a script, and ends the test if one of its commands fails.
func (s shell) do(script string) string {
	s.Helper()
	out, err := s.host.Exec(within(s.T, soon), "sh", "-ec", script)
	s.Logf("# %s\n%s", strings.TrimSpace(script), out)
	must(s.T, err)
	return out
}

// is checks what systemctl says of the service. Its exit status does not count.
func (s shell) is(property, want string) {
	s.Helper()
	out, err := s.host.Exec(within(s.T, soon), "systemctl", property, "lockkeeper")
	if _, exited := errors.AsType[*realhost.ExecError](err); !exited {
		must(s.T, err)
	}
	if got := strings.TrimSpace(out); got != want {
		s.Errorf("systemctl %s lockkeeper: %q, expected %q", property, got, want)
	}
}

// runs waits until the host has published that it is managed and runs a version, and knows on the host, too, which Node is its own.
func (s shell) runs(version string) {
	s.Helper()
	until(s.T, soon, s.host.Name(), "to run "+version, func(n *turn.Node) bool {
		return n.Host != nil && n.Host.Managed && n.Host.Version == "v"+version
	})
	eventually(s.T, soon, "the host's status to have the Node's UID", func(ctx context.Context) (bool, error) {
		_, err := s.host.Exec(ctx, "grep", "-q", `"uid":`, "/run/lockkeeper/status.json")
		return err == nil, nil
	})
}

// puts runs a script that installs or upgrades the package. The host must not give its node up for that.
func (s shell) puts(script string) {
	s.Helper()
	if out := s.do(script); strings.Contains(out, " leaves") {
		s.Errorf("the host leaves although the package was installed or upgraded: %s", out)
	}
}

// restarts runs a script that makes the service run again with another process.
func (s shell) restarts(script string) {
	s.Helper()
	before, err := pid(within(s.T, soon), s.host)
	must(s.T, err)
	s.puts(script)
	restarted(s.T, s.host, before)
}

const (
	edited     = "# edited by an administrator"
	editConfig = "echo '" + edited + "' >>/etc/lockkeeper/lockkeeper.toml"
)

// stillEdited checks that an administrator's edit of the configuration has survived.
func (s shell) stillEdited() {
	s.Helper()
	if text := s.do("cat /etc/lockkeeper/lockkeeper.toml"); !strings.Contains(text, edited) {
		s.Error("the administrator's edit is gone")
	}
}

// TestPackage takes the deb and then the rpm through their lives on a host: install, reload, upgrade, stop and downgrade,
// remove. It uses the packaged command line and configuration. When a package is removed, and not when it is upgraded,
// the host gives its node up. No coordinator runs; the test plays it.
func TestPackage(t *testing.T) {
	leftOut(t)
	must(t, cp.ApplyLockkeeper(within(t, soon))) // a host publishes nothing before it has read the policies
	w := startWebsite(t)
	files := w.clientFiles()
	maps.Copy(files, rpmFiles)
	files[dropInPath] = []byte(ownProc)
	fleet, err := realhost.StartFleet(t.Context(), lab, cp, realhost.FleetOptions{Hosts: 1, Prefix: "spare-", Host: realhost.Options{
		Files: files, Binds: rpmBinds,
	}})
	must(t, err)
	t.Cleanup(fleet.Close)
	if t.Run("deb", func(t *testing.T) { testDeb(shell{t, fleet.Hosts[0]}, w) }) { // the rpm needs a host without the deb
		t.Run("rpm", func(t *testing.T) { testRPM(shell{t, fleet.Hosts[0]}) })
	}
}

// testDeb installs the package from the repository with the commands of docs/download.md, and upgrades it from there.
func testDeb(s shell, w *website) {
	w.onlySource(s)
	w.publish(debs.older)
	s.puts(downloadCommands(s.T, "Debian and Ubuntu"))
	s.is("is-enabled", "enabled")
	s.is("is-active", "active")
	s.runs(olderVersion)
	if out := s.do("systemctl show --property=ExecStart --value lockkeeper"); !strings.Contains(out, "argv[]=/usr/bin/lockkeeper run ;") {
		s.Errorf("the command line differs from the package: %s", out)
	}

	s.do(editConfig)
	before, err := pid(within(s.T, soon), s.host)
	must(s.T, err)
	s.do("systemctl reload lockkeeper")
	eventually(s.T, soon, "the reload to be in the journal", func(ctx context.Context) (bool, error) {
		said, err := s.host.Journal(ctx, "lockkeeper.service")
		return strings.Contains(said, "configuration reloaded"), err
	})
	if now, err := pid(within(s.T, soon), s.host); err != nil || now != before {
		s.Errorf("PID %d (%v) after a reload, before %d", now, err, before)
	}

	w.publish(debs.newer)
	s.restarts("apt-get update; apt-get upgrade -y")
	s.runs(newerVersion)
	s.stillEdited()

	s.do("systemctl stop lockkeeper")
	must(s.T, s.host.CopyIn(within(s.T, soon), debs.older, debPath))
	s.puts("apt-get install -y --allow-downgrades " + debPath)
	s.is("is-active", "inactive")
	s.do("systemctl start lockkeeper")
	s.runs(olderVersion)

	s.refusesConfig()
	s.puts("apt-get upgrade -y")
	s.is("is-active", "active")
	s.runs(newerVersion)
	removeDeb(s)
}

// refusesConfig makes the service end because of a key that it does not know, as after a downgrade. Then the configuration is the one from
// before, as for the version that knows the key, and the service is dead until it is started again.
func (s shell) refusesConfig() {
	s.Helper()
	if status := s.do(`cd /etc/lockkeeper && cp -a lockkeeper.toml /root/ && echo 'newer = 1' >>lockkeeper.toml
systemctl restart lockkeeper 2>/dev/null || systemctl show -p ExecMainStatus --value lockkeeper
mv /root/lockkeeper.toml .`); strings.TrimSpace(status) != "78" {
		s.Errorf("with an unknown key the service's exit status is %q, expected 78", status)
	}
	s.is("is-active", "failed")
}

// removeDeb removes the package, installs it again, and purges it.
func removeDeb(s shell) {
	name := s.host.Name()
	coordinate(s.T, name, `{"metadata":{"labels":{"lockkeeper.dev/state":"idle"}}}`)
	released := make(chan error, 1)
	go func() {
		_, err := cp.WaitNode(within(s.T, soon), name, "to say that it is not managed", func(n *corev1.Node) bool {
			return n != nil && strings.Contains(n.Annotations[v1alpha1.AnnotationHost], `"managed":false`)
		})
		released <- err
		coordinate(s.T, name, `{"metadata":{"labels":{"lockkeeper.dev/state":null,"lockkeeper.dev/wants":null,"lockkeeper.dev/held":"Unmanaged"},`+
			`"annotations":{"lockkeeper.dev/host":null}}}`)
	}()
	s.leaves("apt-get remove -y lockkeeper", "held")
	must(s.T, <-released)
	s.is("is-active", "inactive")
	s.do("test ! -e /usr/bin/lockkeeper")
	s.stillEdited()
	s.puts("apt-get install -y lockkeeper")
	s.is("is-enabled", "enabled")
	s.is("is-active", "active")
	s.runs(newerVersion)
	s.leaves("apt-get purge -y lockkeeper", "held") // no coordinator has adopted it, so the host removes its keys
	s.is("is-active", "inactive")
	s.do("test ! -e /etc/lockkeeper && test ! -e /var/cache/lockkeeper && test ! -e /etc/systemd/system/multi-user.target.wants/lockkeeper.service")
	s.notFailed()
}

// leaves runs a script that makes the host give its node up. keys are what stays on the Node; see ourKeys.
func (s shell) leaves(script, keys string) string {
	s.Helper()
	out, name := s.do(script), s.host.Name()
	if !strings.Contains(out, name+" leaves; waiting up to 2m") || !strings.Contains(out, name+" has left.") {
		s.Errorf("the host does not say that it has left: %s", out)
	}
	if got := ourKeys(s.T, name); got != keys {
		s.Errorf("after %s the Node has %q, expected %q", script, got, keys)
	}
	return out
}

// notFailed checks that systemd does not list the service as a failed one.
func (s shell) notFailed() {
	s.Helper()
	if out := s.do("systemctl --failed --no-legend"); strings.Contains(out, "lockkeeper") {
		s.Errorf("systemd lists the unit as failed: %s", out)
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
