package coordinator

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/kube/dirwatch"
)

// waits counts how often Done is called, which is once for each wait of a loop.
type waits struct {
	context.Context
	n atomic.Int32
}

func (w *waits) Done() <-chan struct{} {
	w.n.Add(1)
	return w.Context.Done()
}

// TestNoCredential checks that a host without a coordinator's kubeconfig, as most are, does not wake to look for it, because
// its credential does. Without inotify, the credential looks once a minute.
func TestNoCredential(t *testing.T) {
	defer dirwatch.Off.Store(dirwatch.Off.Swap(true))
	file := filepath.Join(t.TempDir(), "kubeconfig")
	synctest.Test(t, func(t *testing.T) {
		credential := kube.New(kube.Options{Identity: v1alpha1.IdentityCoordinator, Paths: []string{file}, Absent: "no kubeconfig", Renewed: file + ".renewed"})
		var said Status
		ctx, stop := context.WithCancel(t.Context())
		w := &waits{Context: ctx}
		var running sync.WaitGroup
		running.Go(func() { credential.Run(ctx) })
		running.Go(func() { Run(w, Options{Credential: credential, Report: func(s Status) { said = s }}) })
		time.Sleep(50 * time.Minute)
		synctest.Wait()
		if n := w.n.Load(); said.Why != "no kubeconfig" || said.Blocked || n > 2 {
			t.Errorf("%+v; waited %d times", said, n)
		}
		if err := os.WriteFile(file, []byte("clusters: 5"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		if !said.Blocked {
			t.Errorf("a minute after a kubeconfig has come: %+v", said)
		}
		stop()
		running.Wait()
	})
}
