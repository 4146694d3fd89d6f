package step

import (
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// TestUncordoning checks that the host uncordons its node in one write with its report, also if it reported in another boot
// before, and that it does neither while the node is paused, the host shuts down or hook units are to stop.
func TestUncordoning(t *testing.T) {
	for name, c := range map[string]struct {
		mark     bool
		acked    string // the boot of an ack done; "" for none
		paused   bool
		shutdown Shutdown
		hooks    Work
		reports  bool
	}{
		"cordoned":                        {true, "", false, ShutdownNone, Work{}, true},
		"not cordoned":                    {false, "", false, ShutdownNone, Work{}, true},
		"done":                            {false, "b1", false, ShutdownNone, Work{}, false},
		"done before a crash":             {false, "b0", false, ShutdownNone, Work{}, true},
		"done before a crash, marked":     {true, "b0", false, ShutdownNone, Work{}, true},
		"paused":                          {true, "", true, ShutdownNone, Work{}, false},
		"shuts down":                      {true, "", false, ShutdownUnderway, Work{}, false},
		"logind has not been asked again": {true, "", false, ShutdownUnknown, Work{}, true},
		"hook units are to stop":          {true, "", false, ShutdownNone, Work{Running: true}, false},
	} {
		o := Observation{Self: v1alpha1.Host{BootID: "b1"}, Shutdown: c.shutdown, Hooks: c.hooks, Node: turn.Node{
			Name: "n1", UID: "u", BootID: "b1", Ready: true, Unschedulable: c.mark, Keys: v1alpha1.Keys{
				State: v1alpha1.StateUncordoning, Turn: "t1", Mark: c.mark, Grant: &v1alpha1.Grant{Turn: "t1", NodeUID: "u"},
				Ack: v1alpha1.Ack{Turn: "t1", BootID: "b1", State: v1alpha1.StateRebooting, Report: v1alpha1.ReportDone},
			}}}
		if c.acked != "" {
			o.Node.Ack.State, o.Node.Ack.BootID = v1alpha1.StateUncordoning, c.acked
		}
		if c.paused {
			o.Node.Paused = &v1alpha1.Intent{}
		}
		w := Step(o).Write
		reports := w != nil && w.Ack == v1alpha1.Ack{Turn: "t1", BootID: "b1", State: v1alpha1.StateUncordoning, Report: v1alpha1.ReportDone}
		uncordons := w != nil && w.Unschedulable != nil && !*w.Unschedulable
		if reports != c.reports || uncordons != (c.reports && c.mark) {
			t.Errorf("%s: reports %t, uncordons %t", name, reports, uncordons)
		}
	}
}
