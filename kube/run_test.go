package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
)

// server is an API server with Nodes, in memory. It lists in pages. A watch from a version that it has not reached is
// silent until it has.
type server struct {
	mu      sync.Mutex
	version int
	nodes   map[string]*corev1.Node
	history []watch.Event
	streams map[*watch.FakeWatcher]int // by the last version that they have delivered
	// before, if not nil, is called before each request is processed. Its error is the answer.
	before func(ctx context.Context, verb string) error
	lists  []metav1.ListOptions
	asked  []metav1.ListOptions // for watches
}

func newServer() *server {
	return &server{version: 100, nodes: map[string]*corev1.Node{}, streams: map[*watch.FakeWatcher]int{}}
}

// write creates, changes or, if deleted, deletes the Node, and returns what a writer would get.
func (s *server) write(name, label string, deleted bool) *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	n := node(name, name, strconv.Itoa(s.version))
	n.Labels["version"] = label
	event := watch.Event{Type: watch.Modified, Object: n}
	if s.nodes[name] == nil {
		event.Type = watch.Added
	}
	s.nodes[name] = n
	if deleted {
		event.Type = watch.Deleted
		delete(s.nodes, name)
	}
	s.history = append(s.history, event)
	s.show()
	return n
}

// show sends to each stream what it has not delivered. The caller holds mu.
func (s *server) show() {
	for stream, shown := range s.streams {
		for _, e := range s.history {
			if at, _ := strconv.Atoi(e.Object.(*corev1.Node).ResourceVersion); at > shown {
				stream.Action(e.Type, e.Object.DeepCopyObject())
				s.streams[stream] = at
			}
		}
	}
}

// restore resets the store to only n1, at that version, and ends all watches.
func (s *server) restore(version int) {
	s.mu.Lock()
	s.version, s.history = version, nil
	s.nodes = map[string]*corev1.Node{"n1": node("n1", "n1", "1")}
	s.mu.Unlock()
	s.endWatches()
}

// bookmark sends each watch a bookmark.
func (s *server) bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for stream := range s.streams {
		stream.Action(watch.Bookmark, node("", "", strconv.Itoa(s.version)))
	}
}

// endWatches ends all watches gracefully, as each API server does after some time.
func (s *server) endWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for stream := range s.streams {
		stream.Stop()
	}
	clear(s.streams)
}

func (s *server) allow(ctx context.Context, verb string) error {
	s.mu.Lock()
	before := s.before
	s.mu.Unlock()
	if before == nil {
		return nil
	}
	return before(ctx, verb)
}

// answer sets the function that is called before each request.
func (s *server) answer(before func(ctx context.Context, verb string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = before
}

func (s *server) List(ctx context.Context, o metav1.ListOptions) (*corev1.NodeList, error) {
	s.mu.Lock()
	s.lists = append(s.lists, o)
	s.mu.Unlock()
	if err := s.allow(ctx, "list"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		if name < o.Continue {
			continue
		}
		if o.Limit > 0 && int64(len(list.Items)) == o.Limit {
			list.Continue = name
			break
		}
		list.Items = append(list.Items, *s.nodes[name])
	}
	return list, nil
}

func (s *server) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	s.asked = append(s.asked, o)
	s.mu.Unlock()
	if err := s.allow(ctx, "watch"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stream := watch.NewFakeWithChanSize(100, false)
	from, err := strconv.Atoi(o.ResourceVersion)
	if err != nil {
		return nil, err
	}
	s.streams[stream] = from
	s.show()
	context.AfterFunc(ctx, stream.Stop) // a real watch ends with its request too
	return stream, nil
}

// TestMain works around client-go's second error handler, which waits until a millisecond has passed since the last
// error of the process. In a bubble, which begins in the year 2000, that would take decades.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

// run runs a Watch of the server in a bubble, and test concurrently.
func run(t *testing.T, s *server, opts func(*WatchOptions[*corev1.Node, *corev1.Node]), test func(t *testing.T, v *nodes)) {
	synctest.Test(t, func(t *testing.T) {
		v := newNodes(s, nil, nil)
		if opts != nil {
			opts(&v.opts)
		}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.FromSlogHandler(slog.DiscardHandler)))
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		running.Go(func() { v.Run(ctx) })
		synctest.Wait()
		test(t, v)
	})
}

