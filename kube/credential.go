package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube/dirwatch"
)

const (
	// readEvery is the interval at which the files are read even if nothing reports a
	// change, because not every file system reports changes. blindEvery replaces it while
	// the files cannot be watched, and retryEvery while they contain no usable credential.
	readEvery  = 10 * time.Minute
	blindEvery = time.Minute
	retryEvery = 5 * time.Second
	// readPause is the minimum time between two reads, however often the files change.
	readPause = 50 * time.Millisecond
	// lasting is how long a problem has to last before it is reported, and how long the
	// kubeconfig has to be gone or replaced before its renewed token is removed. A program
	// that writes a kubeconfig needs a moment, and a plugin's service may be restarting.
	lasting = 10 * time.Second
)

// Options are the parameters of a [Credential].
type Options struct {
	// Identity is [v1alpha1.IdentityHost] or [v1alpha1.IdentityCoordinator]. The two
	// differ in these points:
	//
	//   - A host's client follows the kubeconfig to any server and account, and
	//     continues with the last usable content. A coordinator's client ends with its
	//     kubeconfig; see [Client.Context].
	//   - A coordinator's token is renewed; lockkeeper warns before it expires, and if
	//     other users can read or change it. The program that installs the kubelet is
	//     responsible for a kubelet's credential.
	Identity string
	// Paths are the absolute paths at which the kubeconfig may be. The first that exists is
	// used. Absent is the text of the error if none exists.
	Paths  []string
	Absent string
	// Renewed is lockkeeper's own file in the service's state directory. It contains the
	// token that replaces the one in the kubeconfig. The token is only used as long as the
	// kubeconfig has the content from which the token was renewed.
	Renewed string

	Version string
	// QPS (requests a second) and Burst are the limits of each client.
	QPS   float32
	Burst int
	// Wrap wraps the transport of each request; it may be nil.
	Wrap func(http.RoundTripper) http.RoundTripper
	Log  *slog.Logger // nil: nothing is logged
	// LogEvent logs an event of a published kind, as systemd.LogEvent does. It may be nil.
	LogEvent func(log *slog.Logger, level slog.Level, id v1alpha1.MessageID, text string, attrs ...any)
	// Report receives the state after each change, except a change of State.Answered
	// alone. It is called from any goroutine, one call at a time. It must not block, and
	// must not call the Credential. It may be nil.
	Report func(State)
}

// Credential follows one identity's kubeconfig and the files that it names. It provides
// clients for that identity, and reports its state. A process has one Credential for each
// identity. Its methods may be called from any goroutine.
type Credential struct {
	o       Options
	log     *slog.Logger
	answers answers

	upkeep upkeep        // state of the loop that renews the token
	files  chan struct{} // wakes that loop after the files were read

	reading sync.Mutex // one read at a time; guards useless and notUsed
	useless time.Time  // since when a renewed token would never be used again; zero if it may be
	notUsed string     // the last logged reason why a renewed token is not used

	mu      sync.Mutex
	last    *kubeconfig // the last read; conn may be of an earlier read with the same content
	conn    *connection // nil if no usable kubeconfig was read
	client  *Client     // nil if there is none; err is the reason
	err     error
	changed chan struct{} // closed and replaced when client or err changes
	watch   []string      // the paths to watch
	problem problem       // with the files
	state   State         // without the facts that the other fields hold

	reporting sync.Mutex
	reported  State
}

// problem is an error of a credential, and since when it has lasted.
type problem struct {
	err   error
	since time.Time
}

func (p *problem) set(err error, now time.Time) {
	switch {
	case err == nil:
		*p = problem{}
	case p.err == nil:
		*p = problem{err, now}
	default:
		p.err = err
	}
}

// New returns a Credential. It does not read any file yet.
func New(o Options) *Credential {
	c := &Credential{o: o, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), files: make(chan struct{}, 1), changed: make(chan struct{}), watch: o.Paths}
	c.answers.changed = c.report
	c.state.Identity = o.Identity
	if len(o.Paths) > 0 {
		c.state.File = o.Paths[0]
	}
	return c
}

func (c *Credential) logEvent(level slog.Level, id v1alpha1.MessageID, text string, attrs ...any) {
	if c.o.LogEvent != nil {
		c.o.LogEvent(c.log, level, id, text, attrs...)
	}
}

func (c *Credential) coordinator() bool { return c.o.Identity == v1alpha1.IdentityCoordinator }

