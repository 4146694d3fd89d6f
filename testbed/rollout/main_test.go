package rollout

import (
	"flag"
	"os"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

var (
	// pool has a control plane for each test, because hosts have the same names in all tests, a cluster has one Lease,
	// and the policies select every node. With the control planes of gatePool, the tests play the pods.
	pool, gatePool *controlplane.Pool
	binary         string
)

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "3") // the tests mostly wait, for polls and for Leases
	flag.Parse()
	binary = rig.Binary(false)
	os.Exit(controlplane.RunTestsApart(m, controlplane.Options{Audit: true}, func(p *controlplane.Pool) {
		pool = p
		gatePool = p.With(controlplane.Options{Without: []controlplane.Component{controlplane.Scheduler, controlplane.Ballast, controlplane.Pods}})
	}))
}

// options returns the options of a rig, which a test may change.
func options(hosts int, policy string) rig.Options {
	return rig.Options{
		Policy: policy,
		Fleet: simhost.FleetOptions{
			Hosts: hosts, Coordinators: min(2, hosts),
			Host: simhost.Options{Binary: binary, RestartDelay: 300 * time.Millisecond},
		},
	}
}
