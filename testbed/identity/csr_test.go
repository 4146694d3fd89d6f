package identity

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// A credentialCommand is `lockkeeper` as someone runs it.
type credentialCommand struct {
	t   *testing.T
	cmd *exec.Cmd

	mu     sync.Mutex
	stderr bytes.Buffer
	ended  chan error
}

func (c *credentialCommand) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stderr.Write(p)
}

func (c *credentialCommand) said() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stderr.String()
}

// call runs lockkeeper under someone's kubeconfig.
func call(t *testing.T, kubeconfig string, args ...string) *credentialCommand {
	t.Helper()
	c := &credentialCommand{t: t, cmd: exec.Command(binary, args...), ended: make(chan error, 1)}
	c.cmd.Env = []string{"KUBECONFIG=" + kubeconfig}
	c.cmd.Stderr = c
	must(t, c.cmd.Start())
	go func() { c.ended <- c.cmd.Wait() }()
	t.Cleanup(func() { _ = c.cmd.Process.Kill() }) // mostly it has ended
	return c
}

// end waits for its end and returns what it said.
func (c *credentialCommand) end() (string, error) {
	c.t.Helper()
	select {
	case err := <-c.ended:
		return c.said(), err
	case <-time.After(credentialPatience):
		c.t.Fatalf("it does not end: %s", c.said())
	}
	return "", nil
}

// asks waits for its word that someone has to approve, and returns the request's name.
func (c *credentialCommand) asks() string {
	c.t.Helper()
	line := regexp.MustCompile(`your credential may not approve the request; waiting for an admin who runs: kubectl certificate approve (\S+)\n`)
	waitForCredential(c.t, "the line that says who has to approve", func() bool { return line.MatchString(c.said()) }, func() any { return c.said() })
	return line.FindStringSubmatch(c.said())[1]
}

// requester is the kubeconfig of someone who may ask for a certificate and approve none.
func requester(t *testing.T) string {
	t.Helper()
	const name = "requester"
	ctx := context.Background()
	_, err := credentialPlane().Client().RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests"}, Verbs: []string{"create", "get", "delete"},
		}},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = credentialPlane().Client().RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, credentialPlane().Client().RbacV1().ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{}))
		must(t, credentialPlane().Client().RbacV1().ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{}))
	})
	for _, verb := range []string{"create", "get", "delete"} {
		allowed(t, authorizationv1.SubjectAccessReviewSpec{User: name, ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Verb: verb}}, true)
	}
	path, err := credentialPlane().Kubeconfig(name)
	must(t, err)
	return path
}

func credentialRequests(t *testing.T) int {
	t.Helper()
	list, err := credentialPlane().Client().CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	return len(list.Items)
}

// A certificate of the coordinators' group is minted by whoever may approve it, and waited for by whoever may not; and a host
// leads with it: both policies and all bindings know it.
func TestACertificateCoordinates(t *testing.T) {
	must(t, credentialPlane().ApplyLockkeeper(t.Context()))
	admin, err := credentialPlane().Kubeconfig("an-admin", "system:masters")
	must(t, err)
	file := filepath.Join(t.TempDir(), "coordinator.kubeconfig")
	said, err := call(t, admin, "kubeconfig", "--csr", "--lifetime", "2h", "--file", file).end()
	if err != nil || !strings.Contains(said, "valid until ") || !strings.Contains(said, "does not renew itself, and cannot be revoked") || strings.Contains(said, "approve") {
		t.Fatalf("%v: %s", err, said)
	}
	info := stateOf(t, file, "")
	if left := time.Until(info.Expires); info.User != "lockkeeper:coordinator" || left < 110*time.Minute || left > 2*time.Hour {
		t.Errorf("minted: of %q for %v", info.User, left)
	}

	h := host(t, simhost.Options{Name: "csr-1", Coordinator: true, CoordinatorKubeconfig: file})
	s := is(t, h, "it to lead, and its word on the credential", func(s local.Status) bool { return leads(s) && s.Coordinator.Credential != nil })
	if c := s.Coordinator.Credential; c.Renews != nil || !strings.Contains(c.Why, "not renewed by lockkeeper: it is a certificate") {
		t.Errorf("of its credential it says %+v", s.Coordinator.Credential)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*credentialPatience)
	defer cancel()
	must(t, h.StageUpdate("4.2.0"))
	must(t, h.WaitBoots(ctx, 2)) // granted and promoted by a coordinator with a certificate
	is(t, h, "it to lead in its new boot", leads)

	// And it is held to what the service account is held to.
	config, err := clientcmd.BuildConfigFromFlags("", file)
	must(t, err)
	thief, err := kubernetes.NewForConfig(config)
	must(t, err)
	for what, patch := range map[string]string{
		"a foreign label": `{"metadata":{"labels":{"example.com/rack":"7"}}}`,
		"a host's word":   `{"metadata":{"labels":{"lockkeeper.dev/wants":"drain"}}}`,
		"a cordon":        `{"spec":{"unschedulable":true}}`,
	} {
		_, err := thief.CoreV1().Nodes().Patch(t.Context(), "csr-1", types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'lockkeeper-coordinator'") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := thief.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("listing pods: %v", err)
	}
}

func TestACertificateIsWaitedFor(t *testing.T) {
	must(t, credentialPlane().ApplyLockkeeper(t.Context()))
	who := requester(t)
	admin, err := credentialPlane().Kubeconfig("an-admin", "system:masters")
	must(t, err)
	kubectl := func(args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), credentialPatience)
		defer cancel()
		cmd := exec.CommandContext(ctx, credentialPlane().Binaries().Kubectl, args...)
		cmd.Env = []string{"KUBECONFIG=" + admin, "HOME=" + t.TempDir()}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("kubectl %q: %v: %s", args, err, out)
		}
	}
	file := filepath.Join(t.TempDir(), "coordinator.kubeconfig")
	before := credentialRequests(t)

	c := call(t, who, "kubeconfig", "--csr", "--file", file)
	kubectl("certificate", "approve", c.asks())
	if said, err := c.end(); err != nil {
		t.Errorf("approved: %v: %s", err, said)
	}
	if s := stateOf(t, file, ""); s.User != "lockkeeper:coordinator" {
		t.Errorf("it is %q's", s.User)
	}
	must(t, os.Remove(file))

	c = call(t, who, "kubeconfig", "--csr", "--file", file)
	kubectl("certificate", "deny", c.asks())
	if said, err := c.end(); err == nil || !strings.Contains(said, ": Denied: KubectlDeny: ") {
		t.Errorf("denied: %v: %s", err, said)
	}

	c = call(t, who, "kubeconfig", "--csr", "--file", file)
	kubectl("delete", "csr", c.asks())
	if said, err := c.end(); err == nil || !strings.Contains(said, "is gone, and was not signed") {
		t.Errorf("deleted: %v: %s", err, said)
	}

	c = call(t, who, "kubeconfig", "--csr", "--file", file)
	name := c.asks()
	must(t, c.cmd.Process.Signal(syscall.SIGINT))
	if said, err := c.end(); err == nil || !strings.Contains(said, "waiting for certificate request "+name+" to be signed: ") {
		t.Errorf("interrupted: %v: %s", err, said)
	}
	if after := credentialRequests(t); after != before+1 { // the one that was signed
		t.Errorf("%d requests are left, want %d", after, before+1)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("a file is left: %v", err)
	}
}
