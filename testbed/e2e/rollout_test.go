package e2e

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
	"lockkeeper.dev/lockkeeper/updateengine"
)

const (
	// workNamespace is the namespace of the fleet's workload.
	workNamespace = "e2e"
	// agentStops is how long the DaemonSet's pods take to stop. It is longer than the testbed's own inhibitor may
	// delay a reboot (2 s), and shorter than the time that the kubelet leaves to pods that are not critical (3 s).
	agentStops = 2500 * time.Millisecond
)

// TestFleet installs lockkeeper on three hosts, rolls them through an update, and then through faults. The subtests
// depend on each other, because the hosts are booted only once.
func TestFleet(t *testing.T) {
	leftOut(t)
	f := startFleet(t)
	steps := []struct {
		name string
		run  func(*testing.T, *fleet)
	}{
		{"Install", testInstall},
		{"NobodyCoordinates", testNobodyCoordinates},
		{"RollsThroughAnUpdate", testRollout},
		{"CredentialRenewsItself", testCredential},
		{"Inhibitors", testInhibitors},
	}
	for _, s := range steps {
		if !t.Run(s.name, func(t *testing.T) { s.run(t, f) }) {
			t.Fatalf("%s failed, and the next steps depend on it", s.name)
		}
	}
	testFaults(t, f)
}

// testInstall applies the manifests and installs the package on each host. The service must run.
func testInstall(t *testing.T, f *fleet) {
	f.each(t, func(h *realhost.Host) error {
		out, err := install(within(t, soon), h, debs.older)
		t.Logf("%s# dpkg -i\n%s", h.Name(), out)
		if err == nil {
			_, err = h.Exec(within(t, soon), "systemctl", "enable", filepath.Base(hookPath))
		}
		return err
	})
	manifests := f.admin(t, "manifests")
	f.run(t, cp.Binaries().Kubectl, manifests, "apply", "-f", "-")
	f.run(t, cp.Binaries().Kubectl, "", "wait", "--for", "condition=Established", "--timeout", "60s", "crd/disruptionpolicies.lockkeeper.dev")
	f.run(t, cp.Binaries().Kubectl, f.admin(t, "manifests", "--policy"), "apply", "-f", "-")
	_, err := cp.ApplyPolicy(within(t, soon), controlplane.TestPolicy, policy)
	must(t, err)
	for _, h := range f.Hosts {
		until(t, soon, h.Name(), "to want nothing", func(n *turn.Node) bool { return n.Wants == v1alpha1.WantsNothing })
		n := node(t, h.Name())
		facts := turn.FromNode(n)
		for who, id := range map[string]string{"the host": h.BootID(), "the kubelet": n.Status.NodeInfo.BootID, "the service": facts.Host.BootID} {
			if id == "" || id != h.BootID() {
				t.Errorf("%s: boot id %s of %s, expected %s", h.Name(), id, who, h.BootID())
			}
		}
		eventually(t, soon, h.Name()+" to name the coordinator of its reboots", func(ctx context.Context) (bool, error) {
			out, err := h.Exec(ctx, "cat", updateengine.CoordinatorPath)
			return out == "NAME=lockkeeper\nSTRATEGY=cluster\nSTATE=running\n", err
		})
		// The hosts do not have the program man.
		out, err := h.Exec(within(t, soon), "systemd-analyze", "verify", "--man=no", "/usr/lib/systemd/system/lockkeeper.service",
			"/usr/lib/systemd/system/lockkeeper-before-drain.target", "/usr/lib/systemd/system/lockkeeper-before-reboot.target",
			"/usr/lib/systemd/system/lockkeeper-before-uncordon.target")
		if err != nil || out != "" {
			t.Errorf("%s: systemd-analyze verify: %v, output %q", h.Name(), err, out)
		}
	}
	f.startWork(t)
	f.show(t, "installed")
}

