package coordinator

import (
	"context"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// The reasons in held are words for people. One stop, or one window that
// closes, changes them on every node that wants something, and all of those
// labels at once would be a burst of writes, each of which the API server tells
// to everybody who watches Nodes. So they are spread over a minute; in a small
// fleet nobody notices.
//
// The spread is the writer's business and not the core's: a verdict says what
// is, at once and for everybody who asks (`lockkeeper status` decides by
// itself). What is still to be written is the difference between verdicts and
// labels, so nothing has to be remembered of it, and a successor goes on where
// a leader stopped. A reason that comes and goes within the minute is on most
// nodes never written.
const (
	heldSpread = time.Minute
	// heldAtOnce is how many reasons are written without waiting.
	heldAtOnce = 20
	// heldPause is the least between two rounds for the sake of reasons alone.
	heldPause = 250 * time.Millisecond
	// handoverAfter is how long nodes are held with Handover before the leader writes
	// that reason. Most handovers take seconds; then the reason before it still holds.
	handoverAfter = 10 * time.Second
)

// heldPace says how many reasons may be written now. The zero value is one that
// has not written any.
type heldPace struct {
	began bool
	at    time.Time
	most  int     // how many have waited at the same time, since none did
	left  float64 // how many may be written
}

// allow returns how many of the waiting may be written at now: the first few at
// once, and then as many in a second as are a sixtieth of all that have waited.
func (p *heldPace) allow(now time.Time, waiting int) int {
	if !p.began {
		p.began, p.at, p.left = true, now, heldAtOnce
	}
	if waiting > p.most {
		p.most = waiting
	}
	rate := max(float64(p.most)/heldSpread.Seconds(), 1)
	// What has not been used is not saved up, but for the time of two rounds.
	room := max(heldAtOnce, 2*rate*heldPause.Seconds())
	p.left = min(p.left+rate*max(now.Sub(p.at), 0).Seconds(), room)
	p.at = now
	if waiting == 0 {
		p.most = 0
	}
	return min(int(p.left), waiting)
}

// spend notes that one was written.
func (p *heldPace) spend() { p.left-- }

// writeHeldReasons writes reasons where they have changed, as many as the pace allows:
// first on nodes in a turn, which users are likely to watch. A change that arrives
// meanwhile goes first. It returns how soon it wants to continue.
func (l *leader) writeHeldReasons(ctx context.Context, verdicts []rollout.Verdict, nodes map[string]*turn.Node) time.Duration {
	var waiting [2][]*rollout.Verdict
	due := leadRound
	left := l.handoverLeft(verdicts)
	for i := range verdicts {
		v := &verdicts[i]
		n := nodes[v.Node]
		if v.Move != nil || n.Held == v.Held {
			continue
		}
		if v.Held == v1alpha1.ReasonHandover && left > 0 {
			due = left
			continue
		}
		if l.isLeftAlone(n.Name, v) {
			continue
		}
		order := 1
		if n.InTurn() {
			order = 0
		}
		waiting[order] = append(waiting[order], v)
	}
	all := append(waiting[0], waiting[1]...)
	written := 0
	for _, v := range all[:l.pace.allow(time.Now(), len(all))] {
		if ctx.Err() != nil || l.answersMissing() {
			return leadRound
		}
		if written > 0 && len(l.kick) > 0 {
			break
		}
		l.write(ctx, nodes[v.Node], heldPatch(nodes[v.Node], v.Held), v)
		l.pace.spend()
		written++
	}
	if written < len(all) {
		return heldPause
	}
	return due
}

// handoverLeft returns the time until the leader writes Handover; 0 or less if
// that is now.
func (l *leader) handoverLeft(verdicts []rollout.Verdict) time.Duration {
	if !slices.ContainsFunc(verdicts, func(v rollout.Verdict) bool { return v.Held == v1alpha1.ReasonHandover }) {
		l.handover = time.Time{}
		return handoverAfter
	}
	if l.handover.IsZero() {
		l.handover = time.Now()
	}
	return handoverAfter - time.Since(l.handover)
}
