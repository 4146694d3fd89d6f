package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

const (
	// The first two hosts are candidates.
	leaderHosts, leaderCandidates = 4, 2
	// pollEvery is the interval of waits that have to poll.
	pollEvery = 50 * time.Millisecond
)

// leaderPolicyText has short timeouts for the waits that a round may cause, and no hooks, so a grant leads to the
// cordon at once.
const leaderPolicyText = `
rollout: {settle: 100ms, backoff: 1s, backoffMax: 1s, maxUnavailable: %d, maxTurnsPerDay: 48}
timeouts: {seen: 5s}
`

// leaderFleet is a fleet of hosts, each of whose processes is behind a proxy.
type leaderFleet struct {
	*rig.Scene
	update int // the last update, 4.update.0
}

func newLeaderFleet(t *testing.T, cp *controlplane.ControlPlane, binary string, budget int) *leaderFleet {
	t.Helper()
	return &leaderFleet{update: 1, Scene: rig.Begin(t, cp, rig.Options{
		Policy: fmt.Sprintf(leaderPolicyText, budget), Budget: budget, Lag: lag, Proxied: true, Work: rig.Spread(leaderHosts),
		Fleet: simhost.FleetOptions{
			Hosts: leaderHosts, Coordinators: leaderCandidates,
			// The first host in rollout order is not a candidate.
			Zones: []string{"b", "b", "a", "b"},
			Host: simhost.Options{
				Binary: binary, RestartDelay: 200 * time.Millisecond, DownTime: 100 * time.Millisecond, InhibitDelayMax: time.Second,
				Config: func(c simhost.Config) {
					c.Set("lease", "duration", 2*time.Second)
					c.Set("lease", "renew_deadline", 1500*time.Millisecond)
					c.Set("lease", "retry_period", 200*time.Millisecond)
					c.Set("sources", "poll_interval", 500*time.Millisecond)
				},
			},
		},
	})}
}

// close stops the fleet and returns the referee's report. A violation alone does not fail the test.
func (f *leaderFleet) close() rig.Report {
	f.Journals()
	report, err := f.Close()
	if report.Count() == 0 {
		f.Check(err)
	}
	f.T.Log(report.String())
	return report
}

func (f *leaderFleet) version() string { return fmt.Sprintf("4.%d.0", f.update) }

// nodes returns all Nodes from a quorum read.
func (f *leaderFleet) nodes() []turn.Node {
	f.T.Helper()
	all, _ := f.list()
	return all
}

// list returns all Nodes and the resourceVersion of the list.
func (f *leaderFleet) list() (all []turn.Node, at string) {
	f.T.Helper()
	ctx, cancel := within(rig.Soon)
	defer cancel()
	list, err := f.ControlPlane.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	f.Must(err)
	for i := range list.Items {
		all = append(all, turn.FromNode(&list.Items[i]))
	}
	return all, list.ResourceVersion
}

// node returns the Node with this name, or the zero Node.
func (f *leaderFleet) node(name string) turn.Node {
	f.T.Helper()
	for _, n := range f.nodes() {
		if n.Name == name {
			return n
		}
	}
	return turn.Node{}
}

// sees waits until cond holds and reports whether it did within d.
func sees(d time.Duration, cond func() bool) bool {
	late := time.NewTimer(d)
	defer late.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-late.C:
			return false
		}
	}
	return true
}

// until waits until cond holds, and fails the test after a timeout.
func (f *leaderFleet) until(what string, cond func() bool) {
	f.T.Helper()
	if !sees(rig.Soon, cond) {
		f.T.Fatalf("%v waiting for %s; the Nodes: %s", errPatience, what, f.describe())
	}
}

func (f *leaderFleet) describe() string {
	var all []string
	for _, n := range f.nodes() {
		all = append(all, fmt.Sprintf("%s is %s (wants %q, held %q, unschedulable %t, mark %t, ack %s)", n.Name, n.State, n.Wants, n.Held, n.Unschedulable, n.Mark, n.Ack))
	}
	return strings.Join(all, "; ")
}

// cordon edits the Node, as it was read, like an admin. nil uncordons.
func (f *leaderFleet) cordon(n *turn.Node, unschedulable any) bool {
	f.T.Helper()
	return f.TryPatch(n.Name, map[string]any{
		"metadata": map[string]any{"resourceVersion": n.ResourceVersion}, "spec": map[string]any{"unschedulable": unschedulable},
	})
}

// uncordon removes an admin's cordon unless it has another owner now.
func (f *leaderFleet) uncordon(name string) {
	f.T.Helper()
	f.until("the uncordon of "+name, func() bool {
		n := f.node(name)
		if !n.Unschedulable || n.Mark {
			return true
		}
		f.Referee.AdminUncordon(name)
		done := f.cordon(&n, nil)
		f.Sync()
		f.Referee.Withdraw()
		return done
	})
}
