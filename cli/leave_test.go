package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	urfave "github.com/urfave/cli/v2"

	"lockkeeper.dev/lockkeeper/cli/cluster"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/node/local"
)

// TestLeavePrintsNoEscapeSequence checks what root reads while a host leaves that is paused: another user wrote the reason.
func TestLeavePrintsNoEscapeSequence(t *testing.T) {
	dir := t.TempDir()
	if err := local.Write(dir, local.Status{Line: "Paused: \x1b]0;owned\a\x1b[2J", Host: local.Host{Node: "n1"}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second/10)
	defer cancel()
	var said []string
	if _, err := waitUntilLeft(ctx, dir, func(line string) { said = append(said, line) }); err == nil || len(said) != 1 {
		t.Fatalf("%v, %q", err, said)
	}
	if strings.ContainsFunc(said[0], func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("it prints %q", said[0])
	}
}

// TestLeavePrintsCommandsForItsCluster: an admin pastes what leave prints. Without the flags of the command, it would change the
// nodes of these names in the cluster of the current context.
func TestLeavePrintsCommandsForItsCluster(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/api/v1/nodes/n1":
			io.WriteString(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","uid":"u1","resourceVersion":"7","labels":{"lockkeeper.dev/managed":"false"}}}`)
		case "/apis/coordination.k8s.io/v1/namespaces/ns/leases/lockkeeper":
			io.WriteString(w, `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"lockkeeper","namespace":"ns","uid":"u2","resourceVersion":"8"},"spec":{}}`)
		default: // the HostUpdate
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"details":{"group":"lockkeeper.dev","kind":"hostupdates","name":"n1"}}`)
		}
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "other",
		"clusters": [{"name": "c", "cluster": {"server": %q}}], "users": [{"name": "c", "user": {"token": "x"}}],
		"contexts": [{"name": "prod", "context": {"cluster": "c", "user": "c"}}]}`, server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	var ends error // how the wait ended; nil: all have left
	var out, said strings.Builder
	cmd := leave()
	command := cmd.Action
	cmd.Action = func(c *urfave.Context) error {
		if ends == nil {
			return command(c)
		}
		return notLeft(c, []string{"n1"}, time.Hour, ends)
	}
	app := &urfave.App{Name: "lockkeeper", Commands: []*urfave.Command{cmd}, Writer: &out, ErrWriter: &said, ExitErrHandler: func(*urfave.Context, error) {}}
	run := func(end error) string {
		out.Reset()
		said.Reset()
		ends = end
		err := app.RunContext(t.Context(), []string{"lockkeeper", "leave", "--kubeconfig", file, "--context", "prod", "--namespace", "ns", "--without-coordinator", "--", "n1"})
		if (err == nil) != (end == nil) {
			t.Errorf("after %v: %v", end, err)
		}
		return out.String() + said.String()
	}
	flags := " --kubeconfig " + file + " --context prod"
	for _, tc := range []struct {
		end  error
		want string
	}{
		{nil, "\n  kubectl" + flags + " label node n1 lockkeeper.dev/managed-\n"},
		{&report.UnreleasedError{Why: "x"}, "\n  lockkeeper leave" + flags + " --namespace ns --without-coordinator n1\n"},
		{cluster.ErrTimeout, "\n  lockkeeper detach" + flags + " --namespace ns --force NODE\n  kubectl" + flags + " uncordon NODE\n"},
	} {
		if got := run(tc.end); !strings.Contains(got, tc.want) {
			t.Errorf("after %v it prints\n%s\nexpected%s", tc.end, got, tc.want)
		}
	}
}
