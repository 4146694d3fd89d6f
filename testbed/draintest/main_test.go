package draintest

import (
	"flag"
	"os"
	"testing"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// cp serves all tests of the package; each has its own node and namespace. They run side by side but for those that do
// something to the control plane.
var cp *controlplane.ControlPlane

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "4") // they mostly wait for the server
	flag.Parse()
	os.Exit(controlplane.RunTests(m, controlplane.Options{
		// Pods are bound by hand and nodes are played altogether.
		Without: []controlplane.Component{controlplane.Scheduler, controlplane.Pods},
	}, func(c *controlplane.ControlPlane) { cp = c }))
}
