package apiserver

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// bookmarkEvery is the time between two bookmarks. beforeEnd is how long before the end of a watch the last one is sent.
	bookmarkEvery, beforeEnd = time.Minute, 2 * time.Second
	// minTimeout is the shortest timeout of a watch that names none; the longest is twice that.
	minTimeout = 30 * time.Minute
)

// frameKey names one form of a change in a stream.
type frameKey struct {
	k           *kind
	media, kind string
}

// selection selects objects.
type selection struct {
	k         *kind
	namespace string
	labels    labels.Selector
	fields    fields.Selector
	name      string // the only name that fields matches, or ""
}

func (sel *selection) matches(it *item) bool {
	if it == nil {
		return false
	}
	if sel.namespace != "" && !strings.HasPrefix(it.name, sel.namespace+"/") {
		return false
	}
	if sel.name != "" && it.name != key(sel.namespace, sel.name) && !strings.HasSuffix(it.name, "/"+sel.name) {
		return false
	}
	if !sel.labels.Empty() && !sel.labels.Matches(labels.Set(it.obj.(metav1.Object).GetLabels())) {
		return false
	}
	if sel.fields.Empty() {
		return true
	}
	u := it.u
	if sel.k.event {
		u = toEvents(u)
	}
	return sel.fields.Matches(sel.k.fieldsOf(u))
}

// stream is a watch. The server adds events under its lock; Read delivers them.
type stream struct {
	s         *Server
	ctx       context.Context
	sel       selection
	media     string
	bookmarks bool
	from      int64 // no changes up to this revision are sent

	mu      sync.Mutex
	queue   [][]byte
	ended   bool
	signal  chan struct{} // has an element if queue or ended has changed
	pending []byte        // the rest of the frame that Read delivers

	bookmark, deadline time.Time
}

// offer adds the change, if the watch selects the object before or after it.
func (st *stream) offer(c *change) {
	if c.rev <= st.from {
		return
	}
	was, is := st.sel.matches(c.old), st.sel.matches(c.new)
	var kind watch.EventType
	it := c.new
	switch {
	case was && is:
		kind = watch.Modified
	case is:
		kind = watch.Added
	case was:
		kind, it = watch.Deleted, c.removed()
	default:
		return
	}
	key := frameKey{st.sel.k, st.media, string(kind)}
	f, ok := c.frames[key]
	if !ok {
		f = frame(st.media, string(kind), it.encode(st.sel.k, st.media))
		c.frames[key] = f
	}
	st.send(f)
}

func (st *stream) send(f []byte) {
	st.mu.Lock()
	st.queue = append(st.queue, f)
	st.mu.Unlock()
	st.wake()
}

func (st *stream) end() {
	st.mu.Lock()
	st.ended = true
	st.mu.Unlock()
	st.wake()
}

func (st *stream) wake() {
	select {
	case st.signal <- struct{}{}:
	default:
	}
}

// take returns the next frame, or that the watch has ended.
func (st *stream) take() (f []byte, ended bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.queue) == 0 {
		return nil, st.ended
	}
	f, st.queue = st.queue[0], st.queue[1:]
	return f, false
}

// Read returns the next part of the stream. It waits for an event, the time of a bookmark, or the end of the watch.
func (st *stream) Read(p []byte) (int, error) {
	for len(st.pending) == 0 {
		if err := st.ctx.Err(); err != nil {
			return 0, err
		}
		f, ended := st.take()
		now := time.Now()
		switch {
		case f != nil:
			st.pending = f
		case ended || !now.Before(st.deadline):
			return 0, io.EOF
		case st.bookmarks && !now.Before(st.bookmark):
			st.pending = st.sendBookmark(now)
		default:
			st.wait(now)
		}
	}
	n := copy(p, st.pending)
	st.pending = st.pending[n:]
	return n, nil
}

