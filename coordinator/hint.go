package coordinator

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/node/dirwatch"
)

// hintPause is the least between two hints, however often the file is written.
const hintPause = 50 * time.Millisecond

// watchCredential puts a token into c.hint when a file of the coordinator's
// credential has come, was written or has gone, until ctx ends or stop is called, which
// returns when nothing runs any more. It is a hint and no more: where the
// kernel has no watch to give, the look at every credentialEvery finds it.
func (c *candidate) watchCredential(ctx context.Context) (stop func()) {
	poked := make(chan struct{}, 1)
	w := dirwatch.New(func(string) { token(poked) })
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		defer w.Close()
		blind := false
		for {
			// Watch first: what changes before the reading is read, what changes later is reported.
			_, err := w.Watch("credential", "/", []string{absolute(c.Credential.Kubeconfig), absolute(c.Credential.Renewed)}, false)
			if err != nil && !blind {
				c.log.Warn("inotify does not report changes of the coordinator's kubeconfig; lockkeeper reads it at intervals", "err", err, "interval", credentialEvery)
			}
			blind = err != nil
			token(c.hint)
			if c.Hinted != nil {
				c.Hinted()
			}
			if pause(ctx, hintPause) != nil {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-poked:
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// absolute makes a path absolute, as dirwatch needs it.
func absolute(file string) string {
	if abs, err := filepath.Abs(file); err == nil {
		return abs
	}
	return file
}

func token(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
