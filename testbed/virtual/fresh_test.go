package virtual

import (
	"testing"
	"testing/synctest"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/memhost"
)

// TestSessionsRule checks that the rule for users who are logged in finds a host that reboots without giving them their time, and lets pass what hosts
// may do.
func TestSessionsRule(t *testing.T) {
	for name, c := range map[string]struct {
		reboot time.Duration // timeouts.rebooting
		stage  time.Duration // since the stage began
		logged time.Duration // since the user logged in; 0: no user is logged in
		state  v1alpha1.State
		want   int
	}{
		"at once":                          {30 * time.Minute, 20 * time.Second, time.Hour, v1alpha1.StateRebooting, 1},
		"a moment too early":               {30 * time.Minute, 5*time.Minute - time.Second, time.Hour, v1alpha1.StateRebooting, 1},
		"after the delay":                  {30 * time.Minute, 5 * time.Minute, time.Hour, v1alpha1.StateRebooting, 0},
		"after half of the reboot's time":  {4 * time.Minute, 2 * time.Minute, time.Hour, v1alpha1.StateRebooting, 0},
		"before half of the reboot's time": {4 * time.Minute, 2*time.Minute - time.Second, time.Hour, v1alpha1.StateRebooting, 1},
		"the user came after the check":    {30 * time.Minute, 20 * time.Second, 10 * time.Second, v1alpha1.StateRebooting, 0},
		"no user":                          {30 * time.Minute, 20 * time.Second, 0, v1alpha1.StateRebooting, 0},
		"another state":                    {30 * time.Minute, 20 * time.Second, time.Hour, v1alpha1.StateBeforeUncordon, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(2 * time.Hour)
				g := &v1alpha1.Grant{Turn: "t1", NodeUID: "u1", StageAt: time.Now().Add(-c.stage)}
				g.Terms.Rebooting.Duration = c.reboot
				f := &Fleet{trace: newTrace(), nodes: map[string]turn.Node{"n1": {Name: "n1", UID: "u1", Keys: v1alpha1.Keys{State: c.state, Turn: "t1", Grant: g}}}}
				var sessions []memhost.Session
				if c.logged > 0 {
					sessions = append(sessions, memhost.Session{User: "core", Since: time.Now().Add(-c.logged)})
				}
				(&Machine{name: "n1", f: f}).judgeSessions(sessions)
				if len(f.problems) != c.want {
					t.Errorf("%d offences, expected %d: %q", len(f.problems), c.want, f.problems)
				}
			})
		})
	}
}
