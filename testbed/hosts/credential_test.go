package hosts

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// TestCredentialPluginInTheSandbox makes a host's kubeconfig name a program that systemd's PATH contains and that
// writes to its home directory. The program must work in the sandbox of the packaged unit, and `systemctl status` must
// show its error message.
func TestCredentialPluginInTheSandbox(t *testing.T) {
	if absent != nil {
		t.Skipf("left out: %v", absent)
	}
	must(t, cp.ApplyLockkeeper(t.Context()))
	text, err := cp.KubeconfigAt(lab.Gateway(), "system:node:exec-1", controlplane.NodesGroup)
	must(t, err)
	config, err := clientcmd.Load(text)
	must(t, err)
	files := installed(t)
	for name, user := range config.AuthInfos {
		files["/etc/lockkeeper/credential.json"], err = json.Marshal(map[string]any{
			"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
			"status": map[string]any{"clientCertificateData": string(user.ClientCertificateData), "clientKeyData": string(user.ClientKeyData)},
		})
		must(t, err)
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
			Command: "node-credential", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.IfAvailableExecInteractiveMode,
		}}
	}
	files["/etc/lockkeeper/kubelet.kubeconfig"], err = clientcmd.Write(*config)
	must(t, err)
	files["/etc/lockkeeper/lockkeeper.toml"] = append(files["/etc/lockkeeper/lockkeeper.toml"], "[kubernetes]\nkubeconfig = \"/etc/lockkeeper/kubelet.kubeconfig\"\n"...)
	delete(files, "/etc/lockkeeper/coordinator.kubeconfig")
	files["/usr/local/bin/node-credential"] = []byte("#!/bin/sh\n[ -e /etc/lockkeeper/role ] || { echo 'this machine has no role' >&2; exit 4; }\n" +
		"echo used >>\"$HOME/used\" || exit 5\ncat /etc/lockkeeper/credential.json\n")
	h := host(t, "exec-", files, "lockkeeper.service")
	if h.Name() != "exec-1" {
		t.Fatalf("the host's name is %s", h.Name())
	}
	status := ""
	says := func(text string) {
		t.Helper()
		defer func() {
			if t.Failed() {
				t.Log(status)
			}
		}()
		eventually(t, 2*time.Minute, text, func() bool {
			status = exec(t, h, "systemctl status lockkeeper --no-pager -l -n 5")
			return strings.Contains(status, text)
		})
	}
	exec(t, h, "chmod 755 /usr/local/bin/node-credential")
	says("/etc/lockkeeper/kubelet.kubeconfig: credential plugin node-credential: exit status 4: this machine has no role")
	exec(t, h, "touch /etc/lockkeeper/role")
	says("no coordinator manages this node; up to date")
	if got := exec(t, h, "cat /var/cache/lockkeeper/used"); got != "used" {
		t.Errorf("uses of the plugin: %q", got)
	}
}
