package agent

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/agent/webserver"
	"lockkeeper.dev/lockkeeper/coordinator"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node"
	"lockkeeper.dev/lockkeeper/node/config"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/systemd"
)

const someKubeconfig = `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
	"clusters": [{"name": "k", "cluster": {"server": %q}}],
	"users": [{"name": "u", "user": {"tokenFile": "/dev/null"}}],
	"contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}]}`

// A host whose own credential cannot be read, or is refused, is not healthy once that has lasted; one that has not joined is, and
// so is one whose API server is away.
func TestHealthOfTheCredentials(t *testing.T) {
	dir := t.TempDir()
	path, own := filepath.Join(dir, "kubelet.conf"), filepath.Join(dir, "coordinator.kubeconfig")
	log := slog.New(slog.DiscardHandler)
	refuses := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if refuses {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer server.Close()
	usable := fmt.Sprintf(someKubeconfig, server.URL)
	r := &record{
		notifier: systemd.NewNotifier(log), dir: dir, log: log, ready: true, liveness: systemd.NewLiveness(),
		hostCredential:        kube.New(kube.Options{Identity: v1alpha1.IdentityHost, Paths: []string{path}, QPS: 100, Burst: 100}),
		coordinatorCredential: kube.New(kube.Options{Identity: v1alpha1.IdentityCoordinator, Paths: []string{own}, Renewed: filepath.Join(dir, "renewed")}),
	}
	at := time.Duration(0) // after now
	is := func(want string) {
		t.Helper()
		ok, text := r.healthAt(time.Now().Add(at))
		first, _, _ := strings.Cut(text, "\n")
		if ok != (want == "ok") || !strings.HasPrefix(first, want) {
			t.Errorf("%t, %q, expected %q", ok, first, want)
		}
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	is("ok") // it has not joined
	write(path, usable[:100])
	write(own, "clusters: 5\n")
	for _, c := range []*kube.Credential{r.hostCredential, r.coordinatorCredential} {
		if _, err := c.Client(); err == nil {
			t.Fatal("half a kubeconfig is usable")
		}
	}
	is("ok") // it may be half written
	at = 11 * time.Second
	is("unhealthy: the host's credential: kubeconfig " + path + ": ")
	write(path, usable)
	client, err := r.hostCredential.Client()
	if err != nil {
		t.Fatal(err)
	}
	is("unhealthy: the coordinator's credential: kubeconfig " + own + ": ")
	if err := os.Remove(own); err != nil {
		t.Fatal(err)
	}
	r.coordinatorCredential.Client()
	is("ok")
	refuses = true
	client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	is("unhealthy: the API server has refused the host's credential in " + path + " since ")
	refuses = false
	client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	is("ok")
	refuses = true
	server.Close()
	client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	is("ok") // the API server is away
}

// TestBadReload: the process continues with the old configuration, and the next one would not start. So the status line and
// /healthz say what to fix, until a reload succeeds.
func TestBadReload(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	r := newRecord(t)
	bad := config.Errors{{File: "/etc/lockkeeper/lockkeeper.toml", Line: 3, Key: "mode", Got: `"acts"`, Expected: `"act" or "observe"`}}
	s := &service{cfg: config.Default(), record: r, Options: Options{
		Log: log, Level: new(slog.LevelVar), Load: func() (*config.Config, []config.Warning, error) { return nil, nil, bad },
	}}
	s.reload()
	const want = `not valid, and lockkeeper does not start again with it: /etc/lockkeeper/lockkeeper.toml:3: mode: "acts", expected "act" or "observe"`
	ok, text := r.healthAt(time.Now())
	if first, rest, _ := strings.Cut(text, "\n"); ok || !strings.Contains(first, want) || !strings.Contains(rest, want) {
		t.Errorf("%t, %s", ok, text)
	}
	good := config.Default()
	good.LogLevel = slog.LevelDebug
	s.Load = func() (*config.Config, []config.Warning, error) { return good, nil, nil }
	var err error
	if s.host, err = node.New(node.Options{Root: aRoot(t), Settings: settings(config.Default())}); err != nil {
		t.Fatal(err)
	}
	s.server = webserver.New("metrics", http.NotFoundHandler(), log, nil)
	s.reload()
	if ok, text := r.healthAt(time.Now()); !ok || strings.Contains(text, want) {
		t.Errorf("after a good reload: %t, %s", ok, text)
	}
	if got := s.Level.Level(); got != slog.LevelDebug {
		t.Errorf("after a good reload the process logs from %v", got)
	}
}

// aRoot returns the directory of a host's files, with those that every host has.
func aRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{"proc/sys/kernel/random/boot_id": "b1\n", "proc/uptime": "600.5 0\n"} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// newRecord returns the record of a service that runs, without credentials.
func newRecord(t *testing.T) *record {
	log := slog.New(slog.DiscardHandler)
	return &record{notifier: systemd.NewNotifier(log), dir: t.TempDir(), log: log, ready: true, liveness: systemd.NewLiveness(),
		hostCredential: kube.New(kube.Options{}), coordinatorCredential: kube.New(kube.Options{})}
}

// TestHealthOfALoop: /healthz names a loop that is stuck, until it continues.
func TestHealthOfALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecord(t)
		beat := r.liveness.Beat("node", time.Minute)
		is := func(want string) {
			t.Helper()
			ok, text := r.healthAt(time.Now())
			if first, _, _ := strings.Cut(text, "\n"); ok != (want == "ok") || first != want {
				t.Errorf("%t, %q, expected %q", ok, first, want)
			}
		}
		time.Sleep(time.Minute)
		is("ok")
		time.Sleep(time.Second)
		is("unhealthy: a loop is stuck: node (silent for 1m1s)")
		beat.Alive()
		is("ok")
	})
}

