package referee

import (
	"fmt"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Judge applies the rules to writes that its caller passes to it, in the order of their revisions. It serves a store that
// can call it for each write; a [Referee] follows etcd instead. Its methods are safe for concurrent use.
type Judge struct {
	mu     sync.Mutex
	engine *engine
	last   moment
}

// NewJudge returns a Judge that has seen nothing yet. What it sees first is not judged, until [Judge.Begin].
func NewJudge(opts Options) *Judge {
	j := &Judge{engine: newEngine(opts.withDefaults().config())}
	j.engine.first = true
	return j
}

// Begin ends the initial state: from now on everything is judged.
func (j *Judge) Begin() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.engine.first = false
}

func (j *Judge) at(rev int64, at time.Time) moment {
	j.last = moment{rev: rev, after: at, by: at}
	return j.last
}

// Node takes a version of a Node. A nil obj means that the Node was deleted.
func (j *Judge) Node(rev int64, at time.Time, name string, obj *corev1.Node) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.engine.onNode(j.at(rev, at), name, obj)
}

// Lease takes a version of a Lease; all but lockkeeper's are ignored. A nil obj means that the Lease does not exist.
func (j *Judge) Lease(rev int64, at time.Time, namespace, name string, obj *coordinationv1.Lease) {
	if namespace != v1alpha1.DefaultLeaseNamespace || name != v1alpha1.DefaultLeaseName {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.engine.onLease(j.at(rev, at), obj)
}

// Pod takes a version of a pod. A nil obj means that the pod is gone.
func (j *Judge) Pod(rev int64, at time.Time, namespace, name string, obj *corev1.Pod) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.engine.onPod(j.at(rev, at), namespace+"/"+name, obj)
}

// HostEvent takes an event of a host. All writes before it must have been passed on.
func (j *Judge) HostEvent(ev HostEvent) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last.after, j.last.by = ev.Time, ev.Time
	if w := j.engine.hostEvent(j.last, ev); w != nil {
		j.engine.settle(j.last, w)
	}
}

// SetBudget is [Referee.SetBudget].
func (j *Judge) SetBudget(at time.Time, n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last.after, j.last.by = at, at
	j.engine.setBudget(j.last, n)
}

// Declare is [Referee.Declare].
func (j *Judge) Declare(d Declaration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.engine.declared = append(j.engine.declared, d)
}

// Withdraw is [Referee.Withdraw].
func (j *Judge) Withdraw() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := len(j.engine.declared)
	j.engine.declared = nil
	return n
}

// Attack tells what attackers do from now on: docs/security.md says which rules do not hold then. What they break counts as expected.
func (j *Judge) Attack(a Attack) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.engine.attack = a
}

// Attack is what attackers have. The zero value is no attack.
type Attack struct {
	// Liars are the nodes whose kubelet's credential was stolen: lockkeeper believes what such a host says about itself.
	Liars []string
	// Thief is set if the coordinator's credential was stolen.
	Thief bool
}

// ofHosts are the rules about what a host does to its own node, or says about it. A host that lies can break them at its own node.
// So it can Released: the coordinator removes again what the host writes after the release. What only the coordinator decides (grants, states,
// epochs, promotions) holds at that node as well.
var ofHosts = []Rule{
	Budget, ControlPlane, Commit, Fence, Paused, Cancelled, Drain, Reboot, RebootTwice, Cordon, Mark, Uncordon, LeftCordoned, Evict, Released,
}

// ofCoordinators are the rules that only the coordinator enforces. A thief with its credential can grant every host its turn, and take a turn
// that has rebooted its host back to a stage before that.
var ofCoordinators = []Rule{Budget, Overgrant, ControlPlane, RebootTwice}

func (a *Attack) lies(node string) bool { return slices.Contains(a.Liars, node) }

// excuses returns why the attack may break the rule at the node, or "".
func (a *Attack) excuses(rule Rule, node string) string {
	switch {
	case a.lies(node) && slices.Contains(ofHosts, rule):
		return "its host lies"
	case a.Thief && slices.Contains(ofCoordinators, rule):
		return "a thief grants turns and writes states"
	}
	return ""
}

// End judges what is still open, and returns the verdict. The error lists how many violations there were, and the first.
func (j *Judge) End() (Report, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.engine.end(j.last)
	r := j.engine.snapshot()
	if n := r.Count(); n > 0 {
		return r, fmt.Errorf("the referee saw %d violations, first %s", n, r.Violations[0])
	}
	return r, nil
}

// Report returns the counts up to now.
func (j *Judge) Report() Report {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.engine.snapshot()
}

// Rewind tells that the store went back in time. The caller passes all objects of the restored state in resume; like the
// first ones they are not judged. What hosts and leaders did by what was lost is judged by what is there now.
func (j *Judge) Rewind(at time.Time, resume func()) {
	j.mu.Lock()
	j.last.after, j.last.by = at, at
	j.engine.rewind(j.last)
	j.mu.Unlock()
	resume()
	j.Begin()
}
