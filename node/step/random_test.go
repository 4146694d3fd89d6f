package step

import (
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// dice makes choices out of bytes, so that the fuzzer steers them; when they
// run out every choice is the first.
type dice []byte

func (d *dice) pick(n int) int {
	if len(*d) == 0 {
		return 0
	}
	v := int((*d)[0])
	*d = (*d)[1:]
	return v % n
}

func (d *dice) yes() bool { return d.pick(2) == 1 }

// rarely is true once in 24 throws: what stands in the way of most decisions
// has to be rare, or nothing behind it is ever seen.
func (d *dice) rarely() bool { return d.pick(24) == 23 }

func one[T any](d *dice, of ...T) T { return of[d.pick(len(of))] }

// mostly is usual, or rarely one of the others.
func mostly[T any](d *dice, usual T, others ...T) T {
	if d.rarely() {
		return one(d, others...)
	}
	return usual
}

// randomObservation is any observation at all, also ones that cannot be.
func randomObservation(d *dice) Observation {
	states := append(v1alpha1.States(), v1alpha1.StateDraining, v1alpha1.StateRebooting, v1alpha1.StateRebooting, v1alpha1.StateApplying, "flooding")
	o := Observation{
		Node:             turn.Node{Name: "n1", UID: mostly(d, "u1", ""), BootID: mostly(d, "b1", "b2", ""), Ready: !d.rarely()},
		Self:             v1alpha1.Host{Version: "v1", BootID: one(d, "b1", "b1", "b1", "b2"), OSVersion: one(d, "4.1", "4.2")},
		ManagedByDefault: !d.rarely(),
		Leaving:          d.rarely(),
		Info:             map[string]string{v1alpha1.LabelOS: one(d, "", "flatcar")},
		Veto:             mostly(d, "", v1alpha1.ReasonWindow, v1alpha1.ReasonHostPaused, v1alpha1.ReasonObserve, v1alpha1.ReasonHeldBack),
		Blocked:          mostly(d, "", v1alpha1.ReasonInhibited),
		Shutdown:         mostly(d, ShutdownNone, ShutdownUnknown, ShutdownUnderway),
		RebootError:      mostly(d, "", "no"),
		Health:           Health{Healthy: !d.rarely(), Overdue: d.rarely()},
		Drain:            one(d, Drain{}, Drain{}, Drain{Running: true}, Drain{Running: true, Complete: true}),
		Hooks:            randomWork(d), Apply: randomWork(d),
	}
	if !d.rarely() {
		wants := one(d, v1alpha1.WantsReboot, v1alpha1.WantsReboot, v1alpha1.WantsReboot, v1alpha1.WantsDrain, v1alpha1.WantsDrain, v1alpha1.WantsApply, v1alpha1.WantsNothing)
		o.Sources = Sources{Complete: true, Wants: wants, Drains: !d.rarely()}
		if wants.Something() {
			o.Sources.Changes = []v1alpha1.Change{anUpdate}
		}
		o.Sources.Steps = steps(wants, o.Sources.Drains)
	}
	if d.pick(4) > 0 {
		o.Fresh = &FreshRead{Commit: !d.rarely(), Evictable: mostly(d, 0, 2), Blocked: mostly(d, "", "a/b"), Lease: Lease{
			Exists: !d.rarely(), Holder: mostly(d, "e1", "e2", ""), Stopped: d.rarely()}}
	}
	if d.yes() {
		o.Self.HookStages = []v1alpha1.State{one(d, v1alpha1.StateBeforeDrain, v1alpha1.StateBeforeReboot, v1alpha1.StateBeforeUncordon)}
	}
	n := &o.Node
	n.State = states[d.pick(len(states))]
	n.Mark = d.yes()
	n.Unschedulable = mostly(d, n.Mark, !n.Mark)
	n.Turn = mostly(d, "t1", "t2", "")
	if !d.rarely() {
		n.Grant = &v1alpha1.Grant{
			Turn: "t1", Epoch: "e1", NodeUID: mostly(d, "u1", "u2"), BootID: mostly(d, "b1", "b2", ""),
			Wants: one(d, v1alpha1.WantsReboot, v1alpha1.WantsDrain, v1alpha1.WantsApply), Drains: !d.rarely(), OnlyNode: d.rarely(),
			Changes: []v1alpha1.Change{anUpdate}, OSVersion: "4.1",
		}
	}
	if !d.rarely() {
		n.Ack = v1alpha1.Ack{
			Turn: mostly(d, "t1", "t0"), BootID: o.Self.BootID, State: n.State,
			Report: one(d, v1alpha1.ReportCommitted, v1alpha1.ReportSeen, v1alpha1.ReportCommitted, v1alpha1.ReportDone, v1alpha1.ReportRefused, v1alpha1.ReportFailed),
		}
		if d.rarely() {
			n.Ack.BootID = one(d, "b1", "b0")
		}
		if d.rarely() || !n.State.Known() || !n.State.InTurn() {
			n.Ack.State = one(d, v1alpha1.StateDraining, v1alpha1.StateBeforeDrain)
		}
		if n.Ack.Report == v1alpha1.ReportRefused || n.Ack.Report == v1alpha1.ReportFailed {
			n.Ack.Reason = one(d, v1alpha1.ReasonUncordoned, v1alpha1.ReasonUnhealthy)
		}
	}
	if d.rarely() {
		n.Managed = new(d.yes())
	}
	if d.rarely() {
		n.Paused = &v1alpha1.Intent{Reason: "disk"}
	}
	if d.rarely() {
		n.Detached = &v1alpha1.Intent{Force: d.yes()}
	}
	if d.yes() {
		self := o.hostRecord(v1alpha1.Ack{})
		self.TakesPart = mostly(d, self.TakesPart, "t1", "t0", "")
		n.Wants = o.Sources.Wants
		if d.pick(4) == 0 && o.Sources.Wants.Something() { // what the host wants has changed since
			n.Wants = one(d, v1alpha1.WantsDrain, v1alpha1.WantsApply)
			self.Drains = n.Wants == v1alpha1.WantsDrain
			self.Steps = steps(n.Wants, self.Drains)
		}
		n.RawHost = v1alpha1.FormatRecord(self)
		if n.Grant != nil {
			n.Grant.Steps = mostly(d, v1alpha1.StepsDigest(self.Steps), v1alpha1.StepsDigest(actions("Restart z.service")), "")
		}
	}
	if d.rarely() {
		n.Wants, n.RawHost = v1alpha1.WantsDrain, "{"
	}
	// As it would be read from an object.
	w := worldOf(&o)
	o.Node = w.apply(&Write{})
	return o
}

func randomWork(d *dice) Work {
	return one(d, Work{}, Work{}, Work{}, Work{}, Work{Running: true}, Work{Done: true}, Work{Failed: "a.service", Due: d.yes()})
}

// mayAct is written again from DESIGN section 4, "Commit", and from section 5:
// what has to hold before a host disturbs anything. It is not Step's check.
func mayAct(o *Observation) string {
	n, l := &o.Node, o.Fresh
	paused := n.Paused != nil && !(n.Managed != nil && !*n.Managed)
	switch {
	case n.Grant == nil || n.Turn != n.Grant.Turn || n.UID != n.Grant.NodeUID:
		return "the grant is not this turn's and Node's"
	case l == nil || !l.Commit:
		return "nothing was read"
	case !l.Lease.Exists || l.Lease.Stopped:
		return "stopped"
	case l.Lease.Holder != n.Grant.Epoch:
		return "another leader's turn"
	case paused:
		return "paused"
	case o.Veto != "" && n.State != v1alpha1.StateBeforeUncordon, o.Veto == v1alpha1.ReasonHostPaused, o.Veto == v1alpha1.ReasonObserve:
		return "the host's own veto"
	case n.BootID != o.Self.BootID:
		return "the kubelet speaks from another boot"
	case !o.Sources.Complete && n.State != v1alpha1.StateBeforeUncordon:
		return "a source was not read"
	}
	return ""
}

// mayHit is what apply and reboot need besides.
func mayHit(o *Observation) string {
	n, drains := &o.Node, o.Sources.Drains
	if n.State == v1alpha1.StateApplying {
		h := n.Host
		if h == nil || h.NodeUID != n.UID || h.BootID != o.Self.BootID || len(h.Steps) == 0 || v1alpha1.StepsDigest(h.Steps) != n.Grant.Steps {
			return "not the steps that it published and that were granted"
		}
		if slices.ContainsFunc(h.Steps, func(a v1alpha1.Action) bool { return a.Type == v1alpha1.ActionReboot }) {
			return "the plan reboots"
		}
		drains = h.Drains
	}
	switch {
	case n.Grant.BootID != o.Self.BootID:
		return "not the boot of the grant"
	case n.Grant.Drains && !n.Unschedulable:
		return "not cordoned"
	case n.Grant.Drains && o.Fresh.Evictable > 0:
		return "pods are left"
	case !n.Grant.Drains && !n.Grant.OnlyNode && drains:
		return "needs a drain"
	case n.State == v1alpha1.StateRebooting && o.Sources.Wants != v1alpha1.WantsReboot, !o.Sources.Wants.Something():
		return "the want is gone"
	}
	return ""
}

// offence says which promise the decision breaks, or "".
func offence(o *Observation, d *Decision) string {
	n := &o.Node
	if s := offendingAct(o, d); s != "" {
		return s
	}
	w := d.Write
	if w == nil {
		return ""
	}
	if d.Read != ReadNothing {
		return "reads and writes"
	}
	labels, annotations := v1alpha1.HostKeys()
	for key := range w.Labels {
		if !slices.Contains(labels, key) {
			return "writes the label " + key
		}
	}
	for key := range w.Annotations {
		if !slices.Contains(annotations, key) {
			return "writes the annotation " + key
		}
	}
	mark, marks := w.Annotations[v1alpha1.AnnotationCordon]
	switch {
	case w.empty():
		return "an empty write"
	case !n.State.Known() || n.UID == "":
		return "writes although it should keep its hands off"
	case w.Unschedulable != nil && *w.Unschedulable != (mark != nil), marks && mark != nil && w.Unschedulable == nil:
		return "a cordon and its mark are not in one write"
	}
	if w.Unschedulable != nil && *w.Unschedulable {
		switch {
		case n.State != v1alpha1.StateDraining || n.Unschedulable || n.Mark:
			return "cordons where it must not"
		case mayAct(o) != "":
			return "cordons although " + mayAct(o)
		case w.Ack.Report != v1alpha1.ReportCommitted:
			return "cordons without a word"
		case o.Fresh.Blocked != "":
			return "cordons although a pod must not be evicted"
		case n.HasAck(n.State) && n.Ack.Report != v1alpha1.ReportSeen:
			return "cordons twice in a turn"
		}
	}
	if w.Unschedulable != nil && !*w.Unschedulable {
		if n.State != v1alpha1.StateUncordoning || !n.Mark || !marks || !n.Ready || n.BootID != o.Self.BootID {
			return "uncordons what is not its own, or too early"
		}
	}
	if marks && mark == nil && n.Unschedulable && w.Unschedulable == nil && n.Detached == nil {
		return "leaves a cordon that nobody owns"
	}
	return offendingWords(o, w)
}

func offendingAct(o *Observation, d *Decision) string {
	n := &o.Node
	stands := n.HasAck(n.State) && n.Ack.Report == v1alpha1.ReportCommitted
	switch d.Do {
	case DoReboot:
		switch {
		case n.State != v1alpha1.StateRebooting || !stands || n.Ack.BootID != o.Self.BootID:
			return "reboots without a commit"
		case mayAct(o) != "" || mayHit(o) != "":
			return "reboots although " + mayAct(o) + mayHit(o)
		case o.Shutdown != ShutdownNone:
			return "reboots without having asked logind"
		}
	case DoApply:
		switch {
		case n.State != v1alpha1.StateApplying:
			return "applies in " + n.State.String()
		case o.Apply.Running:
		case !stands:
			return "applies without a commit"
		case mayAct(o) != "" || mayHit(o) != "":
			return "applies although " + mayAct(o) + mayHit(o)
		}
	case DoHooks:
		part := n.Mark || n.Host != nil && n.Host.NodeUID == n.UID && n.Host.TakesPart == n.Turn || n.HasAck(n.State) && n.Ack.Report == v1alpha1.ReportFailed
		switch {
		case !n.State.HookStage() || !o.Hooks.Running && mayAct(o) != "":
			return "runs hook units although " + mayAct(o)
		case n.State == v1alpha1.StateBeforeUncordon && !o.Hooks.Running && !part:
			return "undoes what it never did"
		}
	case DoDrain:
		paused := n.Paused != nil && !(n.Managed != nil && !*n.Managed)
		switch {
		case n.State != v1alpha1.StateDraining && n.State != v1alpha1.StateRebooting && n.State != v1alpha1.StateApplying:
			return "drains in " + n.State.String()
		case !n.Unschedulable:
			return "drains a node that is not cordoned"
		case paused || o.Fresh != nil && (!o.Fresh.Lease.Exists || o.Fresh.Lease.Stopped):
			return "drains although it is to stand still"
		}
	}
	return ""
}

func offendingWords(o *Observation, w *Write) string {
	n := &o.Node
	wants, hasWants := w.Labels[v1alpha1.LabelWants]
	host, hasHost := w.Annotations[v1alpha1.AnnotationHost]
	if hasWants && wants != nil && (!hasHost || host == nil) || hasHost && host != nil && (!hasWants || wants == nil) {
		return "wants and host are not in one write"
	}
	if hasWants && wants != nil {
		last := w.Ack
		if last == (v1alpha1.Ack{}) {
			last = n.Ack
		}
		proven := last.Turn == n.Turn && last.State == n.State && last.BootID == o.Self.BootID &&
			(last.Report == v1alpha1.ReportDone || last.Report == v1alpha1.ReportFailed)
		switch {
		case !o.Sources.Complete:
			return "publishes before all sources were read"
		case n.State == v1alpha1.StateRebooting && (!n.Ours() || n.Grant.BootID != o.Self.BootID) && !proven:
			return "publishes in a new boot before it is proven"
		}
	}
	switch a := w.Ack; {
	case a == (v1alpha1.Ack{}):
	case a.Turn != n.Turn || a.State != n.State || a.BootID != o.Self.BootID || !n.Ours():
		return "a word about something else"
	case a.Report == v1alpha1.ReportSeen && n.HasAck(n.State) && n.Ack.Report != v1alpha1.ReportSeen:
		return "seen over a word that counts for more"
	case a.Report == v1alpha1.ReportCommitted && mayAct(o) != "":
		return "commits although " + mayAct(o)
	case a.Report == v1alpha1.ReportCommitted && n.State != v1alpha1.StateDraining && mayHit(o) != "":
		return "commits although " + mayHit(o)
	case a.Report == v1alpha1.ReportDone && n.State == v1alpha1.StateRebooting && (n.Grant.BootID == o.Self.BootID || !n.Ready || n.BootID != o.Self.BootID):
		return "done without a new boot that is Ready"
	case a.Report == v1alpha1.ReportRefused && n.State == v1alpha1.StateRebooting && n.Grant.BootID != o.Self.BootID:
		return "refuses what it has done"
	}
	return ""
}

// checkStep holds one observation against every promise, and lets the host go
// on from it: without a change from outside it comes to rest.
func checkStep(t *testing.T, o Observation) {
	t.Helper()
	w := worldOf(&o)
	for range 8 {
		before := v1alpha1.FormatRecord(o.Node.Keys.Grant) + v1alpha1.FormatRecord(o.Node.Host)
		d := Step(o)
		if again := Step(o); !reflect.DeepEqual(d, again) {
			t.Fatalf("the same facts, two decisions:\n%+v\n%+v", d, again)
		}
		if after := v1alpha1.FormatRecord(o.Node.Keys.Grant) + v1alpha1.FormatRecord(o.Node.Host); after != before {
			t.Fatal("Step changed what it was handed")
		}
		if s := offence(&o, &d); s != "" {
			t.Fatalf("it %s\nobservation: %+v\nlook: %+v\ngrant: %+v\ndecision: %+v\nwrite: %+v", s, o, o.Fresh, o.Node.Grant, d, d.Write)
		}
		if d.Write == nil {
			return
		}
		o.Node = w.apply(d.Write)
	}
	t.Fatalf("a host that writes indefinitely: %+v\nlook: %+v\nlast write: %+v", o, o.Fresh, Step(o).Write)
}

func TestStepOnRandomObservations(t *testing.T) {
	n := 20_000
	switch {
	case os.Getenv("LOCKKEEPER_SOAK") != "":
		n *= 30
	case testing.Short():
		n = 6_000
	}
	r := rand.New(rand.NewPCG(1, 2))
	acts := map[Effect]int{}
	commits, uncordons := 0, 0
	buf := make([]byte, 80)
	for range n {
		for i := range buf {
			buf[i] = byte(r.Uint32())
		}
		d := dice(slices.Clone(buf))
		o := randomObservation(&d)
		step := Step(o)
		acts[step.Do]++
		if step.Write != nil && step.Write.Ack.Report == v1alpha1.ReportCommitted {
			commits++
		}
		if step.Write != nil && step.Write.Unschedulable != nil && !*step.Write.Unschedulable {
			uncordons++
		}
		checkStep(t, o)
	}
	// A generator that never gets that far proves nothing.
	for _, act := range []Effect{DoDrain, DoHooks, DoApply, DoReboot} {
		if acts[act] < n/3000 {
			t.Errorf("%s was decided %d times of %d, too few to prove anything", act, acts[act], n)
		}
	}
	if commits < n/1000 || uncordons < n/1000 {
		t.Errorf("%d commits and %d uncordons of %d, too few to prove anything", commits, uncordons, n)
	}
}

func FuzzStep(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("a host that wants a reboot and is granted one"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := dice(b)
		checkStep(t, randomObservation(&d))
		d = b
		checkTurn(t, &d)
	})
}
