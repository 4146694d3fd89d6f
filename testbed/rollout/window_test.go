package rollout

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
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
	s.Reports(name, waits, rig.Soon)
	budget := s.block(name)
	s.window(name, true)
	s.Commits(name, v1alpha1.StateDraining)
	s.window(name, false)
	budget.lift()
	s.Reaches(name, v1alpha1.StateRebooting)
	s.Reports(name, waits, rig.Soon)
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

// gates plays a Prometheus that takes the result of a query from the text of the query. TestGates uses a real one.
func gates(t *testing.T) (url string, asked func(expr string) int) {
	t.Helper()
	var mu sync.Mutex
	var all []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		all = append(all, r.FormValue("query"))
		mu.Unlock()
		result := `{"metric":{"__name__":"errors"},"value":[1,"7"]}`
		if r.FormValue("query") == "nothing" {
			result = ""
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[%s]}}`, result)
	}))
	t.Cleanup(server.Close)
	return server.URL, func(expr string) int {
		mu.Lock()
		defer mu.Unlock()
		return len(slices.DeleteFunc(slices.Clone(all), func(q string) bool { return q != expr }))
	}
}

// TestGate uses a policy with a closed gate, and then one with an open gate. The coordinator sends no query before a
// host wants something.
func TestGate(t *testing.T) {
	t.Parallel()
	const name = "node-2"
	url, asked := gates(t)
	policy := func(query string) string {
		return "rollout: {settle: 1s, gates: [{name: calm, query: " + query + "}]}"
	}
	s := play(t, 2, 1, policy("errors"), config("coordinator", "prometheus_url", url))
	if n := asked("errors"); n != 0 {
		t.Errorf("%d queries although no node wants anything", n)
	}
	s.stage(name)
	s.Held(name, v1alpha1.ReasonGateClosed)
	s.Eventually("the gate's query", func(context.Context) (bool, error) { return asked("errors") > 0, nil })
	s.alive("node-1") // the coordinator has used the answer
	s.Held(name, v1alpha1.ReasonGateClosed)
	s.reboots(name, 0)
	_, err := s.ControlPlane.ApplyPolicy(s.Within(rig.Soon), controlplane.TestPolicy, policy("nothing"))
	s.Must(err)
	s.updated(name)
	s.reboots(name, 1)
	if asked("nothing") == 0 {
		t.Error("the other query was never sent")
	}
}
