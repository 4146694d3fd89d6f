package turns

import (
	"fmt"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// blocker is an inhibitor that forbids shutdowns.
var blocker = simhost.Inhibitor{What: "shutdown", Who: "backup", Why: "a backup runs", Mode: "block"}

// delayer is one that holds a shutdown up that was ordered.
var delayer = simhost.Inhibitor{What: "shutdown", Who: "database", Why: "it flushes", Mode: "delay"}

// shutWindow returns a rollout's field with one window that was open for ten minutes half a day ago, and the time at which it opens next. The
// coordinator treats it like a window that has just closed.
func shutWindow() (field, opens string) {
	start := time.Now().UTC().Add(-12 * time.Hour).Format("15:04")
	return fmt.Sprintf("windows: [{start: %q, duration: 10m, timeZone: UTC}]", start), start + ":00 UTC"
}

// windows close in the middle of a rollout. The budget would let all hosts go at once: only the window keeps them.
var windows = map[string]func(*scene){
	"window-finish": func(s *scene) {
		const hook = "window-finish"
		policy := func(more string) string {
			return "rollout: {settle: 0s, maxUnavailable: 100%, expectedDuration: 1m, onClose: Finish, " + more + "}\nhooks: {beforeReboot: [{name: " + hook + "}]}"
		}
		s.authors.Keep(hook)
		s.policy(policy(""))
		hosts := s.hosts(2)
		under, waits := hosts[0], hosts[1]
		s.stage(under)
		s.reaches(under, v1alpha1.StateBeforeReboot)

		field, opens := shutWindow()
		s.policy(policy(field))
		s.stage(waits)
		s.held(waits, v1alpha1.ReasonWindow)
		s.authors.Release(hook)
		s.ended(under, "Done: draining before-reboot rebooting uncordoning")
		s.did(under, 1)

		// No one is under way any more, which is what this was decided on.
		s.makesNoProgress(v1alpha1.ReasonWindow, "1 held: ", "no window is open; the next opens at ", opens)
		s.statusShows(waits, "held: Window", "no window is open; the next opens at ", opens)
		s.ended(waits)
		s.did(waits, 0)

		s.policy(policy(""))
		s.ended(waits, "Done: draining before-reboot rebooting uncordoning")
		s.did(waits, 1)
	},
	"window-cancel": func(s *scene) {
		const hook = "window-cancel"
		policy := func(more string) string {
			return "rollout: {settle: 0s, maxUnavailable: 100%, expectedDuration: 1m, onClose: Cancel, " + more + "}\nhooks: {beforeReboot: [{name: " + hook + "}]}"
		}
		s.authors.Keep(hook)
		s.policy(policy(""))
		hosts := s.hosts(3)
		under, committed, waits := hosts[0], hosts[1], hosts[2]
		undelay := committed.Logind().Hold(delayer)
		s.stage(under)
		s.stage(committed)
		s.reaches(committed, v1alpha1.StateBeforeReboot)
		s.confirm(committed, hook)
		s.commits(committed, v1alpha1.StateRebooting)
		s.statusLineHas(committed, "the reboot that is under way")
		if n := s.reaches(under, v1alpha1.StateBeforeReboot); !n.Mark {
			s.T.Errorf("%s is not cordoned in %s", under.Name(), n.State)
		}

		field, opens := shutWindow()
		s.policy(policy(field))
		s.ended(under, "Cancelled Window: draining before-reboot uncordoning")
		s.did(under, 0)
		s.endsFor(under, v1alpha1.ReasonWindow)
		s.reads(under, v1alpha1.ReasonWindow)
		s.stage(waits)
		s.held(waits, v1alpha1.ReasonWindow)

		// What cannot be called back is not called off.
		undelay()
		s.ended(committed, "Done: draining before-reboot rebooting uncordoning")
		s.did(committed, 1)
		s.makesNoProgress(v1alpha1.ReasonWindow, "2 held: ", "no window is open; the next opens at ", opens)
		s.ended(waits)
		s.did(waits, 0)
		s.ended(under, "Cancelled Window: draining before-reboot uncordoning")
	},
}

// gates close in the middle of a rollout, and open again.
var gates = map[string]func(*scene){
	"gate": func(s *scene) {
		const hook, query = "gate", "errors > 0"
		s.authors.Keep(hook)
		s.policy("rollout: {settle: 0s, maxUnavailable: 100%, gates: [{name: calm, query: errors > 0}]}\nhooks: {beforeReboot: [{name: gate}]}")
		hosts := s.hosts(2)
		under, waits := hosts[0], hosts[1]
		s.stage(under)
		s.reaches(under, v1alpha1.StateBeforeReboot)
		s.prom.shut(query, true)
		s.stage(waits)
		s.reads(waits, v1alpha1.ReasonGateClosed)
		s.authors.Release(hook)
		s.ended(under, "Done: draining before-reboot rebooting uncordoning")
		s.makesNoProgress(v1alpha1.ReasonGateClosed, "1 held: ", `gate calm is closed: its query returns errors{shard="a"} with 7`)
		s.ended(waits)
		s.prom.shut(query, false)
		s.ended(waits, "Done: draining before-reboot rebooting uncordoning")
		s.did(under, 1)
		s.did(waits, 1)
	},
}
