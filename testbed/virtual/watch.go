package virtual

import (
	"bufio"
	"context"
	encoding "encoding/binary"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// watch is the body of a watch. Its events arrive in order, each as late as the faults say.
type watch struct {
	*io.PipeReader
	c       *call
	events  *io.PipeWriter
	ctx     context.Context
	cancel  context.CancelFunc
	arrived chan struct{}

	mu      sync.Mutex
	queue   []event
	lag     time.Duration
	ending  error         // not nil: how the watch ends, before the next event
	half    bool          // the end comes in the middle of the next event
	changed chan struct{} // closed and replaced when lag, ending or hung changes
	hung    bool
}

// event is one event as the API server sent it, or the end of the stream.
type event struct {
	line []byte
	err  error
	at   time.Time
}

// watch sends the request, and returns the answer with a body that arrives event by event.
func (c *call) watch() (*http.Response, error) {
	w := &watch{c: c, arrived: make(chan struct{}, 1), changed: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancel(c.ctx)
	resp, err := c.t.next.RoundTrip(c.copy(w.ctx))
	if err != nil {
		w.cancel()
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		w.cancel()
		return resp, nil
	}
	w.PipeReader, w.events = io.Pipe()
	c.t.mu.Lock()
	c.t.watches[w] = true
	c.t.mu.Unlock()
	binary := strings.Contains(resp.Header.Get("Content-Type"), "protobuf")
	c.t.start(func() { w.receive(resp.Body, binary) })
	c.t.start(w.pass)
	read := *resp
	read.Body = w
	return &read, nil
}

// Close implements [io.Closer].
func (w *watch) Close() error {
	w.cancel()
	return w.PipeReader.Close()
}

// receive puts the API server's events into the queue.
func (w *watch) receive(body io.ReadCloser, binary bool) {
	defer body.Close()
	reader := bufio.NewReader(body)
	for {
		line, err := readFrame(reader, binary)
		w.mu.Lock()
		w.queue = append(w.queue, event{line, err, time.Now()})
		w.mu.Unlock()
		select {
		case w.arrived <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// readFrame reads one event: a line of JSON, or a message of protobuf with its length in front.
func readFrame(r *bufio.Reader, binary bool) ([]byte, error) {
	if !binary {
		return r.ReadBytes('\n')
	}
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, 4+encoding.BigEndian.Uint32(length[:]))
	copy(frame, length[:])
	_, err := io.ReadFull(r, frame[4:])
	return frame, err
}

// pass passes the events on until the watch ends.
func (w *watch) pass() {
	// The end of the request's context ends its body, as in net/http, even if it is not read.
	stop := context.AfterFunc(w.ctx, func() { w.events.CloseWithError(context.Cause(w.ctx)) })
	defer func() {
		stop()
		w.cancel()
		w.c.t.mu.Lock()
		delete(w.c.t.watches, w)
		w.c.t.mu.Unlock()
	}()
	for {
		e, err := w.next()
		if err == nil {
			if err = w.c.t.thawed(); err == nil {
				if w.c.t.arrives != nil {
					w.c.t.arrives(w.c.r, e.line)
				}
				_, err = w.events.Write(e.line)
			}
		}
		if err == nil {
			err = e.err
		}
		if err != nil {
			w.events.CloseWithError(err) // an io.EOF is a clean end
			return
		}
	}
}

// next waits until the next event is due. An error ends the watch, after the event's bytes.
func (w *watch) next() (event, error) {
	for {
		w.mu.Lock()
		changed := w.changed
		var timer <-chan time.Time
		switch {
		case w.ending != nil && !w.half:
			defer w.mu.Unlock()
			return event{}, w.ending
		case w.hung || len(w.queue) == 0:
		default:
			e := w.queue[0]
			due := e.at.Add(w.c.back + w.lag)
			if left := time.Until(due); left > 0 {
				timer = time.After(left)
				break
			}
			w.queue = w.queue[1:]
			if w.ending != nil && len(e.line) > 0 {
				e = event{line: e.line[:len(e.line)/2], err: w.ending}
			}
			w.mu.Unlock()
			return e, nil
		}
		w.mu.Unlock()
		select {
		case <-timer:
		case <-changed:
		case <-w.arrived:
		case <-w.ctx.Done():
			return event{}, context.Cause(w.ctx)
		}
	}
}

// change changes what the faults do to the watch.
func (w *watch) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

// eachWatch changes all running watches of the resource, or of all resources if it is "".
func (t *Transport) eachWatch(resource string, f func(*watch)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for w := range t.watches {
		if resource == "" || w.c.r.Resource == resource {
			w.change(func() { f(w) })
		}
	}
}