// TestRunListsAllFromTheQuorum checks that the first list is complete and from the quorum although it comes in pages,
// that the requests use the field selector, and that watches ask for at least half an hour.
func TestRunListsAllFromTheQuorum(t *testing.T) {
	s := newServer()
	for i := range 1200 {
		s.write(fmt.Sprintf("n%04d", i), "", false)
	}
	run(t, s, nil, func(t *testing.T, v *nodes) {
		if !v.Listed() || len(v.All()) != 1200 {
			t.Errorf("listed: %t, %d nodes", v.Listed(), len(v.All()))
		}
		time.Sleep(CatchUp)
		s.endWatches()
		time.Sleep(time.Minute)
		s.answer(func(_ context.Context, verb string) error {
			if verb == "watch" {
				return apierrors.NewResourceExpired("too old")
			}
			return nil
		})
		s.endWatches()
		time.Sleep(time.Minute)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.lists) < 5 || len(s.asked) < 3 {
			t.Errorf("%d lists, %d watches", len(s.lists), len(s.asked))
		}
		for _, o := range s.lists {
			if o.ResourceVersion != "" || o.ResourceVersionMatch != "" || o.SendInitialEvents != nil || o.FieldSelector != "metadata.name!=other" {
				t.Errorf("listed with %+v", o)
			}
		}
		for _, o := range s.asked {
			if o.FieldSelector != "metadata.name!=other" || o.SendInitialEvents != nil || !o.AllowWatchBookmarks || *o.TimeoutSeconds < 1800 || *o.TimeoutSeconds > 3600 {
				t.Errorf("watched with %+v", o)
			}
		}
	})
}

func TestRunFollows(t *testing.T) {
	s := newServer()
	s.write("n1", "a", false)
	var notified atomic.Int32
	run(t, s, func(o *WatchOptions[*corev1.Node, *corev1.Node]) { o.Changed = func() { notified.Add(1) } }, func(t *testing.T, v *nodes) {
		for i, step := range []struct {
			name, label string
			deleted     bool
			in          int
		}{{"n2", "a", false, 2}, {"n1", "b", false, 2}, {"n2", "", true, 1}, {"n2", "c", false, 2}} {
			if i == 2 { // a watch that ends gracefully is resumed without a gap
				time.Sleep(CatchUp)
				s.endWatches()
			}
			s.write(step.name, step.label, step.deleted)
			time.Sleep(time.Second)
			n := v.Get(step.name)
			if len(v.All()) != step.in || (n == nil) != step.deleted || n != nil && n.Labels["version"] != step.label {
				t.Errorf("step %d: %d nodes, %+v", i, len(v.All()), n)
			}
		}
		if notified.Load() != 5 || v.Err() != nil {
			t.Errorf("notified %d times, error %v", notified.Load(), v.Err())
		}
		// The answer to a write is visible at once, and the watch, which lags, does not undo it.
		s.mu.Lock()
		streams := s.streams
		s.streams = nil
		s.mu.Unlock()
		s.write("n1", "c", false)
		v.Overlay(s.write("n1", "d", false))
		s.mu.Lock()
		s.streams = streams
		s.show()
		s.mu.Unlock()
		synctest.Wait()
		if got := v.Get("n1").Labels["version"]; got != "d" {
			t.Errorf("n1 is at %q", got)
		}
	})
}

