package turns

import (
	"fmt"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// canaries are rollouts that wait for another policy's nodes, or for the end of a blackout.
var canaries = map[string]func(*scene){
	// The host of the first policy runs the version for a while before the other one is granted a turn for it. A version that is staged in
	// a turn for something else ends the turn.
	"canary": func(s *scene) {
		const hook, first, long = "canary", "canary-first", 30 * time.Second
		s.authors.Keep(hook)
		_, err := cp.ApplyPolicy(s.soon(), first, "{priority: 20, nodeSelector: {matchLabels: {canary: first}}, rollout: {settle: 0s}}")
		s.Must(err)
		s.policy(fmt.Sprintf("rollout: {settle: 0s, after: [{policy: %s, for: %v}]}\nhooks: {beforeDrain: [{name: %s}]}", first, long, hook))
		rest := s.hosts(1)[0]
		ahead := s.host(simhost.Options{Name: first + "-1", Labels: map[string]string{sceneLabel: s.name, "canary": "first"}})
		s.idle(ahead)

		s.Must(rest.WriteFile(dbConf, "1"))
		s.reaches(rest, v1alpha1.StateBeforeDrain)
		s.stage(rest)
		s.ended(rest, "Cancelled Canary: before-drain uncordoning")
		s.endsFor(rest, v1alpha1.ReasonCanary)
		s.reads(rest, v1alpha1.ReasonCanary)
		s.makesNoProgress(v1alpha1.ReasonCanary, "1 held: ", "waits for policy canary-first: 0 of 1 nodes run 4.2.0; canary-first-1 runs 4.1.0")
		s.statusShows(rest, "held: Canary", "waits for policy canary-first: 0 of 1 nodes run 4.2.0; canary-first-1 runs 4.1.0")
		s.authors.Release(hook)

		s.stage(ahead)
		done := s.ended(ahead, "Done: draining rebooting uncordoning").Last
		s.statusShows(rest, "held: Canary", "waits for policy canary-first: 1 of 1 nodes run 4.2.0, the last since ", " UTC, until ")
		n := s.ended(rest, "Cancelled Canary: before-drain uncordoning", "Done: before-drain draining rebooting uncordoning")
		s.did(rest, 1)
		runs := s.until(ahead, "to have its version recorded", func(n *turn.Node) bool { return n.Runs != nil && n.Runs.OSVersion == newVersion }).Runs
		if runs.BootID != ahead.BootID() || runs.Since.Before(done.End) {
			s.T.Errorf("%+v is recorded, of the boot %s, whose turn ended at %s", runs, ahead.BootID(), done.End)
		}
		if began := n.Last.Turns[len(n.Last.Turns)-1]; began.Before(runs.Since.Add(long)) {
			s.T.Errorf("the turn of %s began at %s, %s after %s", rest.Name(), began, began.Sub(runs.Since), runs.Since)
		}
	},
	"blackout": func(s *scene) {
		day := func(days int) string { return time.Now().UTC().AddDate(0, 0, days).Format(time.DateOnly) }
		policy := func(more string) { s.policy("rollout: {settle: 0s, blackouts: [" + more + "]}") }
		policy(fmt.Sprintf("{start: %q, end: %q, timeZone: UTC, reason: a launch}, {start: %q, end: %q, timeZone: UTC}", day(-1), day(1), day(-9), day(-8)))
		host := s.hosts(1)[0]
		s.stage(host)
		s.held(host, v1alpha1.ReasonWindow)
		says := `blackout "a launch" holds until ` + day(2) + " 00:00:00 UTC"
		s.makesNoProgress(v1alpha1.ReasonWindow, "1 held: ", says)
		s.statusShows(host, "held: Window", says)
		s.ended(host)
		policy(fmt.Sprintf("{start: %q, end: %q, timeZone: UTC}", day(-9), day(-8)))
		s.ended(host, "Done: draining rebooting uncordoning")
		s.did(host, 1)
	},
}
