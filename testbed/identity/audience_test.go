package identity

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
)

// TestAudience mints a credential where the API server has audiences that the manifests do not know: `lockkeeper kubeconfig` finds out
// that the token cannot renew itself, and the command that it names puts that right.
func TestAudience(t *testing.T) {
	fixture(t)
	admin, err := cp.Kubeconfig("testbed:admin", "system:masters")
	must(t, err)
	defer func() { // back to what all other tests expect
		must(t, cp.RestartAPIServer(t.Context()))
		must(t, cp.ApplyLockkeeper(t.Context()))
		bound(t, true)
	}()
	must(t, cp.RestartAPIServer(t.Context(), "--api-audiences=https://oidc.example.com/id/1,k3s"))
	path := filepath.Join(t.TempDir(), "coordinator.kubeconfig")
	kubeconfig := func() string {
		t.Helper()
		out, err := exec.CommandContext(within(t), binary, "kubeconfig", "--kubeconfig", admin, "--file", path).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	var command string
	until(t, "the policy to refuse the renewal", func() (bool, error) {
		said := kubeconfig()
		if m := regexp.MustCompile(`it cannot renew itself: .*: (lockkeeper manifests .*)`).FindStringSubmatch(said); m != nil {
			command = m[1]
		}
		return command != "", errors.New(said)
	})
	if want := "lockkeeper manifests --audience 'https://oidc.example.com/id/1' --audience 'k3s' | kubectl --kubeconfig " + admin + " apply -f -"; command != want {
		t.Errorf("it says to run %q, want %q", command, want)
	}
	renew := func() error {
		return kube.New(kube.Options{Identity: v1alpha1.IdentityCoordinator, Paths: []string{path}, Renewed: path + ".renewed", QPS: 5, Burst: 5}).Renew(t.Context())
	}
	if err := renew(); err == nil || !strings.Contains(err.Error(), "lockkeeper manifests --audience") {
		t.Errorf("the renewal: %v", err)
	}

	dir := t.TempDir() // with both commands by the names in it
	must(t, os.Symlink(binary, filepath.Join(dir, "lockkeeper")))
	cmd := exec.CommandContext(within(t), "sh", "-c", command)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+admin, "HOME="+dir, "PATH="+dir+":"+filepath.Dir(cp.Binaries().Kubectl)+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		// The testbed applies with a field manager of its own, and kubectl says so.
		t.Fatalf("%s: %v\n%s", command, err, bytes.TrimSpace(out))
	}
	until(t, "the token to renew itself", func() (bool, error) { err := renew(); return err == nil, err })
	if said := kubeconfig(); strings.Contains(said, "renew itself") {
		t.Errorf("afterwards it says:\n%s", said)
	}
	// What was good for another API server is not for this one.
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err := mint(v1alpha1.CoordinatorServiceAccount, time.Hour, "https://kubernetes.default.svc")(t.Context(), client(t, config, err)); refusedBy(err) != token {
		t.Errorf("for an audience that is not the API server's any more: %v", err)
	}
}