// TestRunNoticesARewoundStore checks that a store that was restored from a backup is noticed when the watch resumes,
// and that the old objects are dropped.
func TestRunNoticesARewoundStore(t *testing.T) {
	s := newServer()
	s.write("n1", "a", false)
	s.write("n2", "a", false)
	var rewound atomic.Int32
	run(t, s, func(o *WatchOptions[*corev1.Node, *corev1.Node]) { o.Rewound = func() { rewound.Add(1) } }, func(t *testing.T, v *nodes) {
		v.Overlay(s.write("n1", "b", false))
		time.Sleep(time.Minute)
		s.restore(50)
		time.Sleep(time.Minute)
		// The watch that begins notices it, and then the list.
		if rewound.Load() != 2 || len(v.All()) != 1 || v.Get("n1").ResourceVersion != "1" {
			t.Errorf("%d rewinds noticed, %d nodes, n1 at %s", rewound.Load(), len(v.All()), v.Get("n1").ResourceVersion)
		}
		s.write("n1", "c", false)
		synctest.Wait()
		if v.Get("n1").Labels["version"] != "c" {
			t.Error("the Watch does not follow the restored store")
		}
	})
}

// TestAge checks that the age counts from a certain time: from the end of the last watch, or from the request of a
// list, not from its answer.
func TestAge(t *testing.T) {
	s := newServer()
	down := errors.New("connection reset")
	run(t, s, nil, func(t *testing.T, v *nodes) {
		is := func(what string, want time.Duration) {
			t.Helper()
			if got := v.Age(); got != want {
				t.Errorf("%s: %v old, expected %v", what, got, want)
			}
		}
		time.Sleep(CatchUp - time.Second)
		is("just after the list", CatchUp-time.Second)
		time.Sleep(time.Second)
		is("watched", 0)
		time.Sleep(time.Hour)
		is("watched for long", 0)

		s.endWatches()
		time.Sleep(time.Second)
		is("a watch that is resumed at once", time.Second)
		time.Sleep(CatchUp - time.Second)
		is("resumed", 0)

		// There is no answer, and no error either.
		s.answer(func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		})
		s.endWatches()
		time.Sleep(50 * time.Second)
		is("no answer", 50*time.Second)
		if v.Err() != nil {
			t.Errorf("no answer: %v", v.Err())
		}
		time.Sleep(10 * time.Minute)
		is("no answer for long", 10*time.Minute+50*time.Second)
		if !errors.Is(v.Err(), context.DeadlineExceeded) {
			t.Errorf("no answer for long: %v", v.Err())
		}

		// Lists are answered after 20 s, and watches are not.
		s.answer(func(_ context.Context, verb string) error {
			if verb == "watch" {
				return down
			}
			time.Sleep(20 * time.Second)
			return nil
		})
		listed, youngest := len(v.All()), time.Hour
		for range 600 {
			time.Sleep(time.Second)
			youngest = min(youngest, v.Age())
		}
		if youngest < 20*time.Second || youngest > 21*time.Second || v.Err() == nil || len(v.All()) != listed {
			t.Errorf("with lists only: at least %v old, expected the duration of a list; %v", youngest, v.Err())
		}

		// Watches start, and end after a short time.
		s.answer(nil)
		time.Sleep(2 * time.Minute)
		is("watched again", 0)
		s.endWatches()
		for range 30 {
			time.Sleep(2 * time.Second)
			s.endWatches()
		}
		is("watches that are soon over", time.Minute)
		time.Sleep(2 * time.Minute)
		is("all is well again", 0)
		if v.Err() != nil {
			t.Errorf("after the recovery: %v", v.Err())
		}
	})
}

// TestSilentWatchIsBounded checks that a watch that a proxy keeps open although its server is gone ends after little
// more than an hour.
func TestSilentWatchIsBounded(t *testing.T) {
	s := newServer()
	run(t, s, nil, func(t *testing.T, v *nodes) {
		s.mu.Lock()
		clear(s.streams) // the watch neither ends nor delivers anything
		s.mu.Unlock()
		s.write("n1", "a", false)
		time.Sleep(2*watchTimeout + listTimeout - time.Second)
		if v.Get("n1") != nil {
			t.Fatal("the watch was not silent")
		}
		time.Sleep(time.Minute)
		if v.Get("n1") == nil {
			t.Error("the silent watch has not ended")
		}
	})
}

