package faults

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
	// pool has a control plane for each fleet. In those of campaigns a silent Node stops being Ready during a campaign.
	pool, campaignPool *controlplane.Pool
	// binary is what campaigns and kills run, leaderBinary what rounds run.
	binary, leaderBinary string
	// summary is the last line of the run, if there were rounds.
	summary string
)

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "4") // most fleets wait, for Leases and for boots
	flag.Parse()
	binary = rig.Binary()
	// A round without the race detector takes half the time, and the campaigns have it.
	leaderBinary = binary
	if os.Getenv("LOCKKEEPER_SOAK") == "" {
		var err error
		if leaderBinary, err = simhost.BuildLockkeeper(context.Background(), os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	status := controlplane.RunTestsApart(m, controlplane.Options{}, func(p *controlplane.Pool) {
		pool = p
		campaignPool = p.With(controlplane.Options{NodeMonitorGrace: 8 * time.Second})
	})
	if summary != "" {
		fmt.Println(summary)
	}
	os.Exit(status)
}
