package coordinator

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/systemd"
)

// refusal says why and until when nothing is written to a node.
type refusal struct {
	until   time.Time
	message string // the API server's
	// held: the refused write was that of the reason, so the reason is not tried either.
	held bool
}

// unsettled is a write whose outcome is not known.
type unsettled struct {
	since time.Time
	why   string // the error of the last try
}

// carryOut carries out the verdicts: first the moves of nodes in a turn, then the grants,
// then the moves of nodes in no turn, and last the reasons. It returns how soon another
// round is due for the rest.
func (l *leader) carryOut(ctx context.Context, verdicts []rollout.Verdict) time.Duration {
	left := l.handoverLeft(verdicts)
	atATime := maxAtATime
	if !l.handover.IsZero() {
		atATime = 1
	}
	for _, kind := range []moveKind{inTurn, granted, bulk} {
		var due []*rollout.Verdict
		for i := range verdicts {
			if v := &verdicts[i]; v.Move != nil && kindOf(v.Move) == kind && !l.isLeftAlone(v.Node, v) {
				due = append(due, v)
			}
		}
		most, unknown := len(due), maxUncertain
		switch kind {
		case granted:
			unknown = 1 // nothing is granted while the outcome of a write is unknown, also of the grant before
		case bulk:
			most = min(most, maxBulk)
		}
		begun := l.write(ctx, due[:most], atATime, func(_, underWay int) bool { return l.uncertainNow()+underWay < unknown })
		switch {
		case begun < most:
			return l.RetryPeriod // if it waits for an outcome, settle wakes the loop
		case most < len(due):
			return 0
		}
	}
	return l.writeHeldReasons(ctx, verdicts, left, atATime)
}

// moveKind is the kind of a move. The kinds are written in this order.
type moveKind int

const (
	inTurn  moveKind = iota // a turn advances, is backed out or ends
	granted                 // a turn begins
	bulk                    // neither
)

func kindOf(m *rollout.Move) moveKind {
	switch {
	case m.Disturbs():
		return granted
	case m.From.InTurn() || m.To.InTurn():
		return inTurn
	}
	return bulk
}

func (l *leader) uncertainNow() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.uncertain)
}

// answersMissing reports whether the API server may be unreachable: the outcome of a write
// became unknown only recently, or the outcomes of many are unknown. Reasons can wait then.
func (l *leader) answersMissing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range l.uncertain {
		if time.Since(u.since) < handoverAfter {
			return true
		}
	}
	return len(l.uncertain) >= maxUncertain
}

// refusals drops the refusals that are over. It returns the time until the next one ends,
// or until a write counts as unsettled.
func (l *leader) refusals() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := refusedFor
	for _, u := range l.uncertain {
		if left := unsettledAfter - time.Since(u.since); left > 0 {
			next = min(next, left)
		}
	}
	for name, r := range l.refused {
		left := time.Until(r.until)
		if left <= 0 {
			delete(l.refused, name)
			continue
		}
		next = min(next, left)
	}
	return next
}

// leaveAlone makes the leader write no move to a node for d, because of err, and no reason
// either if held is set. It wakes the loop, because another node may get the slot.
func (l *leader) leaveAlone(name string, d time.Duration, err error, held bool) {
	l.mu.Lock()
	l.refused[name] = refusal{time.Now().Add(d), "the coordinator's write: " + err.Error(), held}
	l.mu.Unlock()
	l.wake()
}

// isLeftAlone reports whether the verdict must not be written now: a write to the node was
// refused recently, or the outcome of one is not known.
func (l *leader) isLeftAlone(name string, v *rollout.Verdict) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	refused, found := l.refused[name]
	_, uncertain := l.uncertain[name]
	return uncertain || found && time.Now().Before(refused.until) && (v.Move != nil || refused.held)
}

// write writes what the verdicts say in their order, atATime at the same time, and handles each
// outcome as it comes. It begins a write only if may allows it, given how many it has begun and how
// many of them are under way. It returns how many it has begun, after the last outcome.
func (l *leader) write(ctx context.Context, verdicts []*rollout.Verdict, atATime int, may func(begun, underWay int) bool) (begun int) {
	outcomes := make(chan func())
	for underWay := 0; ; underWay-- {
		for begun < len(verdicts) && underWay < atATime && ctx.Err() == nil && l.lock.fresh(l.RenewDeadline) && may(begun, underWay) {
			l.beat.Alive()
			v := verdicts[begun]
			n := l.facts.node(v.Node)
			p := patchOf(n, v)
			begun++
			underWay++
			go func() {
				obj, outcome, err := kube.Write(ctx, l.client, p)
				outcomes <- func() { l.written(ctx, n, p, v, obj, outcome, err) }
			}()
		}
		if underWay == 0 {
			return begun
		}
		(<-outcomes)()
	}
}

