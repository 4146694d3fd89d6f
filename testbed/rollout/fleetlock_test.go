package rollout

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/rig"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
	"lockkeeper.dev/lockkeeper/testbed/zincati"
)

const clientsMachineID = "1c09ca98649c4c7abc779cd04c96812e"

// withClient gives the host with this name a FleetLock client in place of update_engine. It returns the client.
func withClient(t *testing.T, name string, o *rig.Options) *zincati.Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	id, err := zincati.AppID(clientsMachineID)
	if err != nil {
		t.Fatal(err)
	}
	each := o.Fleet.Each
	o.Fleet.Each = func(i int, h *simhost.Options) {
		if each != nil {
			each(i, h)
		}
		if h.Name != name {
			return
		}
		h.WithoutEngine = true
		before := h.Config
		h.Config = func(c simhost.Config) {
			if before != nil {
				before(c)
			}
			c.Set("fleetlock", "listen", address)
			c.Set("fleetlock", "id", id)
		}
	}
	return &zincati.Client{BaseURL: "http://" + address + "/", Identity: zincati.Identity{ID: id, Group: zincati.DefaultGroup}}
}

// TestFleetLock rolls an update through three hosts, of which one reboots by FleetLock.
func TestFleetLock(t *testing.T) {
	t.Parallel()
	const name = "node-3"
	o := options(3, "rollout: {settle: 1s}")
	client := withClient(t, name, &o)
	s := rig.Begin(t, pool.Take(t), o)
	h := s.Host(name)

	var staged atomic.Bool
	var mu sync.Mutex
	var log []string
	z := &zincati.Agent{
		Client: client, Refresh: time.Second, Postponement: 300 * time.Millisecond, Staged: staged.Load,
		Finalize: func(context.Context) error {
			h.SetNextBoot(simhost.NextBoot{Version: newVersion})
			return nil
		},
		Reboot: h.CallReboot,
		Log: func(line string) {
			mu.Lock()
			defer mu.Unlock()
			log = append(log, line)
		},
	}
	// Users are logged in twice when the client has its slot, so it asks three times.
	sessions := atomic.Int32{}
	z.Sessions = func() bool { return sessions.Add(1) <= 2 }
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var running sync.WaitGroup
	running.Go(func() { _ = z.Run(ctx) }) // its only error is that of ctx

	s.Stage(newVersion, "node-1", "node-2")
	staged.Store(true)
	s.Must(s.Fleet.WaitUpdated(s.Within(2*rig.Rolled), newVersion))
	n := s.Now(name)
	report := s.Verdict()
	stop()
	running.Wait()
	if len(report.Updated) != 3 || report.Reboots != 3 || report.MaxDisturbed != 1 {
		t.Errorf("%s, expected 3 of 3, 3 reboots, at most 1 disrupted at once", report.Summary(3))
	}
	if n.Last == nil || n.Last.Result != v1alpha1.ResultDone || !v1alpha1.Has(n.Last.Changes, v1alpha1.SourceFleetLock) {
		t.Errorf("the client's turn: %+v, expected Done, for FleetLock", n.Last)
	}
	journal := h.LogTail(100000)
	if strings.Contains(journal, string(v1alpha1.MessageRebootCalled)) || !strings.Contains(journal, "the FleetLock client may reboot this host") {
		t.Errorf("lockkeeper rebooted the host by itself, or did not log the permission:\n%s", h.LogTail(60))
	}
	mu.Lock()
	defer mu.Unlock()
	granted := slices.DeleteFunc(slices.Clone(log), func(line string) bool { return !strings.HasPrefix(line, "slot granted") })
	if len(granted) != 3 || log[len(log)-1] != "update finalized, rebooting" {
		t.Errorf("the client logged\n%s\nexpected three slots, and that it reboots", strings.Join(log, "\n"))
	}
}

// clientScene is a scene with one host whose FleetLock client is the test.
type clientScene struct {
	*scene
	name   string
	client *zincati.Client
}

// ask sends a request for permission, whose answer comes later.
func (s *clientScene) ask(ctx context.Context) <-chan error {
	answered := make(chan error, 1)
	go func() {
		a, err := s.client.PreReboot(ctx)
		if err == nil && !a.OK {
			err = fmt.Errorf("%d %s: %s", a.Status, a.Kind, a.Value)
		}
		answered <- err
	}()
	return answered
}

// permitted waits until a request has permission.
func (s *clientScene) permitted(answer <-chan error) {
	s.T.Helper()
	select {
	case err := <-answer:
		s.Must(err)
	case <-time.After(rig.Soon):
		s.T.Fatalf("no answer for %v; the end of the host's log:\n%s", rig.Soon, s.Host(s.name).LogTail(40))
	}
}

// steady reports steady-state.
func (s *clientScene) steady() {
	s.T.Helper()
	a, err := s.client.SteadyState(s.Within(rig.Soon))
	s.Must(err)
	if !a.OK {
		s.T.Fatalf("steady-state is refused: %+v", a)
	}
}

