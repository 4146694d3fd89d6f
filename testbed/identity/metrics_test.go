package identity

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// listening returns the URL that a host logged when it began to serve metrics and health for the nth time.
func listening(t *testing.T, h *simhost.Host, nth int) string {
	t.Helper()
	said := regexp.MustCompile(`serves metrics and health.*listen=(\S+)`)
	var found [][]string
	waitForCredential(t, "it to serve", func() bool {
		found = said.FindAllStringSubmatch(h.Logs(), -1)
		return len(found) >= nth
	}, func() any { return h.LogTail(20) })
	return "http://" + found[nth-1][1]
}

func get(t *testing.T, url string) (code int, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), credentialPatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	must(t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(body)
}

// serving has the host listen at that address from its next start on.
func serving(address string) func(simhost.Config) {
	return func(c simhost.Config) { c["metrics"] = map[string]any{"listen": address} }
}

// has waits until the page has all these lines.
func has(t *testing.T, url string, lines ...string) (page string) {
	t.Helper()
	waitForCredential(t, strings.Join(lines, ", "), func() bool {
		_, page = get(t, url+"/metrics")
		for _, line := range lines {
			if !strings.Contains(page, "\n"+line+"\n") {
				return false
			}
		}
		return true
	}, func() any { return page })
	return page
}