// wait waits until there may be something to read.
func (st *stream) wait(now time.Time) {
	next := st.deadline
	if st.bookmarks && st.bookmark.Before(next) {
		next = st.bookmark
	}
	timer := time.NewTimer(next.Sub(now))
	defer timer.Stop()
	select {
	case <-st.signal:
	case <-st.ctx.Done():
	case <-timer.C:
	}
}

// sendBookmark returns a bookmark, and schedules the next one. Events that came in the meantime are sent first.
func (st *stream) sendBookmark(now time.Time) []byte {
	last := st.deadline.Add(-beforeEnd)
	st.bookmark = now.Add(bookmarkEvery)
	if st.bookmark.After(last) && now.Before(last) {
		st.bookmark = last
	}
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	if f, ended := st.take(); f != nil || ended {
		return f
	}
	return st.bookmarkFrame(st.s.revision, false)
}

// bookmarkFrame returns a bookmark of the revision. initial marks the end of the objects that existed when the watch started.
func (st *stream) bookmarkFrame(rev int64, initial bool) []byte {
	k := st.sel.k
	u := object{"apiVersion": k.gvr.GroupVersion().String(), "kind": k.kind, "metadata": object{}}
	if initial {
		u["metadata"] = object{"annotations": object{metav1.InitialEventsAnnotationKey: "true"}}
	}
	if k.event {
		u = toCore(u)
	}
	it, err := newItem(k, u)
	if err != nil {
		panic(err)
	}
	it.setRevision(rev)
	return frame(st.media, string(watch.Bookmark), it.encode(k, st.media))
}

// Close ends the watch for its reader.
func (st *stream) Close() error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	delete(st.s.tables[st.sel.k.stored()].streams, st)
	st.end()
	return nil
}

// watch starts a watch.
func (s *Server) watch(q *request) (*answer, error) {
	o, sel, err := q.options()
	if err != nil {
		return nil, err
	}
	rev, err := revisionOf(o.ResourceVersion)
	if err != nil {
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}}
	}
	t := s.tables[q.k.stored()]
	now := time.Now()
	timeout := minTimeout + time.Duration(s.serial*7919%1800)*time.Second
	if o.TimeoutSeconds != nil && *o.TimeoutSeconds > 0 {
		timeout = time.Duration(*o.TimeoutSeconds) * time.Second
	}
	st := &stream{
		s: s, ctx: q.ctx, sel: *sel, media: q.media, bookmarks: o.AllowWatchBookmarks, from: rev, signal: make(chan struct{}, 1),
		bookmark: now.Add(min(bookmarkEvery, max(timeout-beforeEnd, 0))), deadline: now.Add(timeout),
	}
	initial := o.SendInitialEvents != nil && *o.SendInitialEvents
	switch {
	case initial && rev > s.revision:
		return nil, tooLarge(rev, s.revision)
	case initial, rev == 0 && o.SendInitialEvents == nil:
		for _, name := range t.names {
			if it := t.items[name]; sel.matches(it) {
				st.send(frame(st.media, string(watch.Added), it.encode(q.k, st.media)))
			}
		}
		st.from = s.revision
	case rev == 0:
		st.from = s.revision
	default:
		changes, ok := t.after(rev)
		if !ok {
			return st.expired(rev, t.oldest), nil
		}
		for _, c := range changes {
			st.offer(c)
		}
	}
	if initial && o.AllowWatchBookmarks {
		st.send(st.bookmarkFrame(s.revision, true))
	}
	t.streams[st] = struct{}{}
	return &answer{code: 200, media: q.media, stream: st}, nil
}

// expired answers that the history before a revision is forgotten, as an API server does it: with an event in the stream.
func (st *stream) expired(rev, oldest int64) *answer {
	status := statusOf(apierrors.NewResourceExpired("too old resource version: " + itoa(rev) + " (" + itoa(oldest) + ")"))
	st.send(frame(st.media, string(watch.Error), encodeObject(st.media, status)))
	st.end()
	return &answer{code: 200, media: st.media, stream: st}
}
