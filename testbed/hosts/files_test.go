package hosts

import (
	"fmt"
	osexec "os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// fileRules defines the actions for changes of files and units in TestFilesAndUnits.
const fileRules = `
rollout: {settle: 1s}
rules:
- source: File
  path: /etc/demo
  actions:
  - {type: Reload, unit: demo.service}
- source: Unit
  unit: dressed.service
  actions:
  - {type: DaemonReload}
  - {type: Restart, unit: dressed.service}
- source: File
  path: /etc/fussy.conf
  actions:
  - {type: Restart, unit: fussy.service}
- source: File
  path: /etc/writer
  actions:
  - {type: Reload, unit: writer.service}
- source: File
  path: /srv/theirs
  actions:
  - {type: None}
- source: File
  path: /etc/node.conf
  actions:
  - {type: Restart, unit: lockkeeper.service}
  - {type: Restart, unit: hostparts-runtime.service}
  - {type: Restart, unit: kubelet.service}
- source: File
  path: /etc/maintenance.conf
  actions:
  - {type: Restart, unit: demo.service}
  - {type: Restart, unit: maintenance.target}
  - {type: Restart, unit: maintenance.service}
`

// watchedHost is a host with rules for its files and units.
type watchedHost struct {
	*realhost.Host
	t      *testing.T
	hist   *history
	begin  time.Time
	last   string          // the last turn's id
	failed v1alpha1.Change // the change that the turn failed for
}

// TestFilesAndUnits changes files and units on a host where lockkeeper is installed, in its sandbox, with rules that
// reload and restart units: while lockkeeper runs, and while it is stopped.
func TestFilesAndUnits(t *testing.T) {
	if absent != nil {
		t.Skipf("left out: %v", absent)
	}
	must(t, cp.ApplyLockkeeper(t.Context()))
	_, err := cp.ApplyPolicy(t.Context(), controlplane.TestPolicy, fileRules)
	must(t, err)
	const dir = "/usr/lib/systemd/system/"
	says := func(word string) string { return "/bin/sh -c 'echo " + word + " >>/var/lib/demo'" }
	files := installed(t)
	files["/etc/demo/conf"] = []byte("one\n")
	files["/etc/fussy.conf"] = []byte("good\n")
	files[dir+"demo.service"] = service("Type=exec", "ExecStartPre="+says("started"), sleeps, "ExecReload="+says("reloaded"))
	files[dir+"dressed.service"] = service("Type=exec", sleeps)
	files[dir+"fussy.service"] = service("Type=notify", "NotifyAccess=all", "ExecStart=/bin/sh -c 'grep -q good /etc/fussy.conf"+
		" || { systemd-notify --status=\"no such directive: frobnicate\"; exit 3; }; systemd-notify --ready; exec sleep infinity'")
	files["/etc/writer/conf"] = []byte("zero\n")
	files[dir+"writer.service"] = service("Type=exec", sleeps, "ExecReload=/bin/sh -c 'test -e /run/mended || echo reloaded >>/etc/writer/conf'")
	h := &watchedHost{t: t, begin: time.Now(), Host: host(t, "files-", files, "lockkeeper.service", "demo.service", "dressed.service", "fussy.service", "writer.service")}
	h.hist = follow(t, h.Name())
	defer exec(t, h.Host, "systemctl stop lockkeeper") // releases its Lease
	h.until(1, "to be managed", func(n *corev1.Node) bool {
		return n.Labels[v1alpha1.LabelState] == "idle" && n.Labels[v1alpha1.LabelWants] == "nothing"
	})

	testStopped(h)
	testFussy(h)
	testWriter(h)
	testRefusedUnit(h)
	testEmptyVar(h)
	if turns := h.hist.turns(); len(turns) != 5 {
		t.Errorf("turns %q, expected 5", turns)
	}
}

func (h *watchedHost) until(since int, what string, cond func(*corev1.Node) bool) (*corev1.Node, []*corev1.Node) {
	h.t.Helper()
	return h.hist.until(since, what, 6*time.Minute, func() string {
		return exec(h.t, h.Host, "systemctl status lockkeeper --no-pager -l -n 0; journalctl -u lockkeeper --no-pager -n 40")
	}, cond)
}

// put replaces a file atomically. Its directory must exist.
func (h *watchedHost) put(name, text string) {
	h.t.Helper()
	if out := exec(h.t, h.Host, fmt.Sprintf("printf '%%s\\n' '%s' >/etc/put && mv /etc/put %s && echo ok", text, name)); out != "ok" {
		h.t.Fatalf("writing %s: %s", name, out)
	}
}

// turn waits for the end of the next turn after a version of the Node. It checks the result and that the Node was not
// cordoned. It returns the states and wants of the Node during the turn.
func (h *watchedHost) turn(since int, what string, result v1alpha1.Result, changes ...string) (n *corev1.Node, states, wants []string) {
	h.t.Helper()
	n, versions := h.until(since, "to have had its turn: "+what, func(n *corev1.Node) bool {
		last := v1alpha1.ReadKeys(n.Labels, n.Annotations).Last
		return n.Labels[v1alpha1.LabelState] == "idle" && last != nil && last.Turn != h.last
	})
	last := v1alpha1.ReadKeys(n.Labels, n.Annotations).Last
	h.last = last.Turn
	h.t.Logf("%v after its start the test has seen %s", time.Since(h.begin).Round(100*time.Millisecond), what)
	var names []string
	for _, c := range last.Changes {
		names = append(names, string(c.Source)+" "+c.Name)
	}
	slices.Sort(names)
	if last.Result != result || !slices.Equal(names, changes) {
		h.t.Errorf("%s: the turn ended as %s (%s) for %q, expected %s for %q", what, last.Result, last.Reason, names, result, changes)
	}
	states, wants, cordoned := course(versions)
	if cordoned {
		h.t.Errorf("%s: the node was cordoned", what)
	}
	return n, states, wants
}

func (h *watchedHost) expect(what, got, want string) {
	h.t.Helper()
	if got != want {
		h.t.Errorf("%s: %q, expected %q", what, got, want)
	}
}

// invocation returns the id of a unit's current invocation.
func (h *watchedHost) invocation(unit string) string {
	h.t.Helper()
	id := exec(h.t, h.Host, "systemctl show -P InvocationID "+unit)
	if len(id) != 32 {
		h.t.Fatalf("the run of %s: %q", unit, id)
	}
	return id
}

func (h *watchedHost) active(units ...string) string {
	return exec(h.t, h.Host, "systemctl is-active "+strings.Join(units, " ")+" | tr '\\n' ' '")
}

// testStopped checks that lockkeeper notices after its start what changed while it was stopped, and handles all of it
// in one turn. One unit is reloaded, another one gets its drop-in, and the kubelet is restarted, with a unit that it
// needs and lockkeeper itself. While the sandbox hides a file that a rule names, lockkeeper reports that and commits
// nothing.
func testStopped(h *watchedHost) {
	units := []string{"dressed", "hostparts-runtime", "kubelet"}
	runs := map[string]string{}
	for _, u := range append(units, "demo") {
		runs[u] = h.invocation(u)
	}
	exec(h.t, h.Host, "systemctl stop lockkeeper; mkdir -p /etc/demo/below /etc/systemd/system/dressed.service.d; install -m 600 -o 65534 /dev/null /srv/theirs")
	h.put("/etc/demo/below/conf", "one")
	h.put("/etc/node.conf", "one")
	since := h.hist.now()
	exec(h.t, h.Host, "systemctl start lockkeeper")
	h.until(since, "to be held for the file that cannot be read", func(n *corev1.Node) bool {
		return n.Labels[v1alpha1.LabelHeld] == "SourceUnreadable" && n.Labels[v1alpha1.LabelWants] == "apply"
	})
	const unread = "waits: SourceUnreadable (File /srv/theirs cannot be read: open /srv/theirs: permission denied)"
	eventually(h.t, 90*time.Second, "systemctl status to say "+unread, func() bool {
		return strings.Contains(exec(h.t, h.Host, "systemctl status lockkeeper --no-pager -l -n 0"), unread)
	})

	// docs/policy.md documents this drop-in. The turn must make systemd load the other drop-in.
	h.put("/etc/systemd/system/lockkeeper.service.d/rules.conf", "[Service]\nCapabilityBoundingSet=CAP_DAC_READ_SEARCH\nProtectHome=read-only")
	exec(h.t, h.Host, "systemctl daemon-reload")
	h.put("/etc/systemd/system/dressed.service.d/new.conf", "[Service]\nEnvironment=NEW=1")
	h.expect("what systemd shows before the turn", exec(h.t, h.Host, "systemctl show -P Environment dressed; systemctl show -P NeedDaemonReload dressed"), "yes")
	exec(h.t, h.Host, "systemctl restart lockkeeper")
	_, states, wants := h.turn(since, "what changed meanwhile", v1alpha1.ResultDone, "File /etc/demo/below/conf", "File /etc/node.conf", "Unit dressed.service")
	h.expect("states", strings.Join(states, " "), "idle applying idle")
	h.expect("wants", strings.Join(wants, " "), "nothing apply nothing")
	for _, u := range units {
		if now := h.invocation(u); now == runs[u] {
			h.t.Errorf("%s was not restarted: it still is the run %s", u, now)
		}
	}
	h.expect("what the unit did that is reloaded", h.text("/var/lib/demo"), "started reloaded")
	h.expect("its run", h.invocation("demo"), runs["demo"])
	h.expect("starts of lockkeeper, by the boot, twice by hand, and by the turn", exec(h.t, h.Host, "journalctl --sync; journalctl --no-pager -o cat --output-fields=MESSAGE MESSAGE_ID="+string(v1alpha1.MessageStarted)+" | wc -l"), "4")
	h.expect("what systemd shows", exec(h.t, h.Host, "systemctl show -P Environment dressed; systemctl show -P NeedDaemonReload dressed"), "NEW=1\nno")
	h.expect("what it runs with", exec(h.t, h.Host, "tr '\\0' '\\n' </proc/$(systemctl show -P MainPID dressed)/environ | grep NEW"), "NEW=1")
	h.expect("who may read what is in effect", exec(h.t, h.Host, "stat -c '%U %a' /var/lib/lockkeeper /var/lib/lockkeeper/baseline.json | tr '\\n' ' '"), "root 700 root 600")
	h.expect("the units", h.active(append(units, "lockkeeper")...), "active active active active")
}

// testFussy checks that a unit that fails to start halts the rollout, and that all outputs name the unit and the
// reason.
func testFussy(h *watchedHost) {
	since := h.hist.now()
	h.put("/etc/fussy.conf", "bad")
	n, _, _ := h.turn(since, "a mistake in a file", v1alpha1.ResultFailed, "File /etc/fussy.conf")
	last := v1alpha1.ReadKeys(n.Labels, n.Annotations).Last
	h.expect("reason", string(last.Reason), "ApplyFailed")
	const words = `restart of fussy.service failed (exit-code, ExecStart=sh status 3): "no such directive: frobnicate": journalctl -u fussy.service`
	rec, err := v1alpha1.ParseHost(n.Annotations[v1alpha1.AnnotationHost])
	must(h.t, err)
	h.expect("the host's record", rec.ApplyFailed, words)
	if out := exec(h.t, h.Host, "journalctl --sync; journalctl --no-pager -o cat -u lockkeeper -p err"); !strings.Contains(strings.ReplaceAll(out, `\`, ""), words) {
		h.t.Errorf("the journal does not contain the unit's own message:\n%s", out)
	}
	h.failed = last.Changes[0]
	h.until(since, "to be held", func(n *corev1.Node) bool { return n.Labels[v1alpha1.LabelHeld] == "Failed" })
	for _, args := range [][]string{{"status", h.Name()}, {"status"}} {
		status := admin(h.t, args...)
		for _, want := range []string{"HALTED: policy test grants nothing", "`lockkeeper retry NODE` clears " + h.Name(), "ApplyFailed", "restart of fussy.service failed (exit-code, ExecStart=sh status 3)"} {
			if !strings.Contains(status, want) {
				h.t.Errorf("lockkeeper %v does not contain %q:\n%s", args, want, status)
			}
		}
	}
}

// testWriter checks that a repaired file counts as another change, but that the rollout stays halted until an admin
// clears the node. The next turn also covers the other changes. A unit that writes the file whose rule reloads it
// causes one failed turn, but no endless series of turns.
func testWriter(h *watchedHost) {
	since := h.hist.now()
	h.put("/etc/fussy.conf", "good again")
	h.put("/etc/writer/conf", "one")
	h.until(since, "to be held although the file is repaired", func(n *corev1.Node) bool {
		rec, err := v1alpha1.ParseHost(n.Annotations[v1alpha1.AnnotationHost])
		mended := func(c v1alpha1.Change) bool { return c.Name == "/etc/fussy.conf" && c.Version != h.failed.Version }
		return err == nil && rec != nil && len(rec.Changes) == 2 && slices.ContainsFunc(rec.Changes, mended) && n.Labels[v1alpha1.LabelHeld] == "Halted"
	})
	h.retry()
	n, _, wants := h.turn(since, "the repair, and a unit that writes its file", v1alpha1.ResultFailed, "File /etc/writer/conf")
	h.expect("the repaired unit", h.active("fussy"), "active")
	h.expect("reason", string(v1alpha1.ReadKeys(n.Labels, n.Annotations).Last.Reason), "StillWanted")
	h.expect("wants", wants[len(wants)-1], "apply")
	h.until(since, "to be held", func(n *corev1.Node) bool {
		last := v1alpha1.ReadKeys(n.Labels, n.Annotations).Last
		return last != nil && last.Turn == h.last && n.Labels[v1alpha1.LabelHeld] != ""
	})
	status := admin(h.t, "status", h.Name())
	for _, want := range []string{"Failed (StillWanted)", "File /etc/writer/conf@", "changed again while it was applied; does a unit of the plan write it?"} {
		if !strings.Contains(status, want) {
			h.t.Errorf("lockkeeper status does not contain %q:\n%s", want, status)
		}
	}

	since = h.hist.now()
	exec(h.t, h.Host, "touch /run/mended")
	h.retry()
	n, states, wants := h.turn(since, "what the unit wrote", v1alpha1.ResultDone, "File /etc/writer/conf")
	h.expect("states", strings.Join(states, " "), "idle applying idle")
	h.expect("wants", strings.Join(wants, " "), "apply nothing")
	h.expect("what it wrote", h.text("/etc/writer/conf"), "one reloaded")
	rec, err := v1alpha1.ParseHost(n.Annotations[v1alpha1.AnnotationHost])
	must(h.t, err)
	h.expect("the host's record", rec.ApplyFailed, "")
}

// testRefusedUnit uses a plan with units that, on this host, are aliases of a unit that reboots it. The policy is
// valid, but the turn must fail before it touches any unit, and the host must stay up.
func testRefusedUnit(h *watchedHost) {
	boot, demo := exec(h.t, h.Host, "cat /proc/sys/kernel/random/boot_id"), h.invocation("demo")
	exec(h.t, h.Host, "for u in target service; do ln -s /usr/lib/systemd/system/$(test $u = target || echo systemd-)reboot.$u /etc/systemd/system/maintenance.$u; done")
	since := h.hist.now()
	h.put("/etc/maintenance.conf", "one")
	n, _, _ := h.turn(since, "a plan that would reboot the host", v1alpha1.ResultFailed, "File /etc/maintenance.conf")
	h.expect("reason", string(v1alpha1.ReadKeys(n.Labels, n.Annotations).Last.Reason), "ApplyFailed")
	rec, err := v1alpha1.ParseHost(n.Annotations[v1alpha1.AnnotationHost])
	must(h.t, err)
	h.expect("the host's record", rec.ApplyFailed, "Restart maintenance.target is refused: on this host the unit is reboot.target, which shuts down or reboots the host without a drain")
	h.expect("the other unit of the plan", h.invocation("demo"), demo)
	h.expect("systemd's jobs", exec(h.t, h.Host, "systemctl list-jobs --no-legend"), "")
	h.expect("the boot", exec(h.t, h.Host, "cat /proc/sys/kernel/random/boot_id"), boot)
}

// testEmptyVar deletes lockkeeper's state, including the key for what it publishes. The change that the last turn
// failed for gets another digest. The node must stay held for it and get no other turn.
func testEmptyVar(h *watchedHost) {
	// held returns the change that the node shows while it is held for its last turn, or "".
	held := func(n *corev1.Node) (version string) {
		rec, err := v1alpha1.ParseHost(n.Annotations[v1alpha1.AnnotationHost])
		if err == nil && rec != nil && len(rec.Changes) == 1 && rec.Changes[0].Name == "/etc/maintenance.conf" && n.Labels[v1alpha1.LabelHeld] == "Failed" {
			return rec.Changes[0].Version
		}
		return ""
	}
	n, _ := h.until(h.hist.now(), "to be held for its failed turn", func(n *corev1.Node) bool { return held(n) != "" })
	key := v1alpha1.DigestKey(held(n))
	since := h.hist.now()
	exec(h.t, h.Host, "systemctl stop lockkeeper; rm -r /var/lib/lockkeeper/*; systemctl start lockkeeper")
	n, versions := h.until(since, "to publish the change under another key", func(n *corev1.Node) bool {
		return held(n) != "" && v1alpha1.DigestKey(held(n)) != key
	})
	if key == "" || v1alpha1.DigestKey(held(n)) == "" {
		h.t.Errorf("the keys are %q before and %q after", key, held(n))
	}
	for _, n := range versions {
		if n.Labels[v1alpha1.LabelHeld] != "Failed" || n.Labels[v1alpha1.LabelWants] != "apply" || n.Labels[v1alpha1.LabelState] != "idle" {
			h.t.Errorf("labels in between: %v", n.Labels)
		}
	}
	h.expect("who may read the key", exec(h.t, h.Host, "stat -c '%U %a' /var/lib/lockkeeper/digest.key"), "root 600")
}

func (h *watchedHost) retry() {
	h.t.Helper()
	if out := admin(h.t, "retry", h.Name()); !strings.Contains(out, "is cleared") {
		h.t.Fatalf("lockkeeper retry: %s", out)
	}
}

// text returns the content of a file, with its lines joined.
func (h *watchedHost) text(file string) string {
	return strings.Join(strings.Fields(exec(h.t, h.Host, "cat "+file)), " ")
}

// admin runs lockkeeper with all rights, but not on the host.
func admin(t *testing.T, args ...string) string {
	t.Helper()
	credential, err := cp.Kubeconfig("testbed:admin", "system:masters")
	must(t, err)
	cmd := osexec.CommandContext(t.Context(), lockkeeper, args...)
	cmd.Env = []string{"KUBECONFIG=" + credential, "HOME=" + t.TempDir()}
	out, _ := cmd.CombinedOutput() // the tests check the output
	return string(out)
}
