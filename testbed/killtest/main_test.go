package killtest

import (
	"flag"
	"os"
	"testing"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

var (
	// pool has a control plane for each fleet.
	pool   *controlplane.Pool
	binary string
)

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "3") // they mostly wait, for Leases and for boots
	flag.Parse()
	binary = rig.Binary()
	os.Exit(controlplane.RunTestsApart(m, controlplane.Options{}, func(p *controlplane.Pool) { pool = p }))
}