// TestSilentWatchIsRestarted checks that a watch is restarted if its bookmarks stop, and only then: a watch with bookmarks
// goes on, and so does one whose API server sends none.
func TestSilentWatchIsRestarted(t *testing.T) {
	s := newServer()
	run(t, s, nil, func(t *testing.T, v *nodes) {
		expect := func(when string, watches int, sees bool) {
			t.Helper()
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.asked) != watches || (v.Get("n1") != nil) != sees {
				t.Errorf("%s: %d watches, n1 %v; expected %d, %t", when, len(s.asked), v.Get("n1"), watches, sees)
			}
		}
		for range 25 {
			time.Sleep(time.Minute)
			s.bookmark()
		}
		expect("with bookmarks", 1, false)
		s.mu.Lock()
		clear(s.streams) // the watch neither ends nor delivers anything
		s.mu.Unlock()
		s.write("n1", "a", false)
		time.Sleep(silentFor - time.Second)
		expect("soon after the last bookmark", 1, false)
		oldest := time.Duration(0)
		for range silentFor/5/time.Second + 2 {
			time.Sleep(time.Second)
			oldest = max(oldest, v.Age())
		}
		expect("three minutes after the last bookmark", 2, true)
		if oldest < silentFor {
			t.Errorf("after the restart, what a silent watch had shown was at most %v old, expected the time since its last bookmark", oldest)
		}
		time.Sleep(25 * time.Minute)
		expect("without any bookmark", 2, true)
	})
}

// TestErr checks that the known objects are kept while the API server cannot be read, that Err returns the reason, and
// that the caller is notified when that changes.
func TestErr(t *testing.T) {
	s := newServer()
	s.write("n1", "a", false)
	var notified atomic.Int32
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("no"))
	run(t, s, func(o *WatchOptions[*corev1.Node, *corev1.Node]) { o.Changed = func() { notified.Add(1) } }, func(t *testing.T, v *nodes) {
		for _, c := range []struct {
			err  error
			text string
		}{{errors.New("away"), "listing nodes: away"}, {forbidden, "forbidden"}, {nil, ""}} {
			s.answer(func(context.Context, string) error { return c.err })
			s.endWatches()
			notified.Store(0)
			time.Sleep(10 * time.Minute)
			if err := v.Err(); (err == nil) != (c.err == nil) || !errors.Is(err, c.err) || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v, expected %v", err, c.err)
			}
			if notified.Load() != 1 || v.Get("n1") == nil || !v.Listed() {
				t.Errorf("%v: notified %d times, n1 %v", c.err, notified.Load(), v.Get("n1"))
			}
		}
	})
	if notified.Load() != 1 {
		t.Error("the end of the Watch caused a notification")
	}
}

// TestEndIsQuiet checks that a list or a watch that ends with its context is neither an error of the API server nor
// logged as one. An earlier failure is.
func TestEndIsQuiet(t *testing.T) {
	for _, verb := range []string{"list", "watch"} {
		synctest.Test(t, func(t *testing.T) {
			s, log := newServer(), &bytes.Buffer{}
			ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.FromSlogHandler(slog.NewTextHandler(log, nil))))
			failed := false
			s.answer(func(ctx context.Context, asked string) error {
				switch {
				case !failed:
					failed = true
					return errors.New("no nodes today")
				case asked == verb:
					cancel()
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			})
			var notified atomic.Int32
			v := newNodes(s, func() { notified.Add(1) }, nil)
			v.Run(ctx) // nothing else writes to the log
			synctest.Wait()
			text, _ := io.ReadAll(log)
			if strings.Count(string(text), "level=ERROR") != 1 || !strings.Contains(string(text), "no nodes today") {
				t.Errorf("ended in a %s, it logged:\n%s\nexpected the one failure", verb, text)
			}
			if err := v.Err(); err != nil && !strings.Contains(err.Error(), "no nodes today") || notified.Load() > 2 {
				t.Errorf("ended in a %s: %v, notified %d times", verb, err, notified.Load())
			}
		})
	}
}

