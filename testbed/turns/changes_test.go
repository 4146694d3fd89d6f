package turns

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

const (
	appConf = "/etc/app.conf" // whose change restarts app.service
	dbConf  = "/etc/db.conf"  // whose change drains, and restarts db.service
	flagged = "/run/reboot-required"

	appRestart, dbRestart = "TryRestartUnit app.service", "TryRestartUnit db.service"
)

// changes of files and units.
var changes = map[string]func(*scene){
	// A diskless host boots with an empty /var each time. It takes one turn for each update, none for a file that changed before the
	// boot, and one for a file that changes after it. It crashes while it applies that: the boot has applied it.
	"diskless": func(s *scene) {
		s.policy("rollout: {settle: 0s}")
		h := s.hosts(1)[0]
		// boots returns when lockkeeper runs on an empty /var in the boot of that number.
		boots := func(number int) {
			s.Must(h.WaitBoots(s.soon(), number))
			s.Must(os.RemoveAll(filepath.Join(h.Root(), "var")))
			s.Must(h.StartLockkeeper())
		}
		for i, version := range []string{newVersion, "4.3.0"} {
			h.SetNextBoot(simhost.NextBoot{WithoutLockkeeper: true})
			s.Must(h.WriteFile(appConf, version))
			s.Referee.WantMade(h.Name())
			s.Must(h.StageUpdate(version))
			boots(i + 2)
			s.over(h, i+1)
			s.idle(h)
		}
		s.Must(h.WriteFile(appConf, "after the boot"))
		const rolled = "Done: draining rebooting uncordoning"
		s.ended(h, rolled, rolled, "Done: applying")
		s.did(h, 2, appRestart)

		h.Units().HoldJobs()
		s.Must(h.WriteFile(appConf, "before a crash"))
		s.commits(h, v1alpha1.StateApplying)
		s.ordered(h, appRestart, appRestart)
		s.Must(h.Crash(simhost.CrashOptions{WithoutLockkeeper: true}))
		boots(4)
		s.idle(h)
		s.ended(h, rolled, rolled, "Done: applying", "Done: applying")
	},

	// The file's content changes, and then its mode. Nothing on the node notices: it is not cordoned, and its pod stays.
	"file-restarts-unit": func(s *scene) {
		s.policy("rollout: {settle: 0s}")
		dir, err := os.MkdirTemp("", "turns-")
		s.Must(err)
		s.T.Cleanup(func() { os.RemoveAll(dir) })
		s.Must(os.MkdirAll(filepath.Join(dir, "root/etc"), 0o755))
		s.Must(os.WriteFile(filepath.Join(dir, "root", appConf), []byte("workers = 1\n"), 0o644))
		h := s.host(simhost.Options{Name: s.name + "-1", Dir: dir})
		s.idle(h)
		namespace := s.work(h, 0)
		before := s.pod(namespace)

		s.Must(h.WriteFile(appConf, "workers = 2\n"))
		n := s.ended(h, "Done: applying")
		s.did(h, 0, appRestart)
		if l := n.Last; l == nil || len(l.Changes) != 1 || l.Changes[0].Source != v1alpha1.SourceFile || l.Changes[0].Name != appConf {
			s.T.Errorf("its last turn was for %+v", l)
		}
		s.Must(os.Chmod(filepath.Join(h.Root(), appConf), 0o640))
		s.ended(h, "Done: applying", "Done: applying")
		// What was applied is in effect, also for the next process: it has nothing to do.
		h.StopLockkeeper()
		s.Must(h.StartLockkeeper())
		s.statusLineHas(h, "idle; up to date since ") // the next process, which has read everything
		s.idle(h)
		s.ended(h, "Done: applying", "Done: applying")
		s.did(h, 0, appRestart, appRestart)
		s.undisturbed(h)
		if after := s.pod(namespace); after != before {
			s.T.Errorf("the pod on %s was %s and is %s", h.Name(), before, after)
		}
	},

	// A drop-in comes, and while it is applied a file is changed, which is the next turn's.
	"drop-in-restarts-unit": func(s *scene) {
		s.policy(`rollout: {settle: 0s}
rules: [{source: Unit, unit: app.service, actions: [{type: DaemonReload}, {type: Restart, unit: app.service}]}]`)
		h := s.hosts(1)[0]
		release := h.Units().HoldJobs()
		s.Must(h.WriteFile("/etc/systemd/system/app.service.d/10-limits.conf", "[Service]\nLimitNOFILE=1024\n"))
		s.commits(h, v1alpha1.StateApplying)
		s.ordered(h, "Reload", appRestart)
		s.Must(h.WriteFile(appConf, "workers = 2\n"))
		release()
		s.ended(h, "Done: applying", "Done: applying")
		s.did(h, 0, "Reload", appRestart, appRestart)
		s.undisturbed(h)
	},

	// The rules change, and another file does, between the grant and the apply: the turn is for the steps that were granted.
	"rules-change-before-apply": func(s *scene) {
		s.policy("rollout: {settle: 0s}")
		h := s.hosts(1)[0]
		s.inApplying(h)
		s.policy("rollout: {settle: 0s}\nrules: [{source: File, path: " + appConf + ", actions: [{type: Restart, unit: db.service}]}]")
		s.Must(h.WriteFile(dbConf, "shards = 2\n"))
		s.Must(h.Continue())
		s.ended(h, "Done: paused", "Done: applying", "Done: draining applying uncordoning") // it was paused before it was stopped
		s.did(h, 0, appRestart, dbRestart)
	},

	// Both are there before the node may have its turn: one turn is for both, and its reboot does what the restart would.
	"file-and-update": func(s *scene) {
		s.policy("paused: true\nrollout: {settle: 0s}")
		h := s.hosts(1)[0]
		s.stage(h)
		s.Must(h.WriteFile(dbConf, "shards = 2\n"))
		s.Must(h.WriteFile(appConf, "workers = 2\n"))
		n := s.published(h, v1alpha1.WantsReboot, string(v1alpha1.SourceOSUpdate), dbConf, appConf)
		if want := []string{"Drain", "Reboot"}; !slices.Equal(steps(n), want) {
			s.T.Errorf("the plan is %q, expected %q", n.Host.Plan, want)
		}
		s.held(h, v1alpha1.ReasonPaused)
		_, err := s.tryPolicy("paused: false\nrollout: {settle: 0s}")
		s.Must(err)
		n = s.ended(h, "Done: draining rebooting uncordoning")
		s.did(h, 1)
		if l := n.Last; l == nil || len(l.Changes) != 3 {
			s.T.Errorf("its last turn was for %+v", l)
		}
		if n.Wants != v1alpha1.WantsNothing || h.Version() != newVersion {
			s.T.Errorf("%s runs %s and wants %s", h.Name(), h.Version(), n.Wants)
		}
	},
}

