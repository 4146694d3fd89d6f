package explore

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/rollout"
	"lockkeeper.dev/lockkeeper/node/step"
)

var hookNames = [3]string{"h0", "h1", "h2"}

// memo remembers the results of a function: there are millions of states, but few different records in them, and to format and parse
// these takes most of the time.
type memo[K comparable, V any] struct{ results sync.Map }

func (m *memo[K, V]) get(k K, f func() V) V {
	v, ok := m.results.Load(k)
	if !ok {
		v, _ = m.results.LoadOrStore(k, f())
	}
	return v.(V)
}

var (
	hostTexts  memo[hostRecord, string]
	grantTexts memo[grantRecord, string]
	lastTexts  memo[lastRecord, string]
	parsed     memo[string, v1alpha1.Keys]
)

func (h *hostRecord) text() string {
	return hostTexts.get(*h, func() string { return v1alpha1.FormatRecord(h.record()) })
}

func (g *grantRecord) text() string {
	return grantTexts.get(*g, func() string { return v1alpha1.FormatRecord(g.record()) })
}

func (l *lastRecord) text() string {
	return lastTexts.get(*l, func() string { return v1alpha1.FormatRecord(l.record()) })
}

// readKeys is [v1alpha1.ReadKeys]. The caller does not change what the result's pointers lead to.
func readKeys(labels, annotations map[string]string) v1alpha1.Keys {
	var text strings.Builder
	for _, m := range []map[string]string{labels, annotations} {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			text.WriteString(key)
			text.WriteByte('=')
			text.WriteString(m[key])
			text.WriteByte('\n')
		}
		text.WriteByte('\n')
	}
	return parsed.get(text.String(), func() v1alpha1.Keys { return v1alpha1.ReadKeys(labels, annotations) })
}

// wire returns the object as labels and annotations. It leaves out the terms of a grant, which are the same in all
// grants; facts adds them.
func (o *object) wire() (labels, annotations map[string]string) {
	labels, annotations = map[string]string{}, map[string]string{}
	set := func(m map[string]string, key, value string) {
		if value != "" {
			m[key] = value
		}
	}
	set(labels, v1alpha1.LabelState, string(o.st()))
	if o.wants > 0 {
		labels[v1alpha1.LabelWants] = string(wantsList[o.wants-1])
		annotations[v1alpha1.AnnotationHost] = o.host.text()
	}
	set(annotations, v1alpha1.AnnotationAck, v1alpha1.Ack{
		Turn: id("t", o.ack.turn), BootID: id("b", o.ack.boot), State: states[o.ack.state],
		Report: words[o.ack.word], Reason: reasons[o.ack.reason],
	}.String())
	set(annotations, v1alpha1.AnnotationTurn, id("t", o.turn))
	set(annotations, v1alpha1.AnnotationRetry, id("t", o.retry))
	if o.grant.turn > 0 {
		annotations[v1alpha1.AnnotationGrant] = o.grant.text()
	}
	if o.last.turn > 0 {
		annotations[v1alpha1.AnnotationLast] = o.last.text()
	}
	if o.runs.version > 0 {
		annotations[v1alpha1.AnnotationRuns] = v1alpha1.FormatRecord(&v1alpha1.Runs{OSVersion: version(o.runs.version), BootID: id("b", o.runs.boot), Since: sinceOf(o.runs.long)})
	}
	if o.mark {
		annotations[v1alpha1.AnnotationCordon] = "t"
	}
	if o.paused {
		annotations[v1alpha1.AnnotationPaused] = "explored"
	}
	switch o.detached {
	case 1:
		annotations[v1alpha1.AnnotationDetached] = "explored"
	case 2:
		annotations[v1alpha1.AnnotationDetached] = `{"force":true}`
	}
	if o.managed == 1 {
		labels[v1alpha1.LabelManaged] = "false"
	}
	for key, r := range map[string]*v1alpha1.Request{v1alpha1.AnnotationRequest: requestOf(o.request), v1alpha1.AnnotationRequestNow: requestOf(o.now)} {
		if r != nil {
			annotations[key] = v1alpha1.FormatRecord(r)
		}
	}
	for i, t := range o.hooks {
		set(annotations, v1alpha1.HookAnnotation(hookNames[i]), id("t", t))
	}
	return labels, annotations
}

func (h *hostRecord) record() *v1alpha1.Host {
	r := &v1alpha1.Host{
		Protocol: v1alpha1.Protocol, Version: "explored", NodeUID: id("u", h.uid), BootID: id("b", h.boot),
		Started: at(h.start), Managed: h.managed, Drains: h.drains, Changes: withClient(changes(h.change, h.request), h.client), OSVersion: version(h.version),
		TakesPart: id("t", h.part), Permits: id("t", h.permits), Veto: reasons[h.veto], Steps: steps(h.change, h.drains),
		BlockedSince: blockedSince[h.blocked], BlockOff: h.blockOff,
	}
	if h.hookFailed {
		r.HookFailed = failure
	}
	if h.applyFailed {
		r.ApplyFailed = failure
	}
	if h.units {
		r.HookStages = hookStages
	}
	return r
}

