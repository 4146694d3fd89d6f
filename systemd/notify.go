package systemd

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

const maxStatus = 256 // bytes of status text

// Notifier tells the service manager how this process fares, over sd_notify. Where there is none (no NOTIFY_SOCKET)
// every method does nothing. Methods may be called from any goroutine; what cannot be sent is logged once until it
// can be again, and is nobody's error: the service goes on.
type Notifier struct {
	log *slog.Logger

	mu     sync.Mutex
	status string // as last sent
	broken bool
}

// NewNotifier takes the logger for what cannot be sent; nil discards.
func NewNotifier(log *slog.Logger) *Notifier {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Notifier{log: log}
}

// Ready says that the start, or a reload, is over.
func (n *Notifier) Ready() { n.send(daemon.SdNotifyReady) }

// Stopping says that the process has begun to end.
func (n *Notifier) Stopping() { n.send(daemon.SdNotifyStopping) }

// Reloading says that the configuration is being read anew; Ready must follow, whatever came of it. The time that
// goes with it is what systemd's Type=notify-reload asks for.
func (n *Notifier) Reloading() {
	n.send(daemon.SdNotifyReloading + "\n" + strings.TrimSuffix(daemon.SdNotifyMonotonicUsec(), "\n"))
}

// Status shows one line in `systemctl status`: control characters become spaces, and what is longer than 256 bytes
// is cut. The same text again is not sent.
func (n *Notifier) Status(text string) {
	text = oneLine(text)
	n.mu.Lock()
	defer n.mu.Unlock()
	if text != n.status && n.sendLocked("STATUS="+text) {
		n.status = text
	}
}

func (n *Notifier) send(state string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sendLocked(state)
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

// oneLine makes a status: runs of white space and control characters become one space.
func oneLine(text string) string {
	text = strings.ToValidUTF8(text, "?")
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) }), " ")
	if len(text) > maxStatus {
		const dots = "…"
		text = cut(text, maxStatus-len(dots)) + dots
	}
	return text
}

// Watchdog feeds the service manager's watchdog until ctx ends: twice in each WATCHDOG_USEC, but only while every
// loop in l is alive. When one is late it is named in the log, nothing is fed, and systemd restarts the service: a
// loop that is stuck for good looks healthy from outside otherwise. Without a watchdog in the environment it returns
// at once.
func (n *Notifier) Watchdog(ctx context.Context, l *Liveness) {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		n.log.Warn("the service manager's watchdog cannot be used", "err", err)
	}
	if limit <= 0 {
		return
	}
	feed(ctx, limit/2, l, func() { n.send(daemon.SdNotifyWatchdog) })
}

func feed(ctx context.Context, every time.Duration, l *Liveness, send func()) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if l.Check() {
			send()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
