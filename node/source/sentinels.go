package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"syscall"
	"time"

	"lockkeeper.dev/lockkeeper/kube/dirwatch"
	"lockkeeper.dev/lockkeeper/node/hostfs"
	"lockkeeper.dev/lockkeeper/node/timing"
)

// sentinelPause is the shortest time between two reads of the sentinels, however often
// they come and go.
const sentinelPause = 50 * time.Millisecond

// Sentinels are files whose presence asks for a reboot. All methods may be called from any
// goroutine.
type Sentinels struct {
	Options
	kicked  chan struct{}
	reading sync.Mutex // one read at a time, so that the last one counts

	mu      sync.Mutex
	paths   []string
	present []string
	read    bool
	failing failing
}

// NewSentinels makes Sentinels at absolute paths. Nothing is read before [Sentinels.Run].
func NewSentinels(o Options, paths []string) *Sentinels {
	return &Sentinels{Options: o, paths: paths, kicked: make(chan struct{}, 1)}
}

// SetPaths replaces the paths, and makes Run read them soon.
func (s *Sentinels) SetPaths(paths []string) {
	s.mu.Lock()
	s.paths = paths
	s.mu.Unlock()
	timing.Kick(s.kicked)
}

// Present returns the paths that existed at the last read; read is false before the first.
func (s *Sentinels) Present() (paths []string, read bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.present, s.read
}

// Unread returns why the sentinels could not be read for some time, or nil.
func (s *Sentinels) Unread() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failing.lasting()
}

// Read reads which sentinels exist. After an error, Present returns what it did before.
func (s *Sentinels) Read() error {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.mu.Lock()
	paths := s.paths
	s.mu.Unlock()
	present, err := s.find(paths)
	s.mu.Lock()
	changed := s.failing.set(err, time.Now())
	if err == nil {
		changed = changed || !s.read || !slices.Equal(s.present, present)
		s.present, s.read = present, true
	}
	s.mu.Unlock()
	if changed {
		s.Changed()
	}
	return err
}

// find returns those of the paths that exist.
func (s *Sentinels) find(paths []string) (present []string, err error) {
	r, err := hostfs.New(s.Root)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	for _, path := range paths {
		switch _, err := r.Lstat(path); {
		case err == nil:
			present = append(present, path)
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
			return nil, fmt.Errorf("sentinel: %w", err)
		}
	}
	return present, nil
}

// Run reads the sentinels when one comes or goes, and every poll interval, until ctx ends.
func (s *Sentinels) Run(ctx context.Context) {
	watch := dirwatch.New(func(string) { timing.Kick(s.kicked) })
	defer watch.Close()
	watchFailed := false
	s.poll(ctx, s.kicked, sentinelPause, "cannot read the sentinels; the last report remains valid", func() error {
		s.mu.Lock()
		paths := s.paths
		s.mu.Unlock()
		// Watch first, so that a change after the read is reported.
		_, err := watch.Watch("sentinels", s.Root, paths, false)
		if err != nil && !watchFailed {
			s.Log.Warn("inotify does not report all sentinels; lockkeeper finds them at the poll interval", "err", err, "interval", s.PollInterval)
		}
		watchFailed = err != nil
		return s.Read()
	})
}
