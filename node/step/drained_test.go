package step

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// checkTurn takes a host through a turn whose grant drains. Before each step everything else changes, and also the state: an attacker with the
// coordinator's credential can write any state. Only what the host itself has written stays. So the test knows whether the host has
// committed to the drain, even if the Node no longer shows it. checkTurn returns how often the host acted in a stage after the drain.
func checkTurn(t *testing.T, d *dice) (late int) {
	t.Helper()
	labels, annotations := v1alpha1.HostKeys()
	var node *world // nil before the turn
	var acks []v1alpha1.Ack
	committed, drains := false, false  // so far
	works := map[v1alpha1.State]bool{} // the stages whose units the host has started
	for range 12 {
		o := randomObservation(d)
		w := worldOf(&o)
		w.labels[v1alpha1.LabelState] = string(one(d, v1alpha1.StateBeforeDrain, v1alpha1.StateBeforeDrain, v1alpha1.StateDraining, v1alpha1.StateBeforeReboot,
			v1alpha1.StateRebooting, v1alpha1.StateRebooting, v1alpha1.StateApplying, v1alpha1.StateBeforeUncordon))
		if node == nil { // the Node may still have the records of another turn
			w.annotations[v1alpha1.AnnotationAck] = "t0/b1/" + one(d, "draining/committed", "before-reboot/done")
		} else {
			keep(w.labels, node.labels, labels)
			keep(w.annotations, node.annotations, annotations)
		}
		o.Node, node = w.apply(&Write{}), w
		n := &o.Node
		n.Unschedulable = n.Mark || d.yes() // by a user
		if n.Grant != nil {
			n.Grant.Drains = true
		}
		if !drains {
			o.Drain = Drain{}
		}
		if o.Self.HookStages = nil; d.yes() {
			o.Self.HookStages = []v1alpha1.State{v1alpha1.StateBeforeDrain, v1alpha1.StateBeforeReboot, v1alpha1.StateBeforeUncordon}
		}
		if !works[n.State] {
			o.Hooks, o.Apply = Work{}, Work{}
		} else if d.yes() {
			o.Hooks = Work{Done: true}
		}

		step := Step(o)
		did := string(step.Do)
		switch step.Do {
		case DoDrain:
			drains = true
		case DoHooks, DoApply:
			works[n.State] = true
		}
		if w := step.Write; w != nil {
			node.apply(w)
			acks = append(acks, w.Ack)
			if w.Ack.Report == v1alpha1.ReportCommitted {
				did = "commit"
				committed = committed || n.State == v1alpha1.StateDraining
			}
		}
		after := n.State == v1alpha1.StateBeforeReboot || n.State == v1alpha1.StateRebooting || n.State == v1alpha1.StateApplying
		switch {
		case did == "", !after && step.Do != DoDrain:
		case !committed:
			t.Fatalf("%s in %s without a commit to the drain\nacks: %v\nobservation: %+v\nread: %+v\ngrant: %+v", did, n.State, acks, o, o.Fresh, n.Grant)
		case after:
			late++
		}
	}
	return late
}

// keep replaces the values of the keys with those in another map.
func keep(m, other map[string]string, keys []string) {
	for _, key := range keys {
		if delete(m, key); other[key] != "" {
			m[key] = other[key]
		}
	}
}

// TestNothingBeforeTheDrain checks that a host evicts pods, and acts in a stage after the drain, only after it has committed to the drain in
// the same turn.
func TestNothingBeforeTheDrain(t *testing.T) {
	n := 2000
	switch {
	case os.Getenv("LOCKKEEPER_SOAK") != "":
		n *= 30
	case testing.Short():
		n = 1000
	}
	r := rand.New(rand.NewPCG(3, 4))
	late := 0
	buf := make([]byte, 1000)
	for range n {
		for i := range buf {
			buf[i] = byte(r.Uint32())
		}
		d := dice(slices.Clone(buf))
		late += checkTurn(t, &d)
	}
	if late < n/50 {
		t.Errorf("%d hosts acted %d times in a stage after the drain, too few to prove anything", n, late)
	}
}
