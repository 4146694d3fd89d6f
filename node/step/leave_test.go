package step

import (
	"strings"
	"testing"
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
