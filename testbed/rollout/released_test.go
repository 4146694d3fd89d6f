package rollout

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// left names the keys of lockkeeper that are left on a Node, except held and the information labels.
func left(n *turn.Node) string {
	var keys []string
	has := func(is bool, key string) {
		if is {
			keys = append(keys, key)
		}
	}
	has(n.State != v1alpha1.StateAbsent, "state")
	has(n.Wants != "", "wants")
	has(n.RawHost != "", "host")
	has(n.Ack != v1alpha1.Ack{}, "ack")
	has(n.Turn != "", "turn")
	has(n.Grant != nil, "grant")
	has(n.Last != nil, "last")
	has(n.Mark, "the mark")
	if len(keys) == 0 {
		return ""
	}
	return fmt.Sprint(keys)
}

// writes starts to collect the writes to a Node. The returned function stops that and returns the versions of the Node
// in which a key of lockkeeper differs from the version before. The keys of admins do not count.
func (s *scene) writes(name string) func() []turn.Node {
	s.T.Helper()
	nodes := s.ControlPlane.Client().CoreV1().Nodes()
	obj, err := nodes.Get(s.Within(rig.Soon), name, metav1.GetOptions{})
	s.Must(err)
	w, err := nodes.Watch(s.T.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: obj.ResourceVersion})
	s.Must(err)
	return func() []turn.Node {
		s.T.Helper()
		defer w.Stop()
		end := s.Now(name).ResourceVersion
		ours := func(o *corev1.Node) v1alpha1.Keys {
			k := v1alpha1.ReadKeys(o.Labels, o.Annotations)
			k.Paused, k.Detached, k.Managed = nil, nil, nil
			return k
		}
		var all []turn.Node
		for before := obj; before.ResourceVersion != end; {
			select {
			case e, ok := <-w.ResultChan():
				now, is := e.Object.(*corev1.Node)
				if !ok || !is {
					s.T.Fatalf("the watch of %s ended with %+v", name, e.Object)
				}
				if !reflect.DeepEqual(ours(before), ours(now)) {
					all = append(all, turn.FromNode(now))
				}
				before = now
			case <-s.Within(rig.Soon).Done():
				s.T.Fatalf("the watch does not show the current %s", name)
			}
		}
		return all
	}
}

// hostUpdates returns the client for HostUpdates.
func (s *scene) hostUpdates() dynamic.ResourceInterface {
	s.T.Helper()
	client, err := dynamic.NewForConfig(s.ControlPlane.AdminConfig())
	s.Must(err)
	return client.Resource(v1alpha1.HostUpdateResource)
}

// hostUpdate returns the version of the node's HostUpdate.
func (s *scene) hostUpdate(name string) string {
	s.T.Helper()
	u, err := s.hostUpdates().Get(s.Within(rig.Soon), name, metav1.GetOptions{})
	s.Must(err)
	return u.GetResourceVersion()
}

