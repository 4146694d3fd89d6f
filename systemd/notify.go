package systemd

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const maxStatus = 256 // bytes of status text

// Notifier reports the state of this process to the service manager, over sd_notify. Without one (no NOTIFY_SOCKET) each
// method does nothing. Methods may be called from any goroutine. A message that cannot be sent is not an error: the first
// one is logged, until a message can be sent again.
type Notifier struct {
	log *slog.Logger

	mu     sync.Mutex
	status string // as last sent
	broken bool
}

// NewNotifier takes the logger for messages that cannot be sent; nil discards.
func NewNotifier(log *slog.Logger) *Notifier {
	return &Notifier{log: cmp.Or(log, slog.New(slog.DiscardHandler))}
}

// Ready reports the end of the start, or of a reload.
func (n *Notifier) Ready() { n.send(daemon.SdNotifyReady) }

// Stopping reports that the process has begun to end.
func (n *Notifier) Stopping() { n.send(daemon.SdNotifyStopping) }

// Reloading reports that the process reads its configuration again. Ready must follow, even if that fails. systemd's
// Type=notify-reload needs the time that is sent along.
func (n *Notifier) Reloading() {
	n.send(daemon.SdNotifyReloading + "\n" + strings.TrimSuffix(daemon.SdNotifyMonotonicUsec(), "\n"))
}

// Status shows text in `systemctl status`, as one line of at most 256 bytes. It does not send the same text again.
func (n *Notifier) Status(text string) {
	text = v1alpha1.OneLine(text, maxStatus)
	n.mu.Lock()
	defer n.mu.Unlock()
	if text != n.status && n.sendLocked("STATUS="+text) {
		n.status = text
	}
}

func (n *Notifier) send(state string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sendLocked(state)
}

// sendLocked reports whether the message went to a service manager.
func (n *Notifier) sendLocked(state string) bool {
	sent, err := daemon.SdNotify(false, state)
	if err != nil && !n.broken {
		n.log.Warn("cannot notify the service manager", "err", err)
	}
	n.broken = err != nil
	return sent
}

// Watchdog feeds the service manager's watchdog until ctx ends: twice in each WATCHDOG_USEC, as long as no loop in l is late.
// If one is, Watchdog logs that and does not feed, and systemd restarts the service. Without a watchdog in the environment it
// returns at once.
func (n *Notifier) Watchdog(ctx context.Context, l *Liveness) {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		n.log.Warn("cannot use the service manager's watchdog", "err", err)
	}
	if limit > 0 {
		n.feed(ctx, limit/2, l, func() { n.send(daemon.SdNotifyWatchdog) })
	}
}

func (n *Notifier) feed(ctx context.Context, every time.Duration, l *Liveness, send func()) {
	for stuck := false; ; {
		late := l.Late()
		switch {
		case len(late) == 0:
			send()
			if stuck {
				n.log.Info("the loop that was stuck continues")
			}
		case !stuck:
			n.log.Error("a loop is stuck: the watchdog is not fed", "loop", strings.Join(late, ", "))
		}
		stuck = len(late) > 0
		if pause(ctx, Aligned(every), nil, nil) != nil {
			return
		}
	}
}

// Liveness knows the loops of this process, and when each of them last reported to be alive. Methods may be called from any
// goroutine.
type Liveness struct {
	mu    sync.Mutex
	beats map[*Beat]struct{}
}

// NewLiveness returns a Liveness without loops.
func NewLiveness() *Liveness { return &Liveness{beats: map[*Beat]struct{}{}} }

// Beat belongs to one loop. Its methods may be called from any goroutine, and on a nil Beat, where they do nothing.
type Beat struct {
	name  string
	bound time.Duration
	of    *Liveness
	last  time.Time // under of.mu
}

// Beat registers a loop that calls Alive at least once in each bound. Registering counts as the first call. The bound has to
// cover the loop's longest normal wait: the sum of its timers and timeouts, not their average.
func (l *Liveness) Beat(name string, bound time.Duration) *Beat {
	b := &Beat{name: name, bound: bound, of: l, last: time.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beats[b] = struct{}{}
	return b
}

// Alive reports that the loop has begun another round.
func (b *Beat) Alive() {
	if b == nil {
		return
	}
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.last = time.Now()
}

// Stop reports that the loop has ended as it should: nothing is expected from it any more.
func (b *Beat) Stop() {
	if b == nil {
		return
	}
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	delete(b.of.beats, b)
}

// Late returns the loops that are late, and for how long they have been silent: "node (silent for 1m0s)".
func (l *Liveness) Late() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var late []string
	for b := range l.beats {
		if silent := time.Since(b.last); silent > b.bound {
			late = append(late, b.name+" (silent for "+silent.Round(time.Second).String()+")")
		}
	}
	slices.Sort(late)
	return late
}
