package client

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// TestSentinelIsPublishedBeforeThePoll checks that the host publishes a new or removed sentinel at once, without
// waiting for its poll.
func TestSentinelIsPublishedBeforeThePoll(t *testing.T) {
	h := startHost(t, func(h *host) { h.opts.PollInterval = time.Hour })
	h.wants("nothing")
	for _, change := range []struct {
		word string
		make func() error
	}{
		{"reboot", func() error { return h.sim.WriteFile(sentinel, "") }},
		{"nothing", func() error { return h.sim.RemoveFile(sentinel) }},
	} {
		made := time.Now()
		must(t, change.make())
		h.wants(change.word)
		writes := slices.DeleteFunc(h.w.requests("PATCH node"), func(r request) bool {
			return r.at.Before(made) || !strings.Contains(r.body, `"lockkeeper.dev/wants":"`+change.word+`"`)
		})
		if len(writes) == 0 {
			t.Fatalf("no write says that the host wants %s", change.word)
		}
		if took := writes[0].at.Sub(made); took > 20*time.Second { // without a reason the loop runs every 30 s
			t.Errorf("the host took %v to publish that it wants %s", took, change.word)
		}
	}
}

// login logs a user in.
func (h *host) login(id, user string) *simhost.Terminal {
	h.t.Helper()
	m, err := h.sim.Logind().Login(id, user)
	must(h.t, err)
	h.t.Cleanup(func() { m.Logout() })
	return m
}

const warning = "THIS HOST REBOOTS"

// announced matches the delay until the reboot, in seconds, and the time of the reboot in a warning.
var announced = regexp.MustCompile(`in (\d+)s, at (\d\d:\d\d:\d\d)`)

// announcedTime returns the time in the first warning, on the day of near.
func announcedTime(t *testing.T, text string, near time.Time) time.Time {
	t.Helper()
	clock, err := time.ParseInLocation(time.TimeOnly, announced.FindStringSubmatch(text)[2], time.Local)
	must(t, err)
	y, m, d := near.Date()
	told := time.Date(y, m, d, clock.Hour(), clock.Minute(), clock.Second(), 0, time.Local)
	if told.Sub(near) > 12*time.Hour { // the time is after midnight
		told = told.AddDate(0, 0, -1)
	}
	return told
}

// TestSessionsAreWarnedAndHaveTheirDelay checks that users who are logged in get a warning at the start of the delay
// and another one before its end, that users who log in later get one when they log in, and that the host does not
// reboot before the announced time.
func TestSessionsAreWarnedAndHaveTheirDelay(t *testing.T) {
	const delay, lead = 24 * time.Second, 6 // the second warning is a quarter of the delay before its end, in seconds
	h := startHost(t, func(h *host) { h.opts.Settings.SessionDelay = delay })
	anna := h.login("1", "anna")
	h.want()
	asked := time.Now()
	h.promote("rebooting", onlyNode)
	must(t, anna.WaitText(soon(t), warning, 1))
	h.says("Sessions (anna on pts/")
	for _, text := range []string{"lockkeeper on host: ", "in 24s, at ", "for Sentinel /run/reboot-required", "lockkeeper pause host --reason ", "systemd-inhibit"} {
		if !strings.Contains(anna.Text(), text) {
			t.Errorf("the warning does not say %q:\n%s", text, anna.Text())
		}
	}
	bert := h.login("2", "bert")
	must(t, bert.WaitText(soon(t), warning, 1))
	must(t, anna.WaitText(soon(t), warning, 2))
	if left, err := strconv.Atoi(announced.FindAllStringSubmatch(anna.Text(), -1)[1][1]); err != nil || left > lead {
		t.Errorf("the terminal after the second warning:\n%s", anna.Text())
	}
	h.acks("rebooting/committed")
	commit := h.committed()[0]
	// The announced time, without fractions of a second, is the earliest.
	due := announcedTime(t, anna.Text(), commit.at)
	if commit.at.Before(due) || commit.at.After(due.Add(patience)) || due.Add(time.Second).Before(asked.Add(delay)) {
		t.Errorf("promoted at %v, warned of a reboot at %v, committed at %v; the delay is %v", asked, due, commit.at, delay)
	}
	h.isCommit(commit)
	for _, m := range []*simhost.Terminal{anna, bert} {
		if n := strings.Count(m.Text(), warning); n != 2 {
			t.Errorf("warned %d times:\n%s", n, m.Text())
		}
	}
}

