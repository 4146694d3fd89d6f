package killtest

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
	var err error
	// LK is another build of the binary, to see the tests fail with one that has a bug.
	if binary = os.Getenv("LK"); binary != "" {
	} else if binary, err = simhost.BuildLockkeeperRace(context.Background(), os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(controlplane.RunTests(m, controlplane.Options{}, func(c *controlplane.ControlPlane) { cp = c }))
}
