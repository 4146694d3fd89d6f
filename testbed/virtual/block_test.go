package virtual

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/apiserver"
)

// TestJobs checks that a host with a job that its policy blocks waits while another has its turn, and arrives once the job has ended.
func TestJobs(t *testing.T) {
	inBubble(t, Options{Hosts: 2, Blocks: blockRules{selected: true}}, func(t *testing.T, f *Fleet) {
		f.AddJob("n1", jobSelected)
		f.Stage("n1", "2.0.0")
		f.Stage("n2", "2.0.0")
		if why := f.Arrive(time.Hour, "n1"); why != "" {
			t.Error(why)
		}
		if n := turn.FromNode(f.Node("n1")); n.State != v1alpha1.StateIdle || n.Held != v1alpha1.ReasonDrainBlocked {
			t.Errorf("it is in %s and held %q, expected idle and DrainBlocked", n.State, n.Held)
		}
		f.EndJob("n1", jobSelected)
		if why := f.Arrive(time.Hour); why != "" {
			t.Error(why)
		}
	})
}

// TestBlockRule checks that the rule for pods that block finds an offender, and lets pass what hosts may do.
func TestBlockRule(t *testing.T) {
	granted := turn.Node{Name: "n1", UID: "u1", Keys: v1alpha1.Keys{
		State: v1alpha1.StateDraining, Turn: "t1",
		Grant: &v1alpha1.Grant{Turn: "t1", NodeUID: "u1", BlockOff: true}, Host: &v1alpha1.Host{NodeUID: "u1", BlockOff: true},
	}}
	unsaid := granted
	unsaid.Host = &v1alpha1.Host{NodeUID: "u1"}
	for name, c := range map[string]struct {
		node turn.Node
		mode string
		by   string
		age  time.Duration
		want int // how many of the two acts are offences: the cordon and the eviction
	}{
		"Block is on":                       {turn.Node{}, jobSelected, "system:node:n1", 11 * time.Second, 2},
		"a pod without a controller":        {turn.Node{}, jobBare, "system:node:n1", 11 * time.Second, 2},
		"the pod came after the reads":      {turn.Node{}, jobSelected, "system:node:n1", 9 * time.Second, 1},
		"an admin deletes the pod":          {turn.Node{}, jobSelected, userAdmin, 11 * time.Second, 1},
		"the policy does not block the pod": {turn.Node{}, jobScratch, "system:node:n1", 11 * time.Second, 0},
		"Block is off":                      {granted, jobSelected, "system:node:n1", 11 * time.Second, 0},
		"Block is off by the grant alone":   {unsaid, jobSelected, "system:node:n1", 11 * time.Second, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &Fleet{trace: newTrace(),
					opts:  Options{Blocks: blockRules{selected: true, unmanaged: true, timeout: time.Minute, evict: true}},
					nodes: map[string]turn.Node{"n1": c.node}, blocks: blocks{map[types.UID]blocker{}, map[string]time.Time{}},
				}
				p := jobOf("n1", c.mode)
				p.UID = "p1"
				f.judgeEviction(&apiserver.Write{Object: p})
				time.Sleep(c.age)
				(&Machine{name: "n1", f: f}).cordons([]byte(`"t1/b1/draining/committed"`))
				going := p.DeepCopy()
				going.DeletionTimestamp = new(metav1.Now())
				f.judgeEviction(&apiserver.Write{Old: p, Object: going, User: c.by})
				f.judgeEviction(&apiserver.Write{Old: going, Object: (*corev1.Pod)(nil), User: userAdmin})
				if len(f.problems) != c.want || len(f.blocks.pods) != 0 {
					t.Errorf("%d offences, expected %d; %d pods left:\n%s", len(f.problems), c.want, len(f.blocks.pods), strings.Join(f.problems, "\n"))
				}
			})
		})
	}
}
