package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/config"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// patience limits each wait for a condition, also on a busy machine.
const patience = 90 * time.Second

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// simulated is a simulated host whose kubelet's credential is the test's to spoil; lockkeeper is not started yet.
func simulated(t *testing.T, name string, change func(*simhost.Options)) *simhost.Host {
	t.Helper()
	must(t, cp.ApplyLockkeeper(t.Context()))
	o := simhost.Options{Name: name, Binary: binary, WithoutLockkeeper: true}
	if change != nil {
		change(&o)
	}
	h, err := simhost.Start(t.Context(), cp, o)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(h.LogTail(60))
		}
		must(t, h.Close())
	})
	_, err = h.WaitNodeReady(within(t))
	must(t, err)
	return h
}

// says waits for a text in what `systemctl status` shows.
func (c *credentialed) says(text string) {
	c.t.Helper()
	must(c.t, c.h.WaitNotify(within(c.t), fmt.Sprintf("saying %q", text), func(n simhost.Notify) bool { return strings.Contains(n.Status, text) }))
	c.same()
}

// logs waits for a text in the journal.
func (c *credentialed) logs(text string) {
	c.t.Helper()
	until(c.t, fmt.Sprintf("%q in the log", text), func() (bool, error) { return strings.Contains(c.h.Logs(), text), nil })
}

// same fails if the process is another one than before: trouble with a credential ends none.
func (c *credentialed) same() {
	c.t.Helper()
	if now := c.h.PID(); c.pid != 0 && now != c.pid {
		c.t.Fatalf("the process %d has become %d", c.pid, now)
	}
	c.pid = c.h.PID()
}

// credentialed is a host with a kubeconfig that the test writes.
type credentialed struct {
	t    *testing.T
	h    *simhost.Host
	file string
	pid  int
}

// write replaces the kubeconfig, whole.
func (c *credentialed) write(server string, ca []byte, user clientcmdapi.AuthInfo) {
	c.t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos["u"] = &user
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	must(c.t, clientcmd.WriteToFile(*config, c.file+".new"))
	must(c.t, os.Rename(c.file+".new", c.file))
}

// pair is a certificate of the host's kubelet that is valid for life from now on.
func pair(t *testing.T, name string, life time.Duration) clientcmdapi.AuthInfo {
	t.Helper()
	cert, key, err := cp.NodePEM(name, time.Now().Add(life))
	must(t, err)
	return clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
}

// stranger is an authority that no one trusts, with a client certificate of its own.
func stranger(t *testing.T, user string) (ca []byte, client clientcmdapi.AuthInfo) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	of := func(name string, groups []string, isCA bool) []byte {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: name, Organization: groups},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: isCA, BasicConstraintsValid: true,
			KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		parent := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "a stranger"}, IsCA: true, KeyUsage: x509.KeyUsageCertSign}
		if isCA {
			parent = template
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, key)
		must(t, err)
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	der, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	return of("a stranger", nil, true), clientcmdapi.AuthInfo{
		ClientCertificateData: of(user, []string{"system:nodes"}, false),
		ClientKeyData:         pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
	}
}

