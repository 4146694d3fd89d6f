package faulttest

import (
	"os"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

var (
	cp     *controlplane.ControlPlane
	binary string
)

// options have a silent node called so while a campaign lasts.
var options = controlplane.Options{NodeMonitorGrace: 8 * time.Second}

func TestMain(m *testing.M) {
	binary = rig.Binary()
	os.Exit(controlplane.RunTests(m, options, func(c *controlplane.ControlPlane) { cp = c }))
}
