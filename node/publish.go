package node

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/hostupdate"
	"lockkeeper.dev/lockkeeper/node/local"
)

const (
	// newsEvery and progressEvery are the shortest times between two writes of the
	// HostUpdate: what changes quickly, such as the states of a turn without hooks,
	// is one write.
	newsEvery     = 3 * time.Second
	progressEvery = 10 * time.Second
	// publishAgain is the first pause after a write that failed; it doubles up to
	// publishLast.
	publishAgain = 5 * time.Second
	publishLast  = 5 * time.Minute
	// afterGap spreads the writes of a fleet whose API server is back.
	afterGap = 5 * time.Second
	// lastPublish bounds the last write, when the process ends.
	lastPublish = 2 * time.Second
)

// hostUpdates is where the HostUpdate is; see [object.HostUpdates].
type hostUpdates interface {
	// Read returns nil, and no error, if there is none.
	Read(ctx context.Context) (*v1alpha1.HostUpdate, error)
	Write(ctx context.Context, uid string, status *v1alpha1.HostUpdateStatus) error
}

// publisher keeps the host's HostUpdate at what the host's record says. It decides
// nothing and holds up nothing: where it cannot write, the host goes on without it.
type publisher struct {
	log         *slog.Logger
	version     string
	stateDir    string
	coordinator func() local.Coordinator
	kick        chan struct{}

	mu      sync.Mutex
	host    local.Host // as it was last reported
	known   bool       // what the API server has was read
	status  v1alpha1.HostUpdateStatus
	uid     string                     // of the Node that owns written
	written *v1alpha1.HostUpdateStatus // what the API server has; nil: no object
	gap     hostupdate.Gap
	offline []v1alpha1.OfflineEvent
	noted   string // what the last offline event is about
}

func newPublisher(o *Options, stateDir string) *publisher {
	p := &publisher{log: o.Log, version: o.Version, stateDir: stateDir, coordinator: o.Coordinator, kick: make(chan struct{}, 1)}
	var err error
	if p.offline, err = local.ReadOffline(stateDir); err != nil {
		p.log.Warn("what happened before, while the API server could not be reached, is not published", "err", err)
	}
	return p
}

// report takes in the host's record. It may be called from any goroutine.
func (p *publisher) report(h local.Host) {
	p.mu.Lock()
	p.host = h
	if h.API != nil && h.API.RefusedBy == "" {
		p.gap.From, p.gap.Error = h.API.Since, h.API.Error
		p.note(&h)
	} else if p.gap.To.Before(p.gap.From) {
		p.gap.To, p.noted = time.Now(), ""
	}
	p.next()
	p.mu.Unlock()
	p.wake()
}

// wake has the writer compare again. It may be called from any goroutine.
func (p *publisher) wake() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// again has the writer make the status again of what is known.
func (p *publisher) again() {
	p.mu.Lock()
	p.next()
	p.mu.Unlock()
	p.wake()
}

// note keeps what happens while the API server cannot be reached. The caller holds
// mu.
func (p *publisher) note(h *local.Host) {
	alone := *h
	alone.API, alone.Since = nil, time.Time{}
	if alone.Activity == local.ActivityFailing {
		alone.Waits, alone.Detail, alone.Activity = "", "", ""
	}
	text := alone.Text()
	if h.Engine != nil {
		text += "; update engine " + string(h.Engine.Operation)
	}
	if text == p.noted {
		return
	}
	p.noted = text
	p.offline = append(p.offline, v1alpha1.OfflineEvent{
		Time: metav1.NewTime(time.Now().UTC().Truncate(time.Second)), Message: v1alpha1.UpdateText(oneLine(text, v1alpha1.MaxUpdateText)),
	})
	p.offline = p.offline[max(0, len(p.offline)-v1alpha1.MaxUpdateOffline):]
	if err := local.WriteOffline(p.stateDir, p.offline); err != nil {
		p.log.Debug("what happens while the API server is away is kept in memory only", "err", err)
	}
}

// next brings the status up to date. The caller holds mu.
func (p *publisher) next() {
	if !p.known || p.host.UID == "" || p.host.Withdrawn {
		return
	}
	f := hostupdate.Facts{Host: p.host, Version: p.version, Coordinator: p.coordinator(), Offline: p.offline}
	if p.gap.To.After(p.gap.From) {
		f.Gap = p.gap
	}
	p.status = hostupdate.Next(&p.status, &f, time.Now())
}

// run writes until ctx ends, and what is left then once more.
func (p *publisher) run(ctx context.Context, store hostUpdates) {
	if p.read(ctx, store) != nil {
		return
	}
	// last is when it last wrote, or tried to. A process that has just started knows
	// little for a moment, so it waits as if it had written.
	last, notBefore := time.Now(), time.Time{}
	failures := 0
	for {
		pause := time.Hour
		d, failing := p.difference()
		switch {
		case d == hostupdate.Same:
		case failures > 0:
			pause = time.Until(last.Add(jitter(min(publishAgain<<min(failures-1, 10), publishLast))))
		case d == hostupdate.News:
			pause = time.Until(last.Add(newsEvery))
		default:
			pause = time.Until(last.Add(progressEvery))
		}
		if failing { // as the loop's requests do
			notBefore = time.Now().Add(publishAgain + rand.N(afterGap))
		}
		pause = max(pause, time.Until(notBefore))
		if pause > 0 {
			if err := wait(ctx, p.kick, pause); err != nil {
				break
			}
			continue
		}
		err := p.write(ctx, store)
		if last = time.Now(); err == nil {
			failures = 0
			continue
		}
		if failures++; failures == 1 && ctx.Err() == nil {
			p.log.Warn("the HostUpdate cannot be written; the host continues without it, and tries again", "err", err)
		}
	}
	if d, failing := p.difference(); d == hostupdate.News && !failing {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastPublish)
		defer cancel()
		_ = p.write(ctx, store) // the next process publishes it
	}
}

// read takes in what the API server has, however long that takes.
func (p *publisher) read(ctx context.Context, store hostUpdates) error {
	for delay := time.Second; ; delay = min(2*delay, publishLast) {
		u, err := store.Read(ctx)
		if err == nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.known = true
			if u != nil {
				p.written, p.status = &u.Status, *u.Status.DeepCopy()
				if len(u.OwnerReferences) == 1 {
					p.uid = string(u.OwnerReferences[0].UID)
				}
			}
			p.next()
			return nil
		}
		p.log.Debug("the HostUpdate cannot be read", "err", err)
		if err := wait(ctx, nil, jitter(delay)); err != nil {
			return err
		}
	}
}

// difference says what there is to write, and whether the API server fails the host.
func (p *publisher) difference() (d hostupdate.Difference, failing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	failing = p.host.API != nil && p.host.API.RefusedBy == "" && p.host.Activity == local.ActivityFailing
	switch {
	case p.host.UID == "" || p.host.Withdrawn:
		return hostupdate.Same, failing
	case p.written == nil || p.uid != p.host.UID || len(p.offline) > 0:
		return hostupdate.News, failing
	}
	return hostupdate.Compare(p.written, &p.status), failing
}

// write writes the status once.
func (p *publisher) write(ctx context.Context, store hostUpdates) error {
	p.mu.Lock()
	p.next()
	status, uid, offline := p.status, p.host.UID, len(p.offline)
	p.mu.Unlock()
	if err := store.Write(ctx, uid, &status); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.written, p.uid = &status, uid
	if offline > 0 {
		p.offline = p.offline[min(offline, len(p.offline)):]
		return local.WriteOffline(p.stateDir, p.offline)
	}
	return nil
}
