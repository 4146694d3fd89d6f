package virtual

import (
	"fmt"
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

// TestTurnRules checks that the rules for the beginning of a turn find offenders, and let pass what a leader cannot know, or may do. In each
// case, n1's turn t1 ends in epoch e1, and n2's turn t2 begins in epoch e1 or e2.
func TestTurnRules(t *testing.T) {
	began := func(epoch string, after time.Duration) v1alpha1.Grant {
		return v1alpha1.Grant{Turn: "t2", Epoch: epoch, Wants: v1alpha1.WantsReboot, StartedAt: fleetsBegin.Add(after)}
	}
	now := began("e1", 10*time.Second)
	now.Request = &v1alpha1.Request{Now: true}
	repairs := began("e1", 10*time.Second)
	repairs.Wants = v1alpha1.WantsNothing
	for name, c := range map[string]struct {
		result  v1alpha1.Result
		endedAt time.Duration // the decision
		term    time.Duration // when e2 takes the Lease
		grant   v1alpha1.Grant
		allowed int32
		retry   string
		had     int // turns of n2 before t2
		want    string
	}{
		"settled":                          {result: v1alpha1.ResultDone, grant: began("e1", 30*time.Second)},
		"too early":                        {result: v1alpha1.ResultDone, grant: began("e1", 29*time.Second), want: "Settle"},
		"decided before":                   {result: v1alpha1.ResultDone, endedAt: 10 * time.Second, grant: began("e1", 9*time.Second)},
		"a request that does not wait":     {result: v1alpha1.ResultDone, grant: now},
		"a turn that removes a cordon":     {result: v1alpha1.ResultFailed, grant: repairs},
		"a new leader, too early":          {result: v1alpha1.ResultDone, term: 21 * time.Second, grant: began("e2", 29*time.Second), want: "Settle"},
		"a leader of before the end":       {result: v1alpha1.ResultFailed, term: 19 * time.Second, grant: began("e2", 29*time.Second)},
		"a leader that has never led":      {result: v1alpha1.ResultFailed, grant: began("e2", time.Minute)},
		"halted":                           {result: v1alpha1.ResultFailed, grant: began("e1", time.Minute), want: "Halted"},
		"halted, under a new leader":       {result: v1alpha1.ResultFailed, term: 21 * time.Second, grant: began("e2", time.Minute), want: "Halted"},
		"one may fail":                     {result: v1alpha1.ResultFailed, grant: began("e1", time.Minute), allowed: 1},
		"cleared":                          {result: v1alpha1.ResultFailed, grant: began("e1", time.Minute), retry: "t1"},
		"another turn cleared":             {result: v1alpha1.ResultFailed, grant: began("e1", time.Minute), retry: "t0", want: "Halted"},
		"as many turns as a day allows":    {result: v1alpha1.ResultDone, grant: began("e1", time.Minute), had: 2},
		"more turns than a day allows":     {result: v1alpha1.ResultDone, grant: began("e1", time.Minute), had: 3, want: "Turn limit"},
		"more turns, to remove a cordon":   {result: v1alpha1.ResultDone, grant: repairs, had: 3},
		"halted, and not settled, at once": {result: v1alpha1.ResultFailed, grant: began("e1", 10*time.Second), want: "Settle Halted"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &Fleet{nodes: map[string]turn.Node{}, past: newPast(), opts: Options{Policy: func(s *v1alpha1.DisruptionPolicySpec) {
					s.Rollout.Settle.Duration, s.Rollout.MaxFailed, s.Rollout.MaxTurnsPerDay = 30*time.Second, c.allowed, 3
				}}}
				nodes := map[string]*corev1.Node{"n1": bareNode("n1"), "n2": bareNode("n2")}
				// write writes a turn to the Node or, with last, its end.
				write := func(name string, g *v1alpha1.Grant, last *v1alpha1.Last, retry string) {
					old := nodes[name]
					obj := old.DeepCopy()
					if obj.Labels[v1alpha1.LabelState] = string(v1alpha1.StateIdle); g != nil {
						g.NodeUID = string(obj.UID)
						obj.Labels[v1alpha1.LabelState] = string(v1alpha1.StateDraining)
						obj.Annotations[v1alpha1.AnnotationTurn], obj.Annotations[v1alpha1.AnnotationGrant] = g.Turn, v1alpha1.FormatRecord(g)
					} else {
						delete(obj.Annotations, v1alpha1.AnnotationTurn)
						delete(obj.Annotations, v1alpha1.AnnotationGrant)
						obj.Annotations[v1alpha1.AnnotationLast] = v1alpha1.FormatRecord(last)
					}
					if retry != "" {
						obj.Annotations[v1alpha1.AnnotationRetry] = retry
					}
					nodes[name], f.nodes[name] = obj, turn.FromNode(obj)
					if n := f.nodes[name]; len(n.Problems) > 0 {
						t.Fatal(n.Problems)
					}
					f.judgeTurns(&apiserver.Write{User: userCoordinator, Name: name, Old: old, Object: obj}, false)
				}
				write("n1", &v1alpha1.Grant{Turn: "t1", Epoch: "e1", Wants: v1alpha1.WantsReboot, StartedAt: fleetsBegin.Add(-time.Hour)}, nil, "")
				for i := range c.had {
					id := fmt.Sprintf("h%d", i)
					g := v1alpha1.Grant{Turn: id, Epoch: "e0", Wants: v1alpha1.WantsReboot, StartedAt: fleetsBegin.Add(-time.Hour)}
					write("n2", &g, nil, "")
					write("n2", nil, &v1alpha1.Last{Turn: id, Result: v1alpha1.ResultDone, End: fleetsBegin.Add(-time.Hour)}, "")
				}
				time.Sleep(time.Until(fleetsBegin.Add(20 * time.Second))) // when the end of t1 lands
				write("n1", nil, &v1alpha1.Last{Turn: "t1", Result: c.result, End: fleetsBegin.Add(c.endedAt)}, c.retry)
				if c.term > 0 {
					f.past.terms["e2"] = fleetsBegin.Add(c.term)
				}
				write("n2", &c.grant, nil, "")
				var broken []string
				for _, p := range f.problems {
					rule, _, _ := strings.Cut(p, ":")
					broken = append(broken, rule)
				}
				if is := strings.Join(broken, " "); is != c.want {
					t.Errorf("broken: %q, expected %q:\n%s", is, c.want, strings.Join(f.problems, "\n"))
				}
			})
		})
	}
}

func bareNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{}, Annotations: map[string]string{}}}
}
