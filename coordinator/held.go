package coordinator

import (
	"context"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
)

// The reasons in held are only for users. One stop, or one window that closes, changes the
// reason on every node that wants something. Writing all of these labels at once would be a
// burst of writes, and the API server sends each to every watcher of Nodes. So the leader
// spreads them over a minute. In a small fleet there is no delay.
//
// Only the leader's writes are spread. Verdicts change at once, also in `lockkeeper status`,
// which decides for itself. The leader keeps no list of reasons to write: it compares
// verdicts with labels. So a successor continues where a leader stopped. If a reason comes
// and goes within the minute, it is never written to most of the nodes.
const (
	heldSpread = time.Minute
	// heldAtOnce is how many reasons are written without waiting.
	heldAtOnce = 20
	// heldPause is the shortest time between the beginnings of two rounds that only write reasons,
	// if nothing changes.
	heldPause = 250 * time.Millisecond
	// heldSaved is for how long an unused allowance is saved. A round takes longer than heldPause
	// if writes are slow, and what it may not write then would be lost.
	heldSaved = time.Second
	// handoverAfter is how long nodes are held with Handover before the leader writes
	// that reason. Most handovers take seconds, and then the earlier reason still applies.
	handoverAfter = 10 * time.Second
)

// heldPace limits how fast reasons are written. The zero value is ready to use.
type heldPace struct {
	at   time.Time // of the last call of allow
	most int       // the most that have waited at the same time, since none waited
	left float64   // how many may be written
}

// allow returns how many of the waiting reasons may be written now. The first few may be
// written at once. After that, the rate per second is a sixtieth of the most that have
// waited.
func (p *heldPace) allow(now time.Time, waiting int) int {
	if p.at.IsZero() {
		p.at, p.left = now, heldAtOnce
	}
	rate := max(float64(p.most)/heldSpread.Seconds(), 1)
	p.left = min(p.left+rate*max(now.Sub(p.at), 0).Seconds(), max(heldAtOnce, rate*heldSaved.Seconds()))
	p.at = now
	if p.most = max(p.most, waiting); waiting == 0 {
		p.most = 0
	}
	return min(int(p.left), waiting)
}

// spend records that n reasons were written.
func (p *heldPace) spend(n int) { p.left -= float64(n) }

// writeHeldReasons writes reasons where they have changed, as many as the pace allows:
// first on nodes in a turn, which users are likely to watch. If something changes
// meanwhile, it writes no more than the reasons that are under way, so that a promotion does not
// wait. Each round writes at least the first few, if the pace allows any. left is the time until
// Handover is written, and atATime how many reasons are written at the same time. It returns how
// soon it wants to continue.
func (l *leader) writeHeldReasons(ctx context.Context, verdicts []rollout.Verdict, left time.Duration, atATime int) time.Duration {
	var waiting [2][]*rollout.Verdict
	due := leadRound
	for i := range verdicts {
		v := &verdicts[i]
		n := l.facts.node(v.Node)
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
	began := time.Now()
	written := l.write(ctx, all[:l.pace.allow(began, len(all))], atATime, func(begun, _ int) bool {
		return !l.answersMissing() && (begun < atATime || len(l.kick) == 0)
	})
	l.pace.spend(written)
	switch {
	case written == len(all):
		return due
	case l.answersMissing():
		return leadRound
	}
	return max(heldPause-time.Since(began), 0)
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