// startWork runs a Deployment with a budget and two DaemonSets on the hosts. The pods of network are critical.
func (f *fleet) startWork(t *testing.T) {
	t.Helper()
	one := intstr.FromInt32(1)
	must(t, cp.CreateWorkload(within(t, soon), controlplane.Workload{Namespace: workNamespace, Name: "web", Replicas: 3, MaxUnavailable: &one}))
	for name, c := range map[string]struct {
		stops    time.Duration
		priority string
	}{"agent": {stops: agentStops}, "network": {stops: 100 * time.Millisecond, priority: "system-node-critical"}} {
		labels := map[string]string{"app": name}
		_, err := cp.Client().AppsV1().DaemonSets(workNamespace).Create(within(t, soon), &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: appsv1.DaemonSetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{controlplane.StopsAfterAnnotation: c.stops.String()}},
					Spec: corev1.PodSpec{
						PriorityClassName: c.priority,
						Tolerations:       []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
						Containers:        []corev1.Container{{Name: name, Image: "example.invalid/" + name}},
					},
				},
			},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	must(t, cp.WaitWorkload(within(t, soon), workNamespace, "web"))
	f.agents(t, "at first")
}

// agents waits until the DaemonSet's pod runs on each host, and returns the pods' UIDs.
func (f *fleet) agents(t *testing.T, when string) (uids []string) {
	t.Helper()
	pods, err := cp.WaitPods(within(t, soon), workNamespace, "app=agent", "to run on every host "+when, func(pods []*corev1.Pod) bool {
		on := map[string]bool{}
		for _, p := range pods {
			if p.DeletionTimestamp == nil && controlplane.PodReady(p) {
				on[p.Spec.NodeName] = true
			}
		}
		return len(on) == len(f.Hosts)
	})
	must(t, err)
	for _, p := range pods {
		uids = append(uids, string(p.UID))
	}
	return uids
}

// testNobodyCoordinates stages an update on every host without a coordinator. Nothing may happen, and the hosts must
// report the reason.
func testNobodyCoordinates(t *testing.T, f *fleet) {
	version := f.stage(t, f.Hosts...)
	for _, h := range f.Hosts {
		until(t, soon, h.Name(), "to want a reboot", func(n *turn.Node) bool { return n.Wants == v1alpha1.WantsReboot })
	}
	out := f.status(t)
	for _, want := range []string{"No coordinator.", "node-1  absent  reboot", "node-2  absent  reboot", "node-3  absent  reboot"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in lockkeeper status", want)
		}
	}
	for _, h := range f.Hosts {
		f.says(t, h, "no coordinator manages this node", "OSUpdate@"+version, "NoCoordinator") // shown by systemctl status
		if n := node(t, h.Name()); n.Labels[v1alpha1.LabelState] != "" || n.Spec.Unschedulable || h.Boots() != 1 {
			t.Errorf("%s: labels %v, unschedulable %t, %d boots without a coordinator", h.Name(), n.Labels, n.Spec.Unschedulable, h.Boots())
		}
	}
	f.show(t, "an update is staged, nobody coordinates")
}

// atReboot sets a function that is called for each reboot, before the reboot begins.
func (f *fleet) atReboot(do func(host string, at time.Time)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onReboot = do
}

// rebootFacts describe a host at the time when logind announced its reboot.
type rebootFacts struct {
	agents []string // UIDs of the existing DaemonSet pods that were not deleted
	others []string // existing pods that a drain evicts
}

// placeCredential mints the coordinator's kubeconfig and installs it on two hosts.
func (f *fleet) placeCredential(t *testing.T) {
	t.Helper()
	api, err := url.Parse(cp.URL())
	must(t, err)
	file := filepath.Join(t.TempDir(), "coordinator.kubeconfig")
	f.admin(t, "kubeconfig", "--server", "https://"+net.JoinHostPort(lab.Gateway().String(), api.Port()), "--file", file)
	data, err := os.ReadFile(file)
	must(t, err)
	for _, h := range f.Hosts[:2] {
		must(t, h.WriteFile(within(t, soon), credentialPath, data, 0o600))
	}
}

