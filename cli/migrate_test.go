package cli

import (
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/cli/migrate"
)

// TestMigrationOfNothing: once the workloads are deleted, no host's file can be made. An empty one would lack
// the sentinel that the hosts have used, and take the place of one that has it.
func TestMigrationOfNothing(t *testing.T) {
	for _, tool := range []migrate.Tool{migrate.FLUO, migrate.Kured} {
		for _, output := range []string{"yaml", "toml"} {
			text, err := migrationText(tool, &migrate.Input{Now: time.Now(), Zones: time.LoadLocation}, output)
			want := "no workload of " + string(tool) + " was found, so there are no settings to carry over"
			if text != "" || err == nil || err.Error() != want {
				t.Errorf("%s -o %s: %q, %v, expected the error %q", tool, output, text, err, want)
			}
		}
	}
}
