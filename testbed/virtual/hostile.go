package virtual

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// lie is what a thief with a kubelet's credential writes to the Node of that kubelet. It is only what Kubernetes and the admission policies
// let a host write (docs/security.md): its own keys, its cordon, and its Node's status.
//
// What must hold: the budget of the other nodes, their turns, and held or status names the node that lies.
type lie struct {
	every  time.Duration // how often it is written; 0: once
	status bool          // it is written to the Node's status
	// doc returns a merge patch. i counts the writes, from 0.
	doc func(l *liar, i int) map[string]any
}

// liar is what a lie depends on.
type liar struct {
	*rand.Rand
	node *corev1.Node // as it was before this write
	keys v1alpha1.Keys
}

// lieModes returns the lies: each one next to the host's own process, and each one in its place (",alone").
func lieModes() []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(lies)) {
		all = append(all, name, name+",alone")
	}
	return all
}

var lies = map[string]lie{
	"record-huge":    {0, false, record(func(l *liar, h *v1alpha1.Host) { h.Plan = []string{strings.Repeat("x", 20<<10)} })},
	"record-huger":   {0, false, rawRecord(func(*liar) string { return strings.Repeat("y", 200<<10) })},
	"record-garbage": {5 * time.Second, false, rawRecord(func(*liar) string { return "{{{" })},
	"record-types":   {5 * time.Second, false, rawRecord(func(*liar) string { return `{"protocol":"one","bootID":[],"changes":{},"started":7}` })},
	"record-deep":    {0, false, rawRecord(func(*liar) string { return strings.Repeat("[", 8<<10) })},
	"record-null":    {0, false, rawRecord(func(*liar) string { return "null" })},
	"record-gone":    {5 * time.Second, false, func(*liar, int) map[string]any { return annotate(v1alpha1.AnnotationHost, nil) }},
	"times-past": {0, false, record(func(l *liar, h *v1alpha1.Host) {
		h.BootTime, h.Started, h.PendingSince = time.Time{}, time.Time{}, time.Unix(1, 0)
	})},
	"times-future": {0, false, record(func(l *liar, h *v1alpha1.Host) {
		h.BootTime = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
		h.Started, h.PendingSince = h.BootTime, h.BootTime
	})},
	"boot-id":        {0, false, record(func(l *liar, h *v1alpha1.Host) { h.BootID = l.id() })},
	"boot-ids":       {time.Second, false, record(func(l *liar, h *v1alpha1.Host) { h.BootID = l.id() })},
	"node-uid":       {0, false, record(func(l *liar, h *v1alpha1.Host) { h.NodeUID = l.id() })},
	"protocol-0":     {0, false, record(func(_ *liar, h *v1alpha1.Host) { h.Protocol = 0 })},
	"protocol-99":    {0, false, record(func(_ *liar, h *v1alpha1.Host) { h.Protocol = 99 })},
	"version":        {0, false, record(func(_ *liar, h *v1alpha1.Host) { h.Version = "\x1b[2J" + strings.Repeat("v", 5000) })},
	"veto":           {time.Second, false, record(func(l *liar, h *v1alpha1.Host) { h.Veto = pick(l.Rand, vetoes) })},
	"veto-new":       {0, false, record(func(_ *liar, h *v1alpha1.Host) { h.Veto = "NotAReason" })},
	"veto-unknown":   {0, false, record(func(_ *liar, h *v1alpha1.Host) { h.Veto = "no reason" })},
	"changes-many":   {0, false, record(func(l *liar, h *v1alpha1.Host) { h.Changes = l.changes(150) })},
	"changes-new":    {2 * time.Second, false, record(func(l *liar, h *v1alpha1.Host) { h.Changes = l.changes(2) })},
	"changes-names":  {0, false, record(func(_ *liar, h *v1alpha1.Host) { h.Changes = []v1alpha1.Change{{Source: "\n\x00", Name: "\u202e<&"}} })},
	"changes-wide":   {0, false, rawRecord((*liar).wideChanges)},
	"hooks":          {0, false, record(func(_ *liar, h *v1alpha1.Host) { h.HookStages = append(v1alpha1.States(), "no-such-stage") })},
	"takes-part":     {0, false, record(func(l *liar, h *v1alpha1.Host) { h.TakesPart = l.id() })},
	"unmanaged":      {0, false, record(func(_ *liar, h *v1alpha1.Host) { h.Managed = false })},
	"unmanaged-flap": {3 * time.Second, false, record(func(l *liar, h *v1alpha1.Host) { h.Managed = l.IntN(2) == 0 })},
	"steps": {0, false, record(func(_ *liar, h *v1alpha1.Host) {
		h.Steps = []v1alpha1.Action{{Type: "Restart", Unit: "kubelet.service"}, {Type: "Explode", Unit: "../x"}}
	})},

	"wants-flap": {time.Second, false, func(l *liar, i int) map[string]any {
		wants := []v1alpha1.Wants{v1alpha1.WantsReboot, v1alpha1.WantsNothing}
		return label(v1alpha1.LabelWants, wants[i%2])
	}},
	"wants-reboot": {time.Second, false, func(l *liar, _ int) map[string]any {
		return merge(record(func(l *liar, h *v1alpha1.Host) {
			h.Changes = []v1alpha1.Change{{Source: v1alpha1.SourceOSUpdate, Version: "666"}}
		})(l, 0),
			label(v1alpha1.LabelWants, v1alpha1.WantsReboot))
	}},
	"wants-unknown": {0, false, func(*liar, int) map[string]any { return label(v1alpha1.LabelWants, "everything") }},
	"wants-gone":    {3 * time.Second, false, func(*liar, int) map[string]any { return label(v1alpha1.LabelWants, nil) }},

	"ack-garbage":    {3 * time.Second, false, ack(func(l *liar, a *v1alpha1.Ack) string { return "a/b/c/d/e/f" })},
	"ack-other-turn": {time.Second, false, ack(func(l *liar, a *v1alpha1.Ack) string { a.Turn = l.id(); return a.String() })},
	"ack-other-boot": {time.Second, false, ack(func(l *liar, a *v1alpha1.Ack) string { a.BootID = l.id(); return a.String() })},
	"ack-other-state": {time.Second, false, ack(func(l *liar, a *v1alpha1.Ack) string {
		a.State = pick(l.Rand, v1alpha1.States()[3:])
		return a.String()
	})},
	"ack-done":      {500 * time.Millisecond, false, ack(func(_ *liar, a *v1alpha1.Ack) string { return a.String() })},
	"ack-committed": {500 * time.Millisecond, false, ack(func(_ *liar, a *v1alpha1.Ack) string { a.Report = v1alpha1.ReportCommitted; return a.String() })},
	"ack-refused": {time.Second, false, ack(func(_ *liar, a *v1alpha1.Ack) string {
		a.Report, a.Reason = v1alpha1.ReportRefused, v1alpha1.ReasonUncordoned
		return a.String()
	})},
	"ack-failed": {time.Second, false, ack(func(_ *liar, a *v1alpha1.Ack) string {
		a.Report, a.Reason = v1alpha1.ReportFailed, v1alpha1.ReasonStillWanted
		return a.String()
	})},
	"ack-gone": {time.Second, false, func(*liar, int) map[string]any { return annotate(v1alpha1.AnnotationAck, nil) }},

	"mark": {0, false, func(*liar, int) map[string]any {
		return merge(annotate(v1alpha1.AnnotationCordon, "mine"), cordon(true))
	}},
	"mark-only":   {0, false, func(*liar, int) map[string]any { return annotate(v1alpha1.AnnotationCordon, strings.Repeat("m", 1000)) }},
	"mark-gone":   {2 * time.Second, false, func(*liar, int) map[string]any { return annotate(v1alpha1.AnnotationCordon, nil) }},
	"mark-flap":   {2 * time.Second, false, func(_ *liar, i int) map[string]any { return annotate(v1alpha1.AnnotationCordon, []any{"x", nil}[i%2]) }},
	"cordon-flap": {2 * time.Second, false, func(_ *liar, i int) map[string]any { return cordon(i%2 == 0) }},

	"ready-flap":  {2 * time.Second, true, func(l *liar, i int) map[string]any { return l.conditions(i%2 == 0) }},
	"status-huge": {5 * time.Second, true, func(l *liar, _ int) map[string]any { return l.pad() }},
	"status-boot": {0, true, func(l *liar, _ int) map[string]any { return l.nodeInfo(l.id()) }},
	"status-boots": {time.Second, true, func(l *liar, _ int) map[string]any {
		return l.nodeInfo(l.id())
	}},

	"keys-many": {0, false, func(l *liar, _ int) map[string]any {
		many := map[string]any{}
		for i := range 2100 {
			many[fmt.Sprintf("lie.example.com/%d", i)] = "x"
		}
		return map[string]any{"metadata": map[string]any{"annotations": many}}
	}},
}