// written handles the outcome of one patch.
func (l *leader) written(ctx context.Context, n *turn.Node, p kube.Patch, v *rollout.Verdict, obj *corev1.Node, outcome kube.Outcome, err error) {
	switch outcome {
	case kube.Written:
		l.logWrite(n, v, obj.Annotations[v1alpha1.AnnotationTurn])
		l.events.reportWrite(n, v, obj.Annotations[v1alpha1.AnnotationTurn])
		l.view.Overlay(obj)
		if v.Move != nil {
			l.wake() // verdicts on other nodes may depend on it
		}
	case kube.Conflict:
		// The Node changed after the decision: the leader drops the decision.
		l.Log.Debug("dropped a decision, because the Node has changed", "node", n.Name, "err", err)
		l.view.Overlay(obj)
		l.wake()
	case kube.Gone:
		l.view.Forget(p.Node, p.ResourceVersion)
		l.wake()
	case kube.Refused:
		// An old manifest or a webhook may refuse the writes to thousands of Nodes, and each is tried again after refusedFor.
		if attrs := []any{"node", n.Name, "err", err, "again_in", refusedFor}; l.events.reportRefused(n, l.client.Explain(err).Text) {
			systemd.LogEvent(l.Log, slog.LevelError, v1alpha1.MessageWriteRefused, "the API server refuses a write to the Node; the coordinator tries it again later", attrs...)
		} else {
			l.Log.Debug("the API server still refuses a write to the Node", attrs...)
		}
		l.leaveAlone(n.Name, refusedFor, err, v.Move == nil)
	case kube.Unknown:
		if ctx.Err() != nil {
			return // the term is over, and with it the request
		}
		l.Log.Warn("the outcome of a write is not known; nothing is granted until it is", "node", n.Name, "err", err)
		l.uncertainAbout(n.Name, err)
		l.settling.Go(func() { l.settle(ctx, p) })
	}
}

// uncertainAbout records that the outcome of a write to the node is unknown, and
// why.
func (l *leader) uncertainAbout(node string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.uncertain[node]
	if u.since.IsZero() {
		u.since = time.Now()
	}
	u.why = l.client.Explain(err).Text
	l.uncertain[node] = u
}

// settle repeats a write until its outcome is known.
func (l *leader) settle(ctx context.Context, p kube.Patch) {
	obj, err := kube.Settle(ctx, l.client, p, func(err error) { l.uncertainAbout(p.Node, err) })
	if err != nil {
		return // the term is over
	}
	if obj == nil {
		l.view.Forget(p.Node, p.ResourceVersion)
	} else {
		l.view.Overlay(obj)
	}
	l.mu.Lock()
	delete(l.uncertain, p.Node)
	l.mu.Unlock()
	l.wake()
}

// newTurnID returns a new turn ID: 16 characters of [a-z2-7], 80 random bits.
func newTurnID() string { return strings.ToLower(rand.Text())[:16] }

func empty(n *turn.Node) kube.Patch {
	return kube.Patch{
		Node: n.Name, ResourceVersion: n.ResourceVersion, Manager: kube.FieldManager("coordinator"),
		Labels: map[string]*string{}, Annotations: map[string]*string{},
	}
}

// heldPatch returns a patch that sets the node's held label, or removes it for ReasonNone.
func heldPatch(n *turn.Node, reason v1alpha1.Reason) kube.Patch {
	p := empty(n)
	p.Labels[v1alpha1.LabelHeld] = nil
	if reason != v1alpha1.ReasonNone {
		p.Labels[v1alpha1.LabelHeld] = new(string(reason))
	}
	return p
}

