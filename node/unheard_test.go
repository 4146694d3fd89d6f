package node

import (
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// A host says that it found nobody when it has looked twice, and looks less and less often then.
func TestUnheardLooks(t *testing.T) {
	const nobody = v1alpha1.ReasonNoCoordinator
	var u unheard
	for i, c := range []struct {
		found v1alpha1.Reason
		says  v1alpha1.Reason
		due   time.Duration // of the next look
	}{
		{"", "", 10 * time.Minute},
		{nobody, "", 15 * time.Second}, // a handover may be under way
		{"", "", 10 * time.Minute},
		{nobody, "", 15 * time.Second},
		{nobody, nobody, 2 * time.Minute},
		{nobody, nobody, 4 * time.Minute},
		{v1alpha1.ReasonForbidden, v1alpha1.ReasonForbidden, 8 * time.Minute},
		{nobody, nobody, 10 * time.Minute}, // its patience
		{"", "", 10 * time.Minute},
		{nobody, "", 15 * time.Second},
	} {
		u.learn(c.found, "why")
		if u.found != c.says || u.due(unheardAfter) != c.due {
			t.Errorf("look %d: says %q, and looks again after %v; expected %q and %v", i, u.found, u.due(unheardAfter), c.says, c.due)
		}
	}
	for range 5 {
		u.learn(nobody, "why")
	}
	if d := u.due(heardAfter); d != 15*time.Minute {
		t.Errorf("at most it waits %v", d)
	}
}