// vetoes are reasons that a host may give, may not give, or that the coordinator gives.
var vetoes = []v1alpha1.Reason{
	v1alpha1.ReasonPaused, v1alpha1.ReasonWindow, v1alpha1.ReasonBudget, v1alpha1.ReasonFailed, v1alpha1.ReasonStopped, v1alpha1.ReasonHostSilent,
	v1alpha1.ReasonDetached,
}

// record returns a lie in the host's record, which is otherwise the one on the Node or, without one, a proper record.
func record(change func(*liar, *v1alpha1.Host)) func(*liar, int) map[string]any {
	return func(l *liar, _ int) map[string]any {
		h := l.keys.Host
		if h == nil {
			h = &v1alpha1.Host{
				Protocol: v1alpha1.Protocol, Version: "lie", NodeUID: string(l.node.UID), BootID: l.node.Status.NodeInfo.BootID, Managed: true,
				BootTime: time.Now(), Started: time.Now(),
			}
		}
		change(l, h)
		return annotate(v1alpha1.AnnotationHost, v1alpha1.FormatRecord(h))
	}
}

// rawRecord returns a lie that is in place of the host's record.
func rawRecord(text func(*liar) string) func(*liar, int) map[string]any {
	return func(l *liar, _ int) map[string]any { return annotate(v1alpha1.AnnotationHost, text(l)) }
}

