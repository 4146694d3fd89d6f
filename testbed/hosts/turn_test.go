package hosts

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// installed returns the files of lockkeeper as the packages install them, and hook units of this host in every stage,
// each of which records its stage.
func installed(t *testing.T) map[string][]byte {
	t.Helper()
	binary, err := os.ReadFile(lockkeeper)
	must(t, err)
	credential, err := cp.KubeconfigAt(lab.Gateway(), controlplane.CoordinatorUser)
	must(t, err)
	files := map[string][]byte{
		"/usr/bin/lockkeeper":                    binary,
		"/etc/lockkeeper/coordinator.kubeconfig": credential,
		"/etc/lockkeeper/lockkeeper.toml":        []byte("[reboot]\nmin_uptime = \"1m\"\nsession_delay = \"0s\"\n[sources]\nsentinels = [\"/run/restart-bad\"]\n[hooks]\ntimeout = \"5m\"\n"),
		"/etc/systemd/system/lockkeeper.service.d/testbed.conf": []byte("[Service]\nExecStart=\n" +
			"ExecStart=/usr/bin/lockkeeper run\n" +
			"# With any of these the unit has its own /proc, and in a container the machine's boot id.\n" +
			"ProtectProc=default\nProcSubset=all\nProtectKernelTunables=no\nProtectControlGroups=no\n"),
	}
	for _, name := range []string{"systemd/lockkeeper.service", "systemd/lockkeeper-before-drain.target", "systemd/lockkeeper-before-reboot.target",
		"systemd/lockkeeper-before-uncordon.target", "lockkeeper.catalog"} {
		data, err := os.ReadFile(filepath.Join("..", "..", "packaging", name))
		must(t, err)
		to := "/usr/lib/systemd/system/"
		if strings.HasSuffix(name, ".catalog") {
			to = "/usr/lib/systemd/catalog/"
		}
		files[to+filepath.Base(name)] = data
	}
	for _, stage := range []string{"before-drain", "before-reboot", "before-uncordon"} {
		script := fmt.Sprintf("echo %s >>/var/lib/ran; test ! -e /var/lib/broken-%s", stage, stage)
		files["/usr/lib/systemd/system/our-"+stage+".service"] = unit("lockkeeper-"+stage+".target", script, "RemainAfterExit=yes")
	}
	return files
}

