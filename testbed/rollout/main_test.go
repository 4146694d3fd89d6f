package rollout

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

var (
	// pool has a control plane for each test: hosts have the same names in all of them, there is one Lease in a cluster, and
	// policies select every node. In those of gatePool, tests play the pods.
	pool, gatePool *controlplane.Pool
	binary         string
)

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "3") // they mostly wait, for polls and for Leases
	flag.Parse()
	var err error
	if binary, err = simhost.BuildLockkeeperRace(context.Background(), os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(controlplane.RunTestsApart(m, controlplane.Options{Audit: true}, func(p *controlplane.Pool) {
		pool = p
		gatePool = p.With(controlplane.Options{Without: []controlplane.Component{controlplane.Scheduler, controlplane.Ballast, controlplane.Pods}})
	}))
}

// options are a rig's before a test changes them.
func options(hosts int, policy string) rig.Options {
	return rig.Options{
		Policy: policy,
		Fleet: simhost.FleetOptions{
			Hosts: hosts, Coordinators: min(2, hosts),
			Host: simhost.Options{Binary: binary, RestartDelay: 300 * time.Millisecond},
		},
	}
}
