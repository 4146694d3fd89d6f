package install

import (
	"context"
	"fmt"
	"os"
	"testing"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
	"lockkeeper.dev/lockkeeper/testbed/walkthrough"
)

var (
	pool   *controlplane.Pool
	binary string
)

// examplePlane returns the control plane that the tests of examples share, each with its own nodes and namespaces.
func examplePlane() *controlplane.ControlPlane { return pool.Shared() }

func TestMain(m *testing.M) {
	walkthrough.Main()
	var err error
	if binary, err = simhost.BuildLockkeeper(context.Background(), os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := controlplane.RunTestsApart(m, controlplane.Options{}, func(p *controlplane.Pool) { pool = p })
	version1.remove()
	version2.remove()
	keyring.remove()
	os.Exit(status)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