// TestHostCredentialTroubles spoils a host's kubeconfig in every way, before lockkeeper knows its Node and after, and mends it each
// time: the same process says what is wrong, in which file, at which server, and continues when it is not any more.
func TestHostCredentialTroubles(t *testing.T) {
	t.Parallel()
	const name = "cred-a"
	c := &credentialed{t: t, h: simulated(t, name, nil)}
	c.file = filepath.Join(c.h.Dir(), "kubelet.kubeconfig")
	good := func() { c.write(cp.URL(), cp.CA(), pair(t, name, time.Hour)) }
	strange, foreign := stranger(t, "system:node:"+name)

	must(t, os.Remove(c.file))
	must(t, c.h.StartLockkeeper())
	c.says("no kubeconfig of the kubelet's: looked for " + c.file)
	c.write("https://127.0.0.1:1", cp.CA(), pair(t, name, time.Hour))
	c.says(c.file + ": cannot reach https://127.0.0.1:1: connection refused; does the API server run there")
	c.write("https://no-such-host.invalid", cp.CA(), pair(t, name, time.Hour))
	c.says(c.file + ": cannot reach https://no-such-host.invalid: no address for its name")
	c.write(cp.URL(), strange, pair(t, name, time.Hour))
	c.says(c.file + ": the certificate of " + cp.URL() + " is from another authority (lockkeeper testbed) than certi")
	c.write(cp.URL(), cp.CA(), foreign)
	c.says("waits: Forbidden since ")
	c.says(c.file + ": " + cp.URL() + " refuses its credential (401); is it this cluster's")
	must(t, os.WriteFile(c.file, []byte("apiVersion: [not a kubeconfig"), 0o600))
	c.says("kubeconfig " + c.file + ": yaml: ")
	c.write(cp.URL(), cp.CA(), pair(t, name, -time.Minute))
	c.says("the client certificate in " + c.file + " expired on ")
	good()
	c.says("up to date")
	c.logs("continues: the problem is over")

	// The same with its Node known; a reload makes it look at once.
	comes := func(text string) {
		t.Helper()
		until(t, text, func() (bool, error) {
			must(t, c.h.Signal(syscall.SIGHUP))
			short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			err := c.h.WaitNotify(short, text, func(n simhost.Notify) bool { return strings.Contains(n.Status, text) })
			return err == nil, err
		})
		c.same()
	}
	c.write(cp.URL(), cp.CA(), pair(t, name, -time.Minute))
	comes("the client certificate in " + c.file + " expired on ")
	c.logs("reason=Forbidden")
	good()
	comes("up to date")
	c.write("https://127.0.0.1:1", cp.CA(), pair(t, name, time.Hour))
	comes(c.file + ": cannot reach https://127.0.0.1:1: connection refused; does the API server run there")
	good()
	comes("up to date")

	// Not more than a warning or two for each of them, however often it was tried.
	if n := strings.Count(c.h.Logs(), "cannot continue for now"); n > 30 {
		t.Errorf("the journal has %d warnings", n)
	}
}

// places are where kubelets' kubeconfigs are found, and how their distributions write them.
var places = []struct {
	name, file string
	separate   bool // certificate and key are files of their own
}{
	{"kubeadm", "/etc/kubernetes/kubelet.conf", false},
	{"k3s", "/var/lib/rancher/k3s/agent/kubelet.kubeconfig", true},
	{"rke2", "/var/lib/rancher/rke2/agent/kubelet.kubeconfig", true},
	{"k0s", "/var/lib/k0s/kubelet.conf", false},
	{"microk8s", "/var/snap/microk8s/current/credentials/kubelet.config", false},
	{"gardener", "/var/lib/kubelet/kubeconfig-real", false},
	{"shared", "/var/lib/kubelet/kubeconfig", false},
}

