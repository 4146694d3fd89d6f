package virtual

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/systemd"
	"lockkeeper.dev/lockkeeper/testbed/memhost"
)

var restartService = []v1alpha1.Action{{Type: v1alpha1.ActionRestart, Unit: service}}

// TestService checks that a host restarts its service for a file that changes, once for each time that a fault cuts the restart off, and
// that a crash during the restart is the restart.
func TestService(t *testing.T) {
	for _, c := range []struct {
		fault Fault
		want  []string // results of the service's starts
		boots int
	}{
		{Fault{Kind: kindCompact}, []string{"success"}, 1},
		{Fault{Kind: kindKill}, []string{"success"}, 1}, // systemd goes on with the job
		{Fault{Kind: kindCrash, For: time.Minute}, []string{"power-loss"}, 2},
	} {
		t.Run(string(c.fault.Kind), func(t *testing.T) {
			c.fault.At = Trigger{Process: "n1", Class: "restart", N: 1}
			inBubble(t, Options{Hosts: 2, Apply: restartService, Plan: Plan{Length: time.Hour, Faults: []Fault{c.fault}}}, func(t *testing.T, f *Fleet) {
				time.Sleep(time.Minute) // until the host has read what is in effect
				calm := f.Start()
				f.ChangeFile("n1", "a", contentNew)
				if f.Unfinished() == "" {
					t.Error("a host that has not restarted its service has arrived")
				}
				<-calm
				if why := f.Arrive(time.Hour); why != "" {
					t.Error(why)
				}
				var ran []string
				for _, r := range f.Host(0).mem.Units().Runs() {
					ran = append(ran, r.Result)
				}
				if boots := f.Host(0).mem.Boots(); !slices.Equal(ran, c.want) || boots != c.boots || f.exec.Fired()[c.fault.Kind] != 1 {
					t.Errorf("the service's starts: %q in %d boots, expected %q in %d; faults: %v", ran, boots, c.want, c.boots, f.exec.Fired())
				}
			})
		})
	}
}

// TestFailingService checks that the turn of a host whose service does not start fails and holds its node, that one whose service hangs is
// overdue until an admin's retry ends it, and that both arrive once their services start.
func TestFailingService(t *testing.T) {
	inBubble(t, Options{Hosts: 2, Apply: restartService, Policy: func(s *v1alpha1.DisruptionPolicySpec) {
		s.Rollout.MaxUnavailable, s.Rollout.MaxFailed = intstr.FromInt(2), 1
		s.Timeouts.Applying.Duration = 2 * time.Minute
	}}, func(t *testing.T, f *Fleet) {
		f.Start()
		time.Sleep(time.Minute)
		f.SetUnit("n1", service, unitFails)
		f.SetUnit("n2", service, unitHangs)
		for _, host := range f.Hosts() {
			f.ChangeFile(host, "a", contentNew)
		}
		time.Sleep(10 * time.Minute)
		failed, hangs := turn.FromNode(f.Node("n1")), turn.FromNode(f.Node("n2"))
		if l := failed.Last; l == nil || l.Result != v1alpha1.ResultFailed || l.Reason != v1alpha1.ReasonApplyFailed || failed.Held != v1alpha1.ReasonFailed {
			t.Errorf("n1 is held %q after %+v, expected Failed after Failed, ApplyFailed", failed.Held, l)
		}
		if hangs.State != v1alpha1.StateApplying || hangs.Held != v1alpha1.ReasonOverdue {
			t.Errorf("n2 is in %s and held %q, expected applying and Overdue", hangs.State, hangs.Held)
		}
		retry(f.exec, Fault{On: "n2"})
		time.Sleep(10 * time.Second)
		if l := turn.FromNode(f.Node("n2")).Last; l == nil || l.Turn != hangs.Turn || l.Result != v1alpha1.ResultFailed || l.Reason != v1alpha1.ReasonCleared {
			t.Errorf("the turn of n2 ended as %+v, expected Failed, Cleared", l)
		}
		for _, host := range f.Hosts() {
			f.SetUnit(host, service, unitWorks)
		}
		if why := f.Arrive(time.Hour); why != "" {
			t.Error(why)
		}
	})
}

