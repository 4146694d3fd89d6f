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

// TestSessionDelay has someone logged in on a host whose turn comes: they are warned twice, and have their time before the
// reboot.
func TestSessionDelay(t *testing.T) {
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
	// The time that was told, without its parts of a second, is the earliest.
	rebooted := time.Now()
	if told := announcedTime(t, anna.Text(), rebooted); rebooted.Before(told) || told.Add(time.Second).Before(asked.Add(delay)) {
		t.Errorf("staged at %v, told %v, it had rebooted at %v; the delay is %v", asked, told, rebooted, delay)
	}
	t.Logf("what the terminal showed:\n%s", anna.Text())
	for _, text := range []string{"lockkeeper on " + name, "for OSUpdate@" + newVersion, "kubectl annotate node " + name} {
		if !strings.Contains(anna.Text(), text) {
			t.Errorf("the terminal did not show %q", text)
		}
	}
	s.updated(name)
	s.reboots(name, 1)
}

// announced finds in warnings when the reboot will be.
var announced = regexp.MustCompile(`in \d+s, at (\d\d:\d\d:\d\d)`)

// announcedTime is the time that the first warning names, on the day of near.
func announcedTime(t *testing.T, text string, near time.Time) time.Time {
	t.Helper()
	found := announced.FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no time is told in\n%s", text)
	}
	clock, err := time.ParseInLocation(time.TimeOnly, found[1], time.Local)
	if err != nil {
		t.Fatal(err)
	}
	y, m, d := near.Date()
	told := time.Date(y, m, d, clock.Hour(), clock.Minute(), clock.Second(), 0, time.Local)
	if told.Sub(near) > 12*time.Hour { // it was before midnight
		told = told.AddDate(0, 0, -1)
	}
	return told
}

// TestOtherRebootManager starts another reboot manager on a host that drains: it is not rebooted while that is active, and a
// host on which one is active gets no turn. Both continue by themselves when it has gone.
func TestOtherRebootManager(t *testing.T) {
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
		t.Errorf("it committed beside another reboot manager: %s", n.Ack)
	}
	s.reboots(name, 0)
	s.Must(s.Host(name).Units().Set("zincati.service", masked))
	s.updated(name)
	s.Must(s.Host(other).Units().Set("locksmithd.service", masked))
	s.updated(other)
	s.reboots(name, 1)
	s.reboots(other, 1)
	if path := s.path(other); len(path) == 0 {
		t.Error("the other host was in no state")
	}
}

// TestObserve has a host that only observes among others: they are updated, it publishes what it would do and why it does
// not, and nothing on it is touched.
func TestObserve(t *testing.T) {
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
		t.Errorf("it wants %q and says %+v", n.Wants, n.Host)
	}
	s.updated(other)
	s.schedulable(name)
	s.reboots(name, 0)
	if s.marked(name) != 0 || anna.Text() != "" {
		t.Errorf("it was marked %d times, and who is logged in read %q", s.marked(name), anna.Text())
	}
}
