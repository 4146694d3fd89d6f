package clienttest

import (
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// A sentinel that comes or goes is published at once, however seldom the host polls.
func TestSentinelIsPublishedBeforeThePoll(t *testing.T) {
	h := startHost(t, func(h *host) { h.opts.PollInterval = time.Hour })
	h.wants("nothing")
	began := time.Now()
	h.want()
	must(t, h.sim.RemoveFile(sentinel))
	h.wants("nothing")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v to publish that it came and went", took)
	}
}

// login logs somebody in.
func (h *host) login(id, user string) *simhost.Terminal {
	h.t.Helper()
	m, err := h.sim.Logind().Login(id, user)
	must(h.t, err)
	h.t.Cleanup(func() { m.Logout() })
	return m
}

const warning = "THIS HOST REBOOTS"

// Who is logged in is warned at the begin of the delay and once more before its end, who comes later when they come, and
// the reboot is not before the time that they were told.
func TestSessionsAreWarnedAndHaveTheirDelay(t *testing.T) {
	const delay = 6 * time.Second
	h := startHost(t, func(h *host) { h.opts.Settings.SessionDelay = delay })
	anna := h.login("1", "anna")
	h.want()
	h.promote("rebooting", onlyNode)
	must(t, anna.WaitText(soon(t), warning, 1))
	began := time.Now()
	h.says("Sessions (anna on pts/")
	for _, text := range []string{"lockkeeper on host: ", "in 6s, at ", "for Sentinel /run/reboot-required", "kubectl annotate node host lockkeeper.dev/paused=", "systemd-inhibit"} {
		if !strings.Contains(anna.Text(), text) {
			t.Errorf("the warning does not say %q:\n%s", text, anna.Text())
		}
	}
	bert := h.login("2", "bert")
	must(t, bert.WaitText(soon(t), warning, 1))
	must(t, anna.WaitText(soon(t), warning, 2))
	lead := time.Since(began)
	if len(h.commits()) > 0 || lead < delay/2 {
		t.Errorf("warned again %v after the first time, with %d commits", lead, len(h.commits()))
	}
	h.acks("rebooting/committed")
	if took := time.Since(began); took < delay-time.Second || took > delay+10*time.Second {
		t.Errorf("it committed %v after the warning, the delay is %v", took, delay)
	}
	h.isCommit(h.commits()[0])
	for _, m := range []*simhost.Terminal{anna, bert} {
		if n := strings.Count(m.Text(), warning); n != 2 {
			t.Errorf("warned %d times:\n%s", n, m.Text())
		}
	}
}

// What comes between ends the delay, and who was warned is told. When it has gone the delay begins anew; nobody waits for
// who has left.
func TestInhibitorInTheDelayCallsOff(t *testing.T) {
	h := startHost(t, func(h *host) { h.opts.Settings.SessionDelay = time.Hour })
	anna := h.login("1", "anna")
	h.want()
	h.promote("rebooting", onlyNode)
	must(t, anna.WaitText(soon(t), warning, 1))
	release := h.sim.Logind().Hold(simhost.Inhibitor{What: "sleep:shutdown", Who: "backup", Why: "the nightly one", Mode: "block", PID: 77})
	h.says("Inhibited (backup (pid 77, sleep:shutdown, block): the nightly one)")
	must(t, anna.WaitText(soon(t), "does not come now: Inhibited (backup", 1))
	release()
	must(t, anna.WaitText(soon(t), warning, 2))
	h.says("Sessions (anna")
	// The host's loop ends: so does what it said.
	h.stop()
	must(t, anna.WaitText(soon(t), "does not come now: lockkeeper was stopped", 1))
	if len(h.commits()) > 0 {
		t.Error("it committed within the delay")
	}
	h.run()
	must(t, anna.WaitText(soon(t), warning, 3))
	must(t, anna.Logout())
	h.acks("rebooting/committed")
}

// Inhibitors that only delay a shutdown, or block something else, are logind's business.
func TestOtherInhibitorsAreNotWaitedFor(t *testing.T) {
	h := startHost(t, nil)
	for _, i := range []simhost.Inhibitor{
		{What: "shutdown", Who: "kubelet", Why: "pods", Mode: "delay"},
		{What: "sleep:idle", Who: "player", Why: "a film", Mode: "block"},
	} {
		h.t.Cleanup(h.sim.Logind().Hold(i))
	}
	h.want()
	h.promote("rebooting", onlyNode)
	h.acks("rebooting/committed")
}