// testRollout gives two hosts the coordinator's credential, and the fleet rolls.
func testRollout(t *testing.T, f *fleet) {
	version := fmt.Sprintf("4.2.%d", f.staged)
	pids, boots := map[string]int{}, map[string]string{}
	for _, h := range f.Hosts {
		p, err := pid(within(t, soon), h)
		must(t, err)
		pids[h.Name()], boots[h.Name()] = p, h.BootID()
	}
	agents := f.agents(t, "before the roll-out")
	var mu sync.Mutex
	facts := map[string]rebootFacts{}
	f.atReboot(func(host string, at time.Time) {
		found := f.podsAt(t, host, at)
		mu.Lock()
		defer mu.Unlock()
		facts[host] = found
	})
	defer f.atReboot(nil)

	f.placeCredential(t)
	until(t, soon, f.Hosts[0].Name(), "to be managed", func(n *turn.Node) bool { return n.State != v1alpha1.StateAbsent })
	leader := f.leader(t)
	if leader != f.Hosts[0] && leader != f.Hosts[1] {
		t.Errorf("%v coordinates without a credential", leader)
	} else if p, err := pid(within(t, soon), leader); err != nil || p != pids[leader.Name()] {
		t.Errorf("%s coordinates as process %d (%v), before %d; expected no restart", leader.Name(), p, err, pids[leader.Name()])
	}
	f.show(t, "the coordinator's kubeconfig is placed on two hosts")

	for range f.Hosts {
		f.showTurn(t)
	}
	f.updated(t, aFleet, version, f.Hosts...)
	f.agents(t, "after the roll-out")
	f.show(t, "updated")
	f.status(t, "--all")
	mu.Lock()
	defer mu.Unlock()
	for _, h := range f.Hosts {
		if h.Boots() != 2 || h.Reboots() != 1 || h.BootID() == boots[h.Name()] {
			t.Errorf("%s: %d boots, %d clean reboots, boot id %s, before %s", h.Name(), h.Boots(), h.Reboots(), h.BootID(), boots[h.Name()])
		}
		if w := words(t, h); w.BootID != h.BootID() || node(t, h.Name()).Status.NodeInfo.BootID != h.BootID() {
			t.Errorf("%s: boot id of the service %s, of the kubelet %s, expected %s", h.Name(), w.BootID, node(t, h.Name()).Status.NodeInfo.BootID, h.BootID())
		}
		at := facts[h.Name()]
		if len(at.agents) != 1 || !slices.Contains(agents, at.agents[0]) || len(at.others) != 0 {
			t.Errorf("%s: %d pods of the DaemonSet at the reboot, expected 1; pods that a drain evicts: %v", h.Name(), len(at.agents), at.others)
		}
		f.inhibitorHonoured(t, h)
		f.turnsCounted(t, h, 1)
	}
}

// podsAt returns the pods on a host at the call for its reboot. The kubelet ends pods right after the call, before the
// test can list them, so a pod that was deleted later than the call counts as existing.
func (f *fleet) podsAt(t *testing.T, host string, at time.Time) (facts rebootFacts) {
	pods, err := cp.Client().CoreV1().Pods("").List(within(t, soon), metav1.ListOptions{FieldSelector: "spec.nodeName=" + host})
	if err != nil {
		t.Errorf("listing the pods of %s: %v", host, err)
		return facts
	}
	for _, p := range pods.Items {
		deleted := false
		if p.DeletionTimestamp != nil {
			asked := p.DeletionTimestamp.Add(-time.Duration(*p.DeletionGracePeriodSeconds) * time.Second)
			deleted = asked.Before(at.Truncate(time.Second))
		}
		switch {
		case p.Labels["app"] == "agent" && !deleted:
			facts.agents = append(facts.agents, string(p.UID))
		case p.Labels["app"] == "web" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed:
			facts.others = append(facts.others, p.Name)
		}
	}
	return facts
}