// TestTurnsWithHookUnits rolls one host through two updates, with real reboots and the host's own units in every stage.
// In the second update one of the units fails.
func TestTurnsWithHookUnits(t *testing.T) {
	if absent != nil {
		t.Skipf("left out: %v", absent)
	}
	must(t, cp.ApplyLockkeeper(t.Context()))
	_, err := cp.ApplyPolicy(t.Context(), controlplane.TestPolicy, rules)
	must(t, err)
	// The only node would have no drain.
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	_, err = cp.Client().CoreV1().Nodes().Create(t.Context(), other, metav1.CreateOptions{})
	must(t, err)
	files := installed(t)
	files["/usr/lib/systemd/system/plain.service"] = service("Type=exec", sleeps)
	files["/usr/lib/systemd/system/bad.service"] = failing("/run/bad")
	examples := addExamples(t, files)
	h := host(t, "turn-", files, "lockkeeper.service", "plain.service", "bad.service")
	exec(t, h, "journalctl --update-catalog; systemctl enable our-before-drain our-before-reboot our-before-uncordon")
	examples.enable(t, h)
	node := func(what string, within time.Duration, cond func(*corev1.Node) bool) *corev1.Node {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		n, err := cp.WaitNode(ctx, h.Name(), what, func(n *corev1.Node) bool { return n != nil && cond(n) })
		if err != nil {
			t.Fatalf("%v\n%s\n%s", err, exec(t, h, "systemctl status lockkeeper --no-pager -l -n 0"), exec(t, h, "journalctl -u lockkeeper --no-pager -n 40"))
		}
		return n
	}
	n := node("to be idle and to have published its hook stages", 2*time.Minute, func(n *corev1.Node) bool {
		return n.Labels[v1alpha1.LabelState] == "idle" && strings.Contains(n.Annotations[v1alpha1.AnnotationHost], "hookStages")
	})
	rec, err := v1alpha1.ParseHost(n.Annotations[v1alpha1.AnnotationHost])
	must(t, err)
	if got := fmt.Sprint(rec.HookStages); got != "[before-drain before-reboot before-uncordon]" {
		t.Errorf("hook stages %s", got)
	}
	all := "before-drain\nbefore-reboot\nbefore-uncordon"
	idle := func(n *corev1.Node) bool {
		return n.Labels[v1alpha1.LabelState] == "idle" && n.Labels[v1alpha1.LabelWants] == "nothing" && !n.Spec.Unschedulable
	}

	must(t, h.StageUpdate(t.Context(), "4.2.0"))
	node("to want the update", time.Minute, func(n *corev1.Node) bool { return n.Labels[v1alpha1.LabelWants] == "reboot" })
	n = node("to be in before-drain", 4*time.Minute, func(n *corev1.Node) bool { return n.Labels[v1alpha1.LabelState] == "before-drain" })
	// A boot brings this file into effect, so it is no longer a change and causes no turn.
	exec(t, h, "echo changed >/etc/before-boot")
	node("to want the change of the file too", 4*time.Minute, func(n *corev1.Node) bool {
		return strings.Contains(n.Annotations[v1alpha1.AnnotationHost], "/etc/before-boot")
	})
	examples.grant(t, h)
	node("to be updated", 4*time.Minute, idle)
	examples.told(t, h.Name(), n.Annotations[v1alpha1.AnnotationTurn])
	if got := exec(t, h, "cat /var/lib/ran"); got != all || h.Reboots() != 1 {
		t.Errorf("%d reboots; ran:\n%s", h.Reboots(), got)
	}

	exec(t, h, "touch /var/lib/broken-before-uncordon")
	must(t, h.StageUpdate(t.Context(), "4.3.0"))
	n = node("to be held", 4*time.Minute, func(n *corev1.Node) bool {
		return n.Labels[v1alpha1.LabelState] == "before-uncordon" && n.Labels[v1alpha1.LabelHeld] == "Failed"
	})
	const named = "our-before-uncordon.service failed (exit-code, ExecStart=sh status 1): journalctl -u our-before-uncordon.service"
	if !n.Spec.Unschedulable || !strings.Contains(n.Annotations[v1alpha1.AnnotationHost], named) {
		t.Errorf("unschedulable %t, host %s", n.Spec.Unschedulable, n.Annotations[v1alpha1.AnnotationHost])
	}
	says := func(text string) {
		t.Helper()
		status := ""
		defer func() { t.Logf("systemctl status:\n%s", status) }()
		eventually(t, 2*time.Minute, "systemctl status to say "+text, func() bool {
			status = exec(t, h, "systemctl status lockkeeper --no-pager -l -n 0")
			return strings.Contains(status, text)
		})
	}
	says("waits: HookFailed (" + named + ") since ")
	checkJournal(t, h)

	// systemd restarts the units a minute after they failed, and then with increasing delays.
	failed := ranAt(t, h)
	exec(t, h, "rm /var/lib/broken-before-uncordon")
	asked := time.Now()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationRetry, n.Annotations[v1alpha1.AnnotationTurn])
	_, err = cp.Client().CoreV1().Nodes().Patch(t.Context(), h.Name(), types.MergePatchType, patch, metav1.PatchOptions{})
	must(t, err)
	node("to be uncordoned and idle", 4*time.Minute, idle)
	again, ok := strings.CutPrefix(exec(t, h, "cat /var/lib/ran"), all+"\n"+all)
	if !ok || again == "" || strings.ReplaceAll(again, "\nbefore-uncordon", "") != "" || h.Reboots() != 2 {
		t.Errorf("%d reboots; ran:\n%s", h.Reboots(), exec(t, h, "cat /var/lib/ran"))
	}
	if took := ranAt(t, h).Sub(asked); asked.Sub(failed) < 15*time.Second && took > 40*time.Second {
		t.Errorf("after the request the units ran after %v, not earlier than without the request", took)
	}
	examples.told(t, h.Name(), n.Annotations[v1alpha1.AnnotationTurn])
	says("coordinates; idle; up to date since ")
	ran := exec(t, h, "cat /var/lib/ran")
	checkStolen(t, h, node)
	if got := exec(t, h, "cat /var/lib/ran"); got != ran {
		t.Errorf("a host that wants nothing ran hook units for a forged turn:\n%s\nbefore:\n%s", got, ran)
	}
	testApplied(t, h, node)
}