// TestReleased takes a node out of lockkeeper's management in each possible way. One write releases the node. After
// that it has no key of lockkeeper except held and the information labels. While the node is out, lockkeeper writes
// nothing to it, although an update is staged, the host's process restarts, and another leader begins its term. When
// the node is back, held is gone and it gets its turn.
func TestReleased(t *testing.T) {
	t.Parallel()
	const name = "node-3"
	detach := func(value any) func(*scene) {
		return func(s *scene) { s.Annotate(name, v1alpha1.AnnotationDetached, value) }
	}
	manage := func(value any) func(*scene) { return func(s *scene) { s.Label(name, v1alpha1.LabelManaged, value) } }
	file := func(managed bool) func(*scene) {
		return func(s *scene) {
			s.Must(s.Host(name).Configure(func(c simhost.Config) { c.Set("", "managed_by_default", managed) }))
			s.Must(s.Host(name).Signal(syscall.SIGHUP))
		}
	}
	for _, c := range []struct {
		name      string
		held      v1alpha1.Reason
		out, back func(s *scene)
		// inTurn takes the node out while it drains. dead kills the host's process before that, and starts it again
		// after the node is back.
		inTurn, dead bool
		// writes is the maximum number of writes until the node is out. If the host's own file takes it out, that
		// includes a write of the host.
		writes int
	}{
		{"detached in idle", v1alpha1.ReasonDetached, detach(`{"reason":"sold","by":"ann"}`), detach(nil), false, false, 1},
		{"managed=false in idle", v1alpha1.ReasonUnmanaged, manage("false"), manage(nil), false, false, 1},
		{"managed=false in idle, and its host is dead", v1alpha1.ReasonUnmanaged, manage("false"), manage(nil), false, true, 1},
		{"its host's file", v1alpha1.ReasonUnmanaged, file(false), file(true), false, false, 2},
		{"detached with force in its turn, and its host is dead", v1alpha1.ReasonDetached, detach(`{"reason":"scrapped","force":true}`), detach(nil), true, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			rig.Sample(t, 3)
			t.Parallel()
			s := play(t, 3, 2, "rollout: {settle: 1s}", quick)
			s.Eventually("its HostUpdate", func(ctx context.Context) (bool, error) {
				_, err := s.hostUpdates().Get(ctx, name, metav1.GetOptions{})
				return err == nil, err
			})
			s.forget(name)
			h := s.Host(name)
			var budget *blockade
			if c.inTurn {
				budget = s.block(name)
				s.stage(name)
				s.Commits(name, v1alpha1.StateDraining)
				s.Reports(name, "1 pods to go")
			}
			if c.dead {
				h.Kill()
				h.StopLockkeeper() // prevents an automatic restart
			}
			writes := s.writes(name)
			info := s.Now(name).Info
			if info[v1alpha1.LabelOSVersion] == "" {
				t.Fatalf("no information labels: %v", info)
			}
			c.out(s)
			n := s.Until(name, rig.Soon, "to be unmanaged", func(n *turn.Node) bool { return n.State == v1alpha1.StateAbsent })
			if left := left(n); left != "" || n.Held != c.held || !maps.Equal(n.Info, info) {
				t.Errorf("the released node has held=%q, the keys %s and the labels %v; expected held=%s, no keys, and %v", n.Held, left, n.Info, c.held, info)
			}
			if n.Unschedulable != c.inTurn {
				t.Errorf("unschedulable %t, expected %t", n.Unschedulable, c.inTurn)
			}
			released := n

			// These changes would make a host or a leader write.
			if !c.inTurn {
				s.stage(name)
			}
			if !c.dead {
				h.StopLockkeeper()
				s.Must(h.StartLockkeeper())
				s.Reports(name, string(c.held))
			}
			update := s.hostUpdate(name) // no process runs that knew the node before the release
			leader, epoch := s.leader(), s.Epoch()
			leader.StopLockkeeper()
			s.Eventually("another term to begin", func(context.Context) (bool, error) { e := s.Epoch(); return e != "" && e != epoch, nil })
			s.Must(leader.StartLockkeeper())
			s.Annotate("node-1", v1alpha1.AnnotationPaused, "makes the new leader decide")
			s.Until("node-1", rig.Soon, "to be paused", func(n *turn.Node) bool { return n.State == v1alpha1.StatePaused })
			s.Annotate("node-1", v1alpha1.AnnotationPaused, nil)
			s.Until("node-1", rig.Soon, "to be idle", func(n *turn.Node) bool { return n.State == v1alpha1.StateIdle })

			all := writes()
			if len(all) == 0 || len(all) > c.writes || !reflect.DeepEqual(all[len(all)-1].Keys, released.Keys) {
				t.Errorf("%d writes; expected at most %d, and the last one to release the node:", len(all), c.writes)
				for i := range all {
					t.Logf("%+v", all[i].Keys)
				}
			}

			if now := s.hostUpdate(name); now != update {
				t.Errorf("the HostUpdate was written: version %s became %s", update, now)
			}
			if budget != nil {
				budget.lift()
			}
			c.back(s)
			if c.dead {
				if c.held == v1alpha1.ReasonDetached {
					// The coordinator sees without a report from the host that the node is no longer detached.
					s.Until(name, rig.Soon, "not to be held", func(n *turn.Node) bool { return n.Held == "" })
				}
				s.Must(h.StartLockkeeper())
			}
			s.updated(name)
			s.reboots(name, 1)
			if n := s.Now(name); n.Held != "" || n.Unschedulable != c.inTurn {
				t.Errorf("back, but held %q, unschedulable %t", n.Held, n.Unschedulable)
			}
		})
	}
}
