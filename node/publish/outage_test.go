package publish

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/local"
)

// TestPublishAfterIdleOutage checks that an outage that an idle host notices only through its watch causes no writes
// while it lasts, and does not delay later writes.
func TestPublishAfterIdleOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		p, stop := publishing(t, t.TempDir(), s)
		defer stop()
		p.Report(resting, true)
		elapse(time.Minute)
		s.restart()
		s.fail(errors.New("connection refused"))
		away := resting
		away.API = &local.Failure{Error: "connection refused", Since: time.Now()}
		for range 120 { // an hour
			p.Report(away, true)
			elapse(30 * time.Second)
		}
		if len(s.writes) != 0 {
			t.Errorf("the host tried to write during the outage at %v", s.writes)
		}
		s.fail(nil)
		s.restart()
		p.Report(resting, true)
		p.Report(blockedBy("shop/web"), true)
		elapse(10 * time.Second)
		if got := s.object.Status.Blockers; len(got) != 1 {
			t.Errorf("the blockers 10 s after the outage are %+v", got)
		}
	})
}

// TestPublishBlip checks that an outage without any change causes no request of any host.
func TestPublishBlip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		p, stop := publishing(t, t.TempDir(), s)
		defer stop()
		p.Report(resting, true)
		elapse(time.Minute)
		s.restart()
		for range 10 {
			away := resting
			away.API = &local.Failure{Error: "connection refused", Since: time.Now()}
			p.Report(away, true)
			elapse(20 * time.Second)
			p.Report(resting, true)
			elapse(20 * time.Minute)
		}
		if len(s.writes) != 0 {
			t.Errorf("ten outages of 20 s were written at %v", s.writes)
		}
	})
}

// TestPublishGoesOn checks that a half-written kubeconfig does not count as an outage while the previous credential is
// in use.
func TestPublishGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		p, stop := publishing(t, t.TempDir(), s)
		defer stop()
		p.Report(resting, true)
		elapse(time.Minute)
		s.restart()
		since := time.Now()
		for i := range 600 {
			h := resting
			h.State, h.Turn, h.Detail = v1alpha1.StateDraining, "t1", fmt.Sprintf("%d pods to go", 600-i)
			h.API = &local.Failure{Error: "kubeconfig: no such file; its previous content is still in use", Since: since, Local: true, Usable: true}
			p.Report(h, true)
			elapse(time.Second)
		}
		if len(s.object.Status.Offline) != 0 {
			t.Errorf("events from a time with a connection are published as offline: %+v", s.object.Status.Offline)
		}
		if len(s.writes) != 1 {
			t.Errorf("%d writes, expected those of the turn and the credential", len(s.writes))
		}
		p.Report(resting, true)
		elapse(time.Minute)
		for _, c := range s.object.Status.Conditions {
			if c.Type == v1alpha1.ConditionClusterReachable && c.Message != "" {
				t.Errorf("ClusterReachable: %s", c.Message)
			}
		}
	})
}

// TestPublishFirstBootIsLong checks that a host that started hours before its API server publishes within 10 s of
// reaching it.
func TestPublishFirstBootIsLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{err: errors.New("connection refused")}
		p, stop := publishing(t, t.TempDir(), s)
		defer stop()
		away := local.Host{BootID: "b", API: &local.Failure{Error: "connection refused", Since: time.Now()}}
		for range 700 {
			p.Report(away, true)
			elapse(30 * time.Second)
		}
		s.fail(nil)
		p.Report(resting, true)
		elapse(20 * time.Second)
		if s.object == nil {
			t.Error("nothing is published 20 s after the first contact with the API server")
		}
	})
}

// TestPublishFlapping checks that a fact that changes every second for any time causes a limited number of writes, and
// that the final value is written.
func TestPublishFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		p, stop := publishing(t, t.TempDir(), s)
		defer stop()
		for i := range 3600 {
			p.Report(blockedBy(fmt.Sprintf("shop/web-%d", i%2)), true)
			elapse(time.Second)
		}
		if n := len(s.writes); n < 100 || n > 145 { // 20, and then one every 30 s
			t.Errorf("%d writes in an hour", n)
		}
		p.Report(blockedBy("shop/last"), true)
		elapse(31 * time.Second)
		if got := s.object.Status.Blockers[0].Name; got != "shop/last" {
			t.Errorf("the final status names %s", got)
		}
	})
}

// TestPublishSettled checks that a process publishes nothing before the host knows enough, not even at its end, and
// after that only what differs from the published status.
func TestPublishSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, dir := &store{}, t.TempDir()
		p, stop := publishing(t, dir, s)
		p.Report(resting, true)
		elapse(10 * time.Second)
		stop()
		first := s.object.Status

		starting := resting
		starting.Wants, starting.EngineError = "", "not asked yet"
		p, stop = publishing(t, dir, s)
		p.Report(starting, false)
		elapse(time.Minute)
		stop()
		p, stop = publishing(t, dir, s)
		p.Report(starting, false)
		elapse(time.Second)
		p.Report(resting, true)
		elapse(time.Minute)
		stop()
		if len(s.writes) != 0 {
			t.Errorf("a restart without any change writes at %v:\n%+v\nafter\n%+v", s.writes, s.object.Status, first)
		}

		// This process has the next version.
		p, stop = publishing(t, dir, s)
		p.Version = "v2"
		p.Report(starting, false)
		elapse(time.Second)
		p.Report(resting, true)
		elapse(time.Minute)
		stop()
		if len(s.writes) != 1 || s.object.Status.Version != "v2" {
			t.Errorf("an upgrade writes at %v, version %q; expected one write", s.writes, s.object.Status.Version)
		}
	})
}

// TestPublishReadFails checks that nothing is written while the HostUpdate cannot be read.
func TestPublishReadFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{err: errors.New("no such kind")}
		p, stop := publishing(t, t.TempDir(), s)
		p.Report(local.Host{Node: "n1", UID: "u", BootID: "b"}, true)
		elapse(time.Minute)
		stop()
		if len(s.writes) != 0 {
			t.Errorf("writes at %v", s.writes)
		}
	})
}