// checkStolen uses a coordinator's credential like a thief: it forges a turn in before-uncordon for a host that wants
// nothing. It waits for the end of the turn, for which the host has to report done.
func checkStolen(t *testing.T, h *realhost.Host, node func(string, time.Duration, func(*corev1.Node) bool) *corev1.Node) {
	t.Helper()
	n := node("to exist", time.Minute, func(*corev1.Node) bool { return true })
	stolen, err := cp.CoordinatorConfig()
	must(t, err)
	thief, err := kubernetes.NewForConfig(stolen)
	must(t, err)
	lease, err := thief.CoordinationV1().Leases(controlplane.LockkeeperNamespace).Get(t.Context(), controlplane.LockkeeperLease, metav1.GetOptions{})
	must(t, err)
	// A turn of another term would be backed out before the host sees it.
	grant := v1alpha1.Grant{Turn: "stolen", Epoch: *lease.Spec.HolderIdentity, NodeUID: string(n.UID), BootID: n.Status.NodeInfo.BootID,
		Wants: v1alpha1.WantsReboot, Drains: true, Terms: policy.Default().Terms, StartedAt: time.Now(), StageAt: time.Now()}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"labels":      map[string]string{v1alpha1.LabelState: string(v1alpha1.StateBeforeUncordon)},
		"annotations": map[string]string{v1alpha1.AnnotationTurn: grant.Turn, v1alpha1.AnnotationGrant: v1alpha1.FormatRecord(&grant)},
	}})
	must(t, err)
	_, err = thief.CoreV1().Nodes().Patch(t.Context(), h.Name(), types.MergePatchType, patch, metav1.PatchOptions{})
	must(t, err)
	node("to have finished the forged turn", 2*time.Minute, func(n *corev1.Node) bool {
		return n.Labels[v1alpha1.LabelState] == "idle" && strings.Contains(n.Annotations[v1alpha1.AnnotationLast], `"turn":"stolen"`) &&
			strings.HasPrefix(n.Annotations[v1alpha1.AnnotationAck], "stolen/")
	})
}

// ranAt returns the time when a unit last recorded its stage, to the second.
func ranAt(t *testing.T, h *realhost.Host) time.Time {
	t.Helper()
	seconds, err := strconv.ParseInt(exec(t, h, "stat -c %Y /var/lib/ran"), 10, 64)
	must(t, err)
	return time.Unix(seconds, 0)
}

// rules defines the actions for changes in TestTurnsWithHookUnits, in addition to its reboots.
const rules = `
rollout: {settle: 2s}
rules:
- source: Request
  actions:
  - {type: DaemonReload}
  - {type: Restart, unit: lockkeeper.service}
  - {type: Restart, unit: plain.service}
- source: File
  path: /etc/before-boot
  actions:
  - {type: Restart, unit: plain.service}
- source: Sentinel
  path: /run/restart-bad
  actions:
  - {type: Restart, unit: bad.service}
`