// TestUndoneChange checks that a host restarts its service again after a turn that restarted it and failed, if a file becomes what it was
// before that turn: the service runs with a content that the file no longer has.
func TestUndoneChange(t *testing.T) {
	apply := append(slices.Clone(restartService), v1alpha1.Action{Type: v1alpha1.ActionRestart, Unit: afterService})
	inBubble(t, Options{Hosts: 1, Apply: apply, Policy: func(s *v1alpha1.DisruptionPolicySpec) { s.Rollout.MaxFailed = 1 }}, func(t *testing.T, f *Fleet) {
		f.Start()
		time.Sleep(time.Minute)
		f.SetUnit("n1", afterService, unitFails)
		f.ChangeFile("n1", "a", contentNew)
		time.Sleep(10 * time.Minute)
		if l := turn.FromNode(f.Node("n1")).Last; l == nil || l.Result != v1alpha1.ResultFailed || l.Reason != v1alpha1.ReasonApplyFailed {
			t.Errorf("its turn ended as %+v, expected Failed, ApplyFailed", l)
		}
		f.SetUnit("n1", afterService, unitWorks)
		f.ChangeFile("n1", "a", contentUndo)
		retry(f.exec, Fault{On: "n1"})
		if why := f.Arrive(time.Hour); why != "" {
			t.Error(why)
		}
		var ran []string
		for _, r := range f.Host(0).mem.Units().Runs() {
			ran = append(ran, r.Unit+" "+r.Result)
		}
		if want := []string{service + " success", afterService + " exit-code", service + " success", afterService + " success"}; !slices.Equal(ran, want) {
			t.Errorf("it ran %q, expected %q", ran, want)
		}
	})
}

// TestServiceViolations checks that each rule about applying has a run that breaks it, and what none forbids.
func TestServiceViolations(t *testing.T) {
	for name, x := range map[string]struct {
		do   func(f *Fleet, m *Machine)
		want string
	}{
		"no commit": {func(f *Fleet, m *Machine) { m.applies("it calls RestartUnit") }, "Apply: n1: it calls RestartUnit"},
		"long after the end": {func(f *Fleet, m *Machine) {
			m.service.applied = time.Now()
			time.Sleep(mostAge + time.Second)
			m.applies("it calls RestartUnit")
		}, "Apply: n1: it calls RestartUnit"},
		"in a store that was set back": {func(f *Fleet, m *Machine) {
			m.service.applies = true
			f.Restore(f.Snapshot())
			m.applies("it calls RestartUnit")
		}, ""},
		"told to stop": {func(f *Fleet, m *Machine) {
			a := m.agents[0]
			a.tell()
			time.Sleep(time.Second)
			units := systemd.Units{Bus: &systemd.Bus{Dial: a.dial}}
			if err := units.DaemonReload(f.ctx, time.Now().Add(time.Minute)); err != nil {
				t.Error(err)
			}
		}, "Told to stop: n1: it calls Reload"},
		"done, and failed": {func(f *Fleet, m *Machine) {
			m.serviceEnded(memhost.Run{Unit: service, Result: "exit-code"})
			obj := f.Node("n1").DeepCopy()
			obj.Annotations[v1alpha1.AnnotationLast] = `{"turn":"t1","result":"Done","changes":[{"source":"File","name":"/etc/app/a","version":"absent"}],"end":"2000-01-01T00:00:00Z"}`
			m.judge(obj)
		}, "Apply: the turn t1 of n1 is done"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := New(t.TempDir(), Options{Hosts: 1})
				defer f.Close()
				time.Sleep(time.Minute)
				x.do(f, f.Host(0))
				if why := f.Verdict(); !strings.Contains(why, x.want) || x.want == "" && why != "" {
					t.Errorf("%q, expected %q", why, x.want)
				}
			})
		})
	}
}

// TestChangesThatCount checks that a change of a file counts once the host has read what is in effect, and not before, nor after a boot.
func TestChangesThatCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(t.TempDir(), Options{Hosts: 1, Apply: restartService})
		defer f.Close()
		m := f.Host(0)
		expect := func(when, want string) {
			t.Helper()
			if got := m.notInEffect(); !strings.HasPrefix(got, want) || want == "" && got != "" {
				t.Errorf("%s: %q, expected %q", when, got, want)
			}
		}
		f.ChangeFile("n1", "a", contentNew)
		expect("before the first read", "")
		time.Sleep(time.Minute)
		f.Kill("n1")
		f.ChangeFile("n1", "b", contentNew)
		expect("after it", service+" was not restarted since /etc/app/b changed")
		f.ChangeFile("n1", "b", contentRead)
		expect("changed back", "")
		f.ChangeFile("n1", "b", contentUndo)
		expect("changed back and undone", service+" was not restarted since /etc/app/b changed")
		f.ChangeFile("n1", "b", contentUndo)
		expect("undone once more", "")
		f.ChangeFile("n1", "b", contentNew)
		f.Crash("n1")
		f.PowerOn("n1")
		expect("after a boot", "")
	})
}
