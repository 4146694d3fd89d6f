package rollout

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// oldVersion is what hosts run at first, newVersion what is staged.
const oldVersion, newVersion = "4.1.0", "4.2.0"

// pollEvery is how often a test reads what it cannot watch.
const pollEvery = 50 * time.Millisecond

// scene is a rig with what the tests of this package do to it and wait for.
type scene struct {
	*rig.Scene
	*watcher // nil for [playPools], whose tests confirm hooks themselves
}

// play starts a rig of hosts of which the first one or two may coordinate.
func play(t *testing.T, hosts, coordinators int, policy string, change ...func(*rig.Options)) *scene {
	t.Helper()
	o := options(hosts, policy)
	o.Fleet.Coordinators = coordinators
	for _, f := range change {
		f(&o)
	}
	s := &scene{Scene: rig.Play(t, pool.Take(t), o)}
	s.watcher = s.watch()
	return s
}

// config changes every host's lockkeeper.toml.
func config(table, key string, value any) func(*rig.Options) {
	return func(o *rig.Options) {
		before := o.Fleet.Host.Config
		o.Fleet.Host.Config = func(c simhost.Config) {
			if before != nil {
				before(c)
			}
			c.Set(table, key, value)
		}
	}
}

// stage stages the new version on the hosts.
func (s *scene) stage(names ...string) {
	s.T.Helper()
	s.Stage(newVersion, names...)
}

// cancel takes the update back at its source, without a signal.
func (s *scene) cancel(name string) {
	s.T.Helper()
	s.Must(s.Host(name).ResetStatus())
	s.Referee.WantCancelled(name)
}

// ended waits until the node is back in idle in its host's present boot, its last turn ended so, and nothing of it left.
func (s *scene) ended(name string, result v1alpha1.Result, reason v1alpha1.Reason) *turn.Node {
	s.T.Helper()
	h := s.Host(name)
	n := s.Until(name, rig.Soon, fmt.Sprintf("to be idle after a turn that ended %s %s", result, reason), func(n *turn.Node) bool {
		return n.State == v1alpha1.StateIdle && n.BootID == h.BootID() && n.Ready && n.Last != nil &&
			n.Last.Result == result && n.Last.Reason == reason
	})
	if n.Turn != "" || n.Grant != nil || n.Mark || len(n.Hooks) > 0 {
		s.T.Errorf("%s is idle and still has turn %q, grant %t, mark %t, hooks %v", name, n.Turn, n.Grant != nil, n.Mark, n.Hooks)
	}
	return n
}

// updated waits until the hosts run the new version, and are back.
func (s *scene) updated(names ...string) {
	s.T.Helper()
	s.Updated(newVersion, names...)
}

// schedulable fails the test unless the node is, and without a mark.
func (s *scene) schedulable(name string) {
	s.T.Helper()
	if n := s.Now(name); n.Unschedulable || n.Mark {
		s.T.Errorf("%s: unschedulable %t, mark %t; expected neither", name, n.Unschedulable, n.Mark)
	}
}

// reboots fails the test unless the host's logind was told to reboot so often.
func (s *scene) reboots(name string, want int) {
	s.T.Helper()
	if got := s.Host(name).Reboots(); got != want {
		s.T.Errorf("%s was rebooted %d times, expected %d", name, got, want)
	}
}

// evictions is how many pods were evicted up to now.
func (s *scene) evictions() int {
	s.T.Helper()
	s.Sync()
	return s.Referee.Report().Evictions
}

// resume lifts the emergency stop.
func (s *scene) resume() {
	s.T.Helper()
	s.Stop(nil)
}

// leader waits for a host that coordinates, and returns it.
func (s *scene) leader() *simhost.Host {
	s.T.Helper()
	var name string
	s.Eventually("a host to lead", func(context.Context) (led bool, err error) {
		name, _, led = strings.Cut(s.Epoch(), "_")
		return led, nil
	})
	return s.Host(name)
}

// takenOver waits until a term other than epoch has made the node's turn its own.
func (s *scene) takenOver(name, epoch string) string {
	s.T.Helper()
	n := s.Until(name, rig.Soon, "to be taken over by another term than "+epoch, func(n *turn.Node) bool {
		return n.Grant != nil && n.Grant.Epoch != epoch
	})
	return n.Grant.Epoch
}