// patchOf returns the patch that carries out the verdict's move, or only writes its reason if it
// has no move.
func patchOf(n *turn.Node, v *rollout.Verdict) kube.Patch {
	m := v.Move
	p := heldPatch(n, v.Held)
	if m == nil {
		return p
	}
	if m.To != m.From || !n.State.Known() {
		p.Labels[v1alpha1.LabelState] = nil
		if m.To != v1alpha1.StateAbsent {
			p.Labels[v1alpha1.LabelState] = new(string(m.To))
		}
	}
	for _, key := range m.Remove {
		p.Annotations[key] = nil
	}
	if m.Expired {
		p.Annotations[v1alpha1.AnnotationExpired] = new(time.Now().UTC().Format(time.RFC3339Nano))
	}
	switch {
	case m.LetGo:
		p.Annotations[v1alpha1.AnnotationTurn] = nil
		p.Annotations[v1alpha1.AnnotationGrant] = nil
		p.Annotations[v1alpha1.AnnotationLast] = nil
		p.Annotations[v1alpha1.AnnotationRuns] = nil
		p.Annotations[v1alpha1.AnnotationExpired] = nil
		labels, annotations := v1alpha1.ReleasedKeys()
		for _, key := range labels {
			p.Labels[key] = nil
		}
		for _, key := range annotations {
			p.Annotations[key] = nil
		}
	case m.Keep:
	case m.Grant == nil:
		p.Annotations[v1alpha1.AnnotationTurn] = nil
		p.Annotations[v1alpha1.AnnotationGrant] = nil
	default:
		g := *m.Grant
		if m.NewTurn {
			g.Turn = newTurnID()
		}
		p.Annotations[v1alpha1.AnnotationTurn] = &g.Turn
		p.Annotations[v1alpha1.AnnotationGrant] = new(v1alpha1.FormatRecord(&g))
	}
	if m.Runs != nil {
		p.Annotations[v1alpha1.AnnotationRuns] = new(v1alpha1.FormatRecord(m.Runs))
	}
	if m.Last != nil {
		p.Annotations[v1alpha1.AnnotationLast] = new(v1alpha1.FormatRecord(m.Last))
	}
	return p
}

// logWrite logs one entry about a decision that was written.
func (l *leader) logWrite(n *turn.Node, v *rollout.Verdict, turnID string) {
	attrs := []any{"node", n.Name}
	m := v.Move
	if m == nil || m.From == m.To && n.Held != v.Held {
		l.logHeld(n, v)
		return
	}
	turnID = cmp.Or(turnID, n.Turn)
	text := fmt.Sprintf("%s: %s -> %s (%s)", n.Name, m.From, m.To, cmp.Or(string(m.On), "repaired"))
	if m.Last != nil && m.From.InTurn() && !m.To.InTurn() {
		systemd.LogTurnEnd(l.Log, text+"; the turn", endedTurn(n, m), append(attrs, "state", m.To.String())...)
		return
	}
	if turnID != "" {
		attrs = append(attrs, "turn", turnID)
	}
	if m.Reason != "" {
		attrs = append(attrs, "reason", string(m.Reason))
	}
	switch {
	case m.From == m.To:
		l.Log.Info(fmt.Sprintf("%s: %s, record renewed", n.Name, m.To), append(attrs, "state", m.To.String())...)
	case m.On == turn.Granted:
		systemd.LogEvent(l.Log, slog.LevelInfo, v1alpha1.MessageGranted, text, append(attrs, "state", m.To.String())...)
	default:
		systemd.LogEvent(l.Log, slog.LevelInfo, v1alpha1.MessageStateEntered, text, append(attrs, systemd.StateAttr(m.To))...)
	}
}

// endedTurn returns the record of the turn that the move ends. If the turn only removed a cordon, it is not in m.Last, which has the
// record of the turn before.
func endedTurn(n *turn.Node, m *rollout.Move) *v1alpha1.Last {
	if g := n.Grant; g != nil && g.Turn != m.Last.Turn {
		return &v1alpha1.Last{Turn: g.Turn, Result: g.Result, Reason: g.Reason, End: m.Last.End}
	}
	return m.Last
}

// logHeld logs that a node is held for a new reason, or is no longer held.
func (l *leader) logHeld(n *turn.Node, v *rollout.Verdict) {
	attrs := []any{"node", n.Name, "state", n.State.String()}
	if n.Turn != "" && n.InTurn() {
		attrs = append(attrs, "turn", n.Turn)
	}
	if v.Held == "" {
		systemd.LogEvent(l.Log, slog.LevelInfo, v1alpha1.MessageHeldNoMore, n.Name+": no longer held", attrs...)
		return
	}
	if v.Detail != "" {
		attrs = append(attrs, "detail", v.Detail)
	}
	systemd.LogEvent(l.Log, systemd.HeldLevel(v.Held), v1alpha1.MessageHeld, fmt.Sprintf("%s: held=%s", n.Name, v.Held), append(attrs, systemd.ReasonAttr(v.Held))...)
}

// logStop logs when the emergency stop is set, changed or lifted.
func (l *leader) logStop(before, now *coordinationv1.Lease) {
	switch was, is := stopOf(before), stopOf(now); {
	case is == was:
	case is.set:
		systemd.LogEvent(l.Log, slog.LevelWarn, v1alpha1.MessageStopped, "the emergency stop is set: "+is.text, "node", l.self, "why", is.text)
	case before != nil:
		systemd.LogEvent(l.Log, slog.LevelInfo, v1alpha1.MessageStopOver, "the emergency stop is over", "node", l.self)
	}
}