// Client returns the current client, which is the same one as long as it is usable. If
// there is no client, Client reads the files again. The error is an [AbsentError] if there
// is no kubeconfig, and otherwise describes the problem with the kubeconfig.
func (c *Credential) Client() (*Client, error) {
	c.mu.Lock()
	client := c.client
	c.mu.Unlock()
	if client == nil {
		c.read(time.Now())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.client, c.err
}

// Changed returns a channel that is closed when the result of [Credential.Client] changes.
func (c *Credential) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Run follows the files, and renews the coordinator's token, until ctx ends. If the files
// cannot be watched, Run reads them at intervals.
func (c *Credential) Run(ctx context.Context) {
	var renewing sync.WaitGroup
	defer renewing.Wait()
	if c.coordinator() {
		// A separate goroutine, because a renewal may take as long as a request.
		renewing.Go(func() {
			for ctx.Err() == nil {
				wait(ctx, c.maintain(ctx, time.Now()), c.files)
			}
		})
	}
	hint := make(chan struct{}, 1)
	w := dirwatch.New(func(string) { wake(hint) })
	defer w.Close()
	unwatched := false
	for ctx.Err() == nil {
		// Watch before reading, so that inotify reports every change that the read misses.
		paths := c.watched()
		_, err := w.Watch("credential", "/", paths, false)
		if err != nil && !unwatched {
			c.log.Warn("inotify does not report changes of the "+c.o.Identity+"'s kubeconfig; lockkeeper reads it at intervals", "err", err, "interval", blindEvery)
		}
		unwatched = err != nil
		again := c.read(time.Now())
		if !slices.Equal(paths, c.watched()) {
			continue // the kubeconfig names other files now
		}
		if unwatched {
			again = min(again, blindEvery)
		}
		if wait(ctx, again, hint) {
			wait(ctx, readPause, nil)
		}
	}
}

// wait waits for the given time or until ctx ends. It reports whether it was woken earlier.
func wait(ctx context.Context, d time.Duration, woken <-chan struct{}) bool {
	select {
	case <-woken:
		return true
	case <-ctx.Done():
	case <-time.After(d):
	}
	return false
}

// wake wakes the goroutine that waits for a channel with room for one value.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (c *Credential) watched() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.watch
}

// read reads the files and, if they have changed, makes the client use them. It returns
// how long to wait before the next read if nothing reports a change.
func (c *Credential) read(now time.Time) (again time.Duration) {
	c.reading.Lock()
	defer c.reading.Unlock()
	file, err := find(c.o.Paths, c.o.Absent)
	k := &kubeconfig{}
	if err == nil {
		k, err = readKubeconfig(file, c.o.Renewed)
	}
	if c.coordinator() {
		c.tidy(k, err, now)
		c.expose(k.secrets)
	}
	c.adopt(file, k, err, now)
	c.report()
	wake(c.files)
	if err != nil && c.useless.IsZero() || !c.useless.IsZero() && now.Sub(c.useless) < lasting {
		return retryEvery
	}
	return readEvery // also on the many hosts that have no coordinator's kubeconfig
}

// adopt processes the result of a read: k, or the reason why there is no usable kubeconfig.
func (c *Credential) adopt(file string, k *kubeconfig, err error, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchThese(k.names)
	_, absent := errors.AsType[AbsentError](err)
	c.state.Present = !absent
	c.state.File = cmp.Or(file, c.state.File)
	if err == nil && c.client != nil && c.conn.file == k.file && c.conn.content() == k.content() {
		c.last = k
		c.problem.set(nil, now)
		return
	}
	var next *connection
	if err == nil {
		if next, err = newConnection(k, userAgent(c.o.Identity, c.o.Version), c.wrap); err != nil {
			err = fmt.Errorf("kubeconfig %s: %w", file, err)
		}
	}
	if err == nil {
		c.last = k
		c.problem.set(nil, now)
		c.replace(next, nil)
		return
	}
	if absent && c.coordinator() {
		c.problem.set(nil, now)
	} else {
		c.problem.set(err, now) // it may be half written
	}
	switch {
	case c.client == nil:
		c.setError(err)
	case c.coordinator() && (absent || now.Sub(c.problem.since) >= lasting):
		c.last = nil
		c.replace(nil, err)
	}
}

// replace replaces the current connection. next is nil if there is no other connection. The
// caller holds mu.
func (c *Credential) replace(next *connection, err error) {
	old := c.conn
	c.conn = next
	c.answers.forget()
	if next != nil && next.plugin != nil {
		next.plugin.changed = c.report
	}
	same := next != nil && old != nil && old.target() == next.target()
	if same {
		next.over, next.end = old.over, old.end // the watches continue
	} else if old != nil {
		defer old.end()
	}
	if old != nil {
		defer old.closeIdle()
	}
	if next != nil && c.client != nil && (same || !c.coordinator()) {
		c.client.conn.Store(next)
		c.log.Info("the "+c.o.Identity+"'s credential was renewed or replaced; its client continues", "file", next.file)
		return
	}
	if c.client != nil {
		c.client.end(cmp.Or(err, fmt.Errorf("the coordinator's kubeconfig was replaced: %s names another server, certificate authority or account", c.state.File)))
	}
	if c.client = nil; next != nil {
		if c.client, err = newClient(next, c, &c.answers, c.o.QPS, c.o.Burst); err != nil {
			c.client = nil
		}
	}
	c.setError(err)
}

// setError records why there is no client, or nil if there is one, and notifies the callers
// of Changed. The caller holds mu.
func (c *Credential) setError(err error) {
	if err == nil || c.err == nil || err.Error() != c.err.Error() {
		close(c.changed)
		c.changed = make(chan struct{})
	}
	c.err = err
}

// watchThese adds files to those that Run watches. The caller holds mu.
func (c *Credential) watchThese(names []string) {
	paths := slices.Concat(c.o.Paths, names)
	if c.last != nil {
		paths = append(paths, c.last.names...)
	}
	if c.o.Renewed != "" {
		paths = append(paths, c.o.Renewed)
	}
	slices.Sort(paths)
	c.watch = slices.Compact(paths)
}

// wrap wraps the transport of each request.
func (c *Credential) wrap(next http.RoundTripper) http.RoundTripper {
	if c.o.Wrap != nil {
		next = c.o.Wrap(next)
	}
	return c.answers.wrap(next)
}