// failure is what a host reports of everything that fails.
const failure = "explored"

var hookStages = []v1alpha1.State{v1alpha1.StateBeforeDrain, v1alpha1.StateBeforeReboot, v1alpha1.StateBeforeUncordon}

// steps returns the steps of a plan. The host does not check the steps of a reboot, so every plan restarts a unit, each
// a different one.
func steps(change uint8, drains bool) (all []v1alpha1.Action) {
	if change == 0 {
		return nil
	}
	if drains {
		all = append(all, v1alpha1.Action{Type: v1alpha1.ActionDrain})
	}
	return append(all, v1alpha1.Action{Type: v1alpha1.ActionRestart, Unit: id("c", change)})
}

func (g *grantRecord) record() *v1alpha1.Grant {
	r := &v1alpha1.Grant{
		Turn: id("t", g.turn), Epoch: id("e", g.epoch), NodeUID: id("u", g.uid), BootID: id("b", g.boot),
		Wants: wantsList[g.wants], Drains: g.drains, OnlyNode: g.only, BlockOff: g.blockOff, Changes: withClient(changes(g.change, g.asked), g.client), OSVersion: version(g.version),
		Steps: v1alpha1.StepsDigest(steps(g.change, g.drains || g.only)), Policy: "explored", StartedAt: ago(g.started), StageAt: ago(g.stage), Result: results[g.result], Reason: reasons[g.reason],
	}
	if r.Request = requestOf(cmp.Or(g.now, g.request)); r.Request != nil {
		r.Request.Now = g.now != 0
	}
	r.Requests = v1alpha1.Requests{Waits: requestDigests[g.request], Now: requestDigests[g.now]}
	if g.frozen > 0 {
		since := ago(g.frozen - 1)
		r.PausedSince = &since
	}
	r.PausedFor.Duration = eon * time.Duration(g.pausedFor)
	return r
}

func (l *lastRecord) record() *v1alpha1.Last {
	r := &v1alpha1.Last{
		Turn: id("t", l.turn), Result: results[l.result], Reason: reasons[l.reason], Changes: withClient(changes(l.change, l.request), l.client), End: now.Add(-eon),
	}
	if l.settles {
		r.End = now
	}
	if l.backoff {
		until := now.Add(time.Minute)
		r.NotBefore = &until
		r.Attempts = 1
	} else if r.Result == v1alpha1.ResultBackedOut {
		past := now.Add(-eon)
		r.NotBefore = &past
		r.Attempts = 1
	}
	if l.wants > 0 {
		r.HostDigest = v1alpha1.Digest(l.digest.text())
	}
	return r
}

// read parses the labels and annotations into the object. Fields that are not in them (UID, boot, Ready, unschedulable)
// keep their values.
func (o *object) read(labels, annotations map[string]string) {
	k := readKeys(labels, annotations)
	if len(k.Problems) > 0 {
		panic(fmt.Sprintf("explore: a core wrote invalid labels or annotations: %v", k.Problems))
	}
	before := *o
	*o = object{uid: o.uid, young: o.young, boot: o.boot, ready: o.ready, readyLong: o.readyLong, unsched: o.unsched}
	o.state = number(states, k.State)
	if k.Host != nil {
		o.wants = 1 + number(wantsList, k.Wants)
		o.host = hostRecord{
			boot: num(k.Host.BootID), start: uint8(k.Host.Started.Sub(now) / time.Second), uid: num(k.Host.NodeUID), managed: k.Host.Managed, drains: k.Host.Drains,
			version: versionNum(k.Host.OSVersion), part: num(k.Host.TakesPart), permits: num(k.Host.Permits), veto: number(reasons, k.Host.Veto), units: len(k.Host.HookStages) > 0, hookFailed: k.Host.HookFailed != "", applyFailed: k.Host.ApplyFailed != "",
		}
		o.host.change, o.host.request, o.host.client = changeNum(k.Host.Changes)
		o.host.blocked, o.host.blockOff = blockedNum(k.Host.BlockedSince), k.Host.BlockOff
	}
	if k.Ack != (v1alpha1.Ack{}) {
		o.ack = ackRecord{num(k.Ack.Turn), num(k.Ack.BootID), number(states, k.Ack.State), number(words, k.Ack.Report), number(reasons, k.Ack.Reason)}
	}
	o.turn, o.retry = num(k.Turn), num(k.Retry)
	if g := k.Grant; g != nil {
		o.grant = grantRecord{
			turn: num(g.Turn), epoch: num(g.Epoch), uid: num(g.NodeUID), boot: num(g.BootID), wants: number(wantsList, g.Wants),
			version: versionNum(g.OSVersion), drains: g.Drains, only: g.OnlyNode, blockOff: g.BlockOff,
			started: ageOf(g.StartedAt), stage: ageOf(g.StageAt), pausedFor: int8(g.PausedFor.Duration.Round(eon) / eon),
			result: number(results, g.Result), reason: number(reasons, g.Reason),
		}
		o.grant.change, o.grant.asked, o.grant.client = changeNum(g.Changes)
		o.grant.request, o.grant.now = number(requestDigests, g.Requests.Waits), number(requestDigests, g.Requests.Now)
		if g.PausedSince != nil {
			o.grant.frozen = 1 + ageOf(*g.PausedSince)
		}
	}
	if l := k.Last; l != nil {
		o.last = lastRecord{
			turn: num(l.Turn), result: number(results, l.Result), reason: number(reasons, l.Reason), settles: l.End.Equal(now),
			backoff: l.NotBefore != nil && l.NotBefore.After(now),
		}
		o.last.change, o.last.request, o.last.client = changeNum(l.Changes)
		switch {
		case l.HostDigest == "":
		case l.HostDigest == before.last.record().HostDigest:
			o.last.digest, o.last.wants = before.last.digest, before.last.wants
		default: // the digest of the unchanged record
			o.last.digest, o.last.wants = before.host, before.wants
		}
	}
	if r := k.Runs; r != nil {
		o.runs = runsRecord{versionNum(r.OSVersion), num(r.BootID), now.Sub(r.Since) > canaryTime}
	}
	o.readIntents(&k, annotations)
	for i, name := range hookNames {
		o.hooks[i] = num(k.Hooks[name])
	}
}

