package systemd

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Liveness knows the loops of this process and when each last went round. Methods may be called from any goroutine.
type Liveness struct {
	log *slog.Logger

	mu    sync.Mutex
	beats map[*Beat]struct{}
}

// NewLiveness takes the logger that is told which loop is stuck; nil discards.
func NewLiveness(log *slog.Logger) *Liveness {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Liveness{log: log, beats: map[*Beat]struct{}{}}
}

// Beat is one loop's. Its methods may be called from any goroutine, and on a nil Beat, where they do nothing.
type Beat struct {
	name  string
	bound time.Duration
	of    *Liveness

	// under of.mu
	last time.Time
	late bool
}

// Beat registers a loop that promises to call Alive at least once every bound; registering is the first such call.
// The bound has to cover the loop's longest honest wait: its timers and time-outs in a row, not their average.
func (l *Liveness) Beat(name string, bound time.Duration) *Beat {
	b := &Beat{name: name, bound: bound, of: l, last: time.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beats[b] = struct{}{}
	return b
}

// Alive says that the loop went round.
func (b *Beat) Alive() {
	if b == nil {
		return
	}
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.last = time.Now()
}

// Stop says that the loop has ended in good order: nothing is expected of it any more.
func (b *Beat) Stop() {
	if b == nil {
		return
	}
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	delete(b.of.beats, b)
}

// Late names the loops that are overdue, with how long they have been silent: "node (silent for 1m0s)".
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

// Check reports whether all loops are alive, and logs each one that became late or came back since the last Check.
func (l *Liveness) Check() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	alive := true
	for _, b := range slices.SortedFunc(maps.Keys(l.beats), func(a, b *Beat) int { return strings.Compare(a.name, b.name) }) {
		silent := time.Since(b.last)
		late := silent > b.bound
		switch {
		case late && !b.late:
			l.log.Error("a loop is stuck: the watchdog is not fed", "loop", b.name, "silent", silent.Round(time.Second), "bound", b.bound)
		case !late && b.late:
			l.log.Info("a loop goes on", "loop", b.name)
		}
		b.late = late
		alive = alive && !late
	}
	return alive
}
