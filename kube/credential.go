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
	// readEvery is how often the files are read although nothing indicates that they
	// have changed, and retryEvery the same while they are no usable credential: not
	// every file system reports changes.
	readEvery  = time.Minute
	retryEvery = 5 * time.Second
	// readPause is the minimum time between two reads, however often the files change.
	readPause = 50 * time.Millisecond
	// lasting is how long a problem has to last before it counts, and how long the
	// kubeconfig has to be gone before its renewed token is removed. Whatever writes a
	// kubeconfig needs a moment, and a plugin's service may be restarting.
	lasting = 10 * time.Second
)

// Options are what a [Credential] is made of.
type Options struct {
	// Identity is [v1alpha1.IdentityHost] or [v1alpha1.IdentityCoordinator]. It also
	// decides about these:
	//
	//   - A host's client follows the kubeconfig to any server and account, and
	//     continues with the last usable content. A coordinator's client ends with its
	//     kubeconfig; see [Client.Context].
	//   - A coordinator's token is renewed; lockkeeper warns before it expires, and if
	//     other users can read or change it. A kubelet's credential is the business of
	//     whatever installs the kubelet.
	Identity string
	// Paths are where the kubeconfig may be, absolute. The first that exists is used. Absent is
	// the error's text while there is none.
	Paths  []string
	Absent string
	// Renewed is lockkeeper's own file, in the service's state directory, with the
	// token that this host received in place of the one in the kubeconfig. It is only
	// used together with the content of the kubeconfig that it was renewed from.
	Renewed string

	Version string
	// QPS (requests a second) and Burst are the limits of each client.
	QPS   float32
	Burst int
	// Wrap goes around each request; nil is fine.
	Wrap func(http.RoundTripper) http.RoundTripper
	Log  *slog.Logger // nil: nothing is logged
	// LogEvent logs an event of a published kind; it is systemd.LogEvent. nil is fine.
	LogEvent func(log *slog.Logger, level slog.Level, id v1alpha1.MessageID, text string, attrs ...any)
	// Report receives the state after each change of more than State.Answered, from
	// any goroutine, one call at a time. It must not block, nor call the Credential.
	// nil is fine.
	Report func(State)
}

// Credential follows one identity's kubeconfig and the files that it names, makes
// clients of it, and reports its state. A process has one for each identity. Its
// methods may be called from any goroutine.
type Credential struct {
	o       Options
	log     *slog.Logger
	answers answers

	upkeep upkeep        // of the loop that renews
	files  chan struct{} // wakes that loop: the files were read

	reading sync.Mutex // one read at a time; guards gone and notUsed
	gone    time.Time  // since when there is no kubeconfig, zero while there is one
	notUsed string     // what was last logged about a renewed token that is not used

	mu      sync.Mutex
	last    *kubeconfig // what was last read; a conn without a difference may be of an earlier read
	conn    *connection // nil: nothing usable was read
	client  *Client     // nil: there is none, because of err
	err     error
	changed chan struct{} // closed and replaced when client or err changes
	watch   []string      // the paths to watch
	problem problem       // of the files
	state   State         // without what the other fields hold

	reporting sync.Mutex
	reported  State
}

// problem is what is wrong with a credential, and since when.
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

// New makes a Credential. It reads nothing yet.
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

// Client returns the present client: the same one as long as it is usable. If there
// is none, Client reads the files again. The error is an [AbsentError] if there is
// no kubeconfig, and otherwise says what is wrong with it.
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

// Changed returns a channel that is closed when [Credential.Client] would return
// another client or another error than now.
func (c *Credential) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Run follows the files, and renews the coordinator's token, until ctx ends. If the
// files cannot be watched they are only read now and then.
func (c *Credential) Run(ctx context.Context) {
	var renewing sync.WaitGroup
	defer renewing.Wait()
	if c.coordinator() {
		// A renewal may take as long as a request does; the files are followed meanwhile.
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
		// Watch first: what changes before read is read, what changes later is reported.
		paths := c.watched()
		_, err := w.Watch("credential", "/", paths, false)
		if err != nil && !unwatched {
			c.log.Warn("inotify does not report changes of the "+c.o.Identity+"'s kubeconfig; lockkeeper reads it at intervals", "err", err, "interval", readEvery)
		}
		unwatched = err != nil
		again := c.read(time.Now())
		if !slices.Equal(paths, c.watched()) {
			continue // the kubeconfig names other files now
		}
		if wait(ctx, again, hint) {
			wait(ctx, readPause, nil)
		}
	}
}

// wait waits for that long, and no longer than ctx. It reports whether it was woken.
func wait(ctx context.Context, d time.Duration, woken <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-woken:
		return true
	case <-ctx.Done():
	case <-t.C:
	}
	return false
}

// wake wakes what waits for a channel with room for one value.
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

// read reads the files, and has the client use them if they changed. It returns how
// long to wait before they are read again, if nothing indicates that they have changed.
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
	if err != nil && (c.gone.IsZero() || now.Sub(c.gone) < lasting) {
		return retryEvery
	}
	return readEvery // also on the many hosts that have no coordinator's kubeconfig
}

// adopt takes in what was read: k, or the error that there is no usable kubeconfig.
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

// replace puts another connection, or none, in place of the present one; the caller
// holds mu.
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

// setError records why there is no client, nil if there is one, and announces it; the
// caller holds mu.
func (c *Credential) setError(err error) {
	if err == nil || c.err == nil || err.Error() != c.err.Error() {
		close(c.changed)
		c.changed = make(chan struct{})
	}
	c.err = err
}

// watchThese has these files watched, in addition to the others; the caller holds mu.
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

// wrap goes around each request.
func (c *Credential) wrap(next http.RoundTripper) http.RoundTripper {
	if c.o.Wrap != nil {
		next = c.o.Wrap(next)
	}
	return c.answers.wrap(next)
}