// A real process serves every metric of the table, and no other of its name, with values that are true.
func TestEveryMetricIsServed(t *testing.T) {
	h := host(t, simhost.Options{Name: "metric-1", Coordinator: true, Config: serving("127.0.0.1:0")})
	is(t, h, "it to lead, and its word on the credential", func(s local.Status) bool { return leads(s) && s.Coordinator.Credential != nil })
	url := listening(t, h, 1)
	// A node that an admin has cordoned takes a slot.
	cordon := func(is bool) {
		t.Helper()
		_, err := credentialPlane().Client().CoreV1().Nodes().Patch(t.Context(), h.Name(), types.MergePatchType,
			fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, is), metav1.PatchOptions{})
		must(t, err)
	}
	cordon(true)
	page := has(t, url, `lockkeeper_coordinator_slot_info{node="metric-1",reason="Cordoned"} 1`, "lockkeeper_coordinator_leader 1", "lockkeeper_coordinator_candidate 1", "lockkeeper_healthy 1",
		`lockkeeper_host_state{state="idle"} 1`, `lockkeeper_host_wants{wants="nothing"} 1`, `lockkeeper_host_waiting{reason="None"} 0`,
		`lockkeeper_coordinator_nodes{state="idle"} 1`, `lockkeeper_coordinator_nodes{state="draining"} 0`,
		`lockkeeper_coordinator_held_nodes{reason="Budget"} 0`, "lockkeeper_coordinator_budget_nodes 1",
		"lockkeeper_coordinator_managed_nodes 1", "lockkeeper_coordinator_reporting_nodes 1", "lockkeeper_coordinator_stopped 0",
		"lockkeeper_coordinator_terms_total 1", `lockkeeper_host_update_engine{operation="IDLE"} 1`, `lockkeeper_host_stage_duration_seconds_count{state="draining"} 0`,
		`lockkeeper_credential_refused{identity="host"} 0`, `lockkeeper_credential_refused{identity="coordinator"} 0`)

	cordon(false)
	ends := map[string]time.Time{}
	for _, m := range regexp.MustCompile(`(?m)^lockkeeper_credential_expiry_timestamp_seconds\{identity="(\w+)"\} (\S+)$`).FindAllStringSubmatch(page, -1) {
		f, err := strconv.ParseFloat(m[2], 64)
		must(t, err)
		ends[m[1]] = time.Unix(int64(f), 0)
	}
	if at := inEffect(t, h).Expires; !ends["coordinator"].Equal(at) {
		t.Errorf("the coordinator's credential ends at %v, want %v", ends["coordinator"], at)
	}
	if left := time.Until(ends["host"]); left < time.Hour {
		t.Errorf("the host's certificate ends in %v", left)
	}

	// What it wants and waits for is seen while it does, and the turn counted at its end: the process after the reboot is another
	// one.
	stop := func(value string) {
		t.Helper()
		_, err := credentialPlane().Client().CoordinationV1().Leases(controlplane.LockkeeperNamespace).Patch(t.Context(), controlplane.LockkeeperLease,
			types.MergePatchType, []byte(`{"metadata":{"annotations":{"lockkeeper.dev/paused":`+value+`}}}`), metav1.PatchOptions{})
		must(t, err)
	}
	stop(`"a test"`)
	must(t, h.StageUpdate("4.2.0"))
	has(t, url, `lockkeeper_host_wants{wants="reboot"} 1`, `lockkeeper_host_waiting{reason="Stopped"} 1`, `lockkeeper_coordinator_held_nodes{reason="Stopped"} 1`,
		"lockkeeper_coordinator_stopped 1", `lockkeeper_host_update_engine{operation="UPDATED_NEED_REBOOT"} 1`)
	release := h.Logind().Hold(simhost.Inhibitor{What: "shutdown", Who: "backup", Why: "a test", Mode: "block", PID: 1})
	stop("null")
	blocked := has(t, url, `lockkeeper_host_blockers{kind="Inhibitor"} 1`, `lockkeeper_host_blockers{kind="PodDisruptionBudget"} 0`)
	release()
	// Some metrics are there only while something is blocked or pending.
	served := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^(lockkeeper_[a-z_]+)`).FindAllStringSubmatch(page+blocked, -1) {
		name := m[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			name = strings.TrimSuffix(name, suffix)
		}
		served[name] = true
	}
	for _, d := range v1alpha1.MetricDocs() {
		if !served[string(d.Name)] {
			t.Errorf("%s is in the table and is not served", d.Name)
		}
		delete(served, string(d.Name))
	}
	for name := range served {
		t.Errorf("%s is served and is not in the table", name)
	}
	second := listening(t, h, 2)
	has(t, second, `lockkeeper_host_turns_total{result="Done"} 1`, `lockkeeper_host_turns_total{result="Failed"} 0`,
		`lockkeeper_host_stage_duration_seconds_count{state="rebooting"} 1`, `lockkeeper_host_stage_duration_seconds_count{state="uncordoning"} 1`,
		`lockkeeper_host_stage_duration_seconds_count{state="before-uncordon"} 0`)

	// A reload changes the address. If another process has the address, the host reports that, and nothing else fails.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	must(t, h.Configure(serving(taken.Addr().String())))
	must(t, h.Signal(syscall.SIGHUP))
	s := is(t, h, "its word on the address", func(s local.Status) bool { return strings.Contains(s.Metrics, "address already in use") })
	if !strings.Contains(s.Line, "; metrics are not served: ") {
		t.Errorf("its line is %q", s.Line)
	}
	if code, text := get(t, second+"/healthz"); code != 0 {
		t.Errorf("at the old address: %d %s", code, text)
	}
	must(t, h.Configure(serving("127.0.0.1:0")))
	must(t, h.Signal(syscall.SIGHUP))
	if code, text := get(t, listening(t, h, 3)+"/healthz"); code != 200 || !strings.HasPrefix(text, "ok\nstatus: ") {
		t.Errorf("after the reload: %d %s", code, text)
	}
	is(t, h, "its word that all is well", func(s local.Status) bool { return s.Metrics == "" })
}

// Health is served before there is an API server, and says what a user has to fix on this host.
func TestHealth(t *testing.T) {
	must(t, credentialPlane().ApplyLockkeeper(t.Context()))
	good, err := credentialPlane().NodeKubeconfig("health-1")
	must(t, err)
	dir := t.TempDir()
	altered := func(name, server, token string) string {
		t.Helper()
		config, err := clientcmd.LoadFromFile(good)
		must(t, err)
		for _, c := range config.Clusters {
			if server != "" {
				c.Server = server
			}
		}
		for _, u := range config.AuthInfos {
			if token != "" {
				u.ClientCertificateData, u.ClientKeyData, u.Token = nil, nil, token
			}
		}
		path := filepath.Join(dir, name)
		must(t, clientcmd.WriteToFile(*config, path))
		return path
	}
	h := host(t, simhost.Options{Name: "health-1", Kubeconfig: altered("away", "https://127.0.0.1:1", ""), Config: serving("127.0.0.1:0")})
	is(t, h, "its word on the API server", func(s local.Status) bool { return s.API != nil })
	url := listening(t, h, 1)
	var code int
	var text string
	waitForCredential(t, "its word on both", func() bool {
		code, text = get(t, url+"/healthz")
		return strings.Contains(text, "\ncoordinator's credential: ")
	}, func() any { return text })
	if code != 200 || !strings.HasPrefix(text, "ok\n") || !strings.Contains(text, "\nAPI server answered last: not yet\n") ||
		!strings.Contains(text, "\nhost's credential: valid until ") || !strings.Contains(text, "\ncoordinator's credential: none at ") {
		t.Errorf("without an API server: %d\n%s", code, text)
	}
	has(t, url, `lockkeeper_api_last_contact_timestamp_seconds{identity="host"} 0`, "lockkeeper_coordinator_candidate 0", "lockkeeper_healthy 1")

	// The host connects again every few seconds, and so reads its file again.
	refused, err := os.ReadFile(altered("refused", "", "nobody's"))
	must(t, err)
	kubeconfig := filepath.Join(h.Dir(), "kubelet.kubeconfig")
	must(t, os.WriteFile(kubeconfig, refused, 0o600))
	waitForCredential(t, "its word that it is refused", func() bool {
		code, text = get(t, url+"/healthz")
		return code == 503
	}, func() any { return text })
	if !strings.HasPrefix(text, "unhealthy: the API server has refused the host's credential in "+kubeconfig+" since ") {
		t.Errorf("refused: %d\n%s", code, text)
	}
	has(t, url, `lockkeeper_credential_refused{identity="host"} 1`, "lockkeeper_healthy 0")

	now, err := os.ReadFile(good)
	must(t, err)
	must(t, os.WriteFile(kubeconfig, now, 0o600))
	waitForCredential(t, "it to be well again", func() bool {
		code, text = get(t, url+"/healthz")
		return code == 200 && !strings.Contains(text, "not yet")
	}, func() any { return text })

	must(t, os.WriteFile(h.CoordinatorKubeconfig(), []byte("clusters: 5\n"), 0o600))
	waitForCredential(t, "its word on a broken file", func() bool {
		code, text = get(t, url+"/healthz")
		return code == 503
	}, func() any { return text })
	if !strings.HasPrefix(text, "unhealthy: the coordinator's credential: kubeconfig "+h.CoordinatorKubeconfig()+": ") {
		t.Errorf("broken: %d\n%s", code, text)
	}
}
