package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// testCredential leaves the leader's token a sixth of its lifetime. The service renews the token in its sandbox, which
// allows almost no writes, and continues to lead.
func testCredential(t *testing.T, f *fleet) {
	h := f.leader(t)
	before, err := pid(within(t, soon), h)
	must(t, err)
	read := func() string {
		t.Helper()
		text, err := h.Exec(within(t, soon), "cat", credentialPath)
		must(t, err)
		return text
	}
	fresh := read()
	token, err := cp.AgedCoordinatorToken(within(t, soon), time.Now().Add(-50*time.Minute), time.Now().Add(10*time.Minute))
	must(t, err)
	aged, err := controlplane.WithToken([]byte(fresh), token)
	must(t, err)
	must(t, h.WriteFile(within(t, soon), credentialPath, aged, 0o600))
	renewed := func(ctx context.Context) (bool, error) {
		out, err := h.Exec(ctx, "ls", "-A", "/var/lib/lockkeeper")
		return slices.Contains(strings.Fields(out), "coordinator-token.json"), err
	}
	eventually(t, aTurn, "the token to be renewed", renewed)
	if out, err := h.Exec(within(t, soon), "stat", "--format=%a %U:%G", "/var/lib/lockkeeper", tokenPath); err != nil || strings.Join(strings.Fields(out), " ") != "700 root:root 600 root:root" {
		t.Errorf("the renewed token and its directory have %s (%v)", out, err)
	}
	if read() != string(aged) {
		t.Error("the kubeconfig was changed")
	}
	if out, err := h.Exec(within(t, soon), "systemctl", "show", "--property=ReadWritePaths", "lockkeeper"); err != nil || strings.Contains(out, "/etc") {
		t.Errorf("the service can write to %s (%v)", out, err)
	}
	eventually(t, soon, "the journal to contain the renewal", func(ctx context.Context) (bool, error) {
		journal, err := h.Journal(ctx, "lockkeeper")
		return strings.Contains(journal, "renewed the coordinator's credential"), err
	})
	if now, err := pid(within(t, soon), h); err != nil || now != before || f.leader(t) != h {
		t.Errorf("process %d no longer leads: %d (%v)", before, now, err)
	}
	// A new kubeconfig with its own token replaces both.
	must(t, h.WriteFile(within(t, soon), credentialPath, []byte(fresh), 0o600))
	eventually(t, aTurn, "the renewed token to be removed", func(ctx context.Context) (bool, error) {
		there, err := renewed(ctx)
		return !there, err
	})
	if now, err := pid(within(t, soon), h); err != nil || now != before || f.leader(t) != h {
		t.Errorf("with a new kubeconfig process %d no longer leads: %d (%v)", before, now, err)
	}
	f.status(t)
}
