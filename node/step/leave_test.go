package step

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// TestLeft: the service may be stopped for good once the node is in no turn and has neither a state, a mark, nor a key of the host.
func TestLeft(t *testing.T) {
	for facts, want := range map[string]bool{
		"absent leaving unpublished":                          true,
		"absent leaving managed=true unpublished":             true,
		"absent leaving detached unpublished":                 true,
		"absent leaving nosources unpublished":                true,
		"absent managed=false unpublished":                    false, // it would come back
		"absent leaving unseen unpublished":                   false,
		"absent leaving":                                      false, // the host record is there
		"absent leaving label=flatcar unpublished":            false,
		"absent leaving ack=uncordoning/done unpublished":     false,
		"absent leaving marked cordoned unpublished":          false,
		"absent leaving detached marked cordoned unpublished": false,
		"idle leaving unpublished":                            false,
		"draining leaving unpublished":                        false,
		"flooding leaving unpublished":                        false,
	} {
		o := observe(t, strings.Fields(facts))
		if got := o.Left(); got != want {
			t.Errorf("%s: left %t, expected %t", facts, got, want)
		}
	}
}

// TestRemoveKeys: where a user has removed one of the host's keys, a host that leaves removes the others.
func TestRemoveKeys(t *testing.T) {
	wants, host, ack := v1alpha1.LabelWants, v1alpha1.AnnotationHost, v1alpha1.AnnotationAck
	for _, c := range []struct {
		change func(*turn.Node)
		want   []string
	}{
		{func(*turn.Node) {}, nil},
		{func(n *turn.Node) { n.RawHost = "{}" }, []string{wants, host}},
		{func(n *turn.Node) { n.Wants = v1alpha1.WantsReboot }, []string{wants, host}},
		{func(n *turn.Node) { n.Ack.Turn = aTurn }, []string{ack}},
		{func(n *turn.Node) { n.Info = map[string]string{v1alpha1.LabelOS: "flatcar"} }, []string{v1alpha1.LabelOS}},
	} {
		var o Observation
		c.change(&o.Node)
		w := o.removeKeys()
		got := slices.Concat(slices.Collect(maps.Keys(w.Labels)), slices.Collect(maps.Keys(w.Annotations)))
		if !slices.Equal(got, c.want) || w.empty() != (len(c.want) == 0) {
			t.Errorf("removes %q, expected %q", got, c.want)
		}
	}
}
