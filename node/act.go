package node

import (
	"context"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/effect"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// maxReadAge bounds the age of a fresh read when the host acts on it. The age is measured from
// the read's first request, in monotonic time. A process that was stopped after the read, for
// longer than its leader's Lease lasts, must read again before it continues.
const maxReadAge = 10 * time.Second

// freshRead is the result of a quorum read, with the time at which the read began and the
// version of the Node that it returned.
type freshRead struct {
	step.FreshRead
	began           time.Time
	resourceVersion string // of the Node; "" if only the Lease was read
}

func (f *freshRead) valid() bool { return f != nil && time.Since(f.began) < maxReadAge }

// until returns the time from which the read is too old to act on.
func (f *freshRead) until() time.Time { return f.began.Add(maxReadAge) }

// wrote makes a read of version before valid for version after, which this process's own write
// created. The write's precondition excludes any other write in between.
func (f *freshRead) wrote(before, after string) {
	if f != nil && f.resourceVersion == before {
		f.resourceVersion = after
	}
}

// refusal is a report by which the host has refused, whose write has an unknown outcome.
type refusal struct {
	ack             v1alpha1.Ack
	resourceVersion string // of the Node that the write was based on
}

// validRead returns the parts of the fresh read that are valid for Node n, or nil.
func (h *Host) validRead(n *turn.Node) *step.FreshRead {
	if !h.fresh.valid() {
		return nil
	}
	f := h.fresh.FreshRead
	if f.Evictable > 0 && h.drain.EndedSince(h.fresh.began) {
		return nil // the pods that it counted have been evicted
	}
	if f.Commit && h.fresh.resourceVersion != n.ResourceVersion {
		f.Commit = false // the Node has changed since the read
	}
	return &f
}

// read reads what a decision asks for.
func (h *Host) read(ctx context.Context, what step.Read) error {
	switch what {
	case step.ReadShutdown:
		if err := h.shutdown.Read(ctx, h.Logind); err != nil {
			return hostError{err}
		}
		return nil
	case step.ReadEviction:
		return h.readEviction(ctx)
	}
	return h.readCommit(ctx)
}

// readEviction reads the host's own Node, then the Lease. Reads that take too long to act on are
// an error: evictions must not continue on what was known before them.
func (h *Host) readEviction(ctx context.Context) error {
	began := time.Now()
	h.fresh = nil
	ctx, cancel := context.WithTimeout(ctx, maxReadAge)
	defer cancel()
	if _, err := h.readNode(ctx); err != nil {
		return err
	}
	lease, err := h.readLease(ctx)
	if err != nil {
		return err
	}
	h.fresh = &freshRead{FreshRead: step.FreshRead{Lease: lease}, began: began}
	return nil
}

// readCommit reads, in this order: the host's own Node, the Lease, every source, the pods.
// The Lease comes after the Node: a leader that took over before the Node was read is then
// seen in the Lease, and one that takes over later lists the Node with this turn in it.
//
// In before-uncordon, the turn is only to be finished, and neither sources nor pods decide about
// that, so readCommit does not read them. One that does not answer would take all of the time.
func (h *Host) readCommit(ctx context.Context) error {
	began := time.Now()
	h.fresh = nil
	ctx, cancel := context.WithTimeout(ctx, maxReadAge) // the host could not act on a later answer
	defer cancel()
	obj, err := h.readNode(ctx)
	if err != nil {
		return err
	}
	lease, err := h.readLease(ctx)
	if err != nil {
		return err
	}
	if obj.Labels[v1alpha1.LabelState] == string(v1alpha1.StateBeforeUncordon) {
		h.fresh = &freshRead{FreshRead: step.FreshRead{Lease: lease, Commit: true}, began: began, resourceVersion: obj.ResourceVersion}
		return nil
	}
	if err := h.readSources(ctx); err != nil {
		return hostError{err}
	}
	n := turn.FromNode(obj)
	policies := h.readPolicies(&n)
	pods, err := h.drain.Remaining(ctx, step.EvictionBy(&n, policies.Terms()))
	if err != nil {
		return err
	}
	if age := time.Since(began); age >= maxReadAge {
		return fmt.Errorf("the reads before a commit took %v, expected less than %v", age.Round(time.Millisecond), maxReadAge)
	}
	blocked := blockedText(pods)
	if blocked != "" && len(h.pods.blockers) == 0 {
		h.pods.outdated = true // its last list lacks them, and they are a veto after the turn
	}
	h.fresh = &freshRead{FreshRead: step.FreshRead{Lease: lease, Commit: true, Evictable: len(pods), Blocked: blocked}, began: began, resourceVersion: obj.ResourceVersion}
	return nil
}

// readNode reads the host's own Node from the quorum. The host's next observation is of that
// version, or of a later one.
func (h *Host) readNode(ctx context.Context) (*corev1.Node, error) {
	known := ""
	if n := h.view.Get(h.name); n != nil {
		known = n.ResourceVersion
	}
	ctx, cancel := context.WithTimeout(ctx, kube.Timeout)
	defer cancel()
	obj, err := kube.Find(ctx, h.client, h.name)
	if err != nil {
		return nil, err
	}
	if obj == nil {
		h.view.Forget(h.name, known)
		return nil, fmt.Errorf("the API server has no Node %s", h.name)
	}
	if h.view.Overlay(obj) {
		return obj, nil
	}
	if n := h.view.Get(h.name); n != nil && n.ResourceVersion == known && (obj.ResourceVersion != known || !sameNode(obj, n)) {
		return nil, fmt.Errorf("the API server has version %s of Node %s, and its watch has shown another version %s: its store went back in time, and the watch does not show that yet",
			obj.ResourceVersion, h.name, known)
	}
	return obj, nil
}

// sameNode reports whether two reads of one version of the Node do not contradict each other. A
// store that was set back gives its versions out again: a host whose watch hangs may hold another
// Node of the same version, and a commit for that one would not conflict.
func sameNode(x, y *corev1.Node) bool {
	a, b := turn.FromNode(x), turn.FromNode(y)
	return a.UID == b.UID && a.BootID == b.BootID && a.Unschedulable == b.Unschedulable && reflect.DeepEqual(a.Keys, b.Keys)
}

// readLease reads the Lease from the quorum.
func (h *Host) readLease(ctx context.Context) (step.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, kube.Timeout)
	defer cancel()
	l, err := h.client.CoordinationV1().Leases(h.LeaseNamespace).Get(ctx, h.LeaseName, metav1.GetOptions{})
	if kube.NoLease(err, h.LeaseName) {
		return step.Lease{}, nil // a missing Lease is a stop, not a failure
	}
	if err = kube.VerifyLease(l, err, h.LeaseName); err != nil {
		return step.Lease{}, fmt.Errorf("reading lease %s/%s: %w", h.LeaseNamespace, h.LeaseName, err)
	}
	lease := step.Lease{Exists: true}
	if l.Spec.HolderIdentity != nil {
		lease.Holder = *l.Spec.HolderIdentity
	}
	if l.Spec.RenewTime != nil {
		lease.Renewed = l.Spec.RenewTime.Time
	}
	if l.Spec.LeaseDurationSeconds != nil {
		lease.Duration = time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
	}
	lease.StopText, lease.Stopped = l.Annotations[v1alpha1.AnnotationStop]
	return lease, nil
}

