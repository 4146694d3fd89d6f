package effect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/systemd"
)

// lastDrain returns a Drain whose last run belongs to a stage. It has no client, so a new eviction panics.
func lastDrain(s Stage, e step.Eviction, ended bool) *Drain {
	d := NewDrain(nil, "n1", slog.New(slog.DiscardHandler), func() {}, nil, nil)
	d.eviction, d.last = e, &run{stage: s, cancel: func(error) {}, ended: make(chan struct{}), at: time.Now()}
	if ended {
		close(d.last.ended)
	}
	return d
}

// TestEvictionThatEndedMeanwhileIsNotBegunAgain checks an eviction of a few pods that ends between the observation and
// the decision to continue it. If it started again, it would end as fast, and so on.
func TestEvictionThatEndedMeanwhileIsNotBegunAgain(t *testing.T) {
	s := Stage{"t1", v1alpha1.StateDraining}
	d := lastDrain(s, step.Eviction{}, true)
	d.Start(t.Context(), s, step.Eviction{}, true)
	if !d.Work(s).Complete {
		t.Error("the result of the eviction is lost")
	}
}

// TestEvictionThatServes checks that a running eviction starts again if it must change, in either direction, and that a
// finished eviction starts again only for pods that it did not evict.
func TestEvictionThatServes(t *testing.T) {
	s, other := Stage{"t1", v1alpha1.StateDraining}, Stage{"t2", v1alpha1.StateDraining}
	plain, force := step.Eviction{}, step.Eviction{Force: true}
	skip := step.Eviction{Rules: []v1alpha1.PodRules{{Skip: []v1alpha1.PodSelector{{Namespace: "logs"}}}}}
	for _, c := range []struct {
		name   string
		drain  *Drain
		stage  Stage
		e      step.Eviction
		ran    bool
		serves bool
	}{
		{"none yet", NewDrain(nil, "n1", nil, nil, nil, nil), s, plain, false, false},
		{"it runs", lastDrain(s, plain, false), s, plain, true, true},
		{"it began since", lastDrain(s, skip, false), s, skip, false, true},
		{"it is to force", lastDrain(s, plain, false), s, force, true, false},
		{"it is not to force any more", lastDrain(s, force, false), s, plain, true, false},
		{"it is not to skip any more", lastDrain(s, skip, false), s, plain, true, false},
		{"another turn's", lastDrain(s, plain, false), other, plain, false, false},
		{"it has ended since", lastDrain(s, plain, true), s, plain, true, true},
		{"it had ended before", lastDrain(s, plain, true), s, plain, false, false},
		{"it has ended, and is to force", lastDrain(s, plain, true), s, force, true, false},
		{"it has ended, and is not to force", lastDrain(s, force, true), s, plain, true, true},
	} {
		if got := c.drain.serves(c.stage, c.e, c.ran); got != c.serves {
			t.Errorf("%s: %t, expected %t", c.name, got, c.serves)
		}
	}
}

// logindOf answers a call to reboot with err.
type logindOf struct{ err error }

func (l logindOf) Reboot(ctx context.Context) error           { return errors.Join(l.err, ctx.Err()) }
func (logindOf) RebootUnderway(context.Context) (bool, error) { return false, nil }

