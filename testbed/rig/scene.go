package rig

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// Limits of waits. They are long because a test must also pass on a busy machine.
const (
	// Soon limits a wait that takes seconds on an idle machine.
	Soon = 4 * time.Minute
	// Rolled limits the wait for a whole rollout.
	Rolled = 10 * time.Minute
	// pollEvery is the interval between two tries of [Scene.Eventually].
	pollEvery = 100 * time.Millisecond
)

// Scene is a rig in a test. It has methods that act on the cluster and its hosts, and methods that wait. A method that fails ends the test, unless
// its comment says otherwise. A scene of real hosts has no Fleet; do not call a method that needs one.
type Scene struct {
	T *testing.T
	*Rig
}

// Play starts a rig. The referee gives its verdict when the test ends.
func Play(t *testing.T, cp *controlplane.ControlPlane, o Options) *Scene {
	t.Helper()
	s := Begin(t, cp, o)
	t.Cleanup(func() { s.Verdict() })
	return s
}

// Begin is [Play] for a test that needs the referee's report. The caller must call [Scene.Verdict] or [Rig.Close].
func Begin(t *testing.T, cp *controlplane.ControlPlane, o Options) *Scene {
	t.Helper()
	if o.OnEvent == nil {
		o.OnEvent = func(line string) { t.Log(line) }
	}
	// t.Context() would end before the cleanup functions run, and one of them gets the verdict.
	r, err := Start(context.Background(), cp, o)
	if err != nil {
		t.Fatal(err)
	}
	return &Scene{T: t, Rig: r}
}

// Verdict closes the rig, logs the referee's report, and fails the test if the report has violations. If the test has failed, Verdict first logs the
// end of each host's journal.
func (s *Scene) Verdict() Report {
	s.T.Helper()
	s.Journals()
	report, err := s.Close()
	s.Check(err)
	s.T.Logf("%s", report.String())
	return report
}

// Journals logs the end of each host's journal if the test has failed.
func (s *Scene) Journals() {
	s.T.Helper()
	if !s.T.Failed() {
		return
	}
	for _, h := range s.Fleet.Hosts {
		s.T.Logf("%s:\n%s", h.Name(), h.LogTail(80))
	}
}

// Must ends the test if err is not nil.
func (s *Scene) Must(err error) {
	s.T.Helper()
	if err != nil {
		s.T.Fatal(err)
	}
}

// Check marks the test as failed if err is not nil. The test continues.
func (s *Scene) Check(err error) {
	s.T.Helper()
	if err != nil {
		s.T.Error(err)
	}
}

// Within returns a context that ends after d or when the test ends.
func (s *Scene) Within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeoutCause(s.T.Context(), d, fmt.Errorf("%s have passed", d))
	s.T.Cleanup(cancel)
	return ctx
}

// Eventually calls cond until it returns true, for at most [Soon]. If cond never returns true, the test fails with the last error of cond, which may
// describe what cond saw.
func (s *Scene) Eventually(what string, cond func(context.Context) (bool, error)) {
	s.T.Helper()
	s.EventuallyWithin(Soon, what, cond)
}

// EventuallyWithin is [Scene.Eventually] with the limit d.
func (s *Scene) EventuallyWithin(d time.Duration, what string, cond func(context.Context) (bool, error)) {
	s.T.Helper()
	ctx := s.Within(d)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		ok, err := cond(ctx)
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			s.T.Fatalf("waiting for %s: %v; last: %v", what, context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// Host returns the host with the name.
func (s *Scene) Host(name string) *simhost.Host {
	s.T.Helper()
	h := s.Fleet.Host(name)
	if h == nil {
		s.T.Fatalf("no host %s", name)
	}
	return h
}

// Stage stages an update on hosts.
func (s *Scene) Stage(version string, names ...string) {
	s.T.Helper()
	for _, name := range names {
		s.Referee.WantMade(name)
		s.Must(s.Host(name).StageUpdate(version))
	}
}

// Sync waits until the referee has seen every write that happened before the call.
func (s *Scene) Sync() {
	s.T.Helper()
	s.Must(s.Referee.Sync(s.Within(Soon)))
}

// Now reads a Node with a quorum read.
func (s *Scene) Now(name string) *turn.Node {
	s.T.Helper()
	obj, err := s.ControlPlane.Client().CoreV1().Nodes().Get(s.Within(Soon), name, metav1.GetOptions{})
	s.Must(err)
	n := turn.FromNode(obj)
	return &n
}

// Until waits until cond returns true for the Node, and returns that version of the Node. The failure message quotes what, which describes the
// condition.
func (s *Scene) Until(name string, d time.Duration, what string, cond func(*turn.Node) bool) *turn.Node {
	s.T.Helper()
	obj, err := s.ControlPlane.WaitNode(s.Within(d), name, what, func(o *corev1.Node) bool {
		if o == nil {
			return false
		}
		n := turn.FromNode(o)
		return cond(&n)
	})
	s.Must(err)
	n := turn.FromNode(obj)
	return &n
}

// Reaches waits until the node is in the state and its host has acked the turn in that state.
func (s *Scene) Reaches(name string, state v1alpha1.State) *turn.Node {
	s.T.Helper()
	return s.Until(name, Soon, "to be "+string(state), func(n *turn.Node) bool {
		return n.State == state && n.Turn != "" && n.Ack.Turn == n.Turn
	})
}

// Commits waits until the host has acked the state with the report committed.
func (s *Scene) Commits(name string, state v1alpha1.State) *turn.Node {
	s.T.Helper()
	return s.Until(name, Soon, "to have committed in "+string(state), func(n *turn.Node) bool {
		return n.State == state && n.HasReport(v1alpha1.ReportCommitted)
	})
}

// Held waits until the coordinator holds the node for the reason.
func (s *Scene) Held(name string, reason v1alpha1.Reason) *turn.Node {
	s.T.Helper()
	return s.Until(name, Soon, "to be held: "+string(reason), func(n *turn.Node) bool { return n.Held == reason })
}

// Updated waits until the hosts run the version, and their nodes are idle and Ready, want nothing, and ended their last turn with Done.
func (s *Scene) Updated(version string, names ...string) {
	s.T.Helper()
	for _, name := range names {
		h := s.Host(name)
		s.Until(name, Rolled, "to be back with "+version, func(n *turn.Node) bool {
			return h.Version() == version && n.State == v1alpha1.StateIdle && n.BootID == h.BootID() && n.Ready &&
				n.Wants == v1alpha1.WantsNothing && n.Last != nil && n.Last.Result == v1alpha1.ResultDone
		})
	}
}

// Reports waits until the host's own status line contains text. The host's loop has then run with these facts.
func (s *Scene) Reports(name, text string) {
	s.T.Helper()
	s.Must(s.Host(name).WaitNotify(s.Within(Soon), fmt.Sprintf("reporting %q", text), func(n simhost.Notify) bool {
		return strings.Contains(n.Status, text)
	}))
}

// HostOf returns the host that leads in the term with the epoch, or nil.
func (s *Scene) HostOf(epoch string) *simhost.Host {
	name, _, _ := strings.Cut(epoch, "_")
	return s.Fleet.Host(name)
}
