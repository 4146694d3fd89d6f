package hosts

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// examples are the hook units in packaging/examples on a host: wait-for-replicas with the kubelet's credential and the
// real kubectl, and notify-webhook with the machine's curl and a server on the machine.
type examples struct {
	mu    sync.Mutex
	calls []string
}

const exampleDir = "../../packaging/examples"

// addExamples adds the units and the programs that they call to a host's files, and starts the server.
func addExamples(t *testing.T, files map[string][]byte) *examples {
	t.Helper()
	read := func(path string) []byte {
		data, err := os.ReadFile(path)
		must(t, err)
		return data
	}
	for _, name := range []string{"wait-for-replicas/wait-for-replicas.service", "notify-webhook/notify-webhook@.service"} {
		files["/etc/systemd/system/"+filepath.Base(name)] = read(filepath.Join(exampleDir, name))
	}
	for _, name := range []string{"wait-for-replicas", "notify-webhook"} {
		files["/usr/local/lib/lockkeeper/"+name] = read(filepath.Join(exampleDir, name, "hook.sh"))
	}
	files["/etc/systemd/system/wait-for-replicas.service.d/testbed.conf"] = []byte("[Service]\nEnvironment=POLL_SECONDS=1\n")
	files["/usr/local/bin/kubectl"] = read(cp.Binaries().Kubectl)

	// The hosts have no curl. The test copies the machine's with all its shared libraries.
	curl, err := osexec.LookPath("curl")
	must(t, err)
	files["/opt/curl/bin/curl"] = read(curl)
	linked, err := osexec.CommandContext(t.Context(), "ldd", curl).Output()
	must(t, err)
	linker := ""
	for _, m := range regexp.MustCompile(`(/\S+) \(0x`).FindAllStringSubmatch(string(linked), -1) {
		name := "/opt/curl/bin/" + filepath.Base(m[1])
		files[name] = read(m[1])
		if strings.HasPrefix(filepath.Base(m[1]), "ld-") {
			linker = name
		}
	}
	files["/usr/local/bin/curl"] = fmt.Appendf(nil, "#!/bin/sh\nexec %s --library-path /opt/curl/bin /opt/curl/bin/curl \"$@\"\n", linker)

	e := &examples{}
	listener, err := net.Listen("tcp", netip.AddrPortFrom(lab.Gateway(), 0).String())
	must(t, err)
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<16))
		e.mu.Lock()
		defer e.mu.Unlock()
		e.calls = append(e.calls, string(body))
	})}}
	server.Start()
	t.Cleanup(server.Close)
	files["/etc/lockkeeper/notify-webhook.env"] = fmt.Appendf(nil, "WEBHOOK_URL=%s/hook\n", server.URL)
	return e
}

// enable enables the units as their comments describe.
func (e *examples) enable(t *testing.T, h *realhost.Host) {
	t.Helper()
	out := exec(t, h, "chmod 755 /usr/local/lib/lockkeeper/* && systemctl daemon-reload && "+
		"systemctl enable wait-for-replicas.service notify-webhook@before-reboot.service notify-webhook@before-uncordon.service && "+
		"ls /etc/systemd/system/lockkeeper-*.target.wants")
	for _, unit := range []string{"wait-for-replicas.service", "notify-webhook@before-reboot.service", "notify-webhook@before-uncordon.service"} {
		if !strings.Contains(out, unit) {
			t.Errorf("%s is not enabled:\n%s", unit, out)
		}
	}
}

// grant waits until wait-for-replicas waits for the right to list workloads, which hosts do not have by default, and
// grants it.
func (e *examples) grant(t *testing.T, h *realhost.Host) {
	t.Helper()
	eventually(t, 2*time.Minute, "wait-for-replicas to be refused", func() bool {
		log := exec(t, h, "journalctl -u wait-for-replicas.service --no-pager -o cat")
		return strings.Contains(log, "Forbidden") && strings.Contains(log, "cannot read the replicas")
	})
	admin, err := cp.Kubeconfig("testbed:admin", "system:masters")
	must(t, err)
	cmd := osexec.CommandContext(t.Context(), cp.Binaries().Kubectl, "apply", "-f", filepath.Join(exampleDir, "wait-for-replicas", "host.yaml"))
	cmd.Env = []string{"KUBECONFIG=" + admin, "HOME=" + t.TempDir()}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// told checks that the server received both stages of a finished turn.
func (e *examples) told(t *testing.T, node, turn string) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, stage := range []string{"before-reboot", "before-uncordon"} {
		if want := fmt.Sprintf(`{"node":%q,"stage":%q,"turn":%q}`, node, stage, turn); !slices.Contains(e.calls, want) {
			t.Errorf("the webhook did not receive %s, but %q", want, e.calls)
		}
	}
}