// TestKubeletsKubeconfigIsFound has a host with nothing in its configuration find the kubelet's credential where each distribution
// keeps it.
func TestKubeletsKubeconfigIsFound(t *testing.T) {
	t.Parallel()
	var files []string
	for _, p := range places {
		files = append(files, p.file)
	}
	if known := config.HostKubeconfigs(); !slices.Equal(known, files) {
		t.Errorf("lockkeeper looks for %q, and the test for %q", known, files)
	}
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			name := "cred-" + p.name
			h := simulated(t, name, func(o *simhost.Options) { o.Config = func(c simhost.Config) { c.Set("kubernetes", "kubeconfig", "") } })
			c := &credentialed{t: t, h: h, file: filepath.Join(h.Root(), p.file)}
			must(t, os.MkdirAll(filepath.Dir(c.file), 0o755))
			user := pair(t, name, time.Hour)
			dir := filepath.Dir(c.file)
			if p.separate {
				must(t, os.WriteFile(filepath.Join(dir, "client-kubelet.crt"), user.ClientCertificateData, 0o600))
				must(t, os.WriteFile(filepath.Join(dir, "client-kubelet.key"), user.ClientKeyData, 0o600))
				user = clientcmdapi.AuthInfo{ClientCertificate: filepath.Join(dir, "client-kubelet.crt"), ClientKey: filepath.Join(dir, "client-kubelet.key")}
			} else {
				current := filepath.Join(dir, "kubelet-client-current.pem")
				must(t, os.WriteFile(current, append(user.ClientCertificateData, user.ClientKeyData...), 0o600))
				user = clientcmdapi.AuthInfo{ClientCertificate: current, ClientKey: current}
			}
			c.write(cp.URL(), cp.CA(), user)
			must(t, h.StartLockkeeper())
			c.says("up to date")
			_, err := cp.WaitNode(within(t), name, "to be spoken for", func(n *corev1.Node) bool {
				return n != nil && n.Labels[v1alpha1.LabelWants] == string(v1alpha1.WantsNothing)
			})
			must(t, err)
		})
	}
}

// TestCredentialPlugin has a kubeconfig with a program for a credential: it fails, hangs, and works at last; what it says is in the
// status.
func TestCredentialPlugin(t *testing.T) {
	t.Parallel()
	const name = "cred-exec"
	c := &credentialed{t: t, h: simulated(t, name, nil)}
	c.file = filepath.Join(c.h.Dir(), "kubelet.kubeconfig")
	script := filepath.Join(c.h.Dir(), "node-credential")
	writes := func(text string) {
		t.Helper()
		must(t, os.WriteFile(script+".new", []byte("#!/bin/sh\n"+text), 0o755))
		must(t, os.Rename(script+".new", script))
	}
	writes("echo 'the metadata service has no role for this machine' >&2\nexit 4\n")
	c.write(cp.URL(), cp.CA(), clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
		Command: script, APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
		Env: []clientcmdapi.ExecEnvVar{{Name: "CLUSTER", Value: "testbed"}},
	}})
	must(t, c.h.StartLockkeeper())
	c.says(c.file + ": credential plugin node-credential: exit status 4: the metadata service has no role for this machine")
	writes("[ \"$CLUSTER\" = testbed ] || exit 5\n[ -n \"$HOME\" ] || exit 6\ncase $KUBERNETES_EXEC_INFO in *ExecCredential*) ;; *) exit 7 ;; esac\n" +
		"while [ ! -e " + script + ".json ]; do sleep 0.1; done; cat " + script + ".json\n")
	c.says("credential plugin node-credential: it has not answered for ")
	user := pair(t, name, time.Hour)
	cred, err := json.Marshal(map[string]any{
		"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
		"status": map[string]any{"clientCertificateData": string(user.ClientCertificateData), "clientKeyData": string(user.ClientKeyData),
			"expirationTimestamp": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)},
	})
	must(t, err)
	must(t, os.WriteFile(script+".json.new", cred, 0o600))
	must(t, os.Rename(script+".json.new", script+".json"))
	c.says("up to date")
}

