package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record/util"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/notify"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/turn"
)

const (
	// eventController is the coordinator's name in its Events.
	eventController = "lockkeeper.dev/coordinator"
	// maxEvents Events may wait to be sent; the others are lost. eventQPS are sent per second,
	// the first eventBurst of them at once. No decision waits for them.
	maxEvents            = 300
	eventQPS, eventBurst = 5, 10
	// An Event that cannot be written is tried eventTries times, eventAgain apart.
	eventTries, eventAgain = 12, 10 * time.Second
	maxNote                = 1000 // bytes; the API takes 1 KiB
	maxInstance            = 128  // bytes of reportingInstance, as in the API
	maxWho                 = 100  // bytes of the name in an intent
)

// events reports the decisions of one term in Events and notifications. Only the leader's
// loop calls its methods, and none of them blocks.
type events struct {
	// queue holds the Events to write; nil: no Events are written.
	queue  chan *eventsv1.Event
	self   string // the leader's Node
	log    *slog.Logger
	losing bool // Events were lost, and that was logged

	begun   bool
	stop    *string            // the emergency stop in the last Event
	intents map[string]intents // by node: the intents that Events have reported
	// unsettled are the nodes for which an Event reported that the outcome of a write is
	// unknown. rewound is the Rewound of the last StoreRewound Event.
	unsettled map[string]string
	rewound   time.Time
	refused   map[string]string // by node: the API server's message in the last Event
	// policies is, by name, the state of each policy that Events have reported.
	policies map[string]policyState
	// blocking holds, by node, the slots that other nodes wait for.
	blocking map[string]blocking

	// send queues a notification; it does not block. held are the held nodes by name, if
	// heldAfter is not 0. heldSent is when the last notification about them was sent.
	send      func(notify.Message)
	heldAfter time.Duration
	held      map[string]heldNode
	heldSent  time.Time
}

// blocking is a slot that a node takes outside of a turn while others wait.
type blocking struct {
	since    time.Time // when the others began to wait
	reported bool
}

// policyState is the state of a policy that Events have reported.
type policyState struct{ halted, invalid bool }

// slotReportedAfter is how long other nodes wait before an Event reports which node takes
// the slot.
const slotReportedAfter = 10 * time.Minute

// rewoundReportedFor is how long after a store went back in time a leader reports that.
const rewoundReportedFor = time.Hour

// newEvents returns the events of a term. It writes them until ctx ends. self is the
// leader's Node.
func newEvents(ctx context.Context, client *kube.Client, self string, log *slog.Logger) *events {
	e := eventsTo(self, log)
	limited, err := client.Limited(eventQPS, eventBurst)
	if err != nil {
		log.Warn("no Events are written", "err", err)
		return e
	}
	e.queue = make(chan *eventsv1.Event, maxEvents)
	go e.run(ctx, limited)
	return e
}

func eventsTo(self string, log *slog.Logger) *events {
	return &events{
		self: self, log: log, send: func(notify.Message) {},
		intents: map[string]intents{}, refused: map[string]string{},
	}
}

// run writes the Events in the queue, one after the other, until ctx ends. It does not use
// client-go's broadcaster, which treats an Event as a repetition of an earlier one if only
// the note differs.
func (e *events) run(ctx context.Context, client kube.API) {
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-e.queue:
			for try := range eventTries {
				callCtx, cancel := context.WithTimeout(ctx, kube.Timeout)
				_, err := client.EventsV1().Events(event.Namespace).Create(callCtx, event, metav1.CreateOptions{})
				cancel()
				if err == nil || ctx.Err() != nil || apierrors.IsAlreadyExists(err) {
					break
				}
				// A webhook that fails or denies must not hold up the other Events. A denial is a 400 if the webhook names no code.
				webhook := apierrors.IsInternalError(err) && try >= 2 || apierrors.IsBadRequest(err)
				if webhook || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) {
					e.log.Warn("the API server refuses an Event", "reason", event.Reason, "about", event.Regarding.Name, "err", err)
					break
				}
				if try == eventTries-1 {
					e.log.Warn("an Event is lost, because the API server does not take it", "reason", event.Reason, "about", event.Regarding.Name, "err", err)
					break
				}
				if pause(ctx, eventAgain) != nil {
					return
				}
			}
		}
	}
}

