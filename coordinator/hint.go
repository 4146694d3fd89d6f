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
	w, err := dirwatch.New(func() { token(poked) })
	if err != nil {
		c.log.Warn("the coordinator's kubeconfig cannot be watched; it is looked at now and then", "err", err, "interval", credentialEvery)
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.Run(); err != nil {
			c.log.Warn("the coordinator's kubeconfig is not watched any more; it is looked at now and then", "err", err, "interval", credentialEvery)
		}
	})
	running.Go(func() {
		defer w.Close()
		blind := false
		for {
			// The watch first: what changes after it is told, what changed before is seen.
			err := w.Watch("/", append(paths(c.Credential.Kubeconfig), paths(c.Credential.Renewed)...))
			if err != nil && !blind {
				c.log.Warn("the coordinator's kubeconfig cannot be watched; it is looked at now and then", "err", err, "interval", credentialEvery)
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

// paths are where a change of the file may be seen: its own, and that of what
// it is a link to.
func paths(file string) []string {
	all := []string{file}
	if abs, err := filepath.Abs(file); err == nil {
		all[0] = abs
	}
	if target, err := filepath.EvalSymlinks(all[0]); err == nil && target != all[0] {
		all = append(all, target)
	}
	return all
}

func token(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
