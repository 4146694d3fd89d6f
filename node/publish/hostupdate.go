package publish

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/hostupdate"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/node/timing"
)

const (
	// newsEvery and progressEvery are the shortest times between two writes of the HostUpdate.
	// They combine changes that follow each other quickly, such as the states of a turn
	// without hooks, into one write.
	newsEvery     = 3 * time.Second
	progressEvery = 10 * time.Second
	// publishAgain is the first pause after a failed write. The pause doubles up to
	// publishLast.
	publishAgain = 5 * time.Second
	publishLast  = 5 * time.Minute
	// checkEvery is how long after its last request the host reads a HostUpdate again that needs
	// no write. It finds what it did not write itself: a request of its own that a proxy had
	// delayed, a store restored from a backup, an object that a person deleted.
	checkEvery = 30 * time.Minute
	// afterGap is the period over which a fleet spreads its writes after an outage of the API
	// server.
	afterGap = 5 * time.Second
	// lastPublish bounds the last write, when the process ends.
	lastPublish = 2 * time.Second
	// FirstReads bounds how long a process that has read its HostUpdate waits for the first
	// read of every source. It publishes nothing during that time, so that a restart on an
	// unchanged host causes no write.
	FirstReads = 5 * time.Second
)

// Store reads and writes the HostUpdate. [kube.HostUpdates] implements it.
type Store interface {
	// Read returns nil, and no error, if the HostUpdate does not exist.
	Read(ctx context.Context) (*v1alpha1.HostUpdate, error)
	Write(ctx context.Context, uid string, status *v1alpha1.HostUpdateStatus) error
}

// HostUpdate writes the host's record to its HostUpdate. It never delays the host: if a write
// fails, the host continues without it.
type HostUpdate struct {
	Options
	kick chan struct{}
	// offlineChanged has a token when KeepOffline has to write offline.
	offlineChanged chan struct{}

	mu      sync.Mutex
	host    local.Host // the last reported record
	known   time.Time  // when the object on the API server was first read; zero if it has not been read
	settled bool       // the host knows enough to publish; see Report
	status  v1alpha1.HostUpdateStatus
	uid     string                     // of the Node that owns written
	written *v1alpha1.HostUpdateStatus // what the API server has; nil: no object
	gap     hostupdate.Gap
	offline []v1alpha1.OfflineEvent
	dropped int // how many offline events were dropped since the last write began
	// noted is the text of the last offline event, or of the last report before the API server
	// became unreachable. notedPlace is the same text without the host's activity.
	noted, notedPlace string
	leftOut           []string // what the last write left out; see LeftOut
}

// Options are the parameters of a [HostUpdate].
type Options struct {
	Log     *slog.Logger
	Version string // of lockkeeper
	// StateDir is the directory on the host's disk that keeps the offline events.
	StateDir string
	// Coordinator returns the host's part in the election; it must not block.
	Coordinator func() local.Coordinator
	// FirstRead is called when the object on the API server has been read for the first time.
	// It must not block.
	FirstRead func()
}

// NewHostUpdate returns a HostUpdate that has read the offline events of the previous process.
func NewHostUpdate(o Options) *HostUpdate {
	p := &HostUpdate{Options: o, kick: make(chan struct{}, 1), offlineChanged: make(chan struct{}, 1)}
	var err error
	if p.offline, err = local.ReadOffline(o.StateDir); err != nil {
		p.Log.Warn("cannot read the events from while the API server could not be reached; they are not published", "err", err)
	}
	return p
}

// Report updates the host's record. The HostUpdate is not published until settled has been true
// once. Report may be called from any goroutine.
func (p *HostUpdate) Report(h local.Host, settled bool) {
	p.mu.Lock()
	p.host, p.settled = h, p.settled || settled
	if h.API.Failing() {
		p.gap.From, p.gap.Error = h.API.Since, h.API.Error
		p.note(&h)
	} else {
		if p.gap.To.Before(p.gap.From) {
			p.gap.To = time.Now()
		}
		p.noted, p.notedPlace = offlineTexts(&h)
		p.next()
	}
	p.mu.Unlock()
	p.wake()
}

// wake makes Run compare again. It may be called from any goroutine.
func (p *HostUpdate) wake() { timing.Kick(p.kick) }

// Refresh computes the status again, because the host's part in the election has changed.
func (p *HostUpdate) Refresh() {
	p.mu.Lock()
	p.next()
	p.mu.Unlock()
	p.wake()
}