// TestInhibitorInTheDelayCallsOff checks that an inhibitor during the delay ends the delay and that the warned users
// get a message. When the inhibitor is gone the delay starts again. The host does not wait for users who have logged
// out.
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
	// The host's loop stops, so the announcement is withdrawn.
	h.stop()
	must(t, anna.WaitText(soon(t), "does not come now: lockkeeper was stopped", 1))
	if len(h.commits()) > 0 {
		t.Error("the host committed within the delay")
	}
	h.run()
	must(t, anna.WaitText(soon(t), warning, 3))
	must(t, anna.Logout())
	h.acks("rebooting/committed")
}

// TestOtherInhibitorsAreNotWaitedFor checks that the host leaves inhibitors that only delay a shutdown, or that block
// something else, to logind.
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

// TestRebootManagersHoldTheCommit checks that an active reboot manager blocks the host's commit, that the reason names
// it with the command that disables it, and that the host continues when it is gone.
func TestRebootManagersHoldTheCommit(t *testing.T) {
	t.Parallel()
	unit := func(name string) func(h *host, on bool) {
		return func(h *host, on bool) {
			u := simhost.Unit{Load: "masked"}
			if on {
				u = simhost.Unit{Load: "loaded", Active: "active"}
			}
			must(h.t, h.sim.Units().Set(name, u))
		}
	}
	for name, c := range map[string]struct {
		set   func(h *host, on bool)
		tells string
	}{
		"locksmithd": {unit("locksmithd.service"), "OtherManager (locksmithd.service would reboot this host too; `systemctl mask --now locksmithd.service` switches it off"},
		"Zincati":    {unit("zincati.service"), "`systemctl mask --now zincati.service`"},
		"rebootmgr": {func(h *host, on bool) {
			must(h.t, h.sim.Units().Set("rebootmgr.service", simhost.Unit{Load: "loaded", Active: "active"}))
			strategy := "off"
			if on {
				strategy = "best-effort"
			}
			must(h.t, h.sim.WriteFile("/etc/rebootmgr.conf", "[rebootmgr]\nwindow-start=03:30\nstrategy="+strategy+"\n"))
		}, "`systemctl mask --now rebootmgr.service`"},
		"unattended-upgrades": {func(h *host, on bool) {
			must(h.t, h.sim.WriteFile("/usr/bin/unattended-upgrade", ""))
			must(h.t, h.sim.WriteFile("/etc/apt/apt.conf.d/50unattended-upgrades", "Unattended-Upgrade::Automatic-Reboot \"true\";\n"))
			if !on {
				must(h.t, h.sim.WriteFile("/etc/apt/apt.conf.d/99lockkeeper", "Unattended-Upgrade::Automatic-Reboot \"false\";\n"))
			}
		}, "unattended-upgrades (Automatic-Reboot) would reboot this host too; `echo"},
	} {
		t.Run(name, func(t *testing.T) {
			h := startHost(t, nil)
			h.want()
			// It becomes active when nothing else blocks the commit.
			unblock := h.sim.Logind().Hold(simhost.Inhibitor{What: "shutdown", Who: "test", Mode: "block"})
			h.promote("rebooting", onlyNode)
			h.says("Inhibited")
			c.set(h, true)
			unblock()
			h.says(c.tells)
			until(t, "the veto on its Node", func() bool {
				return strings.Contains(h.node().Annotations["lockkeeper.dev/host"], `"veto":"OtherManager"`)
			})
			if len(h.commits()) > 0 {
				t.Error("the host committed")
			}
			c.set(h, false)
			h.acks("rebooting/committed")
		})
	}
}

