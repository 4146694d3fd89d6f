//go:build linux && !noagent

package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	urfave "github.com/urfave/cli/v2"
)

// TestLimitRuntime checks how many CPUs a host and the leaders of a small and a large fleet use, and that an admin who sets the
// variables of Go's runtime has the last word.
func TestLimitRuntime(t *testing.T) {
	procs, percent := runtime.GOMAXPROCS(0), debug.SetGCPercent(100)
	defer func() {
		runtime.GOMAXPROCS(procs)
		debug.SetGCPercent(percent)
	}()
	leaders := min(2, runtime.NumCPU())
	for _, c := range []struct {
		gogc, gomaxprocs                 string
		percent, start, small, large, no int
	}{
		{"", "", 25, 1, 1, leaders, 1},
		{"200", "3", 100, 3, 3, 3, 3}, // the runtime itself has read them, when the process began
	} {
		t.Setenv("GOGC", c.gogc)
		t.Setenv("GOMAXPROCS", c.gomaxprocs)
		runtime.GOMAXPROCS(3)
		debug.SetGCPercent(100)
		limitRuntime()
		got := []int{debug.SetGCPercent(100), runtime.GOMAXPROCS(0)}
		for _, nodes := range []int{999, 1000, 0} {
			limitProcs(nodes)
			got = append(got, runtime.GOMAXPROCS(0))
		}
		if want := []int{c.percent, c.start, c.small, c.large, c.no}; !slices.Equal(got, want) {
			t.Errorf("GOGC=%q GOMAXPROCS=%q: got %d, expected %d: the GC percent, the CPUs at the start, of the leader of 999 and of 1000 Nodes, and when it leads no more",
				c.gogc, c.gomaxprocs, got, want)
		}
	}
}

// TestRunLimitsItsCPUs checks that the service passes limitProcs on, which gets the number of Nodes that this process leads. The API
// server refuses the candidate, so that number is 0. Before that, the test lets the process use more CPUs, as if it had led a large
// fleet.
func TestRunLimitsItsCPUs(t *testing.T) {
	procs, percent := runtime.GOMAXPROCS(0), debug.SetGCPercent(100)
	defer func() {
		runtime.GOMAXPROCS(procs)
		debug.SetGCPercent(percent)
	}()
	t.Setenv("GOMAXPROCS", "")
	t.Setenv("NOTIFY_SOCKET", "")
	dir := t.TempDir()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(dir, "none")) // not the bus of this machine
	var raised atomic.Bool
	raise := sync.OnceFunc(func() {
		runtime.GOMAXPROCS(3)
		raised.Store(true)
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		raise()
		http.Error(w, "no", http.StatusForbidden)
	}))
	defer server.Close()
	for name, text := range map[string]string{
		"lockkeeper.toml": fmt.Sprintf("[metrics]\nlisten = \"\"\n[coordinator]\nkubeconfig = %q\n", filepath.Join(dir, "kubeconfig")),
		"kubeconfig": fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
			"clusters": [{"name": "c", "cluster": {"server": %q}}], "users": [{"name": "c", "user": {"token": "x"}}],
			"contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]}`, server.URL),
		"r/proc/sys/kernel/random/boot_id": "0f0e0d0c-0b0a-4908-8706-050403020100\n",
		"r/proc/uptime":                    "3600.25 7000.00\n",
	} {
		path := filepath.Join(dir, name)
		if err := cmp.Or(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}

	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	var service sync.WaitGroup
	defer service.Wait()
	defer stop()
	service.Go(func() {
		defer stop()
		app := &urfave.App{Name: "lockkeeper", Version: "v1", Commands: []*urfave.Command{run()}}
		if err := app.RunContext(ctx, []string{"lockkeeper", "run", "--root", filepath.Join(dir, "r"), "--config", filepath.Join(dir, "lockkeeper.toml")}); err != nil {
			t.Errorf("lockkeeper run: %v", err)
		}
	})
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for !raised.Load() || runtime.GOMAXPROCS(0) != maxProcs {
		select {
		case <-poll.C:
		case <-ctx.Done():
			t.Fatalf("lockkeeper sent a request: %t; GOMAXPROCS is %d, expected %d because this process leads no Nodes", raised.Load(), runtime.GOMAXPROCS(0), maxProcs)
		}
	}
}
