package step

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestSessionWarnings walks through a delay of eight minutes: who is warned when, who is
// told that the reboot does not come, and how long the reboot waits. Written by hand.
func TestSessionWarnings(t *testing.T) {
	began := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	const delay = 8 * time.Minute
	type round struct {
		at      time.Duration
		open    string // sessions that are open
		state   v1alpha1.State
		waits   v1alpha1.Reason
		detail  string
		blocks  time.Duration // for how long the sessions block the reboot
		warned  string
		callOff string
		next    time.Duration // when users have to be warned next, or the delay ends
	}
	const sessions, inhibited = v1alpha1.ReasonSessions, v1alpha1.ReasonInhibited
	for name, rounds := range map[string][]round{
		"the reboot comes": {
			{0, "a", "rebooting", sessions, "", delay, "a", "", 7 * time.Minute},
			{time.Minute, "a b", "rebooting", sessions, "", 7 * time.Minute, "b", "", 6 * time.Minute},
			{2 * time.Minute, "a b", "rebooting", sessions, "", 6 * time.Minute, "", "", 5 * time.Minute},
			{7 * time.Minute, "a b c", "rebooting", sessions, "", time.Minute, "a b c", "", time.Minute},
			{7*time.Minute + 30*time.Second, "a b c d", "rebooting", sessions, "", 30 * time.Second, "d", "", 30 * time.Second},
			{8 * time.Minute, "a b c d", "rebooting", "", "the reboot", 0, "", "", 0},
			{8 * time.Minute, "a b c d", "rebooting", v1alpha1.ReasonHandover, "", 0, "", "", 0},
			{8*time.Minute + 30*time.Second, "a b c d", "rebooting", v1alpha1.ReasonHandover, "", 0, "", "", 0}, // the commit takes its time
		},
		"it comes too late": {
			{0, "a", "rebooting", sessions, "", delay, "a", "", 7 * time.Minute},
			{9 * time.Minute, "a", "rebooting", sessions, "", delay, "a", "", 7 * time.Minute},
		},
		"all log out": {
			{0, "a", "rebooting", sessions, "", delay, "a", "", 7 * time.Minute},
			{time.Minute, "", "rebooting", "", "the reboot", 0, "", "", 6 * time.Minute},
			{7 * time.Minute, "", "rebooting", "", "the reboot", 0, "", "", time.Minute},
			{7*time.Minute + 30*time.Second, "", "rebooting", "", "the reboot", 0, "", "", 30 * time.Second},
		},
		"an inhibitor comes": {
			{0, "a", "rebooting", sessions, "", delay, "a", "", 7 * time.Minute},
			{time.Minute, "", "rebooting", inhibited, "apt", 0, "a", "Inhibited (apt)", 0},
			{2 * time.Minute, "", "rebooting", inhibited, "apt", 0, "", "", 0},
			{3 * time.Minute, "a", "rebooting", sessions, "", delay, "a", "", 7 * time.Minute},
		},
		"an admin pauses the node": {
			{0, "a b", "rebooting", sessions, "", delay, "a b", "", 7 * time.Minute},
			{time.Minute, "a b", "rebooting", "Paused", "", 7 * time.Minute, "a b", "Paused", 0},
		},
		"the turn is backed out": {
			{0, "a", "rebooting", sessions, "", delay, "a", "", 7 * time.Minute},
			{time.Minute, "", "before-uncordon", "", "hooks", 0, "a", "the node is now in before-uncordon (hooks)", 0},
		},
		"logind does not answer": {
			{0, "", "rebooting", sessions, "no answer", 0, "", "", 0},
			{time.Minute, "a", "rebooting", sessions, "", delay, "a", "", 7 * time.Minute},
			{2 * time.Minute, "", "rebooting", sessions, "no answer", 0, "a", "Sessions (no answer)", 0},
		},
		"nothing was announced": {
			{0, "", "rebooting", inhibited, "apt", 0, "", "", 0},
			{0, "", "draining", sessions, "", 0, "", "", 0},
		},
	} {
		var a Announcement
		for i, r := range rounds {
			now := began.Add(r.at)
			o := observe(t, []string{string(r.state)})
			open := strings.Fields(r.open)
			if blocks := a.Waits(aTurn, len(open), delay, now); blocks != r.blocks {
				t.Errorf("%s, %d: the sessions block the reboot for %v, expected %v", name, i, blocks, r.blocks)
			}
			w := a.Update(&o, &Decision{Waits: r.waits, Detail: r.detail}, open, delay, now)
			slices.Sort(w.Sessions)
			if got := strings.Join(w.Sessions, " "); got != r.warned || w.CallOff != r.callOff {
				t.Errorf("%s, %d: tells %q %q, expected %q %q", name, i, got, w.CallOff, r.warned, r.callOff)
			}
			if next := a.Next(now); next != r.next {
				t.Errorf("%s, %d: again after %v, expected %v", name, i, next, r.next)
			}
		}
	}
}