// readIntents parses what admins set, and the mark.
func (o *object) readIntents(k *v1alpha1.Keys, annotations map[string]string) {
	for key, to := range map[string]*uint8{v1alpha1.AnnotationRequest: &o.request, v1alpha1.AnnotationRequestNow: &o.now} {
		if r, err := v1alpha1.ParseRequest(annotations[key]); err == nil {
			*to = num(r.Reason)
		}
	}
	o.mark, o.paused = k.Mark, k.Paused != nil
	if k.Detached != nil {
		o.detached = 1
		if k.Detached.Force {
			o.detached = 2
		}
	}
	if k.Managed != nil && !*k.Managed {
		o.managed = 1
	}
}

// merge applies a patch to labels or annotations. nil removes a key.
func merge(m map[string]string, patch map[string]*string) {
	for key, v := range patch {
		if delete(m, key); v != nil {
			m[key] = *v
		}
	}
}

// written returns the object after a host's write.
func (o *object) written(w *step.Write) object {
	labels, annotations := o.wire()
	merge(labels, w.Labels)
	merge(annotations, w.Annotations)
	after := *o
	after.read(labels, annotations)
	if w.Unschedulable != nil {
		after.unsched = *w.Unschedulable
	}
	return after
}

// fresh is the number of a new turn, boot or UID. The state is renumbered immediately afterwards.
const fresh = 200

// moved returns the object after a coordinator's write. It builds the patch of a move like package coordinator.
func (o *object) moved(m *rollout.Move) object {
	labels, annotations := o.wire()
	if delete(labels, v1alpha1.LabelState); m.To != v1alpha1.StateAbsent {
		labels[v1alpha1.LabelState] = string(m.To)
	}
	for _, key := range m.Remove {
		delete(annotations, key)
	}
	switch {
	case m.LetGo:
		delete(annotations, v1alpha1.AnnotationTurn)
		delete(annotations, v1alpha1.AnnotationGrant)
		delete(annotations, v1alpha1.AnnotationLast)
		delete(annotations, v1alpha1.AnnotationHost)
		delete(annotations, v1alpha1.AnnotationAck)
		delete(annotations, v1alpha1.AnnotationRuns)
		delete(labels, v1alpha1.LabelWants)
	case m.Keep:
	case m.Grant == nil:
		delete(annotations, v1alpha1.AnnotationTurn)
		delete(annotations, v1alpha1.AnnotationGrant)
	default:
		g := *m.Grant
		if m.NewTurn {
			g.Turn = id("t", fresh)
		}
		annotations[v1alpha1.AnnotationTurn] = g.Turn
		annotations[v1alpha1.AnnotationGrant] = v1alpha1.FormatRecord(&g)
	}
	if m.Last != nil {
		annotations[v1alpha1.AnnotationLast] = v1alpha1.FormatRecord(m.Last)
	}
	if m.Runs != nil {
		annotations[v1alpha1.AnnotationRuns] = v1alpha1.FormatRecord(m.Runs)
	}
	after := *o
	after.read(labels, annotations)
	return after
}
