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
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
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
	r := &record{notifier: systemd.NewNotifier(log), dir: t.TempDir(), log: log, ready: true, liveness: systemd.NewLiveness(),
		hostCredential: kube.New(kube.Options{}), coordinatorCredential: kube.New(kube.Options{})}
	bad := config.Errors{{File: "/etc/lockkeeper/lockkeeper.toml", Line: 3, Key: "mode", Got: `"acts"`, Expected: `"act" or "observe"`}}
	o := Options{Load: func() (*config.Config, []config.Warning, error) { return nil, nil, bad }}
	reload(config.Default(), o, log, r, nil, nil)
	const want = `not valid, and lockkeeper does not start again with it: /etc/lockkeeper/lockkeeper.toml:3: mode: "acts", expected "act" or "observe"`
	ok, text := r.healthAt(time.Now())
	if first, rest, _ := strings.Cut(text, "\n"); ok || !strings.Contains(first, want) || !strings.Contains(rest, want) {
		t.Errorf("%t, %s", ok, text)
	}
	r.setConfigErr("")
	if ok, text := r.healthAt(time.Now()); !ok || strings.Contains(text, want) {
		t.Errorf("after a good reload: %t, %s", ok, text)
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
