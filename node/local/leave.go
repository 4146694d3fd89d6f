package local

import (
	"fmt"
	"os"
	"path/filepath"
)

// leavingFile makes the running process, and any process that starts later in this boot, give
// its node up; see Observation.Leaving in node/step. It is below /run, so a host that boots
// again stays with its cluster: nothing on a disk decides a step of a turn.
const leavingFile = "leaving"

// Leave creates the file that makes the host leave. Only root can.
func Leave(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, leavingFile), nil, 0o644); err != nil {
		return fmt.Errorf("asking the service to leave: %w", err)
	}
	return nil
}

// Leaving reports whether the host leaves.
func Leaving(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, leavingFile))
	return err == nil
}