// TestAnnouncementOfAnotherTurn: an announcement says nothing about another turn.
func TestAnnouncementOfAnotherTurn(t *testing.T) {
	now := time.Now()
	a := Announcement{Turn: "t0", Due: now}
	if got := a.Waits(aTurn, 1, time.Minute, now); got != time.Minute {
		t.Errorf("the reboot waits %v, expected the whole delay", got)
	}
}

// TestShortDelay: where users get less than four minutes, they are warned once more after three quarters of them.
func TestShortDelay(t *testing.T) {
	now := time.Now()
	o := observe(t, []string{"rebooting"})
	var a Announcement
	a.Update(&o, &Decision{Waits: v1alpha1.ReasonSessions}, []string{"a"}, 2*time.Minute, now)
	if got := a.Next(now); got != 90*time.Second {
		t.Errorf("the last warning comes after %v, expected 1m30s", got)
	}
}

// TestSessionDelay checks that users get no more than half of the time that a turn has for its reboot.
func TestSessionDelay(t *testing.T) {
	g := &v1alpha1.Grant{Terms: v1alpha1.Terms{Rebooting: metav1.Duration{Duration: 30 * time.Minute}}}
	for delay, want := range map[time.Duration]time.Duration{0: 0, 5 * time.Minute: 5 * time.Minute, 15 * time.Minute: 15 * time.Minute, time.Hour: 15 * time.Minute} {
		if got := SessionDelay(delay, g, nil); got != want {
			t.Errorf("of %v, users get %v, expected %v", delay, got, want)
		}
	}
	if got := SessionDelay(time.Hour, nil, nil); got != time.Hour {
		t.Errorf("without a turn, users get %v", got)
	}
}

// TestSessionDelayOfAForgedGrant checks that a grant cannot take the users' time, because the host's own policy counts too.
func TestSessionDelayOfAForgedGrant(t *testing.T) {
	own := &v1alpha1.Terms{Rebooting: metav1.Duration{Duration: 30 * time.Minute}}
	for _, rebooting := range []time.Duration{-time.Hour, 0, time.Nanosecond, time.Second} {
		g := &v1alpha1.Grant{Terms: v1alpha1.Terms{Rebooting: metav1.Duration{Duration: rebooting}}}
		if got := SessionDelay(5*time.Minute, g, own); got != 5*time.Minute {
			t.Errorf("with a grant of %v, users get %v, expected 5m", rebooting, got)
		}
	}
}

// TestPermittedRebootIsNotCalledOff: a host that has permitted its FleetLock client to reboot may be rebooted at any time, so
// no user is told that the reboot does not come. After the turn has moved on, they are.
func TestPermittedRebootIsNotCalledOff(t *testing.T) {
	now := time.Now()
	for facts, want := range map[string]string{"rebooting permits": "", "rebooting": "Paused", "before-uncordon permits": "Paused"} {
		a := Announcement{Turn: aTurn, Due: now.Add(time.Minute), warned: map[string]bool{"a": true}}
		o := observe(t, strings.Fields(facts))
		if w := a.Update(&o, &Decision{Waits: v1alpha1.ReasonPaused}, nil, time.Minute, now); w.CallOff != want {
			t.Errorf("%s: calls off %q, expected %q", facts, w.CallOff, want)
		}
	}
}
