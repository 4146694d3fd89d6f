package leadertest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

var (
	pool   *controlplane.Pool
	binary string
	// summary is the last line of the run, if there were rounds.
	summary string
)

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "3") // the rounds, the aimed ones and a mutant: they mostly wait for Leases to run out
	flag.Parse()
	// The race detector is for the long run: without it a round takes half the time, and other packages have it.
	build := simhost.BuildLockkeeper
	if os.Getenv("LOCKKEEPER_SOAK") != "" {
		build = simhost.BuildLockkeeperRace
	}
	var err error
	if binary, err = build(context.Background(), os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := controlplane.RunTestsApart(m, controlplane.Options{}, func(p *controlplane.Pool) { pool = p })
	if summary != "" {
		fmt.Println(summary)
	}
	os.Exit(status)
}
