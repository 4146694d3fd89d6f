package config

import (
	"fmt"
	"path/filepath"
	"slices"
)

// A KubeletKubeconfig is where the kubelets of some distributions keep their kubeconfig.
type KubeletKubeconfig struct {
	Path          string
	Distributions []string // that use the path
	Credential    string   // what the kubeconfig contains, and what renews it
	SecondHand    bool     // read in other projects' code or pages, not in the distribution's own
}

const renewed = "a certificate in a file that the kubelet renews"

// kubeletKubeconfigs are in the order in which they are tried. A path of one distribution comes
// before the one that several share.
var kubeletKubeconfigs = []KubeletKubeconfig{
	{"/etc/kubernetes/kubelet.conf", []string{"kubeadm", "Kubespray", "minikube"}, renewed, false},
	{"/var/lib/rancher/k3s/agent/kubelet.kubeconfig", []string{"k3s (servers and agents)"}, "a certificate in files; k3s renews it only when it starts shortly before the end", false},
	{"/var/lib/rancher/rke2/agent/kubelet.kubeconfig", []string{"RKE2 (servers and agents)"}, "a certificate in files; RKE2 renews it only when it starts shortly before the end", false},
	{"/var/lib/k0s/kubelet.conf", []string{"k0s"}, renewed, false},
	{"/var/snap/microk8s/current/credentials/kubelet.config", []string{"MicroK8s"}, "in the kubeconfig itself; not renewed", false},
	{"/var/lib/kubelet/kubeconfig-real", []string{"Gardener"}, renewed, false},
	{"/var/lib/kubelet/kubeconfig", []string{"OpenShift"}, renewed, false},
	{"/var/lib/kubelet/kubeconfig", []string{"AKS"}, renewed + ", or a certificate that nothing renews", false},
	{"/var/lib/kubelet/kubeconfig", []string{"kOps"}, "in the kubeconfig itself", false},
	{"/var/lib/kubelet/kubeconfig", []string{"EKS (Amazon Linux 2023)"}, "a program: `aws eks get-token`", false},
	{"/var/lib/kubelet/kubeconfig", []string{"GKE (Container-Optimized OS)"}, "a program: `/home/kubernetes/bin/gke-exec-auth-plugin`", true},
}

// KubeletKubeconfigs returns where the kubelets of the known distributions keep their
// kubeconfig, in the order in which the paths are tried. Entries with the same path follow each
// other.
func KubeletKubeconfigs() []KubeletKubeconfig { return slices.Clone(kubeletKubeconfigs) }

// HostKubeconfigs returns the paths of [KubeletKubeconfigs], each once.
func HostKubeconfigs() []string {
	var paths []string
	for _, k := range kubeletKubeconfigs {
		paths = append(paths, k.Path)
	}
	return slices.Compact(paths)
}

// HostKubeconfigs returns where the host's kubeconfig may be: the path that is set, or
// each of [HostKubeconfigs] below root ("/" except in the test bed), in the order in
// which they are tried. A host that has not joined its cluster yet has none.
func (c *Config) HostKubeconfigs(root string) []string {
	if c.Kubernetes.Kubeconfig != "" {
		return []string{c.Kubernetes.Kubeconfig}
	}
	var paths []string
	for _, name := range HostKubeconfigs() {
		paths = append(paths, filepath.Join(root, name))
	}
	return paths
}

// NoHostKubeconfig returns the text of the error for a host without a kubeconfig.
func (c *Config) NoHostKubeconfig(root string) string {
	return fmt.Sprintf("no kubeconfig of the kubelet's: looked for %s; if it is elsewhere, set kubernetes.kubeconfig", joinAnd(c.HostKubeconfigs(root)))
}