// testApplied runs turns without a reboot: one restarts several units including lockkeeper itself, and one restarts a
// unit that fails to start.
func testApplied(t *testing.T, h *realhost.Host, node func(string, time.Duration, func(*corev1.Node) bool) *corev1.Node) {
	reboots := h.Reboots()
	runs := func() (lockkeeper, plain string) {
		both := strings.Fields(exec(t, h, "systemctl show -P InvocationID lockkeeper plain"))
		if len(both) != 2 {
			t.Fatalf("invocations: %q", both)
		}
		return both[0], both[1]
	}
	ended := func(result v1alpha1.Result) func(*corev1.Node) bool {
		return func(n *corev1.Node) bool {
			last := v1alpha1.ReadKeys(n.Labels, n.Annotations).Last
			return n.Labels[v1alpha1.LabelState] == "idle" && last != nil && last.Result == result &&
				len(last.Changes) == 1 && last.Changes[0].Source != v1alpha1.SourceOSUpdate
		}
	}
	itself, plain := runs()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"reboot"}}}`, v1alpha1.AnnotationRequest)
	_, err := cp.Client().CoreV1().Nodes().Patch(t.Context(), h.Name(), types.MergePatchType, patch, metav1.PatchOptions{})
	must(t, err)
	node("to have restarted its units", 3*time.Minute, ended(v1alpha1.ResultDone))
	if i, p := runs(); i == itself || p == plain {
		t.Errorf("the invocation of lockkeeper was %s and is %s, the one of the other unit was %s and is %s", itself, i, plain, p)
	}
	if out := exec(t, h, "journalctl --sync; journalctl --no-pager -o cat -b MESSAGE_ID="+string(v1alpha1.MessageStarted)+" | wc -l"); out != "2" {
		t.Errorf("lockkeeper was started %s times in this boot, expected twice", out)
	}

	exec(t, h, "touch /run/bad /run/restart-bad")
	n := node("to have failed", 3*time.Minute, ended(v1alpha1.ResultFailed))
	if last := v1alpha1.ReadKeys(n.Labels, n.Annotations).Last; last.Reason != v1alpha1.ReasonApplyFailed {
		t.Errorf("the turn failed for %s", last.Reason)
	}
	const words = `restart of bad.service failed (exit-code, ExecStart=sh status 3): "no such directive: frobnicate": journalctl -u bad.service`
	if out := exec(t, h, "journalctl --sync; journalctl --no-pager -o cat -u lockkeeper -p err"); !strings.Contains(strings.ReplaceAll(out, "\\", ""), words) {
		t.Errorf("the journal does not contain the unit's own message:\n%s", out)
	}
	if h.Reboots() != reboots || n.Spec.Unschedulable {
		t.Errorf("%d more reboots, unschedulable %t", h.Reboots()-reboots, n.Spec.Unschedulable)
	}
}

// checkJournal checks what a user finds in the journal.
func checkJournal(t *testing.T, h *realhost.Host) {
	t.Helper()
	explained := ""
	defer func() { t.Logf("journalctl -x:\n%s", explained) }()
	for _, want := range []string{
		"Subject: A hook unit of before-uncordon failed",
		"Subject: Node " + h.Name() + " is in before-uncordon",
		"What to do: see the unit in the host's journal.",
		"HookFailed: a hook unit of the host failed.",
	} {
		eventually(t, 2*time.Minute, "journalctl -x to contain "+want, func() bool {
			explained = exec(t, h, "journalctl -x --no-pager -u lockkeeper | sed 's/^░░ \\{0,1\\}//'")
			return strings.Contains(strings.Join(strings.Fields(explained), " "), want)
		})
	}
	if strings.Contains(explained, "@LOCKKEEPER_") {
		t.Error("the catalog refers to a field that an entry does not have")
	}
	for field, want := range map[string]string{
		"LOCKKEEPER_STATE": "rebooting", "LOCKKEEPER_REASON": "HookFailed", "LOCKKEEPER_NODE": h.Name(),
	} {
		if out := exec(t, h, "journalctl --sync; journalctl --no-pager -o cat -F "+field); !strings.Contains(out, want) {
			t.Errorf("%s has the values %q, expected %s among them", field, out, want)
		}
	}
	if out := exec(t, h, "journalctl --sync; journalctl --no-pager -o cat --output-fields=MESSAGE MESSAGE_ID="+string(v1alpha1.MessageTurnBegins)+" | wc -l"); out != "2" {
		t.Errorf("%s turns began, expected 2", out)
	}
}