// TestRebootManagerIsToldBeforeThereIsAnUpdate checks that the status names another reboot manager even before there is
// an update.
func TestRebootManagerIsToldBeforeThereIsAnUpdate(t *testing.T) {
	h := startHost(t, nil)
	h.wants("nothing")
	must(t, h.sim.Units().Set("locksmithd.service", simhost.Unit{Load: "loaded", Active: "activating"}))
	h.says("locksmithd.service would reboot this host too")
	must(t, h.sim.Units().Set("locksmithd.service", simhost.Unit{Load: "loaded"}))
	until(t, "the status not to name locksmithd", func() bool { return !strings.Contains(h.status().Text(), "locksmithd") })
}

const coordinatorConf = "/run/update-engine/coordinator.conf"

// waitForCoordinatorState waits until coordinator.conf contains the state want, or until it is missing or empty if want
// is "".
func (h *host) waitForCoordinatorState(want string) {
	h.t.Helper()
	if want != "" {
		want = "NAME=lockkeeper\nSTRATEGY=cluster\nSTATE=" + want + "\n"
	}
	read := func() string {
		text, err := os.ReadFile(h.sim.Root() + coordinatorConf)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			h.t.Fatal(err)
		}
		return string(text)
	}
	until(h.t, "coordinator.conf to contain "+want, func() bool { return read() == want })
}

// TestCoordinatorConfIsTruthful checks that coordinator.conf tells other users of the update engine who coordinates
// reboots, and in which state.
func TestCoordinatorConfIsTruthful(t *testing.T) {
	h := startHost(t, nil)
	h.waitForCoordinatorState("running")
	h.want()
	h.waitForCoordinatorState("reboot-planned")
	patchNode(t, h.name, `{"metadata":{"annotations":{"lockkeeper.dev/paused":"a look at this"}}}`)
	h.waitForCoordinatorState("disabled")
	patchNode(t, h.name, `{"metadata":{"annotations":{"lockkeeper.dev/paused":null,"lockkeeper.dev/detached":"theirs"}}}`)
	h.waitForCoordinatorState("")
	patchNode(t, h.name, `{"metadata":{"annotations":{"lockkeeper.dev/detached":null}}}`)
	h.waitForCoordinatorState("reboot-planned")
	h.stop()
	h.waitForCoordinatorState("")

	// locksmithd wrote the file first.
	f, err := os.OpenFile(h.sim.Root()+coordinatorConf, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	must(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	_, err = f.WriteString("NAME=locksmithd\nSTATE=running")
	must(t, err)
	h.run()
	h.says("locksmithd (it holds /run/update-engine/coordinator.conf) would reboot this host too")
	must(t, f.Close())
	h.waitForCoordinatorState("reboot-planned")

	release := h.sim.Logind().Hold(simhost.Inhibitor{What: "shutdown", Who: "kubelet", Mode: "delay"})
	defer release()
	h.promote("rebooting", onlyNode)
	h.acks("rebooting/committed")
	h.waitForCoordinatorState("rebooting")
}

// TestMinUptimeIsWaitedOut checks that the host does not reboot before its minimum uptime.
func TestMinUptimeIsWaitedOut(t *testing.T) {
	const short = 30 * time.Second // the uptime that is missing; the host is up for an hour
	began := time.Now()
	h := startHost(t, func(h *host) { h.opts.Settings.MinUptime = time.Hour + short })
	h.want()
	h.promote("rebooting", onlyNode)
	h.says("MinUptime")
	h.acks("rebooting/committed")
	if age := h.commits()[0].at.Sub(began); age < short {
		t.Errorf("committed %v after the start, expected at least %v", age, short)
	}
}
