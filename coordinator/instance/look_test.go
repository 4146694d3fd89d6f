package instance

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lockkeeper.dev/lockkeeper/coordinator/metrics"
	"lockkeeper.dev/lockkeeper/node/config"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/systemd"
)

const withPlugin = `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
	"clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}],
	"users": [{"name": "u", "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "mint"}}}],
	"contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}]}`

// A host whose own credential cannot be read, or whose plugin gives none, is not healthy once that has lasted; one that has
// not joined is, and so is one whose API server is away.
func TestHealthOfTheHostsCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "kubelet.conf")
		cfg := &config.Config{}
		cfg.Kubernetes.Kubeconfig = path
		log := slog.New(slog.DiscardHandler)
		b := &book{notifier: systemd.NewNotifier(log), dir: dir, log: log, ready: true}
		l := &look{book: b, metrics: metrics.New("test"), liveness: systemd.NewLiveness(log), host: hostPass{path: func() (string, error) { return cfg.HostKubeconfig("/") }}}
		write := func(text string) {
			t.Helper()
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(hostPassFor) // what was read before is not good any more
		}
		is := func(after time.Duration, want string) {
			t.Helper()
			time.Sleep(after)
			ok, text := l.health()
			first, _, _ := strings.Cut(text, "\n")
			if ok != (want == "ok") || !strings.HasPrefix(first, want) || l.sources().Healthy() != ok {
				t.Errorf("%t, %q, expected %q", ok, first, want)
			}
		}
		is(0, "ok")
		is(time.Hour, "ok") // it has not joined
		write(withPlugin)
		is(0, "ok")
		write(withPlugin[:200])
		is(0, "ok")
		is(lasting-time.Millisecond, "ok")
		is(time.Millisecond, "unhealthy: the host's credential cannot be read: kubeconfig "+path+": ")
		write(withPlugin)
		is(0, "ok")
		write(strings.Replace(withPlugin, `"exec"`, `"client-certificate": "none.pem", "client-key": "none.pem", "unused"`, 1))
		is(0, "ok") // which is another time
		is(lasting, "unhealthy: the host's credential cannot be read: kubeconfig "+path+": its client certificate: open "+filepath.Join(dir, "none.pem"))
		write(withPlugin)

		b.host(local.Host{API: &local.Failure{Error: "cannot reach the API server", Since: time.Now()}})
		is(time.Hour, "ok")
		since := time.Now()
		b.host(local.Host{API: &local.Failure{Error: "credential plugin mint: exit status 1", Since: since, Own: true}})
		is(lasting-time.Millisecond, "ok")
		b.host(local.Host{API: &local.Failure{Error: "credential plugin mint: exit status 2", Since: since, Own: true}})
		is(time.Millisecond, "unhealthy: the host's credential: credential plugin mint: exit status 2")
		b.host(local.Host{})
		is(0, "ok")
		b.host(local.Host{API: &local.Failure{Error: "credential plugin mint: exit status 1", Since: time.Now(), Own: true}})
		is(0, "ok")
	})
}
