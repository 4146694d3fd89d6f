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

// oldVersion is the first OS version of the hosts. newVersion is the one that tests stage.
const oldVersion, newVersion = "4.1.0", "4.2.0"

// pollEvery is the interval of waits that have to poll.
const pollEvery = 50 * time.Millisecond

// scene is a rig with the actions and waits of the tests in this package.
type scene struct {
	*rig.Scene
	*watcher // nil for [playPools], whose tests confirm hooks themselves
}

// play starts a rig in which only the first one or two hosts may coordinate.
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

// config changes lockkeeper.toml on every host.
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

// cancel withdraws the update in the update engine, without a signal.
func (s *scene) cancel(name string) {
	s.T.Helper()
	s.Must(s.Host(name).ResetStatus())
	s.Referee.WantCancelled(name)
}

// ended waits until the node is back in idle in the current boot of its host and its last turn has this result. It
// checks that nothing of the turn is left.
func (s *scene) ended(name string, result v1alpha1.Result, reason v1alpha1.Reason) *turn.Node {
	s.T.Helper()
	h := s.Host(name)
	n := s.Until(name, rig.Soon, fmt.Sprintf("to be idle after a turn that ended %s %s", result, reason), func(n *turn.Node) bool {
		return n.State == v1alpha1.StateIdle && n.BootID == h.BootID() && n.Ready && n.Last != nil &&
			n.Last.Result == result && n.Last.Reason == reason
	})
	if n.Turn != "" || n.Grant != nil || n.Mark || len(n.Hooks) > 0 {
		s.T.Errorf("%s is idle but still has turn %q, grant %t, mark %t, hooks %v", name, n.Turn, n.Grant != nil, n.Mark, n.Hooks)
	}
	return n
}

// updated waits until the hosts run the new version and their nodes are back.
func (s *scene) updated(names ...string) {
	s.T.Helper()
	s.Updated(newVersion, names...)
}

// schedulable fails the test unless the node is schedulable and has no mark.
func (s *scene) schedulable(name string) {
	s.T.Helper()
	if n := s.Now(name); n.Unschedulable || n.Mark {
		s.T.Errorf("%s: unschedulable %t, mark %t; expected neither", name, n.Unschedulable, n.Mark)
	}
}

// reboots fails the test unless the host's logind got this number of reboot calls.
func (s *scene) reboots(name string, want int) {
	s.T.Helper()
	if got := s.Host(name).Reboots(); got != want {
		s.T.Errorf("%s: %d reboots, expected %d", name, got, want)
	}
}

// evictions returns the number of evicted pods so far.
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

// leader waits for a host that coordinates and returns it.
func (s *scene) leader() *simhost.Host {
	s.T.Helper()
	var name string
	s.Eventually("a host to lead", func(context.Context) (led bool, err error) {
		name, _, led = strings.Cut(s.Epoch(), "_")
		return led, nil
	})
	return s.Host(name)
}

// takenOver waits until a term other than epoch has taken the node's turn over.
func (s *scene) takenOver(name, epoch string) string {
	s.T.Helper()
	n := s.Until(name, rig.Soon, "to be taken over by another term than "+epoch, func(n *turn.Node) bool {
		return n.Grant != nil && n.Grant.Epoch != epoch
	})
	return n.Grant.Epoch
}