// note records an offline event, unless the host only continues what it did before. The caller
// holds mu.
func (p *HostUpdate) note(h *local.Host) {
	text, place := offlineTexts(h)
	if text == p.noted || text == place && place == p.notedPlace {
		return // the report adds nothing to the last one
	}
	p.noted, p.notedPlace = text, place
	p.offline = append(p.offline, v1alpha1.OfflineEvent{
		Time: metav1.NewTime(time.Now().UTC().Truncate(time.Second)), Message: v1alpha1.UpdateText(v1alpha1.OneLine(text, v1alpha1.MaxUpdateText)),
	})
	p.dropped += max(0, len(p.offline)-v1alpha1.MaxUpdateOffline)
	p.offline = p.offline[max(0, len(p.offline)-v1alpha1.MaxUpdateOffline):]
	p.changeOffline()
}

// offlineTexts returns the text of an offline event, and the same text without the host's
// activity.
func offlineTexts(h *local.Host) (text, place string) {
	alone := *h
	alone.API, alone.Since = nil, time.Time{}
	engine := ""
	if h.Engine != nil {
		engine = "; update engine " + string(h.Engine.Operation)
	}
	text = alone.Text() + engine
	alone.Waits, alone.Detail, alone.Activity = "", "", ""
	place = alone.Text() + engine
	if h.Activity == local.ActivityFailing {
		return place, place
	}
	return text, place
}

// changeOffline makes KeepOffline write the file.
func (p *HostUpdate) changeOffline() { timing.Kick(p.offlineChanged) }

// KeepOffline writes the offline events to the host's disk until ctx ends. The caller runs it in
// a separate goroutine, so that a disk that hangs delays neither the host's loop nor its requests.
func (p *HostUpdate) KeepOffline(ctx context.Context) {
	save := func() {
		p.mu.Lock()
		all := slices.Clone(p.offline)
		p.mu.Unlock()
		if err := local.WriteOffline(p.StateDir, all); err != nil {
			p.Log.Debug("cannot write the events from while the API server cannot be reached; they are only in memory", "err", err)
		}
	}
	for {
		select {
		case <-p.offlineChanged:
			save()
		case <-ctx.Done():
			select {
			case <-p.offlineChanged:
				save()
			default:
			}
			return
		}
	}
}

// next computes the status. The caller holds mu.
func (p *HostUpdate) next() {
	if p.known.IsZero() || !p.settled || p.host.UID == "" || p.host.Withdrawn {
		return
	}
	f := hostupdate.Facts{Host: p.host, Version: p.Version, Coordinator: p.Coordinator(), Offline: p.offline}
	if p.gap.To.After(p.gap.From) {
		f.Gap = p.gap
	}
	p.status = hostupdate.Next(&p.status, &f, time.Now())
}

// Run writes until ctx ends, and then once more if a write is pending.
func (p *HostUpdate) Run(ctx context.Context, store Store) {
	c := pacer{limiter: newLimiter()}
	for {
		d, failing := p.difference()
		if pause := c.pause(d, p.silent(), failing); pause > 0 {
			if timing.Wait(ctx, p.kick, pause) != nil {
				break
			}
			continue
		}
		_, known := p.Published()
		reads := known.IsZero() || d == hostupdate.Same
		var err error
		if reads {
			err = p.read(ctx, store)
		} else {
			err = p.write(ctx, store)
		}
		if c.ended(err, !reads); c.failures == 1 && ctx.Err() == nil {
			p.Log.Warn("the HostUpdate cannot be read or written; the host continues without it, and tries again", "err", err)
		}
	}
	p.writeLast(ctx, store)
}

// writeLast writes once, after ctx has ended, if anything but progress is pending.
func (p *HostUpdate) writeLast(ctx context.Context, store Store) {
	if _, known := p.Published(); known.IsZero() {
		return
	}
	if d, failing := p.difference(); d == hostupdate.News && !failing {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastPublish)
		defer cancel()
		_ = p.write(ctx, store) // the next process publishes it
	}
}

// pacer paces the requests for the HostUpdate.
type pacer struct {
	// last is when the last request ended. It includes the first read, so that a process that
	// has just started waits until it knows more.
	last      time.Time
	notBefore time.Time // set while the API server is away
	failures  int       // in a row
	limiter   *rate.Limiter
}

