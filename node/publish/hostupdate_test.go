package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/hostupdate"
	"lockkeeper.dev/lockkeeper/node/local"
)

// store is a HostUpdate that records every write.
type store struct {
	mu     sync.Mutex
	err    error
	object *v1alpha1.HostUpdate
	writes []time.Duration // since the start
	reads  int
	start  time.Time
	uid    string // of the last write
	during func() // called once, during the next write; may be nil
}

func (s *store) Read(context.Context) (*v1alpha1.HostUpdate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	return s.object, s.err
}

// put replaces the object.
func (s *store) put(u *v1alpha1.HostUpdate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.object = u
}

// fail makes requests fail with err, or succeed if err is nil.
func (s *store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// restart resets the recorded requests and their start time.
func (s *store) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start, s.writes, s.reads = time.Now(), nil, 0
}

func (s *store) Write(_ context.Context, uid string, status *v1alpha1.HostUpdateStatus) error {
	s.mu.Lock()
	during := s.during
	s.during = nil
	s.mu.Unlock()
	if during != nil {
		during()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes, s.uid = append(s.writes, time.Since(s.start)), uid
	if s.err != nil {
		return s.err
	}
	s.object = &v1alpha1.HostUpdate{Status: *status.DeepCopy()}
	s.object.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", UID: "u"}}
	return nil
}

func publishing(t *testing.T, dir string, s *store) (p *HostUpdate, stop func()) {
	t.Helper()
	p = NewHostUpdate(Options{Version: "v1", Log: slog.New(slog.DiscardHandler), StateDir: dir, FirstRead: func() {},
		Coordinator: func() local.Coordinator { return local.Coordinator{Role: v1alpha1.RoleHost} }})
	s.restart()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { p.Run(ctx, s) })
	wg.Go(func() { p.KeepOffline(ctx) })
	return p, func() { cancel(); wg.Wait() }
}

// elapse lets time pass, and lets all goroutines do what is due.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

var resting = local.Host{Node: "n1", UID: "u", BootID: "b", State: v1alpha1.StateIdle, Wants: v1alpha1.WantsNothing}

func blockedBy(name string) local.Host {
	h := resting
	h.State = v1alpha1.StateDraining
	h.Blockers = []v1alpha1.Blocker{{Kind: v1alpha1.BlockerBudget, Name: v1alpha1.UpdateName(name), Message: "needs 3", Since: metav1.NewTime(time.Unix(1000, 0))}}
	return h
}

// TestPublishPace checks that a change is written within 3 s, progress every 10 s, and unchanged content never.
func TestPublishPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		p, stop := publishing(t, t.TempDir(), s)
		defer stop()
		p.Report(resting, true)
		elapse(10 * time.Second)
		if fmt.Sprint(s.writes) != "[3s]" {
			t.Fatalf("the first report was written at %v, expected 3 s after the start", s.writes)
		}
		for range 3600 { // an idle hour
			p.Report(resting, true)
			elapse(time.Second)
		}
		if len(s.writes) != 1 {
			t.Fatalf("an idle host writes at %v", s.writes)
		}
		// A blocker appears, and another one a second later: two writes, 3 s apart.
		s.restart()
		p.Report(blockedBy("shop/web"), true)
		elapse(time.Second)
		p.Report(blockedBy("shop/db"), true)
		elapse(time.Second)
		p.Report(blockedBy("shop/api"), true)
		elapse(time.Minute)
		if fmt.Sprint(s.writes) != "[0s 3s]" {
			t.Errorf("three blockers within 2 s are written at %v, expected [0s 3s]", s.writes)
		}
		// Progress: the count changes every second.
		s.restart()
		for i := range 29 {
			h := blockedBy("shop/api")
			h.Drain = &v1alpha1.DrainStatus{Total: 100, Evicted: int32(i), Remaining: int32(100 - i)}
			p.Report(h, true)
			elapse(time.Second)
		}
		if fmt.Sprint(s.writes) != "[0s 10s 20s]" { // the next is due at 30 s, after 29
			t.Errorf("progress is written at %v, expected [0s 10s 20s]", s.writes)
		}
		// A host that is unmanaged or detached writes nothing.
		s.restart()
		gone := resting
		gone.Withdrawn = true
		elapse(time.Minute)
		s.restart()
		p.Report(gone, true)
		elapse(time.Hour)
		if len(s.writes) != 0 {
			t.Errorf("a detached host writes at %v", s.writes)
		}
	})
}

// TestPublishOffline checks that events before the first contact with the API server are kept over a restart, and
// published with their own times.
func TestPublishOffline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := &store{err: errors.New("connection refused")}
		p, stop := publishing(t, dir, s)
		began := time.Now().UTC().Truncate(time.Second)
		away := func(h local.Host) local.Host {
			h.API = &local.Failure{Error: "connection refused", Since: began}
			return h
		}
		p.Report(away(local.Host{BootID: "b"}), true)
		elapse(time.Minute)
		download := away(local.Host{BootID: "b"})
		download.Engine = &v1alpha1.EngineStatus{Operation: "DOWNLOADING"}
		for range 100 {
			p.Report(download, true)
			elapse(time.Second)
		}
		stop()
		if s.object != nil {
			t.Fatal("something was written to an API server that is down")
		}

		// This is another process, after a restart at the first boot or after a reboot.
		p, stop = publishing(t, dir, s)
		staged := download
		staged.Engine = &v1alpha1.EngineStatus{Operation: "UPDATED_NEED_REBOOT"}
		p.Report(staged, true)
		elapse(time.Minute)
		s.fail(nil)
		up := resting
		up.Engine = staged.Engine
		p.Report(up, true)
		elapse(10 * time.Minute)
		stop()
		if s.object == nil {
			t.Fatal("nothing was published")
		}
		var got []string
		for _, e := range s.object.Status.Offline {
			got = append(got, fmt.Sprintf("%v %s", e.Time.Sub(began), e.Message))
		}
		want := []string{"0s starting", "1m0s starting; update engine DOWNLOADING", "2m40s starting; update engine UPDATED_NEED_REBOOT"}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("published %q, want %q", got, want)
		}
		// The events are published once.
		if left, err := local.ReadOffline(dir); left != nil || err != nil {
			t.Errorf("left on the host: %v, %v", left, err)
		}
	})
}

