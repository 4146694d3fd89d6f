package walkthrough

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

func TestSteps(t *testing.T) {
	steps, err := Steps("# A page\n```sh\nA=1\n```\n## Two\ntext\n```\n# no heading\n```\n```text\nx\n```\n```sh\ntrue\n  false\n```\n")
	if want := []Step{{"A page", "A=1\n"}, {"Two", "true\n  false\n"}}; err != nil || !slices.Equal(steps, want) {
		t.Errorf("%q, %v; want %q", steps, err, want)
	}
	if _, err := Steps("# A\n```sh\ntrue\n"); err == nil {
		t.Error("a block without an end is none")
	}
}

// echo is a host that notes what is asked of it.
type echo struct{ seen []string }

func (e *echo) Run(_ context.Context, command string) (string, int, error) {
	e.seen = append(e.seen, command)
	if command == "unknown" {
		return "", 0, errors.New("no such thing here")
	}
	var exit int
	_, _ = fmt.Sscanf(command, "exit %d", &exit)
	return "ran " + command + "\n", exit, nil
}

func (e *echo) Put(_ context.Context, path string, data []byte, mode os.FileMode) error {
	e.seen = append(e.seen, fmt.Sprintf("%s %v %s", path, mode, data))
	return nil
}

func TestShell(t *testing.T) {
	dir, err := os.MkdirTemp("", "walkthrough-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	e := &echo{}
	s, err := Start(dir, map[string]string{"tool": "/bin/echo"}, []string{"A=environment"}, map[string]Host{"n1": e})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []struct {
		text, output, failed, trouble string
	}{
		{"HOSTS=\"n1 n1\"\nB=2\n", "", "", ""},
		{"tool $A $B; cd /; pwd\n", "environment 2\n/\n", "", ""},
		{"pwd\n", dir + "\n", "", ""}, // each block begins where the first did
		{"for h in $HOSTS; do ssh root@$h exit 3 now; done\n", "ran exit 3 now\nran exit 3 now\n", "3 ssh root@$h exit 3 now,3 ssh root@$h exit 3 now", ""},
		{"false | true\ntrue\n", "", "1 true", ""},
		{"echo a b > f; chmod 600 f; scp f root@n1:/etc/f\nscp g root@n1:/etc/g\n", "scp: stat " + dir + "/g: no such file or directory\n", "1 scp g root@n1:/etc/g", ""},
		{"ssh root@n1 unknown\n", "", "255 ssh root@n1 unknown", "ssh root@n1 unknown: no such thing here"},
		{"ssh root@n2 true\n", "", "255 ssh root@n2 true", `there is no host at "root@n2"`},
		{"ssh n1 true\n", "", "255 ssh n1 true", `there is no host at "n1"`},
	} {
		r, err := s.Run(t.Context(), Step{"a title", c.text})
		if (err == nil) != (c.trouble == "") || err != nil && !strings.Contains(err.Error(), c.trouble) {
			t.Errorf("%s: %v, want %q", c.text, err, c.trouble)
		}
		var failed []string
		for _, f := range r.Failures {
			failed = append(failed, fmt.Sprint(f.Exit, " ", f.Command))
		}
		if got := strings.Join(failed, ","); err == nil && (r.Output != c.output || got != c.failed) {
			t.Errorf("%s: failed %q with output\n%s", c.text, got, r.Output)
		}
	}
	if want := []string{"exit 3 now", "exit 3 now", "/etc/f -rw------- a b\n", "unknown"}; !slices.Equal(e.seen, want) {
		t.Errorf("the host saw %q, want %q", e.seen, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "f")); err != nil {
		t.Error(err)
	}
}