// pause returns how long the next request has to wait; 0 or less is not at all. d is how much the
// status differs from the one on the API server. silent is whether the host makes no requests for
// its HostUpdate, and failing whether its other requests fail.
func (c *pacer) pause(d hostupdate.Difference, silent, failing bool) time.Duration {
	pause := time.Hour
	switch {
	case silent:
	case c.failures > 0:
		pause = time.Until(c.last.Add(timing.Jitter(min(publishAgain<<min(c.failures-1, 10), publishLast))))
	case d == hostupdate.Same:
		pause = time.Until(c.last.Add(timing.Jitter(checkEvery)))
	case d == hostupdate.News:
		pause = max(time.Until(c.last.Add(newsEvery)), untilToken(c.limiter, 0))
	default:
		pause = max(time.Until(c.last.Add(progressEvery)), untilToken(c.limiter, reserve))
	}
	if failing { // this one would fail too
		c.notBefore = time.Now().Add(publishAgain + rand.N(afterGap))
	}
	return max(pause, time.Until(c.notBefore))
}

// ended records that a request has ended. wrote is whether it was a write.
func (c *pacer) ended(err error, wrote bool) {
	if c.last = time.Now(); err != nil {
		c.failures++
		return
	}
	if c.failures = 0; wrote {
		c.limiter.AllowN(c.last, 1)
	}
}

// read reads the object on the API server.
func (p *HostUpdate) read(ctx context.Context, store Store) error {
	u, err := store.Read(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known.IsZero() {
		defer p.FirstRead()
		p.known = time.Now()
		if u != nil {
			p.status = *u.Status.DeepCopy()
		}
	}
	p.written, p.uid = nil, ""
	if u != nil {
		p.written = &u.Status
		if len(u.OwnerReferences) == 1 {
			p.uid = string(u.OwnerReferences[0].UID)
		}
	}
	p.next()
	return nil
}

// Published returns the status on the API server, nil if there is no object. It also returns when
// the object was first read; the time is zero until then. The caller must not change the status.
func (p *HostUpdate) Published() (*v1alpha1.HostUpdateStatus, time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.written, p.known
}

// difference returns how much the status differs from the one on the API server, and whether the
// host's requests fail.
func (p *HostUpdate) difference() (d hostupdate.Difference, failing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	failing = p.host.API.Failing()
	switch {
	case p.silentLocked():
		return hostupdate.Same, failing
	case p.known.IsZero():
		return hostupdate.News, failing
	case !p.settled:
		return hostupdate.Same, failing
	case p.written == nil || p.uid != p.host.UID || len(p.offline) > 0:
		return hostupdate.News, failing
	}
	return hostupdate.Compare(p.written, &p.status), failing
}

// silent reports whether the host makes no requests for its HostUpdate: it does not know its
// Node yet, or it has left lockkeeper.
func (p *HostUpdate) silent() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.silentLocked()
}

func (p *HostUpdate) silentLocked() bool { return p.host.UID == "" || p.host.Withdrawn }

// write writes the status once.
func (p *HostUpdate) write(ctx context.Context, store Store) error {
	p.mu.Lock()
	p.next()
	status, uid, offline := p.status, p.host.UID, len(p.offline)
	p.dropped = 0
	p.mu.Unlock()
	if err := store.Write(ctx, uid, &status); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.written, p.uid = &status, uid
	if offline > 0 {
		p.offline = p.offline[max(0, offline-p.dropped):]
		p.changeOffline()
	}
	return nil
}

// LeftOut logs which fields of the status a write left out, whenever that changes: the manifests are older
// than this version of lockkeeper.
func (p *HostUpdate) LeftOut(fields []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(fields) > 0 && !slices.Equal(fields, p.leftOut) {
		p.Log.Warn("the schema of HostUpdate is older than this lockkeeper; the host publishes its HostUpdate without some fields, until you apply the manifests",
			"left_out", fields)
	}
	p.leftOut = fields
}

// newLimiter limits the writes of a value that flaps: the first burst writes are not delayed, and
// further writes wait for one token every refill.
func newLimiter() *rate.Limiter { return rate.NewLimiter(rate.Every(refill), burst) }

const (
	burst   = 20
	refill  = 30 * time.Second
	reserve = 10 // tokens that writes of progress leave for other changes
)

// untilToken returns how long it takes until the limiter has one token more than spare.
func untilToken(l *rate.Limiter, spare float64) time.Duration {
	return time.Duration((spare + 1 - l.Tokens()) * float64(refill))
}