// TestPublishOfflineDuringAWrite checks that an event that arrives while others are written is published later.
func TestPublishOfflineDuringAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		p, stop := publishing(t, t.TempDir(), s)
		defer stop()
		p.Report(resting, true)
		elapse(time.Minute)
		away := func(operation v1alpha1.UpdateName) local.Host {
			h := resting
			h.API, h.Engine = &local.Failure{Error: "connection refused", Since: time.Now()}, &v1alpha1.EngineStatus{Operation: operation}
			return h
		}
		p.Report(away("DOWNLOADING"), true)
		elapse(time.Minute)
		s.during = func() { p.Report(away("FINALIZING"), true) }
		up := resting
		up.Engine = &v1alpha1.EngineStatus{Operation: "DOWNLOADING"}
		p.Report(up, true)
		elapse(time.Minute)
		p.Report(up, true)
		elapse(time.Minute)
		if got := s.object.Status.Offline; len(got) != 1 || !strings.Contains(string(got[0].Message), "FINALIZING") {
			t.Errorf("published %v, expected what happened during the write before", got)
		}
	})
}

// TestPublishForAnotherNode checks that the HostUpdate gets another owner when the Node is created again, and that nothing
// is published for a host that does not know enough yet, or that was released.
func TestPublishForAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		p, stop := publishing(t, t.TempDir(), s)
		defer stop()
		p.Report(resting, false)
		elapse(time.Minute)
		released := resting
		released.Withdrawn = true
		p.Report(released, true)
		elapse(time.Minute)
		if len(s.writes) != 0 {
			t.Errorf("written at %v", s.writes)
		}
		p.Report(resting, true)
		elapse(time.Minute)
		again := resting
		again.UID = "u2"
		p.Report(again, true)
		elapse(time.Minute)
		if len(s.writes) != 2 || s.uid != "u2" {
			t.Errorf("written at %v, the last time for %s", s.writes, s.uid)
		}
	})
}

// TestPublishAgain checks that a failed write is repeated with growing pauses, and holds up nothing else.
func TestPublishAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		p, stop := publishing(t, t.TempDir(), s)
		p.Report(resting, true)
		elapse(10 * time.Second)
		s.fail(errors.New("no such kind"))
		s.restart()
		p.Report(blockedBy("shop/web"), true)
		elapse(24 * time.Hour)
		if n := len(s.writes); n < 250 || n > 350 { // every 5 min with 10 % jitter
			t.Errorf("%d writes failed in a day", n)
		}
		s.fail(nil)
		elapse(6 * time.Minute)
		if len(s.object.Status.Blockers) != 1 {
			t.Errorf("not published after the recovery: %+v", s.object.Status)
		}
		// The remaining change is written once more when the process ends.
		s.restart()
		p.Report(resting, true)
		p.Report(blockedBy("shop/db"), true)
		stop()
		if got := s.object.Status.Blockers; len(got) != 1 || got[0].Name != "shop/db" {
			t.Errorf("the status after the end is %+v", got)
		}
	})
}

// TestPublishChecks checks that an idle host notices, with two reads an hour, that its HostUpdate is not what it wrote: a write
// that a proxy had delayed has changed it, or it was deleted. After a write with an unknown result it reads at once.
func TestPublishChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		p, stop := publishing(t, t.TempDir(), s)
		defer stop()
		p.Report(resting, true)
		elapse(10 * time.Second)
		late := s.object.DeepCopy()
		late.Status.State = v1alpha1.UpdateName(v1alpha1.StateDraining)
		for name, object := range map[string]*v1alpha1.HostUpdate{"a late write": late, "deleted": nil} {
			s.restart()
			s.put(object)
			elapse(35 * time.Minute)
			if len(s.writes) != 1 || s.object == nil || s.object.Status.State != "idle" {
				t.Errorf("%s: written at %v, %+v", name, s.writes, s.object)
			}
		}
		s.restart()
		elapse(24 * time.Hour)
		if s.reads < 43 || s.reads > 54 {
			t.Errorf("%d reads in a day, expected two an hour", s.reads)
		}
		// The write is made, but its answer is lost, and then the host returns to what it had published before. No condition
		// may have changed in between: its later transition time would cause another write.
		downloads := resting
		downloads.Engine = &v1alpha1.EngineStatus{Operation: "DOWNLOADING"}
		lost := s.object.DeepCopy()
		lost.Status.Engine = downloads.Engine
		s.during = func() { s.put(lost); s.fail(errors.New("the answer is lost")) }
		p.Report(downloads, true)
		elapse(4 * time.Second)
		p.Report(resting, true)
		s.fail(nil)
		synctest.Wait()
		d, _ := p.difference()
		if u, err := s.Read(t.Context()); d != hostupdate.Same || u != lost {
			t.Fatalf("the host does not return to what it had published: difference %v, HostUpdate %+v, %v", d, u, err)
		}
		elapse(12 * time.Second)
		if s.object.Status.Engine != nil {
			t.Errorf("12 s after a write with an unknown result, the HostUpdate is %+v", s.object)
		}
	})
}
