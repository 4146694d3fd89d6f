package realhost

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestHost(t *testing.T) {
	h := start(t, "first-", 1)[0]
	ctx := soon(t)
	n, err := cp.Client().CoreV1().Nodes().Get(ctx, h.Name(), metav1.GetOptions{})
	must(t, err)
	out, err := h.Exec(ctx, "cat", "/proc/sys/kernel/random/boot_id")
	must(t, err)
	if own := strings.TrimSpace(out); own == "" || n.Status.NodeInfo.BootID != own || h.BootID() != own {
		t.Errorf("boot id: kubelet says %q, the host %q, its owner %q", n.Status.NodeInfo.BootID, own, h.BootID())
	}
	t.Logf("Node: %+v", n.Status.NodeInfo)
	ins, err := h.Inhibitors(ctx)
	must(t, err)
	if !slices.ContainsFunc(ins, func(i Inhibitor) bool { return i.Who == "kubelet" && i.What == "shutdown" && i.Mode == "delay" }) {
		t.Errorf("inhibitors: %+v, want the kubelet's", ins)
	}
	out, err = h.Exec(ctx, "systemctl", "--failed", "--no-legend")
	must(t, err)
	t.Log(out)
}