// ack returns a lie in the host's report. change receives a report that the host has done what the node's present state requires.
func ack(change func(*liar, *v1alpha1.Ack) string) func(*liar, int) map[string]any {
	return func(l *liar, _ int) map[string]any {
		a := v1alpha1.Ack{Turn: l.keys.Turn, BootID: l.node.Status.NodeInfo.BootID, State: l.keys.State, Report: v1alpha1.ReportDone}
		if a.Turn == "" {
			a.Turn = l.id()
		}
		if !a.State.InTurn() {
			a.State = v1alpha1.StateDraining
		}
		return annotate(v1alpha1.AnnotationAck, change(l, &a))
	}
}

func (l *liar) id() string { return fmt.Sprintf("lie-%016x", l.Uint64()) }

func (l *liar) changes(n int) []v1alpha1.Change {
	var all []v1alpha1.Change
	for range n {
		all = append(all, v1alpha1.Change{Source: v1alpha1.SourceFile, Name: "/" + l.id(), Version: v1alpha1.VersionAbsent})
	}
	return all
}

// wideChanges returns a record that readers accept, and that takes six times as many bytes once a leader copies it: JSON's encoder
// escapes some characters.
func (l *liar) wideChanges() string {
	change := fmt.Sprintf(`{"source":"OSUpdate","version":"%s"}`, strings.Repeat("<", 1000))
	return fmt.Sprintf(`{"protocol":%d,"version":"lie","nodeUID":%q,"bootID":%q,"managed":true,"drains":true,"changes":[%s]}`, v1alpha1.Protocol,
		l.node.UID, l.node.Status.NodeInfo.BootID, strings.Join(slices.Repeat([]string{change}, 10), ","))
}

// roomLeft is less than what a grant takes, in bytes.
const roomLeft = 400

