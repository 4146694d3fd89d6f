package e2e

import (
	"context"
	"fmt"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// gateUnit is a hook unit that runs until a file exists. A boot removes that file.
const gateUnit = `[Unit]
Description=waits for /run/open-%[1]s
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'until [ -e /run/open-%[1]s ]; do sleep 0.2; done'
[Install]
WantedBy=lockkeeper-%[1]s.target
`

func gate(stage v1alpha1.State) string { return "gate-" + stage.String() + ".service" }

var hookStages = []v1alpha1.State{v1alpha1.StateBeforeDrain, v1alpha1.StateBeforeReboot, v1alpha1.StateBeforeUncordon}

// testStages holds a turn in each of its states except the last, which nothing can hold, and kills the service there:
// in one turn with SIGKILL, and in another by systemd's watchdog after a SIGSTOP. Each time the next process must stay
// in that state, with the same turn.
func testStages(t *testing.T, f *fleet) {
	h := f.follower(t)
	t.Cleanup(func() {
		if t.Failed() {
			out, err := h.Exec(context.WithoutCancel(t.Context()), "journalctl", "--no-pager", "--lines=40", "--unit=gate-*")
			t.Logf("%s# journalctl --unit=gate-*\n%s%v", h.Name(), out, err)
		}
	})
	const short = "/etc/systemd/system/lockkeeper.service.d/watchdog.conf"
	must(t, h.WriteFile(within(t, soon), short, []byte("[Service]\nWatchdogSec=5s\n"), 0o644))
	for _, s := range hookStages {
		must(t, h.WriteFile(within(t, soon), "/etc/systemd/system/"+gate(s), fmt.Appendf(nil, gateUnit, s), 0o644))
		sh(t, h, "systemctl enable "+gate(s))
	}
	sh(t, h, "systemctl daemon-reload && systemctl restart lockkeeper")
	for _, signal := range []string{"KILL", "STOP"} {
		stagesOf(t, f, h, signal)
	}
	for _, s := range hookStages {
		sh(t, h, "systemctl disable "+gate(s)+" && rm /etc/systemd/system/"+gate(s))
	}
	sh(t, h, "rm "+short+" && systemctl daemon-reload && systemctl restart lockkeeper")
}

// stagesOf runs one turn.
func stagesOf(t *testing.T, f *fleet, h *realhost.Host, signal string) {
	t.Helper()
	boots := h.Boots()
	until(t, soon, h.Name(), "to have published its hook stages", func(n *turn.Node) bool { return n.Host != nil && len(n.Host.HookStages) == len(hookStages) })
	b := block(t, h)
	inhibit(t, h)
	version := f.stage(t, h)
	id := ""
	hurt := func(s v1alpha1.State, words ...string) {
		t.Helper()
		n := until(t, aTurn, h.Name(), "to be in "+s.String(), inState(s))
		if id == "" {
			id = n.Turn
		}
		f.says(t, h, append(words, s.String())...)
		before, err := pid(within(t, soon), h)
		must(t, err)
		sh(t, h, "systemctl kill --signal="+signal+" lockkeeper")
		restarted(t, h, before)
		f.says(t, h, append(words, s.String())...)
		if n := turn.FromNode(node(t, h.Name())); n.State != s || n.Turn != id {
			t.Errorf("after SIG%s the node is in %s of turn %q, expected %s of %q", signal, n.State, n.Turn, s, id)
		}
	}
	open := func(s v1alpha1.State) { sh(t, h, "touch /run/open-"+s.String()) }

	hurt(v1alpha1.StateBeforeDrain, gate(v1alpha1.StateBeforeDrain))
	open(v1alpha1.StateBeforeDrain)
	hurt(v1alpha1.StateDraining, "PodDisruptionBudget")
	b.lift(t)
	hurt(v1alpha1.StateBeforeReboot, gate(v1alpha1.StateBeforeReboot))
	open(v1alpha1.StateBeforeReboot)
	hurt(v1alpha1.StateRebooting, "Inhibited")
	f.booted(t, h, boots)
	letGo(t, h)
	hurt(v1alpha1.StateBeforeUncordon, gate(v1alpha1.StateBeforeUncordon))
	open(v1alpha1.StateBeforeUncordon)
	f.updated(t, aTurn, version, h)
	f.booted(t, h, boots+1)
}