// write sends one patch, once. Unless the patch is written, write drops the fresh read, so that
// the next decision that needs one reads from the quorum again. write does not repeat a write
// with an unknown outcome: without another read, a repeated commit could land after an
// emergency stop was set. The precondition lets at most one of two writes to the same version
// land. A refusal with an unknown outcome is part of the next observations, because the host must
// not act as if it had not refused.
func (h *Host) write(ctx context.Context, n *turn.Node, w *step.Write) error {
	if w.Ack.Report == v1alpha1.ReportCommitted && !h.fresh.valid() {
		return nil // the fresh read has expired, so the next round reads everything again
	}
	p := kube.Patch{
		Node: n.Name, ResourceVersion: n.ResourceVersion, Labels: w.Labels, Annotations: w.Annotations,
		Unschedulable: w.Unschedulable, Manager: kube.FieldManager("host"),
	}
	obj, outcome, err := kube.Write(ctx, h.client, p)
	switch outcome {
	case kube.Written:
		h.view.Overlay(obj)
		h.fresh.wrote(n.ResourceVersion, obj.ResourceVersion)
		h.logWrite(n, w)
		return nil
	case kube.Conflict:
		h.fresh = nil
		h.view.Overlay(obj)
		return nil
	case kube.Gone:
		h.fresh = nil
		h.view.Forget(h.name, p.ResourceVersion)
		return nil
	case kube.Unknown:
		// Until the API server answers again, the host cannot see an emergency stop.
		h.drain.Stop()
		if w.Ack.Report == v1alpha1.ReportRefused {
			h.refusal = refusal{w.Ack, p.ResourceVersion}
		}
	}
	h.fresh = nil
	return err
}

// stopOthers stops the drain and the hooks, unless they are the effect of the decision. at is the
// Node's state. The steps of a plan stop when the host leaves their stage.
func (h *Host) stopOthers(ctx context.Context, at v1alpha1.State, do step.Effect) {
	if do != step.DoDrain {
		h.drain.Stop()
	}
	if do != step.DoHooks {
		h.hooks.Leave(ctx, at)
	}
}

// do starts the effect of a decision, unless the effect ran at the time of the observation. An
// effect that has ended since then must not start again, because the next decision depends on
// its result.
func (h *Host) do(ctx context.Context, o *step.Observation, do step.Effect) error {
	stage := effect.StageOf(&o.Node)
	switch {
	case do == step.DoDrain:
		h.drain.Start(ctx, stage, step.EvictionBy(&o.Node, o.Own), o.Drain.Running)
		return nil
	case do == step.DoNothing,
		do == step.DoHooks && o.Hooks.Running && !o.Hooks.Late,
		do == step.DoApply && o.Apply.Running:
		return nil
	case !h.fresh.valid():
		h.wake() // the fresh read has expired, so the next round reads everything again
		return nil
	}
	switch by := h.fresh.until(); do {
	case step.DoPermit:
		h.permit(stage, by)
		h.fresh = nil // the client may ask again, and a stop that is set meanwhile has to be seen
	case step.DoReboot:
		if err := h.reboot.Call(ctx, stage, by); err != nil {
			h.fresh = nil
			return hostError{err}
		}
		if h.reboot.Refusal(stage) != "" {
			h.fresh = nil
		}
	case step.DoHooks:
		s := h.currentSettings()
		h.hooks.Start(ctx, stage, o.Node.Retry, effect.HookLimit{Timeout: s.HookTimeout, Abort: s.HookAbort}, by)
	case step.DoApply:
		h.apply.Start(ctx, stage, effect.PlanApply(o.Node.Host, o.Sources.Changes), by)
	}
	return nil
}

// writeConditions writes the lifecycle conditions. The Node in the answer may contain other
// changes, which the watch then does not report again, so writeConditions wakes the loop.
func (h *Host) writeConditions(ctx context.Context, p kube.Patch) (kube.Outcome, error) {
	n, outcome, err := kube.Write(ctx, h.client, p)
	if n != nil && h.view.Overlay(n) {
		h.wake()
	}
	return outcome, err
}