// TestReboot checks that only a refusal by logind itself ends the turn. After any other error the host reads and
// decides again.
func TestReboot(t *testing.T) {
	s := Stage{"t1", v1alpha1.StateRebooting}
	call := func(name string, message ...string) error {
		return &systemd.CallError{Name: name, Message: strings.Join(message, "")}
	}
	for name, c := range map[string]struct {
		err      error
		by       time.Duration
		failed   bool
		refused  bool
		shutdown step.Shutdown
	}{
		"called":           {nil, time.Minute, false, false, step.ShutdownUnderway},
		"refused":          {call("org.freedesktop.DBus.Error.AccessDenied"), time.Minute, false, true, step.ShutdownUnknown},
		"under way":        {call("org.freedesktop.login1.OperationInProgress"), time.Minute, true, false, step.ShutdownUnknown},
		"no bus":           {errors.New("connection refused"), time.Minute, true, false, step.ShutdownUnknown},
		"reads too old":    {nil, -time.Nanosecond, true, false, step.ShutdownUnknown},
		"logind not there": {systemd.ErrAbsent, time.Minute, true, false, step.ShutdownUnknown},
		"the bus says so":  {call("org.freedesktop.DBus.Error.ServiceUnknown"), time.Minute, true, false, step.ShutdownUnknown},
		"no reply":         {call("org.freedesktop.DBus.Error.NoReply"), time.Minute, true, false, step.ShutdownUnknown},
		"inhibited since":  {call("org.freedesktop.DBus.Error.AccessDenied", "an active inhibitor"), time.Minute, true, false, step.ShutdownUnknown},
	} {
		var shutdown Shutdown
		shutdown.Set(step.ShutdownNone)
		r := NewReboot(logindOf{c.err}, &shutdown, "b1", slog.New(slog.DiscardHandler), func() {})
		err := r.Call(t.Context(), s, time.Now().Add(c.by))
		if (err != nil) != c.failed || (r.Refusal(s) != "") != c.refused || shutdown.State() != c.shutdown {
			t.Errorf("%s: error %v, refusal %q, shutdown %v", name, err, r.Refusal(s), shutdown.State())
		}
		if r.Refusal(Stage{"t2", v1alpha1.StateRebooting}) != "" {
			t.Errorf("%s: another turn is refused", name)
		}
	}
}

// TestShutdownIsRemembered checks for how long logind's answer counts. A shutdown that hangs must not silence the host
// indefinitely, and a shutdown may begin at any time.
func TestShutdownIsRemembered(t *testing.T) {
	for state, lasts := range map[step.Shutdown]time.Duration{step.ShutdownNone: 10 * time.Second, step.ShutdownUnderway: 2 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			var s Shutdown
			s.Set(state)
			if time.Sleep(lasts - 1); s.State() != state {
				t.Errorf("%v is forgotten before %v", state, lasts)
			}
			if time.Sleep(time.Nanosecond); s.State() != step.ShutdownUnknown {
				t.Errorf("%v counts after %v", state, lasts)
			}
		})
	}
}

// TestOneRunAtATime checks that a run starts only after the last one has ended, also if the host has left its stage.
func TestOneRunAtATime(t *testing.T) {
	r := runner{wake: func() {}}
	end := make(chan struct{})
	first, second := Stage{"t1", v1alpha1.StateApplying}, Stage{"t2", v1alpha1.StateApplying}
	waits := func(context.Context) error { <-end; return nil }
	if !r.begin(t.Context(), first, "", waits) {
		t.Fatal("the first run does not start")
	}
	if r.leave(second); r.begin(t.Context(), second, "", waits) {
		t.Error("a second run starts while the first one runs")
	}
	close(end)
	if r.Wait(); !r.begin(t.Context(), second, "", waits) {
		t.Error("no run starts after the first one has ended")
	}
	r.Wait()
}

// slowEvictions is an API server with one pod. It does not answer evictions, or refuses them, and accepts deletions.
type slowEvictions struct {
	underway atomic.Int32
	refuses  bool
	deleted  chan struct{} // closed when the pod is deleted, if set; the watch then shows that it is gone
}

