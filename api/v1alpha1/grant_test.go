package v1alpha1

import (
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWithoutBlock checks that only the rules by which pods block are replaced.
func TestWithoutBlock(t *testing.T) {
	for _, c := range []struct{ rules, want PodRules }{
		{PodRules{Unmanaged: PodBlock, EmptyDir: PodBlock, Block: []PodSelector{{}}}, PodRules{Unmanaged: PodEvict, EmptyDir: PodEvict}},
		{PodRules{Unmanaged: PodSkip, EmptyDir: PodBlock}, PodRules{Unmanaged: PodSkip, EmptyDir: PodEvict}},
		{PodRules{Unmanaged: PodBlock, EmptyDir: PodSkip}, PodRules{Unmanaged: PodEvict, EmptyDir: PodSkip}},
		{PodRules{Unmanaged: PodSkip, Skip: []PodSelector{{}}}, PodRules{Unmanaged: PodSkip, Skip: []PodSelector{{}}}},
	} {
		if got := c.rules.WithoutBlock(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v without block is %+v, expected %+v", c.rules, got, c.want)
		}
	}
}

// TestBlockLimit checks that pods may block indefinitely unless the terms say otherwise.
func TestBlockLimit(t *testing.T) {
	for on, want := range map[OnBlockTimeout]time.Duration{"": 0, OnBlockTimeoutHold: 0, OnBlockTimeoutEvict: time.Hour} {
		terms := Terms{BlockTimeout: metav1.Duration{Duration: time.Hour}, OnBlockTimeout: on}
		if got := terms.BlockLimit(); got != want {
			t.Errorf("%q: %v, expected %v", on, got, want)
		}
	}
}