// mayReboot checks that the turn that gave permission is committed and under way.
func (s *clientScene) mayReboot(turnID string) {
	s.T.Helper()
	n := s.Now(s.name)
	if n.State != v1alpha1.StateRebooting || n.Turn != turnID || !n.Committed() || n.Host.Permits != turnID {
		s.T.Errorf("%s is in %s, turn %s, committed %t, permits %q; expected that the turn %s stays committed", s.name, n.State, n.Turn, n.Committed(), n.Host.Permits, turnID)
	}
}

// actsWithin is how long after the emergency stop a host may act on what it read before it: 10 s, and room for a busy machine.
const actsWithin = 20 * time.Second

// TestFleetLockTurns has what a client may do in each part of a turn: ask again, withdraw, reboot without permission, or not
// reboot with permission.
func TestFleetLockTurns(t *testing.T) {
	t.Parallel()
	const name = "node-2"
	o := options(2, "{rollout: {settle: 1s, maxFailed: 10}, timeouts: {rebooting: 10s}}")
	o.Fleet.Coordinators = 1
	config("reboot", "session_delay", 2*time.Second)(&o)
	client := withClient(t, name, &o)
	s := &clientScene{scene: &scene{Scene: rig.Play(t, pool.Take(t), o)}, name: name, client: client}
	s.watcher = s.watch()
	h := s.Host(name)
	s.steady()

	t.Log("a request that its client withdraws during the drain")
	b := s.block(name)
	ctx, hangUp := context.WithCancel(t.Context())
	asked := s.ask(ctx)
	s.Commits(name, v1alpha1.StateDraining)
	hangUp()
	if err := <-asked; !errors.Is(err, context.Canceled) {
		t.Errorf("the request that was cut off: %v", err)
	}
	if n := s.Now(name); n.State != v1alpha1.StateDraining {
		t.Errorf("in %s, expected that the turn continues while the client may ask again", n.State)
	}
	s.steady()
	s.ended(name, v1alpha1.ResultCancelled, v1alpha1.ReasonWantGone)
	s.schedulable(name)
	b.lift()

	t.Log("a reboot without permission, during the turn")
	lift := h.Logind().Hold(blocker)
	s.ask(t.Context())
	s.Reaches(name, v1alpha1.StateRebooting)
	lift()
	boot := h.BootID()
	s.Must(h.Crash(simhost.CrashOptions{}))
	if h.BootID() == boot {
		t.Error("the host has not booted")
	}
	s.ended(name, v1alpha1.ResultDone, "")

	t.Log("permission, and the client does not reboot")
	s.Must(h.Logind().SetSessions(simhost.Session{ID: "1", User: "ada", TTY: "tty1"}))
	asked = s.ask(t.Context())
	n := s.Reaches(name, v1alpha1.StateRebooting)
	s.Reports(name, "Sessions") // the user is warned, once
	s.permitted(asked)
	s.mayReboot(n.Turn)
	s.permitted(s.ask(t.Context())) // it asks again, because the user is logged in
	s.steady()                      // a restart of its service
	s.Held(name, v1alpha1.ReasonOverdue)
	s.mayReboot(n.Turn)
	h.StopLockkeeper()
	s.Must(h.StartLockkeeper())
	s.Eventually("the next process to serve FleetLock", func(ctx context.Context) (bool, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", strings.Trim(strings.TrimPrefix(client.BaseURL, "http://"), "/"))
		if err != nil {
			return false, err
		}
		return true, conn.Close()
	})
	s.permitted(s.ask(t.Context())) // it permits the reboot too
	s.Stop("a test")
	late := s.ask(t.Context())
	stopped, answered := time.Now(), time.Time{}
	s.Eventually("the host to hold a request because of the stop", func(context.Context) (bool, error) {
		select {
		case err := <-late: // by what the host has read before the stop
			s.Must(err)
			late, answered = s.ask(t.Context()), time.Now()
			return false, nil
		default:
			return strings.Contains(h.Notify().Status, "Stopped"), nil
		}
	})
	if after := answered.Sub(stopped); after > actsWithin {
		t.Errorf("a request is answered %v after the emergency stop was set, expected at most %v", after, actsWithin)
	}
	s.mayReboot(n.Turn)
	s.resume()
	s.permitted(late)
	h.SetNextBoot(simhost.NextBoot{Version: newVersion})
	s.Must(h.CallReboot(s.Within(rig.Soon))) // an admin reboots the host
	if last := s.ended(name, v1alpha1.ResultDone, "").Last; last.Turn != n.Turn || !v1alpha1.Has(last.Changes, v1alpha1.SourceFleetLock) {
		t.Errorf("the turn that ended is %+v, expected %s, for FleetLock", last, n.Turn)
	}
	s.Until(name, rig.Soon, "to want nothing", func(n *turn.Node) bool { return n.Wants == v1alpha1.WantsNothing })
}
