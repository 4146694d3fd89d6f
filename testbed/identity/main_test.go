package identity

import (
	"context"
	"fmt"
	"os"
	"testing"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

var (
	// cp is what all tests share, except those of credentials.
	cp             *controlplane.ControlPlane
	credentialPool *controlplane.Pool
	binary         string // lockkeeper's
)

func TestMain(m *testing.M) {
	var err error
	if binary, err = simhost.BuildLockkeeper(context.Background(), os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	without := []controlplane.Component{controlplane.Scheduler, controlplane.Ballast, controlplane.Pods}
	os.Exit(controlplane.RunTestsApart(m, controlplane.Options{Without: without, Audit: true}, func(p *controlplane.Pool) {
		cp = p.Shared()
		credentialPool = p.With(controlplane.Options{Without: without})
		if policies, err = policiesOf(cp); err != nil {
			panic(err)
		}
	}))
}
