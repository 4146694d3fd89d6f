package faults

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/rig"
)

var (
	// pool has a control plane for each fleet. With those of campaignPool a silent Node loses Ready during a campaign.
	pool, campaignPool *controlplane.Pool
	// binary is used by campaigns and kills, leaderBinary by rounds.
	binary, leaderBinary string
	// summary is the last line of the run, if it had rounds.
	summary string
)

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "4") // most fleets only wait for Leases and boots
	flag.Parse()
	binary, leaderBinary = rig.Binary(true), rig.Binary(false)
	status := controlplane.RunTestsApart(m, controlplane.Options{}, func(p *controlplane.Pool) {
		pool = p
		campaignPool = p.With(controlplane.Options{NodeMonitorGrace: 8 * time.Second})
	})
	if summary != "" {
		fmt.Println(summary)
	}
	os.Exit(status)
}
