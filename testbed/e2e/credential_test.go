package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// testCredential: the leader's token has a sixth of its life left. The service renews it in its sandbox, where nearly nothing can
// be written, and leads on.
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
	eventually(t, aTurn, "the token to be renewed", func(context.Context) (bool, error) {
		now := read()
		return now != "" && !strings.Contains(now, token) && now != fresh, nil
	})
	if out, err := h.Exec(within(t, soon), "stat", "--format=%a %U:%G", credentialPath); err != nil || strings.TrimSpace(out) != "600 root:root" {
		t.Errorf("the new file is %s (%v)", out, err)
	}
	if out, err := h.Exec(within(t, soon), "ls", "-A", "/etc/lockkeeper"); err != nil || strings.Contains(out, ".next") {
		t.Errorf("left behind in /etc/lockkeeper: %s (%v)", out, err)
	}
	eventually(t, soon, "the journal to tell of the renewal", func(ctx context.Context) (bool, error) {
		journal, err := h.Journal(ctx, "lockkeeper")
		return strings.Contains(journal, "renewed the coordinator's credential"), err
	})
	if now, err := pid(within(t, soon), h); err != nil || now != before || f.leader(t) != h {
		t.Errorf("process %d leads no more: %d (%v)", before, now, err)
	}
	f.status(t)
}
