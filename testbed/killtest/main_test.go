package killtest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

var (
	// pool has a control plane for each fleet.
	pool   *controlplane.Pool
	binary string
)

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "3") // they mostly wait, for Leases and for boots
	flag.Parse()
	var err error
	// LK is another build of the binary, to see the tests fail with one that has a bug.
	if binary = os.Getenv("LK"); binary != "" {
	} else if binary, err = simhost.BuildLockkeeperRace(context.Background(), os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(controlplane.RunTestsApart(m, controlplane.Options{}, func(p *controlplane.Pool) { pool = p }))
}
