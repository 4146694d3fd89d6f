package controlplane

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// RunTests is the body of a TestMain whose package's tests share one control plane:
//
//	var cp *controlplane.ControlPlane
//
//	func TestMain(m *testing.M) {
//		os.Exit(controlplane.RunTests(m, controlplane.Options{}, func(c *controlplane.ControlPlane) { cp = c }))
//	}
//
// It starts the control plane, hands it to use, runs the tests and stops it. At Ctrl-C it stops at once, and with it any other
// control plane of this process's. The result is the tests' exit
// status, or 1 if the control plane did not start or one of its components died under the tests.
func RunTests(m interface{ Run() int }, opts Options, use func(*ControlPlane)) int {
	if opts.Log == nil {
		opts.Log = os.Stderr
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cp, err := Start(ctx, opts)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// A test that waits for something knows nothing of the signal, so the end does not wait for the tests.
	defer context.AfterFunc(ctx, func() {
		stopLiving()
		os.Exit(130)
	})()
	use(cp)
	status := m.Run()
	if err := cp.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	return status
}