// showTurn waits for a turn of a host that has not rebooted yet, and logs that host during the turn and after the
// reboot. It logs nothing if all hosts have rebooted.
func (f *fleet) showTurn(t *testing.T) {
	t.Helper()
	var at *realhost.Host
	eventually(t, aTurn, "a host in its turn", func(context.Context) (bool, error) {
		left := 0
		for _, h := range f.Hosts {
			if h.Boots() > 1 {
				continue
			}
			left++
			if n := turn.FromNode(node(t, h.Name())); n.InTurn() {
				at = h
				return true, nil
			}
		}
		return left == 0, nil
	})
	if at == nil {
		return
	}
	t.Logf("======== the turn of %s", at.Name())
	f.showHost(t.Context(), t, at, 8)
	f.status(t)
	must(t, at.WaitBoots(within(t, aTurn), 2))
	must(t, at.WaitReady(within(t, aTurn)))
	f.showHost(t.Context(), t, at, 8)
}

// inhibitorHonoured checks the journal of the previous boot. Between the announcement of the reboot and the reboot,
// logind must have waited for the kubelet, which held its delay inhibitor until its pods had ended: what the drain had
// left, and the critical pods last.
func (f *fleet) inhibitorHonoured(t *testing.T, h *realhost.Host) {
	t.Helper()
	journal, err := h.Exec(within(t, soon), "journalctl", "--no-pager", "--boot=-1", "--output=short-iso-precise", "--utc", "-u", "kubelet", "-u", "systemd-logind", "-u", "hostparts-runtime")
	must(t, err)
	at := map[string]time.Time{}
	const announced, ended, goes = "Shutdown manager detected new shutdown event", "Shutdown manager completed processing shutdown event", "System is rebooting"
	const agent, network = "stopping container agent of pod " + workNamespace + "/agent-", "stopping container network of pod " + workNamespace + "/network-"
	var shown, order []string
	for line := range strings.Lines(journal) {
		for _, what := range []string{announced, ended, goes, agent, network} {
			if strings.Contains(line, what) {
				order = append(order, what)
				stamp, _, _ := strings.Cut(line, " ")
				const second = "2006-01-02T15:04:05.000000" // the zone is +0000, or +00:00 since systemd 255
				if at[what], err = time.Parse(second, stamp[:min(len(second), len(stamp))]); err != nil {
					t.Errorf("%s: %v", h.Name(), err)
				}
				shown = append(shown, strings.TrimSpace(line))
			}
		}
	}
	t.Logf("%s: the end of the previous boot:\n%s", h.Name(), strings.Join(shown, "\n"))
	order = slices.Compact(order) // the kubelet logs the announcement twice
	if len(order) > 1 && order[0] == agent && order[1] == announced && at[announced].Sub(at[agent]) < 100*time.Millisecond {
		order[0], order[1] = announced, agent // the lines of two programs: the journal has them in the order in which it read them
	}
	if want := []string{announced, agent, network}; !slices.Equal(order[:min(len(order), len(want))], want) {
		t.Errorf("%s: the kubelet's shutdown was %q, expected it to begin with %q", h.Name(), order, want)
	}
	// The kubelet releases its inhibitor a moment before it logs that. On a busy machine this may take long, or the
	// host goes down before the line is in the journal. In that case the host must go down later than its pods need to
	// stop after the announcement.
	const moment = 300 * time.Millisecond
	logged := !at[ended].IsZero()
	early := at[goes].Sub(at[announced]) < agentStops-moment && (!logged || at[goes].Before(at[ended].Add(-moment)))
	if at[announced].IsZero() || at[goes].IsZero() || logged && at[ended].Sub(at[announced]) < agentStops/2 || early {
		t.Errorf("%s: logind did not wait for the kubelet: announced %v, pods ended %v, goes down %v", h.Name(), at[announced], at[ended], at[goes])
	}
}

// turnsCounted checks how often the host's hook unit has run.
func (f *fleet) turnsCounted(t *testing.T, h *realhost.Host, turns int) {
	t.Helper()
	out, err := h.Exec(within(t, soon), "cat", hookLog)
	must(t, err)
	if got := strings.Count(out, "\n"); got != turns {
		t.Errorf("%s: the hook unit ran %d times in %d turns", h.Name(), got, turns)
	}
}
