package publish

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/lifecycle"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/node/timing"
)

// conditionsAfter is the pause between a change and the write of the lifecycle conditions. Each
// write changes the Node's resourceVersion, and right after a change the loop or the coordinator
// usually writes the Node. The pause prevents most of the conflicts. It also combines states
// that follow each other quickly into one write.
const conditionsAfter = time.Second

// lastTries is how often the last write is tried when the process ends. A conflict is likely,
// because a kubelet that shuts down writes its Node at the same time.
const lastTries = 3

// Conditions writes the lifecycle conditions of the Node according to the host's record, or
// removes them. It never delays the host: if a write fails, the host continues without it.
type Conditions struct {
	log   *slog.Logger
	kick  chan struct{}
	node  func() *corev1.Node
	write func(ctx context.Context, p kube.Patch) (kube.Outcome, error)

	mu   sync.Mutex
	on   bool
	host local.Host // the last reported record
}

// NewConditions returns a writer of the lifecycle conditions. node returns the newest known
// version of the Node, or nil. write sends one patch and stores the Node in the answer.
func NewConditions(log *slog.Logger, node func() *corev1.Node, write func(context.Context, kube.Patch) (kube.Outcome, error)) *Conditions {
	return &Conditions{log: log, kick: make(chan struct{}, 1), node: node, write: write}
}

// Report updates the host's record. on is whether the host writes conditions. Report may be
// called from any goroutine.
func (c *Conditions) Report(h local.Host, on bool) {
	c.mu.Lock()
	c.host, c.on = h, on
	c.mu.Unlock()
	timing.Kick(c.kick)
}

// patch returns the next write, or nil if nothing has to be written. failing is whether the
// host's requests fail.
func (c *Conditions) patch() (p *kube.Patch, failing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.node()
	if n == nil {
		return nil, false
	}
	h := &c.host
	switch {
	case h.Node == "":
		return nil, false // Report has not been called yet
	case !c.on:
		h = nil
	case h.UID != string(n.UID):
		return nil, false // the record is of another Node object
	}
	set, drop := lifecycle.Change(n.Status.Conditions, h, time.Now())
	if len(set)+len(drop) == 0 {
		return nil, false
	}
	return &kube.Patch{
		Node: n.Name, ResourceVersion: n.ResourceVersion, Conditions: set, DropConditions: drop, Manager: kube.FieldManager("host"),
	}, c.host.API.Failing()
}

// Run writes until ctx ends, and then once more if a write is pending: a host that reboots must
// not leave a condition that says that it drains.
func (c *Conditions) Run(ctx context.Context) {
	var since, notBefore time.Time // since is when a write became necessary, zero if none is
	failures, limiter := 0, newLimiter()
	for {
		pause := time.Hour
		p, failing := c.patch()
		if p == nil {
			since = time.Time{}
		} else {
			if since.IsZero() {
				since = time.Now()
			}
			if failing {
				notBefore = time.Now().Add(publishAgain + rand.N(afterGap))
			}
			pause = max(time.Until(since.Add(conditionsAfter)), time.Until(notBefore), untilToken(limiter, 0))
		}
		if pause > 0 {
			if timing.Wait(ctx, c.kick, pause) != nil {
				break
			}
			continue
		}
		outcome, err := c.write(ctx, *p)
		limiter.Allow()
		switch outcome {
		case kube.Written:
			since, failures = time.Time{}, 0
		case kube.Conflict, kube.Gone:
			since = time.Now() // compare with the new version after another pause
		default:
			failures++
			notBefore = time.Now().Add(timing.Jitter(min(publishAgain<<min(failures-1, 10), publishLast)))
			if failures == 1 && ctx.Err() == nil {
				c.log.Warn("the Node's lifecycle conditions cannot be written; the host continues without them, and tries again", "err", err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastPublish)
	defer cancel()
	for range lastTries {
		p, failing := c.patch()
		if p == nil || failing {
			return
		}
		if outcome, _ := c.write(ctx, *p); outcome != kube.Conflict {
			return // the next process writes it
		}
	}
}