// pad returns a patch of the Node's status that makes the Node so large that it takes no grant.
func (l *liar) pad() map[string]any {
	n := l.node.DeepCopy()
	n.Status.Images = nil
	image := map[string]any{"names": []string{strings.Repeat("x", max(0, maxObject-roomLeft-n.Size()))}, "sizeBytes": 1}
	return map[string]any{"status": map[string]any{"images": []any{image}}}
}

// conditions returns a patch of the Node's status in which it is Ready or not.
func (l *liar) conditions(ready bool) map[string]any {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	all := slices.Clone(l.node.Status.Conditions)
	all = slices.DeleteFunc(all, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	all = append(all, corev1.NodeCondition{Type: corev1.NodeReady, Status: status, Reason: "Lie", LastHeartbeatTime: metav1.Now()})
	return map[string]any{"status": map[string]any{"conditions": all}}
}

func (l *liar) nodeInfo(bootID string) map[string]any {
	return map[string]any{"status": map[string]any{"nodeInfo": map[string]any{"bootID": bootID}}}
}

// merge returns one merge patch of several.
func merge(docs ...map[string]any) map[string]any {
	all := map[string]any{}
	for _, doc := range docs {
		for key, value := range doc {
			into, isMap := all[key].(map[string]any)
			from, both := value.(map[string]any)
			if isMap && both {
				value = merge(into, from)
			}
			all[key] = value
		}
	}
	return all
}

// tellLies writes the lie for as long as the fault lasts.
func tellLies(e *executor, f Fault) {
	if hasOption(f.Mode, "alone") {
		e.fleet.Freeze(f.On)
	}
	e.repeat(f, f.lie().every, func(r *rand.Rand, i int) { e.people.lie(f, r, i) })
}

func (f Fault) lie() lie {
	name, _, _ := strings.Cut(f.Mode, ",")
	return lies[name]
}

// lie writes the fault's lie for the i-th time.
func (p *people) lie(f Fault, r *rand.Rand, i int) {
	user := "system:node:" + f.On
	n := p.node(user, f.On)
	if n == nil {
		return
	}
	l, path := f.lie(), nodePath(f.On)
	if l.status {
		path += "/status"
	}
	p.do(user, http.MethodPatch, path, l.doc(&liar{r, n, v1alpha1.ReadKeys(n.Labels, n.Annotations)}, i), nil)
}

// endLies gives the host back to its owner. What the lies left in lockkeeper's keys is lockkeeper's to overcome; the rest is removed, and the
// kubelet restarts to report its own status.
func endLies(e *executor, f Fault) {
	if hasOption(f.Mode, "alone") {
		e.fleet.Thaw(f.On)
	}
	name, _, _ := strings.Cut(f.Mode, ",")
	if f.lie().status {
		e.fleet.RestartKubelet(f.On)
	}
	n := e.people.node(admin, f.On)
	if n == nil {
		return
	}
	gone := map[string]any{}
	for key := range n.Annotations {
		if strings.HasPrefix(key, "lie.example.com/") {
			gone[key] = nil
		}
	}
	if len(gone) > 0 {
		e.people.patchNode(f.On, map[string]any{"metadata": map[string]any{"annotations": gone}})
	}
	// Without the mark, lockkeeper cannot know that the cordon is its own.
	now := turn.FromNode(n)
	unmarked := strings.HasPrefix(name, "mark-") && n.Spec.Unschedulable && !now.OwnCordon()
	if name == "mark" || name == "cordon-flap" || unmarked {
		e.people.patchNode(f.On, cordon(false))
	}
}

// repeat calls f now and, if every is not 0, again and again for as long as the fault lasts.
func (e *executor) repeat(f Fault, every time.Duration, do func(r *rand.Rand, i int)) {
	r := rand.New(rand.NewPCG(e.plan.Seed, uint64(time.Since(e.trace.start))))
	do(r, 0)
	if every == 0 {
		return
	}
	until := time.Now().Add(f.For)
	e.start(func() {
		for i := 1; time.Until(until) > every && pause(e.ending, every) == nil; i++ {
			do(r, i)
		}
	})
}

// theft is what a thief with the coordinator's credential does: only what RBAC and the admission policies allow (docs/security.md). The thief
// can take the Lease and grant turns to all hosts, so the budget is not promised meanwhile. It is promised that only hosts with a change
// disrupt their node, none under a pause, a veto or the emergency stop, that no undrained node reboots, and that the next leader settles it all.
type theft struct {
	every time.Duration
	act   func(t *thief, i int)
}

// thief is what a theft depends on.
type thief struct {
	*rand.Rand
	people *people
	hosts  []string
}

func theftModes() []string { return slices.Sorted(maps.Keys(thefts)) }

var thefts = map[string]theft{
	"lease":      {5 * time.Second, func(t *thief, _ int) { t.takeLease() }},
	"lease-flap": {time.Second, func(t *thief, i int) { t.lease([]string{thiefEpoch, ""}[i%2]) }},
	"grant-all": {5 * time.Second, func(t *thief, i int) {
		t.takeLease()
		t.each(func(n *corev1.Node) { t.grant(n, thiefEpoch, v1alpha1.StateDraining) })
	}},
	"grant-leaders": {0, func(t *thief, _ int) { t.each(func(n *corev1.Node) { t.grant(n, t.holder(), v1alpha1.StateDraining) }) }},
	"grant-only": {0, func(t *thief, _ int) {
		t.each(func(n *corev1.Node) {
			t.grant(n, t.holder(), v1alpha1.StateRebooting, func(g *v1alpha1.Grant) { g.Drains, g.OnlyNode = false, true })
		})
	}},
	"grant-force": {0, func(t *thief, _ int) {
		t.each(func(n *corev1.Node) {
			t.grant(n, t.holder(), v1alpha1.StateDraining, func(g *v1alpha1.Grant) { g.Force = true })
		})
	}},
	"grant-skip": {0, func(t *thief, _ int) {
		t.each(func(n *corev1.Node) {
			t.grant(n, t.holder(), v1alpha1.StateDraining, func(g *v1alpha1.Grant) { g.Terms.Skip = []v1alpha1.PodSelector{{Namespace: namespace}} })
		})
	}},
	"grant-reboot": {0, func(t *thief, _ int) {
		t.each(func(n *corev1.Node) { t.grant(n, t.holder(), v1alpha1.StateRebooting) })
	}},
	"grant-undrained": {5 * time.Second, func(t *thief, i int) {
		t.takeLease()
		t.each(func(n *corev1.Node) {
			t.grant(n, thiefEpoch, v1alpha1.StateRebooting, func(g *v1alpha1.Grant) { g.Drains, g.OnlyNode = false, i%2 > 0 })
		})
	}},
	"states": {2 * time.Second, func(t *thief, _ int) {
		t.one(label(v1alpha1.LabelState, pick(t.Rand, v1alpha1.States()[1:])))
	}},
	"states-unknown": {0, func(t *thief, _ int) { t.one(label(v1alpha1.LabelState, "melting")) }},
	"held":           {time.Second, func(t *thief, _ int) { t.one(label(v1alpha1.LabelHeld, pick(t.Rand, vetoes))) }},
	"last": {3 * time.Second, func(t *thief, _ int) {
		t.one(annotate(v1alpha1.AnnotationLast, v1alpha1.FormatRecord(v1alpha1.Last{
			Turn: "stolen", Result: v1alpha1.ResultFailed, End: time.Now().Add(1000 * time.Hour), Attempts: 1000,
		})))
	}},
	"last-garbage":  {0, func(t *thief, _ int) { t.one(annotate(v1alpha1.AnnotationLast, "{")) }},
	"grant-garbage": {0, func(t *thief, _ int) { t.one(annotate(v1alpha1.AnnotationGrant, `{"turn":7}`)) }},
	"turn-garbage":  {0, func(t *thief, _ int) { t.one(annotate(v1alpha1.AnnotationTurn, strings.Repeat("t", 500))) }},
	"withdraw": {time.Second, func(t *thief, _ int) {
		t.each(func(n *corev1.Node) {
			t.patch(n.Name, merge(annotate(v1alpha1.AnnotationRequest, nil), annotate(v1alpha1.AnnotationRequestNow, nil)))
		})
	}},
}

// thiefEpoch is the holder that the thief puts into the Lease.
const thiefEpoch = "thief_0001"

func (t *thief) takeLease() { t.lease(thiefEpoch) }

func (t *thief) lease(holder string) {
	t.people.do(thiefUser, http.MethodPatch, leasePath, map[string]any{"spec": leaseSpec(holder)}, nil)
}

// stolenTurn begins the IDs of the turns that a thief grants.
const stolenTurn = "stolen-"

// thiefUser is the user of the thief's requests. It is the coordinator's to the real API server; the one in memory checks no permission, and
// another name tells the judge which writes are the thief's.
var thiefUser = v1alpha1.CoordinatorUser(v1alpha1.DefaultLeaseNamespace) + " (stolen)"

// holder returns who holds the Lease.
func (t *thief) holder() string {
	var l struct {
		Spec struct{ HolderIdentity string }
	}
	t.people.do(thiefUser, http.MethodGet, leasePath, nil, &l)
	return l.Spec.HolderIdentity
}

func (t *thief) each(f func(*corev1.Node)) {
	for _, name := range t.hosts {
		if n := t.people.node(thiefUser, name); n != nil {
			f(n)
		}
	}
}

func (t *thief) one(doc map[string]any) { t.patch(pick(t.Rand, t.hosts), doc) }

func (t *thief) patch(name string, doc map[string]any) {
	t.people.do(thiefUser, http.MethodPatch, nodePath(name), doc, nil)
}

// grant writes a grant as a leader would, for what the host has published, with the changes. It spares nodes that are in a turn or have
// published nothing.
func (t *thief) grant(n *corev1.Node, epoch string, state v1alpha1.State, changes ...func(*v1alpha1.Grant)) {
	keys := v1alpha1.ReadKeys(n.Labels, n.Annotations)
	if keys.Host == nil || keys.State.InTurn() || epoch == "" {
		return
	}
	minute := metav1.Duration{Duration: time.Minute}
	g := v1alpha1.Grant{
		Turn: fmt.Sprintf("%s%08x", stolenTurn, t.Uint32()), Epoch: epoch, NodeUID: string(n.UID), BootID: n.Status.NodeInfo.BootID,
		Wants: keys.Wants, Drains: keys.Host.Drains, Changes: keys.Host.Changes, Steps: v1alpha1.StepsDigest(keys.Host.Steps),
		OSVersion: keys.Host.OSVersion, Policy: v1alpha1.DefaultPolicyName, StartedAt: time.Now(), StageAt: time.Now(),
		Terms: v1alpha1.Terms{
			Seen: minute, Draining: minute, DrainTimeout: v1alpha1.OnTimeoutForce, Rebooting: minute, Applying: minute, HostHooks: minute, Uncordoning: minute,
		},
	}
	for _, change := range changes {
		change(&g)
	}
	t.patch(n.Name, merge(label(v1alpha1.LabelState, string(state)), annotate(v1alpha1.AnnotationTurn, g.Turn),
		annotate(v1alpha1.AnnotationGrant, v1alpha1.FormatRecord(g))))
}

// steal does what the thief does for as long as the fault lasts.
func steal(e *executor, f Fault) {
	t := thefts[f.Mode]
	e.repeat(f, t.every, func(r *rand.Rand, i int) { t.act(&thief{r, e.people, e.fleet.Hosts()}, i) })
}

// endTheft revokes the credential. Of what docs/security.md says that an admin does then, only the unknown states are needed.
func endTheft(e *executor, _ Fault) { e.people.removeUnknownStates(e.fleet.Hosts()) }

// removeUnknownStates does what docs/reasons.md says for UnknownState.
func (p *people) removeUnknownStates(hosts []string) {
	for _, name := range hosts {
		if n := p.node(admin, name); n != nil && !v1alpha1.State(n.Labels[v1alpha1.LabelState]).Known() {
			p.patchNode(name, label(v1alpha1.LabelState, nil))
		}
	}
}

func typeMeta(version, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: version, Kind: kind}
}

func objectMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}