func (s *slowEvictions) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(code int, body string) (*http.Response, error) {
		return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	}
	switch {
	case r.Method == http.MethodDelete && s.deleted != nil:
		close(s.deleted)
		return answer(http.StatusOK, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	case s.deleted != nil && r.URL.Query().Has("watch"):
		select {
		case <-s.deleted:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
		return answer(http.StatusOK, `{"type":"DELETED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"d","uid":"u","resourceVersion":"6"},"spec":{"nodeName":"n1"}}}`)
	case r.Method == http.MethodDelete:
		return answer(http.StatusOK, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	case r.Method == http.MethodPost && s.refuses:
		return answer(http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"not this pod"}`)
	case r.Method == http.MethodPost:
		s.underway.Add(1)
		defer s.underway.Add(-1)
	}
	if r.Method == http.MethodPost || r.URL.Query().Has("watch") {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	const list = `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[
		{"metadata":{"name":"p","namespace":"d","uid":"u","resourceVersion":"3"},"spec":{"nodeName":"n1"}}]}`
	return answer(http.StatusOK, list)
}

// TestForcedDrainReportsDeletions checks that the host learns of each pod that a forced drain deletes, and of none otherwise.
func TestForcedDrainReportsDeletions(t *testing.T) {
	for force, want := range map[bool]string{true: "t1 Pod d/p u not this pod", false: ""} {
		synctest.Test(t, func(t *testing.T) {
			client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", Transport: &slowEvictions{refuses: true}})
			must(t, err)
			said := make(chan string, 8)
			d := NewDrain(client, "n1", slog.New(slog.DiscardHandler), func() {}, func(turn string, p corev1.ObjectReference, refusal string) {
				said <- fmt.Sprintf("%s %s %s/%s %s %s", turn, p.Kind, p.Namespace, p.Name, p.UID, refusal)
			}, nil)
			d.Start(t.Context(), Stage{"t1", v1alpha1.StateDraining}, step.Eviction{Force: force}, false)
			synctest.Wait()
			d.Stop()
			close(said)
			if got := <-said; got != want {
				t.Errorf("force %t: %q, expected %q", force, got, want)
			}
		})
	}
}

// TestForcedDrainFlushesEvents checks that the end of a drain waits until the Events about its deletions are written, for at most two
// seconds, and not at all without a deletion.
func TestForcedDrainFlushesEvents(t *testing.T) {
	for name, c := range map[string]struct{ takes, want time.Duration }{"at once": {0, 0}, "slowly": {time.Second, time.Second}, "never": {time.Hour, 2 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", Transport: &slowEvictions{refuses: true, deleted: make(chan struct{})}})
			must(t, err)
			d := NewDrain(client, "n1", slog.New(slog.DiscardHandler), func() {}, func(string, corev1.ObjectReference, string) {}, func(ctx context.Context) {
				select {
				case <-ctx.Done():
				case <-time.After(c.takes):
				}
			})
			s, began := Stage{"t1", v1alpha1.StateDraining}, time.Now()
			d.Start(t.Context(), s, step.Eviction{Force: true}, false)
			d.Wait()
			if took := time.Since(began); took != c.want || !d.Work(s).Complete {
				t.Errorf("%s: the drain ended after %v, complete %t; expected %v", name, took, d.Work(s).Complete, c.want)
			}
			d.Stop()
		})
	}
}

// TestStoppedDrainSendsNothing checks that no eviction is under way when a drain was stopped: the host may report that it
// refuses right after that, and another node gets the slot.
func TestStoppedDrainSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &slowEvictions{}
		client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", Transport: api})
		if err != nil {
			t.Fatal(err)
		}
		d, s := NewDrain(client, "n1", slog.New(slog.DiscardHandler), func() {}, nil, nil), Stage{"t1", v1alpha1.StateDraining}
		d.Start(t.Context(), s, step.Eviction{}, false)
		synctest.Wait()
		if n := api.underway.Load(); n != 1 {
			t.Fatalf("%d evictions are under way", n)
		}
		if d.Stop(); api.underway.Load() != 0 || d.Work(s).Running {
			t.Errorf("%d evictions are under way after the stop", api.underway.Load())
		}
	})
}

// TestRemainingIsWhatIsEvicted checks that the last read before a reboot leaves out the same pods as the eviction.
func TestRemainingIsWhatIsEvicted(t *testing.T) {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", Transport: &slowEvictions{}})
	must(t, err)
	d := NewDrain(client, "n1", slog.New(slog.DiscardHandler), func() {}, nil, nil)
	for skipped, want := range map[string]int{"d": 0, "another": 1} {
		n, err := d.Remaining(t.Context(), step.Eviction{Rules: []v1alpha1.PodRules{{Skip: []v1alpha1.PodSelector{{Namespace: skipped}}}}})
		if err != nil || len(n) != want {
			t.Errorf("without the pods of namespace %s: %d, %v; want %d", skipped, len(n), err, want)
		}
	}
}
