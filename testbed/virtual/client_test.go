package virtual

import (
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
)

// TestClients checks that a fleet of hosts with FleetLock clients rolls an update, one node at a time, and that the clients reboot the hosts.
func TestClients(t *testing.T) {
	inBubble(t, Options{Hosts: 3, Workloads: 2, Clients: []int{0, 1, 2}}, func(t *testing.T, f *Fleet) {
		f.stageAll("2.0.0")
		if why := f.Arrive(3 * time.Hour); why != "" {
			t.Errorf("after three hours: %s", why)
		}
		if r, _ := f.Judge.End(); r.Reboots != 3 || r.MaxDisturbed != 1 {
			t.Errorf("%d reboots with at most %d nodes disturbed, expected 3 and 1", r.Reboots, r.MaxDisturbed)
		}
		for _, m := range f.hosts {
			if m.mem.Boots() != 2 {
				t.Errorf("%s has booted %d times, expected 2", m.name, m.mem.Boots())
			}
		}
	})
}

// TestSilentClient checks that a host whose client disappears after it was permitted to reboot keeps its turn until an admin reboots it.
func TestSilentClient(t *testing.T) {
	inBubble(t, Options{Hosts: 2, Clients: []int{1}, Plan: plan(t, "n2#1:client,permitted client-stop n2 for=2h mode=by-hand")}, func(t *testing.T, f *Fleet) {
		f.Stage("n2", "2.0.0")
		calm := f.Start()
		time.Sleep(90 * time.Minute)
		if n := turn.FromNode(f.Node("n2")); n.State != v1alpha1.StateRebooting || n.Held != v1alpha1.ReasonOverdue || f.Host(1).mem.Boots() != 1 {
			t.Errorf("it is in %s and held %q after %d boots, expected rebooting, Overdue and 1", n.State, n.Held, f.Host(1).mem.Boots())
		}
		<-calm
		if why := f.Arrive(2 * time.Hour); why != "" {
			t.Error(why)
		}
	})
}

// TestForgottenPermission checks that a host arrives whose client called for its reboot in vain, after the Node has lost the turn in which it
// was permitted to: an admin restarts the client, and it reboots the host in another turn.
func TestForgottenPermission(t *testing.T) {
	for name, fault := range map[string]string{"rewind": "rewind for=10m", "replaced": "replace-node n2 for=10s"} {
		t.Run(name, func(t *testing.T) {
			p := plan(t, "n2#1:client,permitted logind n2 for=1m mode=refuse\nn2#1:client,permitted+2m "+fault)
			inBubble(t, Options{Hosts: 2, Clients: []int{1}, ClientsAsk: time.Minute, Plan: p}, func(t *testing.T, f *Fleet) {
				f.Start()
				time.Sleep(15 * time.Minute) // so that the store is set back to a time before the turn
				f.Stage("n2", "2.0.0")
				time.Sleep(45 * time.Minute)
				if n := turn.FromNode(f.Node("n2")); n.InTurn() || n.Wants != v1alpha1.WantsNothing || f.Host(1).mem.Boots() != 1 {
					t.Fatalf("it is in %s and wants %q after %d boots, expected idle, nothing and 1", n.State, n.Wants, f.Host(1).mem.Boots())
				}
				if why := f.Arrive(2 * time.Hour); why != "" {
					t.Error(why)
				}
				if f.Host(1).mem.Boots() != 2 {
					t.Errorf("it has booted %d times, expected 2", f.Host(1).mem.Boots())
				}
			})
		})
	}
}

// TestAsksAgain checks that a client that asks again is given no permission while its node is paused or uncordoned, although it may have
// permission from before, and that the host arrives after that.
func TestAsksAgain(t *testing.T) {
	for _, meanwhile := range []string{"intent n2 for=30m mode=paused", "uncordon n2"} {
		t.Run(meanwhile, func(t *testing.T) {
			p := plan(t, "n2#1:client,permitted client-hang-up n2\nn2#1:client,permitted+1s "+meanwhile)
			inBubble(t, Options{Hosts: 2, Clients: []int{1}, ClientsAsk: time.Minute, Plan: p}, func(t *testing.T, f *Fleet) {
				f.Stage("n2", "2.0.0")
				f.Start()
				time.Sleep(25 * time.Minute)
				if n := turn.FromNode(f.Node("n2")); !f.Host(1).permits(&n) || f.Host(1).mem.Boots() != 1 {
					t.Errorf("it is in %s with the ack %q after %d boots, expected the commit and 1", n.State, n.Ack, f.Host(1).mem.Boots())
				}
				if why := f.Arrive(3 * time.Hour); why != "" {
					t.Error(why)
				}
			})
		})
	}
}

// plan returns a plan of three hours with the faults.
func plan(t *testing.T, faults string) Plan {
	t.Helper()
	p, err := Parse("plan seed=1 length=3h0m0s\n" + faults)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
