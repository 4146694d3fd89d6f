package rollout

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait, for example for the start of a process or for a scrape. On an idle machine each takes
// seconds.
const patience = 2 * time.Minute

// exporter serves one number for scrapes.
type exporter struct {
	*httptest.Server
	value atomic.Int64
}

func newExporter(t *testing.T) *exporter {
	t.Helper()
	e := &exporter{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "# TYPE app_errors gauge\napp_errors{shard=\"a\"} %d\napp_errors{shard=\"b\"} %d\n", e.value.Load(), e.value.Load())
	}))
	t.Cleanup(e.Close)
	return e
}

// prometheus is a real Prometheus, from Debian's package prometheus.
type prometheus struct {
	dir string
	cmd *exec.Cmd
	log string
	// address is its listen address, HOST:PORT. It changes at each start.
	address string
	gone    chan struct{}
}

func newPrometheus(t *testing.T, config string) *prometheus {
	t.Helper()
	p := &prometheus{dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(p.dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	return p
}

// Prometheus logs both lines when it is up, in either order.
var (
	listens = regexp.MustCompile(`msg="Listening on" address=(127\.0\.0\.1:[0-9]+)`)
	ready   = regexp.MustCompile(`msg="Server is ready`)
)

// start starts Prometheus on a free port and waits until it answers. Its data from before a stop is still there.
func (p *prometheus) start(t *testing.T) {
	t.Helper()
	p.log = filepath.Join(p.dir, fmt.Sprintf("log.%d", time.Now().UnixNano()))
	log, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close() // the child has its own descriptor
	p.cmd = exec.Command("prometheus", "--config.file="+filepath.Join(p.dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(p.dir, "data"), "--web.listen-address=127.0.0.1:0")
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	cmd := p.cmd
	go func() {
		// The process dies with the thread that started it, so that thread waits for it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
		}
		close(ended)
	}()
	if err := <-started; err != nil {
		t.Fatalf("starting Prometheus (Debian's package prometheus is needed): %v", err)
	}
	p.gone = ended
	until(t, "Prometheus to be ready", func() (bool, string) {
		text, err := os.ReadFile(p.log)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-ended:
			t.Fatalf("Prometheus ended; it said:\n%s", text)
		default:
		}
		m := listens.FindSubmatch(text)
		if m == nil || !ready.Match(text) {
			return false, string(text)
		}
		p.address = string(m[1])
		return true, ""
	})
}

// stop ends Prometheus and returns when the process is gone.
func (p *prometheus) stop() {
	if p.gone == nil {
		return
	}
	select {
	case <-p.gone:
		return
	default:
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.gone:
	case <-time.After(10 * time.Second):
		p.cmd.Process.Kill()
		<-p.gone
	}
}

// front is a proxy of a Prometheus. It has one address for all ports of that Prometheus, and refuses requests without
// the current token.
type front struct {
	*httptest.Server
	behind, token atomic.Value // strings
}

func newFront(t *testing.T, behind, token string) *front {
	t.Helper()
	f := &front{}
	f.behind.Store(behind)
	f.token.Store(token)
	pass := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: f.behind.Load().(string)})
		},
		// While Prometheus is down, the proxy closes connections.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+f.token.Load().(string) {
			http.Error(w, "not with "+r.Header.Get("Authorization"), http.StatusUnauthorized)
			return
		}
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(f.Close)
	return f
}

// until waits until cond is true. After a timeout it reports the last value of said.
func until(t *testing.T, what string, cond func() (ok bool, said string)) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		ok, said := cond()
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("timed out waiting for %s; last: %s", what, said)
		}
	}
}
