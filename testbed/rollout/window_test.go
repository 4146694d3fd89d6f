package rollout

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

// writeWindow writes a window into a drop-in of a host, which reads it at its next start or at SIGHUP. A closed window
// was open for ten minutes, half a day ago.
func (s *scene) writeWindow(name string, open bool) {
	s.T.Helper()
	start, lasts := time.Now().UTC().Add(-12*time.Hour), "10m"
	if open {
		start, lasts = time.Now().UTC().Add(-time.Hour), "12h"
	}
	dir := filepath.Join(filepath.Dir(s.Host(name).ConfigPath()), "config.d")
	s.Must(os.MkdirAll(dir, 0o700))
	text := fmt.Sprintf("[[window]]\nstart = \"%s\"\nduration = \"%s\"\n", start.Format("15:04"), lasts)
	s.Must(os.WriteFile(filepath.Join(dir, "window.toml"), []byte(text), 0o600))
}

// window changes the window of a running host and waits until the host reports the effect.
func (s *scene) window(name string, open bool) {
	s.T.Helper()
	s.writeWindow(name, open)
	s.Must(s.Host(name).Signal(syscall.SIGHUP))
	var veto v1alpha1.Reason
	if !open {
		veto = v1alpha1.ReasonWindow
	}
	s.Until(name, rig.Soon, fmt.Sprintf("to have the veto %q", veto), func(n *turn.Node) bool { return n.Host != nil && n.Host.Veto == veto })
}

// TestWindowOfTheHost closes the window in a host's own file before its turn, and again during its drain. The pods
// still leave, and the host reboots only when a window is open. A window that closes during the reboot does not keep
// the node from finishing its turn.
func TestWindowOfTheHost(t *testing.T) {
	rig.Sample(t, 3)
	t.Parallel()
	const name = "node-2"
	s := play(t, 2, 1, "rollout: {settle: 1s}", quick)
	const waits = "Window (until a window of this host opens, on "
	s.window(name, false)
	s.stage(name)
	s.Held(name, v1alpha1.ReasonWindow)
	s.Reports(name, waits)
	budget := s.block(name)
	s.window(name, true)
	s.Commits(name, v1alpha1.StateDraining)
	s.window(name, false)
	budget.lift()
	s.Reaches(name, v1alpha1.StateRebooting)
	s.Reports(name, waits)
	for range 3 {
		s.alive(name)
	}
	if n := s.Now(name); n.Committed() || !n.Unschedulable || n.State != v1alpha1.StateRebooting {
		t.Errorf("with a closed window the node is %s, committed %t, unschedulable %t", n.State, n.Committed(), n.Unschedulable)
	}
	s.reboots(name, 0)
	unblock := s.Host(name).Logind().Hold(blocker)
	s.window(name, true)
	s.writeWindow(name, false) // for the next boot
	unblock()
	s.updated(name)
	s.schedulable(name)
	s.reboots(name, 1)
	s.Until(name, rig.Soon, "to have the window's veto", func(n *turn.Node) bool { return n.Host.Veto == v1alpha1.ReasonWindow })
}
