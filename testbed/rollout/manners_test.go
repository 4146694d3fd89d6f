package rollout

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// TestSessionDelay checks that a user who is logged in on a host gets two warnings when the turn of the host comes, and
// has the whole delay before the reboot.
func TestSessionDelay(t *testing.T) {
	rig.Sample(t, 3)
	t.Parallel()
	const name, delay = "node-2", 20 * time.Second
	s := play(t, 2, 1, "rollout: {settle: 1s}", quick, config("reboot", "session_delay", delay))
	anna, err := s.Host(name).Logind().Login("1", "anna")
	s.Must(err)
	asked := time.Now()
	s.stage(name)
	s.Reaches(name, v1alpha1.StateRebooting)
	s.Must(anna.WaitText(s.Within(rig.Soon), "THIS HOST REBOOTS", 1))
	s.Reports(name, "Sessions (anna on ", rig.Soon)
	s.reboots(name, 0)
	s.Must(anna.WaitText(s.Within(rig.Soon), "THIS HOST REBOOTS", 2))
	s.Must(s.Host(name).WaitBoots(s.Within(rig.Soon), 2))
	// The announced time, without fractions of a second, is the earliest.
	rebooted := time.Now()
	if told := announcedTime(t, anna.Text(), rebooted); rebooted.Before(told) || told.Add(time.Second).Before(asked.Add(delay)) {
		t.Errorf("staged at %v, announced for %v, rebooted at %v; the delay is %v", asked, told, rebooted, delay)
	}
	t.Logf("the terminal:\n%s", anna.Text())
	for _, text := range []string{"lockkeeper on " + name, "for OSUpdate@" + newVersion, "lockkeeper pause " + name} {
		if !strings.Contains(anna.Text(), text) {
			t.Errorf("the terminal did not show %q", text)
		}
	}
	s.updated(name)
	s.reboots(name, 1)
}

// announced matches the time of the reboot in a warning.
var announced = regexp.MustCompile(`in \d+s, at (\d\d:\d\d:\d\d)`)

// announcedTime returns the time in the first warning, on the day of near.
func announcedTime(t *testing.T, text string, near time.Time) time.Time {
	t.Helper()
	found := announced.FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no time in the warning\n%s", text)
	}
	clock, err := time.ParseInLocation(time.TimeOnly, found[1], time.Local)
	if err != nil {
		t.Fatal(err)
	}
	y, m, d := near.Date()
	told := time.Date(y, m, d, clock.Hour(), clock.Minute(), clock.Second(), 0, time.Local)
	if told.Sub(near) > 12*time.Hour { // the time is after midnight
		told = told.AddDate(0, 0, -1)
	}
	return told
}

// TestOtherRebootManager starts another reboot manager on a draining host. The host must not reboot while that is
// active, and a host with an active reboot manager gets no turn. Both continue without help when it is gone.
func TestOtherRebootManager(t *testing.T) {
	rig.Sample(t, 3)
	t.Parallel()
	const name, other = "node-2", "node-3"
	active, masked := simhost.Unit{Load: "loaded", Active: "active"}, simhost.Unit{Load: "masked"}
	s := play(t, 3, 1, "rollout: {settle: 1s}", quick)
	s.Must(s.Host(other).Units().Set("locksmithd.service", active))
	s.Reports(other, "`systemctl mask --now locksmithd.service`", rig.Soon)
	unblock := s.Host(name).Logind().Hold(blocker)
	s.stage(name, other)
	s.Held(other, v1alpha1.ReasonOtherManager)
	s.Reaches(name, v1alpha1.StateRebooting)
	s.Reports(name, "Inhibited", rig.Soon)
	s.Must(s.Host(name).Units().Set("zincati.service", active))
	unblock()
	s.Reports(name, "OtherManager (zincati.service", rig.Soon)
	for range 3 {
		s.alive(name)
	}
	if n := s.Now(name); n.Committed() {
		t.Errorf("committed while another reboot manager was active: %s", n.Ack)
	}
	s.reboots(name, 0)
	s.Must(s.Host(name).Units().Set("zincati.service", masked))
	s.updated(name)
	s.Must(s.Host(other).Units().Set("locksmithd.service", masked))
	s.updated(other)
	s.reboots(name, 1)
	s.reboots(other, 1)
	if path := s.path(other); len(path) == 0 {
		t.Error("the other node had no state")
	}
}

// TestObserve has one host in observe mode among other hosts. The other hosts are updated. The observing host publishes
// what it would do and why it does not, and changes nothing.
func TestObserve(t *testing.T) {
	rig.Sample(t, 3)
	t.Parallel()
	const name, other = "node-1", "node-2"
	s := play(t, 2, 1, "rollout: {settle: 1s}", quick, func(o *rig.Options) {
		o.Fleet.Each = func(i int, o *simhost.Options) {
			o.Coordinator = i == 1
			if before := o.Config; i == 0 {
				o.Config = func(c simhost.Config) {
					if before != nil {
						before(c)
					}
					c.Set("", "mode", "observe")
				}
			}
		}
	})
	s.forget(name)
	anna, err := s.Host(name).Logind().Login("1", "anna")
	s.Must(err)
	s.stage(name, other)
	n := s.Held(name, v1alpha1.ReasonObserve)
	if n.Wants != v1alpha1.WantsReboot || n.Host == nil || n.Host.Veto != v1alpha1.ReasonObserve {
		t.Errorf("the node wants %q, host record %+v", n.Wants, n.Host)
	}
	s.updated(other)
	s.schedulable(name)
	s.reboots(name, 0)
	if s.marked(name) != 0 || anna.Text() != "" {
		t.Errorf("marked %d times, terminal %q", s.marked(name), anna.Text())
	}
}
