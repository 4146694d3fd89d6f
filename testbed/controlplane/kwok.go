package controlplane

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"os"
	"time"
)

// Labels and annotations of the testbed on Nodes and pods. lockkeeper does not know them.
const (
	// PodsLabel on a Node says whether KWOK simulates its pods. With the value [PodsPlayed] it does: pods that are bound to the node become
	// Running and Ready at once, and a deleted pod ends after 200 ms. With any other value, or without the label, nothing happens to the
	// pods any more, as on a host whose kubelet is down; use the value [PodsHeld]. KWOK never writes such a Node or its Lease. The
	// simulated kubelet does, and may change the label in the status write that changes Ready.
	PodsLabel  = "testbed.lockkeeper.dev/pods"
	PodsPlayed = "played"
	PodsHeld   = "held"

	// BallastAnnotation with the value [BallastFake] on a Node makes KWOK simulate all of it: Ready, Lease, pods. Use it for large numbers
	// of nodes, not for hosts.
	BallastAnnotation = "kwok.x-k8s.io/node"
	BallastFake       = "fake"

	// ReadyAnnotation with the value "never" on a pod makes it Running but never Ready.
	ReadyAnnotation = "testbed.lockkeeper.dev/ready"

	// StopsAfterAnnotation on a pod is the time between its deletion and its end, as a Go duration. The pod's grace period does not shorten
	// it.
	StopsAfterAnnotation = "testbed.lockkeeper.dev/stops-after"
)

var (
	//go:embed stages/pods.yaml
	podStages []byte
	//go:embed stages/ballast.yaml
	ballastStages []byte
	//go:embed stages/hosts.yaml
	hostStages []byte
)

// ballastLease is the default duration of a ballast node's Lease. KWOK renews it after a quarter of the duration.
const ballastLease = 40 * time.Second

// kwokArgs writes the stages of one of the two KWOKs and returns its command line. There are two because KWOK renews the Leases of all
// nodes that it follows, or of none: one simulates ballast nodes, with Leases, and one simulates the pods of our hosts.
func (cp *ControlPlane) kwokArgs(name Component) ([]string, error) {
	kubeconfig, err := cp.Kubeconfig("testbed:"+string(name), "system:masters")
	if err != nil {
		return nil, err
	}
	stages := cp.dir.Join(string(name) + ".yaml")
	args := []string{
		"--config=" + stages,
		"--kubeconfig=" + kubeconfig,
		"--node-ip=10.63.255.254", // no traffic goes to this address or to the pods'
	}
	own := hostStages
	if name == Ballast {
		own = ballastStages
		lease := cmp.Or(cp.opts.BallastLease, ballastLease)
		args = append(args, "--cidr=10.128.0.0/10",
			"--manage-nodes-with-annotation-selector="+BallastAnnotation+"="+BallastFake,
			fmt.Sprintf("--node-lease-duration-seconds=%.0f", lease.Seconds()))
	} else {
		args = append(args, "--cidr=10.64.0.0/10", "--manage-nodes-with-label-selector="+PodsLabel+"="+PodsPlayed)
	}
	all := bytes.Join([][]byte{own, podStages}, []byte("\n---\n"))
	if err := os.WriteFile(stages, all, 0o600); err != nil {
		return nil, fmt.Errorf("writing KWOK's stages: %w", err)
	}
	return args, nil
}