// TestNotServed checks that a kind that is not served counts as a kind without objects, and that old objects are
// dropped.
func TestNotServed(t *testing.T) {
	s := newServer()
	none := errors.New("no such kind")
	var notified atomic.Int32
	run(t, s, func(o *WatchOptions[*corev1.Node, *corev1.Node]) {
		o.NotServed = func(err error) bool { return errors.Is(err, none) }
		o.Changed = func() { notified.Add(1) }
		s.answer(func(context.Context, string) error { return none })
	}, func(t *testing.T, v *nodes) {
		if !v.Listed() || !errors.Is(v.Err(), none) || v.Age() != 0 || notified.Load() != 1 {
			t.Errorf("listed: %t, %v, %v old, notified %d times", v.Listed(), v.Err(), v.Age(), notified.Load())
		}
		s.answer(nil)
		s.write("n1", "a", false)
		time.Sleep(time.Minute)
		if v.Get("n1") == nil || len(v.All()) != 1 || v.Err() != nil || notified.Load() != 2 {
			t.Errorf("n1 %v, %d nodes, %v, notified %d times", v.Get("n1"), len(v.All()), v.Err(), notified.Load())
		}
		s.answer(func(context.Context, string) error { return none })
		s.endWatches()
		time.Sleep(time.Minute)
		if !v.Listed() || len(v.All()) != 0 || notified.Load() != 4 { // the watch's error and the list's
			t.Errorf("listed: %t, %d nodes, notified %d times", v.Listed(), len(v.All()), notified.Load())
		}
		if err := v.Load(t.Context()); err != nil || !v.Listed() {
			t.Errorf("loaded: %v", err)
		}
	})
}

// noList answers every request with an object that is not a list of the API server.
type noList struct{ *server }

func (noList) List(context.Context, metav1.ListOptions) (*corev1.NodeList, error) {
	return &corev1.NodeList{}, nil
}

// TestAnswerThatIsNoList checks that an answer that is not a list does not look like a cluster without Nodes, in which
// all slots would be free.
func TestAnswerThatIsNoList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newNodes(noList{newServer()}, nil, nil)
		ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), logr.FromSlogHandler(slog.DiscardHandler)), time.Minute)
		defer cancel()
		v.Run(ctx)
		if v.Listed() || v.Err() == nil {
			t.Errorf("listed: %v, error: %v; expected the error", v.Listed(), v.Err())
		}
		if err := v.Load(t.Context()); err == nil || v.Listed() {
			t.Errorf("loaded: %v", err)
		}
	})
}

// TestRewindBeforeTheFirstEvent checks that a store that goes back before a watch has delivered anything is noticed
// too: after the list, or while the watch begins. Otherwise a watch from the list's version would wait until the store
// has reached that version again.
func TestRewindBeforeTheFirstEvent(t *testing.T) {
	for _, during := range []string{"", "watch"} {
		s, noticed := newServer(), 0
		v := newNodes(s, nil, func() { noticed++ })
		must(t, v.Load(t.Context()))
		s.answer(func(_ context.Context, verb string) error {
			if verb == during {
				s.restore(50)
			}
			return nil
		})
		if during == "" {
			s.restore(50)
		}
		if _, err := v.watch(t.Context(), metav1.ListOptions{ResourceVersion: "100"}); !apierrors.IsResourceExpired(err) {
			t.Errorf("watch from 100 of a store that went back to 50 (during %q): %v, expected that the version does not exist", during, err)
		}
		if noticed == 0 { // a leader's term must not last until the next list
			t.Errorf("a store that went back to 50 (during %q): the caller does not know", during)
		}
	}
}