// TestRotatedCertificate renews a kubelet's certificate as kubelets do, by a link to another file, while a turn is under
// way: the process continues with the new one, and the turn to its end.
func TestRotatedCertificate(t *testing.T) {
	t.Parallel()
	const name = "cred-turn"
	since := time.Now()
	h := simulated(t, name, func(o *simhost.Options) {
		o.Coordinator = true
		_, err := cp.ApplyPolicy(t.Context(), name, "{priority: 1, nodeSelector: {matchLabels: {kubernetes.io/hostname: "+name+"}}, "+
			"rollout: {settle: 1s}, hooks: {beforeReboot: [{name: backup}]}}")
		must(t, err)
	})
	c := &credentialed{t: t, h: h, file: filepath.Join(h.Dir(), "kubelet.kubeconfig")}
	link := filepath.Join(h.Dir(), "kubelet-client-current.pem")
	rotate := func(n int) (id string) {
		t.Helper()
		user := pair(t, name, time.Hour)
		file := filepath.Join(h.Dir(), fmt.Sprintf("kubelet-client-%d.pem", n))
		must(t, os.WriteFile(file, append(user.ClientCertificateData, user.ClientKeyData...), 0o600))
		must(t, os.Symlink(file, link+".new"))
		must(t, os.Rename(link+".new", link))
		return certificateID(t, user.ClientCertificateData)
	}
	old := rotate(1)
	c.write(cp.URL(), cp.CA(), clientcmdapi.AuthInfo{ClientCertificate: link, ClientKey: link})
	must(t, h.StartLockkeeper())
	c.says("idle; up to date")
	must(t, h.StageUpdate("4.2.0"))
	waits := func(what string, is func(*corev1.Node) bool) *corev1.Node {
		t.Helper()
		n, err := cp.WaitNode(within(t), name, what, func(n *corev1.Node) bool { return n != nil && is(n) })
		must(t, err)
		return n
	}
	n := waits("to be before its reboot", func(n *corev1.Node) bool {
		return n.Labels[v1alpha1.LabelState] == string(v1alpha1.StateBeforeReboot)
	})
	c.same()
	renewed := rotate(2)
	used := func() (with []string) { // one after the other
		for _, r := range requests(t, since) {
			if r.User.Username == "system:node:"+name && strings.HasPrefix(r.UserAgent, "lockkeeper-host/") {
				if r.Refused() {
					t.Errorf("refused: %s", r)
				}
				id := strings.Join(r.User.Extra["authentication.kubernetes.io/credential-id"], "")
				if len(with) == 0 || with[len(with)-1] != id {
					with = append(with, id)
				}
			}
		}
		return with
	}
	until(t, "the new certificate to be used", func() (bool, error) {
		must(t, h.Signal(syscall.SIGHUP)) // it looks at once, and not within half a minute
		return slices.Contains(used(), renewed), fmt.Errorf("used: %q", used())
	})
	c.same() // before the reboot, so by the same process
	confirm(t, name, "backup", n.Annotations[v1alpha1.AnnotationTurn])
	waits("to be done", func(n *corev1.Node) bool {
		return n.Labels[v1alpha1.LabelState] == string(v1alpha1.StateIdle) && h.Version() == "4.2.0" && n.Labels[v1alpha1.LabelWants] == string(v1alpha1.WantsNothing)
	})
	if h.Reboots() != 1 {
		t.Errorf("%d reboots", h.Reboots())
	}
	with := used()
	if len(with) != 2 || with[0] != old || with[1] != renewed {
		t.Errorf("it used the credentials %q one after the other, expected %q and then %q", with, old, renewed)
	}
}

// TestWebhookIsNamed has an admission webhook that is not there, and one that refuses, stand between a host and its Node.
func TestWebhookIsNamed(t *testing.T) {
	t.Parallel()
	const name = "cred-hook"
	c := &credentialed{t: t, h: simulated(t, name, nil)}
	guard := newGuard(t, name)
	must(t, c.h.StartLockkeeper())
	c.says(`admission webhook "guard.example.com" refuses writing node ` + name + ": this machine is guarded")
	c.says("waits: Forbidden")
	guard.away()
	c.says(`admission webhook "guard.example.com" cannot be called, so the API server refuses writing node ` + name)
	guard.lift()
	c.says("up to date")
}

// confirm is a hook's word.
func confirm(t *testing.T, name, hook, turn string) {
	t.Helper()
	_, err := cp.Client().CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, []byte(annotation(v1alpha1.HookAnnotation(hook), `"`+turn+`"`)), metav1.PatchOptions{})
	must(t, err)
}