// steps are the first words of the plan that the host has published.
func steps(n *turn.Node) (all []string) {
	for _, line := range n.Host.Plan {
		word, _, _ := strings.Cut(line, ":")
		all = append(all, word)
	}
	return all
}

// ordered waits until the host's systemd has been asked for these jobs.
func (s *scene) ordered(h *simhost.Host, jobs ...string) {
	s.T.Helper()
	s.Eventually(fmt.Sprintf("systemd on %s to be asked for %q", h.Name(), jobs), func(context.Context) (bool, error) {
		got := h.Units().Jobs()
		return slices.Equal(got, jobs), fmt.Errorf("it was asked for %q", got)
	})
}

// undisturbed fails the test if the node was ever cordoned, or a pod evicted from it.
func (s *scene) undisturbed(h *simhost.Host) {
	s.T.Helper()
	s.Sync()
	if told := s.linesOf(h.Name()); slices.Contains(told, "cordoned") || slices.Contains(told, "cordoned by a person") || s.evictions(h) > 0 {
		s.T.Errorf("%s was disturbed: %q", h.Name(), told)
	}
}

// pod is the one pod of the namespace, by name and UID.
func (s *scene) pod(namespace string) string {
	s.T.Helper()
	pods, err := cp.WaitPods(s.soon(), namespace, "", "to be one, and Ready", func(pods []*corev1.Pod) bool {
		return len(pods) == 1 && controlplane.PodReady(pods[0])
	})
	s.Must(err)
	return pods[0].Name + " " + string(pods[0].UID)
}
