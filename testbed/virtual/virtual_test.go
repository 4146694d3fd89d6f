package virtual

import (
	"flag"
	"log/slog"
	"os"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"lockkeeper.dev/lockkeeper/kube/dirwatch"
)

func TestMain(m *testing.M) {
	flag.Parse()
	debug.SetGCPercent(400) // a run allocates much and keeps little
	dirwatch.Off.Store(true)
	// client-go's handler of errors remembers the time of the last one, and would wait for that time in the next bubble.
	utilruntime.ErrorHandlers = nil
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

// inBubble runs a test with a fleet, which has no fault unless the test makes one. What the run did is logged if it fails.
func inBubble(t *testing.T, o Options, test func(t *testing.T, f *Fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		o.Log = func(text string) { lines = append(lines, text) }
		f := New(t.TempDir(), o)
		defer func() {
			f.Close()
			if why := f.Verdict(); why != "" {
				t.Error(why)
			}
			if t.Failed() || testing.Verbose() {
				for _, l := range lines {
					t.Log(l)
				}
			}
		}()
		test(t, f)
	})
}

// TestRollout checks that a fleet without faults rolls an update, one node at a time.
func TestRollout(t *testing.T) {
	inBubble(t, Options{Hosts: 3, Workloads: 2}, func(t *testing.T, f *Fleet) {
		for _, host := range f.Hosts() {
			f.Stage(host, "2.0.0")
		}
		if why := f.Arrive(2 * time.Hour); why != "" {
			t.Errorf("after two hours: %s", why)
		}
		if r, _ := f.Judge.End(); r.Reboots != 3 || r.MaxDisturbed != 1 {
			t.Errorf("%d reboots with at most %d nodes disturbed, expected 3 and 1", r.Reboots, r.MaxDisturbed)
		}
	})
}
