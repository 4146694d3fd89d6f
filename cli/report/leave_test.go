package report

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestLeaveWait: each node is finished once it has neither a state nor the mark, and named whenever what it waits for has changed.
func TestLeaveWait(t *testing.T) {
	w := newWorld(t)
	out := label(v1alpha1.LabelManaged, "false")
	released := func(n *corev1.Node) {
		out(n)
		delete(n.Labels, v1alpha1.LabelState)
	}
	n1 := w.add("n1", inTurn(v1alpha1.StateDraining, "13:02:00", "committed"), cordoned, out)
	w.add("n2", released)
	w.add("n3", released)
	marked := w.add("n4", released, annotation(v1alpha1.AnnotationCordon, "t0"))
	var said, finished []string
	leftovers := map[string]int{"n2": 1} // how many writes a node needs
	var broken error
	wait := LeaveWait{
		Nodes: []string{"n1", "n2", "n3", "n4", "n9"}, Say: func(line string) { said = append(said, line) },
		Finish: func(node string) (bool, error) {
			finished = append(finished, node)
			leftovers[node]--
			return leftovers[node] < 0, broken
		},
	}
	refused := errors.New("refused")
	for i, step := range []struct {
		change  func()
		away    error
		want    error
		pending string
	}{
		{func() {}, nil, nil, "n1 n2 n4"},
		{func() {}, nil, nil, "n1 n4"},
		{func() { delete(n1.Labels, v1alpha1.LabelState); delete(marked.Annotations, v1alpha1.AnnotationCordon) }, errors.New("gone"), nil, "n1 n4"},
		{func() { broken = refused }, nil, refused, "n1 n4"},
		{func() { broken = nil; delete(n1.Annotations, v1alpha1.AnnotationCordon) }, nil, ErrReached, ""},
	} {
		step.change()
		if err := wait.Show(w.report(), step.away); err != step.want {
			t.Errorf("step %d: %v, expected %v", i, err, step.want)
		}
		if got := strings.Join(wait.Nodes, " "); got != step.pending {
			t.Errorf("step %d: %q are pending, expected %q", i, got, step.pending)
		}
	}
	if want := []string{"n2", "n3", "n2", "n4", "n1", "n4"}; !slices.Equal(finished, want) {
		t.Errorf("finished %q, expected %q", finished, want)
	}
	texts := strings.Join(said, "\n") + "\n"
	for _, want := range []string{
		"13:04:05Z  n1  draining  wants=reboot held=-", "Z  n2  released; removing what is left\n", "Z  n2  has left\n", "Z  n3  has left\n",
		"Z  n4  not managed  wants=nothing held=-", "Z  n9  its Node was deleted\n", "API server cannot be reached: gone", "Z  n1  has left\n",
	} {
		if strings.Count(texts, want) != 1 {
			t.Errorf("%q is said %d times, expected once, in:\n%s", want, strings.Count(texts, want), texts)
		}
	}
}

// TestUnreleased: the wait ends once no instance has released nodes for a minute without a break, and says why.
func TestUnreleased(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*world)
		why    string
	}{
		"no Lease":                  {func(w *world) { w.lease = nil }, "Lease lockkeeper/lockkeeper does not exist"},
		"a stop":                    {func(w *world) { w.lease.Annotations[v1alpha1.AnnotationStop] = "fire" }, "the emergency stop is set: fire"},
		"no holder":                 {func(w *world) { w.lease.Spec.HolderIdentity = nil }, "no instance holds Lease lockkeeper/lockkeeper"},
		"not renewed":               {func(w *world) { w.lease.Spec.RenewTime.Time = at("12:00:00") }, "no instance holds Lease lockkeeper/lockkeeper"},
		"an instance leads":         {func(*world) {}, ""},
		"the Lease may not be read": {func(w *world) { w.err = errors.New("forbidden") }, ""},
	} {
		w := newWorld(t)
		w.add("n1", label(v1alpha1.LabelManaged, "false"))
		tc.change(w)
		r := w.report()
		wait := LeaveWait{Nodes: []string{"n1"}, Say: func(string) {}}
		show := func(after time.Duration, r Report) error {
			r.Time = r.Time.Add(after)
			return wait.Show(r, nil)
		}
		led := newWorld(t)
		led.add("n1", label(v1alpha1.LabelManaged, "false"))
		for i, err := range []error{show(0, r), show(59*time.Second, r), show(60*time.Second, led.report()), show(61*time.Second, r), show(120*time.Second, r)} {
			if err != nil {
				t.Errorf("%s: step %d: %v", name, i, err)
			}
		}
		err := show(121*time.Second, r)
		switch unreleased, ok := errors.AsType[*UnreleasedError](err); {
		case ok != (tc.why != ""):
			t.Errorf("%s: %v", name, err)
		case ok && unreleased.Why != tc.why:
			t.Errorf("%s: %q, expected %q", name, unreleased.Why, tc.why)
		}
	}
}
