package leadertest

import (
	"context"
	"fmt"
	"os"
	"testing"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

var (
	cp     *controlplane.ControlPlane
	binary string
)

func TestMain(m *testing.M) {
	// The race detector is for the long run: without it a round takes half the time, and other packages have it.
	build := simhost.BuildLockkeeper
	if os.Getenv("LOCKKEEPER_SOAK") != "" {
		build = simhost.BuildLockkeeperRace
	}
	var err error
	if binary, err = build(context.Background(), os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(controlplane.RunTests(m, controlplane.Options{}, func(c *controlplane.ControlPlane) { cp = c }))
}
