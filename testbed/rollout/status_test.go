package rollout

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

// command is a lockkeeper command that an admin runs.
type command struct {
	s    *scene
	args []string
	*exec.Cmd
	stdout, stderr output
}

// output collects the output of a command, also while the command runs.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// starts starts a command that exits without help.
func (s *scene) starts(args ...string) *command {
	s.T.Helper()
	kubeconfig, err := s.ControlPlane.Kubeconfig("testbed:admin", "system:masters")
	s.Must(err)
	c := &command{s: s, args: args, Cmd: exec.CommandContext(s.Within(2*rig.Rolled), binary, args...)}
	c.Env = []string{"KUBECONFIG=" + kubeconfig, "HOME=" + s.T.TempDir()}
	c.Stdout, c.Stderr = &c.stdout, &c.stderr
	s.Must(c.Start())
	return c
}

// ends waits until the command exits, and checks its exit status.
func (c *command) ends(status int) (stdout, stderr string) {
	c.s.T.Helper()
	err := c.Wait()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		c.s.T.Fatalf("lockkeeper %q: %v", c.args, err)
	}
	if got := c.ProcessState.ExitCode(); got != status {
		c.s.T.Errorf("lockkeeper %q: exit status %d, expected %d\n%s%s", c.args, got, status, &c.stdout, &c.stderr)
	}
	return c.stdout.String(), c.stderr.String()
}

// shows fails the test unless the text contains all of the words.
func (s *scene) shows(text string, words ...string) {
	s.T.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			s.T.Errorf("%q is missing in:\n%s", word, text)
		}
	}
}

// TestStatusAndWait follows a rollout like a script: the progress, the exit statuses, and the end of a wait. A stop
// during the drain of one node ends only the wait for that node.
func TestStatusAndWait(t *testing.T) {
	t.Parallel()
	s := play(t, 3, 1, "rollout: {settle: 1s, expectedDuration: 10m}", quick)
	upToDate, _ := s.starts("wait", "--for=up-to-date", "--timeout=4m").ends(0)
	if upToDate != "" {
		t.Errorf("wait printed to standard output: %q", upToDate)
	}
	out, _ := s.starts("status", "--exit-code").ends(0)
	s.shows(out, "Up to date: 3 of 3 managed nodes up to date.\n", "\nNodes by version: OS flatcar "+oldVersion+" (3); lockkeeper ")

	budget := s.block("node-2")
	s.stage("node-2")
	s.Commits("node-2", v1alpha1.StateDraining)
	s.stage("node-3")
	s.Held("node-3", v1alpha1.ReasonBudget)
	// Node-2 takes about 10 minutes, and so does node-3 after it.
	out, _ = s.starts("status").ends(0)
	s.shows(out, "Rolling: 1 of 3 managed nodes up to date, 1 in a turn, 1 wants a reboot.\n",
		"\nfleet               [######--------------]  1 of 3    about ", " left at an expected 10m per turn\n",
		"\ntest                [######--------------]  1 of 3    about ", " left at an expected 10m per turn; 1 in a turn; 1 unavailable, 1 allowed\n")
	s.starts("status", "--exit-code").ends(2)
	s.starts("status", "--exit-code", "node-1").ends(0)
	s.starts("plan").ends(0)
	s.starts("plan", "--exit-code", "node-3").ends(3)

	_, said := s.starts("wait", "--for=idle", "--timeout=3s", "node-2").ends(4)
	s.shows(said, "Z  node-2  draining  wants=reboot held=-", "\nlockkeeper: timed out after 3s; not idle yet\n")
	s.starts("wait", "--for=idle", "--timeout=1m", "node-3").ends(0)
	_, said = s.starts("wait", "--for=idle", "node-9").ends(1)
	s.shows(said, `lockkeeper: node "node-9" not found`)

	rolls, stops := s.starts("wait", "--for=up-to-date"), s.starts("wait", "--for=held", "--timeout=4m")
	// Both waits have started before the stop is set.
	s.Eventually("both waits to see the rollout", func(context.Context) (bool, error) {
		return rolls.stderr.String() != "" && stops.stderr.String() != "", nil
	})
	s.Stop("for a look")
	_, said = stops.ends(0)
	s.shows(said, "Z  Rolling: 1 of 3", "Z  Stopped: 1 of 3", "End unknown: the emergency stop is set.\n")
	out, _ = s.starts("status", "--exit-code").ends(3)
	s.shows(out, "1 of 3    end unknown: the emergency stop is set\n")
	if rolls.ProcessState != nil {
		t.Error("the stop ended the wait for the end of the rollout")
	}
	s.resume()
	budget.lift()
	_, said = rolls.ends(0)
	s.shows(said, "Z  Stopped: 1 of 3", "Z  Rolling: 2 of 3", "Z  Up to date: 3 of 3")
	for _, name := range []string{"node-2", "node-3"} {
		if n := s.Now(name); n.State != v1alpha1.StateIdle || n.Wants != v1alpha1.WantsNothing || s.Host(name).Version() != newVersion {
			t.Errorf("after the wait %s is %s, wants %s, runs %s", name, n.State, n.Wants, s.Host(name).Version())
		}
	}
	s.Until("node-3", rig.Soon, "to record its turn", func(n *turn.Node) bool { return n.Last != nil })
	out, _ = s.starts("status").ends(0)
	s.shows(out, "\nNodes by version: OS flatcar "+newVersion+" (2), flatcar "+oldVersion+" (1); lockkeeper ")
}