// TestBlockedIsShown: what keeps this host from leading, or a leader from deciding, is in the status line and in `lockkeeper status`.
func TestBlockedIsShown(t *testing.T) {
	for _, c := range []struct {
		role          coordinator.Status
		line, problem string
		is            v1alpha1.Role
	}{
		{coordinator.Status{Candidate: true, Why: "standby; n2_x holds the Lease"}, "starting", "", v1alpha1.RoleStandby},
		{coordinator.Status{Candidate: true, Why: "its clock is off", Blocked: true}, "starting; does not coordinate: its clock is off", "does not coordinate: its clock is off", v1alpha1.RoleStandby},
		{coordinator.Status{Why: "half a kubeconfig", Blocked: true}, "starting; does not coordinate: half a kubeconfig", "does not coordinate: half a kubeconfig", v1alpha1.RoleHost},
		{coordinator.Status{Candidate: true, Leader: true, Epoch: "n1_x"}, "coordinates; starting", "", v1alpha1.RoleLeader},
		{coordinator.Status{Candidate: true, Leader: true, Epoch: "n1_x", Why: "it leads and does not see the Nodes", Blocked: true},
			"coordinates; starting; it leads and does not see the Nodes", "it leads and does not see the Nodes", v1alpha1.RoleLeader},
	} {
		r := newRecord(t)
		asked := 0
		r.republish = func() { asked++ }
		r.setRole(c.role)
		r.mu.Lock()
		line, part := r.summary()
		r.mu.Unlock()
		if line != c.line || part.Problem != c.problem || part.Role != c.is || part.Why != c.role.Why || asked != 1 {
			t.Errorf("%+v: %q, %+v, published %d times", c.role, line, part, asked)
		}
	}
}

// TestCredentialText: `lockkeeper status` and /healthz describe the coordinator's credential in the same way.
func TestCredentialText(t *testing.T) {
	now := time.Date(2026, 11, 21, 13, 4, 5, 0, time.UTC)
	for want, s := range map[string]kube.State{
		"": {File: "/etc/c"},
		"/etc/c; valid until 2026-11-24 13:04:05Z (3 days); renews itself at 2026-11-23 13:04:05Z": {
			File: "/etc/c", Present: true, Expires: now.Add(72 * time.Hour), Renews: now.Add(48 * time.Hour)},
		"/etc/c; valid until 2026-11-21 14:04:05Z (0 days); renewing it has failed since 2026-11-21 13:00:00 UTC: refused": {
			File: "/etc/c", Present: true, Expires: now.Add(time.Hour), Renews: now.Add(-time.Hour), RenewError: "refused", RenewErrorSince: now.Add(-4*time.Minute - 5*time.Second)},
		"/etc/c; REFUSED by the API server since 2026-11-21 13:04:05Z; EXPIRED at 2026-11-21 12:04:05Z: `lockkeeper kubeconfig` creates a new one": {
			File: "/etc/c", Present: true, Expires: now.Add(-time.Hour), Refused: now},
		"/etc/c; not renewed by lockkeeper: it is a certificate; EXPOSED: one; EXPOSED: two": {
			File: "/etc/c", Present: true, NotRenewed: "it is a certificate", Exposed: "one\ntwo"},
	} {
		if got := credential(&s).Text(now); got != want {
			t.Errorf("%q, expected %q", got, want)
		}
	}
}

// TestStatusIsWrittenOnce: a report that says what the last one did leaves the file alone, because an idle host makes two a minute.
func TestStatusIsWrittenOnce(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	r := &record{notifier: systemd.NewNotifier(log), dir: filepath.Join(dir, "missing"), log: log, coordinatorCredential: kube.New(kube.Options{})}
	idle := func() local.Host { // a host's record shares no memory with the last one
		return local.Host{Node: "n1", State: v1alpha1.StateIdle, Engine: &v1alpha1.EngineStatus{Operation: "IDLE"}, Changes: []v1alpha1.Change{{Source: v1alpha1.SourceSentinel, Name: "/run/x"}}}
	}
	file := func() (s local.Status, info os.FileInfo) {
		t.Helper()
		s, err := local.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		if info, err = os.Stat(filepath.Join(dir, "status.json")); err != nil {
			t.Fatal(err)
		}
		return s, info
	}
	r.setHost(idle()) // fails, and is tried again
	r.dir = dir
	r.setHost(idle())
	first, before := file()
	if first.Node != "n1" || first.Time.IsZero() {
		t.Errorf("the file has %+v", first)
	}
	r.setHost(idle())
	if second, after := file(); !os.SameFile(before, after) || !second.Time.Equal(first.Time) {
		t.Errorf("the same report was written again, at %v", second.Time)
	}
	other := idle()
	other.Engine.Operation = "CHECKING_FOR_UPDATE"
	r.setHost(other)
	if third, _ := file(); third.Engine.Operation != "CHECKING_FOR_UPDATE" || !third.Time.After(first.Time) {
		t.Errorf("after another report the file has %+v", third)
	}
}