// write queues an Event if the reason is in the table of Events. It does not block.
func (e *events) write(about *corev1.ObjectReference, reason, note string) {
	d, ok := v1alpha1.EventOf(reason)
	if !ok || e.queue == nil {
		return
	}
	now := time.Now()
	event := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: util.GenerateEventName(about.Name, now.UnixNano()), Namespace: cmp.Or(about.Namespace, metav1.NamespaceDefault)},
		EventTime:  metav1.NewMicroTime(now), ReportingController: eventController, ReportingInstance: v1alpha1.OneLine(e.self, maxInstance),
		Type: d.Type(), Reason: d.Reason, Action: d.Action, Regarding: *about, Note: v1alpha1.OneLine(note, maxNote),
	}
	select {
	case e.queue <- event:
		e.losing = e.losing && len(e.queue) > maxEvents/2
	default:
		if !e.losing {
			e.log.Warn("Events are lost, because there are more than the coordinator can write; the journal and the Nodes have what they say", "first_lost", reason, "about", about.Name)
		}
		e.losing = true
	}
}

func aboutNode(n *turn.Node) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: types.UID(n.UID)}
}

// reportWrite writes the Events about a decision that was written. turnID is the ID of the
// turn, which the write may have created.
func (e *events) reportWrite(n *turn.Node, v *rollout.Verdict, turnID string) {
	delete(e.refused, n.Name)
	if m := v.Move; m != nil {
		e.moved(n, v, cmp.Or(turnID, n.Turn))
		if m.LetGo || m.From != m.To && !m.To.InTurn() {
			return // moved has reported how the turn ended
		}
	}
	switch {
	case v.Held == n.Held, v.Held == v1alpha1.ReasonNone:
	case v.Held == v1alpha1.ReasonHalted, v.Held == v1alpha1.ReasonInvalidPolicy: // an Event about the policy reports it
	case v.Held == v1alpha1.ReasonPaused, v.Held == v1alpha1.ReasonDetached: // an Event about the intent reports it
	case v.Held == v1alpha1.ReasonStopped && !n.InTurn(): // the Event about the Lease reports it
	case v.Held == v1alpha1.ReasonFailed && !n.InTurn(): // the Event about the end of its last turn reported it
	case n.InTurn() && (v.Held == v1alpha1.ReasonFailed || v.Held == v1alpha1.ReasonOverdue):
		e.report(aboutNode(n), string(v.Held), heldNote(v), notify.Message{
			Occasion: v1alpha1.OccasionFailed, Nodes: []string{n.Name}, Policy: v.Policy, Turn: n.Turn, Reason: v.Held,
		})
	default:
		e.write(aboutNode(n), string(v.Held), heldNote(v))
	}
}

// heldNote returns a text that says what holds a node, and what to do about it.
func heldNote(v *rollout.Verdict) string {
	d := v.Held.Doc()
	return cmp.Or(v.Detail, d.Means) + "; what to do: " + d.Do
}

