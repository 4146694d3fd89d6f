package controlplane

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"os"
	"time"
)

// What the testbed says on Nodes and pods. None of it is lockkeeper's; lockkeeper does not know it.
const (
	// PodsLabel on a Node says who plays its pods. With the value [PodsPlayed] KWOK does: pods bound to the node become
	// Running and Ready at once, and a deleted pod goes after 200 ms. With any other value, or without the label, nothing
	// happens to them any more, as on a host whose kubelet is down; [PodsHeld] is the value to say so with. KWOK never writes
	// such a Node or its Lease: that is up to whoever simulates its kubelet, which may change the label in the status write
	// that changes Ready.
	PodsLabel  = "testbed.lockkeeper.dev/pods"
	PodsPlayed = "played"
	PodsHeld   = "held"

	// BallastAnnotation with the value [BallastFake] on a Node hands it to KWOK altogether: Ready, Lease, pods. For numbers,
	// not for hosts.
	BallastAnnotation = "kwok.x-k8s.io/node"
	BallastFake       = "fake"

	// ReadyAnnotation with the value "never" on a pod makes it Running but never Ready.
	ReadyAnnotation = "testbed.lockkeeper.dev/ready"

	// StopsAfterAnnotation on a pod is how long it takes to go once it is deleted: a Go duration. Its grace period does not
	// cut that short.
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

// ballastLease is the length of a ballast node's Lease; KWOK renews at a quarter of it.
const ballastLease = 40 * time.Second

// kwokArgs writes the stages of one of the two KWOKs and returns its command line. There are two because KWOK renews either
// the Leases of all nodes that it follows or of none: one for ballast, with Leases, and one for the pods of our hosts.
func (cp *ControlPlane) kwokArgs(name Component) ([]string, error) {
	kubeconfig, err := cp.Kubeconfig("testbed:"+string(name), "system:masters")
	if err != nil {
		return nil, err
	}
	stages := cp.dir.join(string(name) + ".yaml")
	args := []string{
		"--config=" + stages,
		"--kubeconfig=" + kubeconfig,
		"--node-ip=10.63.255.254", // nothing is ever sent to this address or to the pods'
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
