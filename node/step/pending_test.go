package step

import (
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

func TestPendingSince(t *testing.T) {
	then, now := time.Unix(1000, 0).UTC(), time.Unix(2000, 0).UTC()
	update := func(version string) []v1alpha1.Change {
		return []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: version}}
	}
	for name, c := range map[string]struct {
		was     *v1alpha1.Host
		changes []v1alpha1.Change
		want    time.Time
	}{
		"nothing pending":              {&v1alpha1.Host{NodeUID: "u", PendingSince: then, Changes: update("2")}, nil, time.Time{}},
		"never published":              {nil, update("2"), now},
		"published in an earlier boot": {&v1alpha1.Host{NodeUID: "u", BootID: "b0", PendingSince: then, Changes: update("2")}, update("2"), then},
		"another change":               {&v1alpha1.Host{NodeUID: "u", PendingSince: then, Changes: update("2")}, update("3"), now},
		"another Node":                 {&v1alpha1.Host{NodeUID: "v", PendingSince: then, Changes: update("2")}, update("2"), now},
		"one more change": {&v1alpha1.Host{NodeUID: "u", PendingSince: then, Changes: update("2")},
			append(update("2"), v1alpha1.Change{Source: v1alpha1.SourceSentinel, Name: "/x"}), then},
	} {
		o := Observation{Self: v1alpha1.Host{BootID: "b1", PendingSince: now}, Sources: Sources{Complete: true, Changes: c.changes, Wants: v1alpha1.WantsNothing}}
		if len(c.changes) > 0 {
			o.Sources.Wants = v1alpha1.WantsReboot
		}
		o.Node.UID, o.Node.Host = "u", c.was
		if got := o.hostRecord(v1alpha1.Ack{}).PendingSince; !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