func (e *events) moved(n *turn.Node, v *rollout.Verdict, turnID string) {
	m := v.Move
	switch {
	case m.From == m.To:
	case m.On == turn.Granted:
		var changes []string
		if m.Grant != nil {
			for _, c := range m.Grant.Changes {
				changes = append(changes, c.String()+m.Grant.Request.Note(c))
			}
		}
		e.write(aboutNode(n), v1alpha1.EventGranted, fmt.Sprintf("turn %s begins in %s for %s", turnID, m.To, strings.Join(changes, ", ")))
	case m.Last != nil && m.From.InTurn() && !m.To.InTurn():
		last, occasion := endedTurn(n, m), v1alpha1.OccasionTurnEnded
		if last.Result == v1alpha1.ResultFailed {
			occasion = v1alpha1.OccasionFailed
		}
		e.report(aboutNode(n), string(last.Result), fmt.Sprintf("turn %s ended %s%s", last.Turn, last.Result, because(last.Reason)), notify.Message{
			Occasion: occasion, Nodes: []string{n.Name}, Policy: v.Policy, Turn: last.Turn, Result: last.Result, Reason: last.Reason,
		})
	case m.From.InTurn() && m.To == v1alpha1.StateBeforeUncordon || m.From.InTurn() && m.To == v1alpha1.StateUncordoning:
		switch m.On {
		case turn.Vanished, turn.Refused, turn.Aborted, turn.FailedHealthy, turn.TakenBack:
			e.write(aboutNode(n), v1alpha1.EventBackingOut, fmt.Sprintf("turn %s is backed out in %s: %s%s", turnID, m.From, m.On, because(m.Reason)))
		}
	}
}

func because(r v1alpha1.Reason) string {
	if r == "" {
		return ""
	}
	text := " (" + string(r)
	if d := r.Doc(); d.Means != "" {
		text += ": " + d.Means
	}
	return text + ")"
}

// reportRefused writes an Event when the API server refuses a decision, once for each
// message, and returns whether it has. The leader cannot write the reason to the Node.
func (e *events) reportRefused(n *turn.Node, message string) (news bool) {
	if news = e.refused[n.Name] != message; news {
		e.refused[n.Name] = message
		e.write(aboutNode(n), string(v1alpha1.ReasonForbidden), message)
	}
	return news
}

// reportIntents writes Events about what users have set: the emergency stop, and the
// intents on Nodes. In its first round a leader only records what an earlier leader may
// have reported.
func (e *events) reportIntents(s *rollout.Snapshot, lease *coordinationv1.Lease) {
	first := !e.begun
	e.begun = true
	e.reportTroubles(s, lease)
	stoppedBefore := false
	for i := range s.Nodes {
		n := &s.Nodes[i]
		stoppedBefore = stoppedBefore || n.Held == v1alpha1.ReasonStopped
		// An intent on an idle node has not taken effect yet, so no leader has reported it.
		e.reportNodeIntents(n, first && (s.Stopped || n.State != v1alpha1.StateIdle))
	}
	switch {
	case !s.Stopped:
		if lease != nil && (e.stop != nil || first && stoppedBefore) {
			e.report(aboutLease(lease), v1alpha1.EventStopLifted, "the emergency stop is over", notify.Message{Occasion: v1alpha1.OccasionStop, Reason: v1alpha1.EventStopLifted})
		}
		e.stop = nil
	case e.stop == nil || *e.stop != s.StopText:
		if lease != nil && !(first && stoppedBefore) {
			e.report(aboutLease(lease), string(v1alpha1.ReasonStopped), "the emergency stop is set: "+cmp.Or(s.StopText, "(no reason given)"),
				notify.Message{Occasion: v1alpha1.OccasionStop, Reason: v1alpha1.ReasonStopped})
		}
		e.stop = new(s.StopText) // not a pointer into the snapshot
	}
	e.forget(s.Nodes)
}

