package coordinator

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// TestFacts checks that, after Nodes are created, changed, deleted and created again, the facts are those of the
// current Nodes, in the order of their names, and that nothing is kept of a deleted Node.
func TestFacts(t *testing.T) {
	node := func(name string, state v1alpha1.State) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelState: string(state)}}}
	}
	a, b, c := node("a", v1alpha1.StateIdle), node("b", v1alpha1.StateIdle), node("c", v1alpha1.StateIdle)
	changed, again := node("b", v1alpha1.StateDraining), node("a", v1alpha1.StatePaused)
	var f facts
	for i, nodes := range [][]*corev1.Node{
		{}, {a, b}, {a, b}, {a, changed}, {a, changed, c}, {c}, {again, c}, {again, b}, {},
	} {
		var want []turn.Node
		for _, n := range nodes {
			want = append(want, turn.FromNode(n))
		}
		slices.SortFunc(want, func(a, b turn.Node) int { return strings.Compare(a.Name, b.Name) })
		got := f.of(nodes)
		if len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Errorf("%d: got %+v\nexpected %+v", i, got, want)
		}
	}
	if len(f.at)+len(f.from)+len(f.all) != 0 {
		t.Errorf("the facts of deleted Nodes are kept: %v", f)
	}
}

// BenchmarkFacts measures a leader's reads before a decision when one of 5,000 Nodes has changed.
func BenchmarkFacts(b *testing.B) {
	var nodes []*corev1.Node
	for i := range 5000 {
		nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name:        fmt.Sprintf("node-%04d", i),
			Labels:      map[string]string{v1alpha1.LabelState: string(v1alpha1.StateIdle), v1alpha1.LabelWants: string(v1alpha1.WantsNothing)},
			Annotations: map[string]string{v1alpha1.AnnotationHost: v1alpha1.FormatRecord(v1alpha1.Host{Protocol: v1alpha1.Protocol, Managed: true})},
		}})
	}
	var f facts
	b.ReportAllocs()
	for b.Loop() {
		nodes[17] = nodes[17].DeepCopy()
		f.of(nodes)
	}
}
