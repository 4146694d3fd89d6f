package draintest

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// cp serves all tests of the package; each has its own node and namespace.
var cp *controlplane.ControlPlane

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	cp, err = controlplane.Start(ctx, controlplane.Options{
		Log: os.Stderr,
		// Pods are bound by hand and nodes are played altogether.
		Without: []controlplane.Component{controlplane.Scheduler, controlplane.Pods},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := cp.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
