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

// Bounds of waits. They are long because a test also has to pass on a machine that does other work.
const (
	// Soon bounds what takes seconds on an idle machine.
	Soon = 4 * time.Minute
	// Rolled bounds a whole rollout.
	Rolled = 10 * time.Minute
	// pollEvery is how often [Scene.Eventually] tries.
	pollEvery = 100 * time.Millisecond
)

// A Scene is a rig in a test: it has what tests do to a cluster and its hosts, and what they wait for. A method that fails ends the
// test, unless its comment says otherwise. A scene of real hosts has no Fleet, and no method that needs one may be called.
type Scene struct {
	T *testing.T
	*Rig
}

// Play starts a rig. At the end of the test the referee gives its verdict.
func Play(t *testing.T, cp *controlplane.ControlPlane, o Options) *Scene {
	t.Helper()
	s := Begin(t, cp, o)
	t.Cleanup(func() { s.Verdict() })
	return s
}

// Begin is [Play] for a test that needs the referee's report: the caller calls [Scene.Verdict] or [Rig.Close].
func Begin(t *testing.T, cp *controlplane.ControlPlane, o Options) *Scene {
	t.Helper()
	if o.OnEvent == nil {
		o.OnEvent = func(line string) { t.Log(line) }
	}
	// Not t.Context(), which ends before the cleanups, and the verdict is one.
	r, err := Start(context.Background(), cp, o)
	if err != nil {
		t.Fatal(err)
	}
	return &Scene{T: t, Rig: r}
}

// Verdict closes the rig, logs the referee's report, and fails the test if the referee objects. After a failure it first logs the end
// of each host's journal.
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

// Must ends the test if there is an error.
func (s *Scene) Must(err error) {
	s.T.Helper()
	if err != nil {
		s.T.Fatal(err)
	}
}

// Check fails the test if there is an error, and lets it continue.
func (s *Scene) Check(err error) {
	s.T.Helper()
	if err != nil {
		s.T.Error(err)
	}
}

// Within returns a context that ends after d, or with the test.
func (s *Scene) Within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeoutCause(s.T.Context(), d, fmt.Errorf("%s have passed", d))
	s.T.Cleanup(cancel)
	return ctx
}

// Eventually repeats cond until it holds, for [Soon] at most. The test then fails with the last error, which may describe what cond saw.
func (s *Scene) Eventually(what string, cond func(context.Context) (bool, error)) {
	s.T.Helper()
	s.EventuallyWithin(Soon, what, cond)
}

// EventuallyWithin is [Scene.Eventually] with another bound.
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

// Sync waits until the referee has seen everything that was written so far.
func (s *Scene) Sync() {
	s.T.Helper()
	s.Must(s.Referee.Sync(s.Within(Soon)))
}

// Now reads a Node from the quorum.
func (s *Scene) Now(name string) *turn.Node {
	s.T.Helper()
	obj, err := s.ControlPlane.Client().CoreV1().Nodes().Get(s.Within(Soon), name, metav1.GetOptions{})
	s.Must(err)
	n := turn.FromNode(obj)
	return &n
}

// Until waits until cond holds for the Node, and returns that version of it. What describes the condition for the error.
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

// Reaches waits until the host has acked the turn that brought its node into the state.
func (s *Scene) Reaches(name string, state v1alpha1.State) *turn.Node {
	s.T.Helper()
	return s.Until(name, Soon, "to be "+string(state), func(n *turn.Node) bool {
		return n.State == state && n.Turn != "" && n.Ack.Turn == n.Turn
	})
}

// Commits waits for the host's ack committed in the state.
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

// Updated waits until the hosts run the version, and their nodes are idle, Ready and want nothing after a turn that is Done.
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

// Reports waits until the host's own status line contains a text: its loop has run with these facts.
func (s *Scene) Reports(name, text string, d time.Duration) {
	s.T.Helper()
	s.Must(s.Host(name).WaitNotify(s.Within(d), fmt.Sprintf("reporting %q", text), func(n simhost.Notify) bool {
		return strings.Contains(n.Status, text)
	}))
}

// HostOf returns the host whose term has the epoch, or nil.
func (s *Scene) HostOf(epoch string) *simhost.Host {
	name, _, _ := strings.Cut(epoch, "_")
	return s.Fleet.Host(name)
}
