package faulttest

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

var (
	cp     *controlplane.ControlPlane
	binary string
)

// options have a silent node called so while a campaign lasts.
var options = controlplane.Options{NodeMonitorGrace: 8 * time.Second}

func TestMain(m *testing.M) {
	var err error
	if binary = os.Getenv("LK"); binary != "" {
	} else if binary, err = simhost.BuildLockkeeperRace(context.Background(), os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(controlplane.RunTests(m, options, func(c *controlplane.ControlPlane) { cp = c }))
}