// reportPolicies writes an Event when a policy halts or continues, and when it becomes
// invalid or valid. get returns a policy as the API server has it. An earlier leader has
// reported what its status says.
func (e *events) reportPolicies(figures []rollout.PolicyFigures, get func(string) *v1alpha1.DisruptionPolicy) {
	was := e.policies
	e.policies = make(map[string]policyState, len(figures))
	for i := range figures {
		f := &figures[i]
		obj := get(f.Name)
		if obj == nil {
			continue
		}
		before, known := was[f.Name]
		if !known {
			c := obj.Status.Conditions
			before = policyState{meta.IsStatusConditionTrue(c, v1alpha1.ConditionHalted), meta.IsStatusConditionFalse(c, v1alpha1.ConditionValid)}
		}
		now := policyState{f.Halted, len(f.Problems) > 0}
		e.policies[f.Name] = now
		about := &corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "DisruptionPolicy", Name: obj.Name, UID: obj.UID}
		failed := fmt.Sprintf("%d failed, %d allowed", f.Failed, f.MaxFailed)
		switch {
		case now.halted && !before.halted:
			e.report(about, string(v1alpha1.ReasonHalted), failed+"; what to do: "+v1alpha1.ReasonHalted.Doc().Do,
				notify.Message{Occasion: v1alpha1.OccasionHalted, Policy: f.Name, Reason: v1alpha1.ReasonHalted})
		case !now.halted && before.halted:
			e.report(about, v1alpha1.EventReleased, failed, notify.Message{Occasion: v1alpha1.OccasionHalted, Policy: f.Name, Reason: v1alpha1.EventReleased})
		}
		switch {
		case now.invalid && !before.invalid:
			e.write(about, string(v1alpha1.ReasonInvalidPolicy), f.Problems[0].String())
		case !now.invalid && before.invalid:
			e.write(about, v1alpha1.EventPolicyValid, "nodes that it selects are granted their turns again")
		}
	}
}

// reportWaiting reports nodes that take slots for which others wait, and nodes that have
// been held for a long time.
func (e *events) reportWaiting(now time.Time, nodes *facts, out *rollout.Outcome) {
	e.reportHeld(now, out.Verdicts)
	was := e.blocking
	e.blocking = map[string]blocking{}
	if slices.ContainsFunc(out.Verdicts, func(v rollout.Verdict) bool { return v.Held == v1alpha1.ReasonBudget }) {
		// After each turn the others wait until the nodes have settled, and then for the slot again.
		for _, s := range out.Slots {
			if b, known := was[s.Node]; known {
				e.blocking[s.Node] = b
			}
		}
	}
	for _, s := range out.Blocking() {
		b := was[s.Node]
		if b.since.IsZero() {
			b.since = now
		}
		if n := nodes.node(s.Node); !b.reported && n != nil && now.Sub(b.since) >= slotReportedAfter {
			b.reported = true
			e.write(aboutNode(n), v1alpha1.EventTakesSlot, "others wait for a slot"+rollout.Taken([]rollout.Slot{s}))
		}
		e.blocking[s.Node] = b
	}
}

// reportTroubles writes Events about problems that keep the coordinator from granting and
// that no label shows.
func (e *events) reportTroubles(s *rollout.Snapshot, lease *coordinationv1.Lease) {
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if why := s.Unsettled[n.Name]; why != "" && e.unsettled[n.Name] == "" {
			e.write(aboutNode(n), v1alpha1.EventUnsettled, "the outcome of a write to "+n.Name+" has been unknown "+why)
		}
	}
	e.unsettled = maps.Clone(s.Unsettled)
	// Each process notices the rewind by itself, and remembers it for the terms that it leads later.
	if lease != nil && !s.Rewound.Equal(e.rewound) && s.Now.Sub(s.Rewound) < rewoundReportedFor {
		e.write(aboutLease(lease), v1alpha1.EventStoreRewound, "seen at "+s.Rewound.UTC().Format(time.DateTime)+" UTC")
	}
	e.rewound = s.Rewound
}

func aboutLease(lease *coordinationv1.Lease) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: lease.Namespace, Name: lease.Name, UID: lease.UID}
}

// forget drops the records about nodes that no longer exist.
func (e *events) forget(nodes []turn.Node) {
	if len(e.intents)+len(e.refused) == 0 {
		return
	}
	exists := make(map[string]bool, len(nodes))
	for i := range nodes {
		exists[nodes[i].Name] = true
	}
	maps.DeleteFunc(e.intents, func(name string, _ intents) bool { return !exists[name] })
	maps.DeleteFunc(e.refused, func(name, _ string) bool { return !exists[name] })
}
