package virtual

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	errSevered = errors.New("the process has ended")
	errClosed  = errors.New("the run has ended")
	errReset   = errors.New("connection reset by peer")
	errRefused = errors.New("connection refused")
	errPings   = errors.New("client connection lost: no answer to pings")
)

// silence is how long a process waits on a connection that is dead without a sign. client-go's HTTP/2 pings find out after that time.
const silence = 45 * time.Second

// controller decides what happens to the requests of a Transport. An executor is one.
type controller interface {
	// decide returns the faults that this request triggers. It is called once for each request, before it is sent.
	decide(*request) []Fault
	// act carries out a fault that is not a request's, and closes the channel when it has begun.
	act(Fault) <-chan struct{}
	// cut reports whether the host's network is down.
	cut(host string) bool
	// latency returns how long this request and its answer are under way.
	latency(*request) (there, back time.Duration)
}

// Transport is the way of one process, with one of its identities, to the API server. It carries out the faults that its controller
// decides on, and records all requests. Its methods are safe for concurrent use.
type Transport struct {
	process string
	role    role
	next    http.RoundTripper
	control controller
	trace   *trace
	arrives func(r *request, text []byte) // is called with each list, and each event of a watch, that arrives at the process; may be nil

	alive context.Context // ends with Sever and Close: the process
	sever context.CancelCauseFunc
	net   context.Context // ends with Close: the network, which may still deliver what a dead process sent
	end   context.CancelCauseFunc
	tasks sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	running int           // goroutines
	frozen  chan struct{} // not nil while the process is frozen; closed at the end
	watches map[*watch]bool
}

func newTransport(process string, by role, next http.RoundTripper, control controller, log *trace) *Transport {
	t := &Transport{process: process, role: by, next: next, control: control, trace: log, watches: map[*watch]bool{}}
	t.net, t.end = context.WithCancelCause(context.Background())
	t.alive, t.sever = context.WithCancelCause(t.net)
	return t
}

// Sever ends the process's connections: nothing that it sends after this arrives, and every request and watch ends with an error at once. A
// write that was under way may still land.
func (t *Transport) Sever() { t.sever(errSevered) }

// Freeze lets nothing out and nothing in until Thaw. Requests wait, even if their context ends.
func (t *Transport) Freeze() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.frozen == nil {
		t.frozen = make(chan struct{})
	}
}

// Thaw ends Freeze.
func (t *Transport) Thaw() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.frozen != nil {
		close(t.frozen)
		t.frozen = nil
	}
}

// Close ends everything that the Transport does, also what is under way in the network, and waits for it.
func (t *Transport) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.end(errClosed)
	t.tasks.Wait()
}

// begin counts a goroutine that Close waits for. It reports false after Close.
func (t *Transport) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.tasks.Add(1)
	t.running++
	return true
}

func (t *Transport) done() {
	t.mu.Lock()
	t.running--
	t.mu.Unlock()
	t.tasks.Done()
}

// over reports whether the process has ended and nothing that it sent is under way.
func (t *Transport) over() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.alive.Err() != nil && t.running == 0
}

// start runs f in a goroutine that Close waits for.
func (t *Transport) start(f func()) {
	if t.begin() {
		go func() { defer t.done(); f() }()
	}
}

// thawed waits while the process is frozen. It returns an error only if the process has ended.
func (t *Transport) thawed() error {
	for {
		t.mu.Lock()
		frozen := t.frozen
		t.mu.Unlock()
		if frozen == nil {
			return context.Cause(t.alive)
		}
		select {
		case <-frozen:
		case <-t.alive.Done():
			return context.Cause(t.alive)
		}
	}
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// call is one request under way.
type call struct {
	t     *Transport
	hr    *http.Request
	r     *request
	ctx   context.Context // the sender: it has given up or has ended
	body  []byte
	fault Fault // what happens to the request; the zero Fault is nothing
	after []Fault
	whole []byte // the body of the API server's last answer
	log   *entry
	back  time.Duration
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(hr *http.Request) (*http.Response, error) {
	if !t.begin() {
		return nil, errClosed
	}
	defer t.done()
	var body []byte
	if hr.Body != nil {
		var err error
		if body, err = io.ReadAll(hr.Body); err != nil {
			return nil, err
		}
		hr.Body.Close()
	}
	ctx, cancel := context.WithCancelCause(hr.Context())
	unhook := context.AfterFunc(t.alive, func() { cancel(context.Cause(t.alive)) })
	release := func() { unhook(); cancel(context.Canceled) }
	c := &call{t: t, hr: hr, r: describe(t.process, t.role, hr, body), ctx: ctx, body: body}
	c.log = t.trace.request(c.r)
	resp, err := c.run()
	if err == nil && t.arrives != nil && (c.r.Verb == "list" || c.r.Verb == "patch") && resp.StatusCode == http.StatusOK {
		if _, broken := resp.Body.(*truncated); !broken {
			t.arrives(c.r, c.whole)
		}
	}
	c.finish(resp, err)
	if resp != nil {
		if w, ok := resp.Body.(*watch); ok {
			context.AfterFunc(w.ctx, release)
			return resp, err
		}
	}
	release()
	return resp, err
}

// finish completes the trace's entry, and begins the faults that come after the answer.
func (c *call) finish(resp *http.Response, err error) {
	c.t.trace.update(func() {
		c.log.Took = time.Since(c.r.Time)
		if err != nil {
			c.log.Answer = err.Error()
		} else {
			c.log.Answer = resp.Status
		}
	})
	for _, f := range c.after {
		c.t.start(func() { _ = c.wait(c.t.control.act(f)) })
	}
}

// wait waits until done is closed or the process has ended.
func (c *call) wait(done <-chan struct{}) error {
	select {
	case <-done:
		return context.Cause(c.t.alive)
	case <-c.t.alive.Done():
		return context.Cause(c.t.alive)
	}
}

// note adds what was done to the request to its entry.
func (c *call) note(format string, args ...any) {
	c.t.trace.update(func() { c.log.Faults = append(c.log.Faults, fmt.Sprintf(format, args...)) })
}

func (c *call) run() (*http.Response, error) {
	if c.ctx.Err() != nil {
		return nil, context.Cause(c.ctx)
	}
	if err := c.t.thawed(); err != nil {
		return nil, err
	}
	var landed []Fault
	for _, f := range c.t.control.decide(c.r) {
		switch {
		case f.Kind.spec().request:
			c.fault = f
			c.note("%s", f.action())
		case f.At.Moment == momentLanded:
			landed = append(landed, f)
		case f.At.Moment == momentAnswered:
			c.after = append(c.after, f)
		default:
			if err := c.wait(c.t.control.act(f)); err != nil {
				return nil, err
			}
		}
	}
	if err := c.t.thawed(); err != nil { // a fault may have frozen the process
		return nil, err
	}
	there, back := c.t.control.latency(c.r)
	c.back = back
	// What has left the process arrives, even if the process gives up meanwhile, or was frozen for too long.
	if err := pause(c.t.alive, there); err != nil {
		return nil, err
	}
	if c.t.control.cut(c.t.process) {
		c.note("the network is down")
		return nil, c.silence()
	}
	resp, err := c.deliver()
	if err == nil || c.fault.Kind == kindLate {
		for _, f := range landed {
			if err := c.wait(c.t.control.act(f)); err != nil {
				return nil, err
			}
		}
	}
	if frozen := c.t.thawed(); frozen != nil {
		return nil, frozen
	}
	return resp, err
}

// silence waits until the sender gives up, or its pings find out that the connection is dead.
func (c *call) silence() error {
	if err := pause(c.ctx, silence); err != nil {
		return err
	}
	return errPings
}

// gaveUp makes the sender give up: at once, or when it has waited long enough.
func (c *call) gaveUp() error {
	if c.fault.Mode == modeError {
		return errReset
	}
	return c.silence()
}

// deliver sends the request to the API server, and returns the answer, as the fault says.
func (c *call) deliver() (*http.Response, error) {
	f := c.fault
	switch f.Kind {
	case kindLost:
		return nil, c.gaveUp()
	case kindDelay:
		if err := pause(c.ctx, f.For); err != nil {
			return nil, err
		}
	case kindLate:
		if f.Mode != modeError && f.Mode != modeSilent {
			c.t.start(func() { c.land("late", f.For) })
			return c.proxyAnswer(), nil
		}
		err := c.gaveUp()
		c.t.start(func() { c.land("late", f.For) })
		return nil, err
	case kindProxy:
		if !f.delivered() {
			return c.proxyAnswer(), nil
		}
	case kindRefuse:
		if !f.delivered() {
			return c.refusal(), nil
		}
	}
	resp, err := c.answer()
	if err != nil {
		return nil, err
	}
	switch f.Kind {
	case kindAnswerLost:
		resp.Body.Close()
		return nil, c.gaveUp()
	case kindAnswerLate:
		err = pause(c.ctx, f.For)
	case kindProxy:
		resp.Body.Close()
		return c.proxyAnswer(), nil
	case kindRefuse:
		resp.Body.Close()
		return c.refusal(), nil
	case kindRepeat:
		return c.repeat(resp)
	case kindTruncate:
		resp.Body = &truncated{resp.Body, resp.ContentLength / 2, f.Mode == modeError}
	}
	if err == nil {
		err = pause(c.ctx, c.back)
	}
	if err != nil {
		resp.Body.Close()
		return nil, err
	}
	if _, watching := resp.Body.(*watch); !watching && c.t.control.cut(c.t.process) {
		c.note("the network is down")
		return nil, c.silence()
	}
	return resp, nil
}

// land sends the request when its sender has given up, with a context of its own.
func (c *call) land(what string, after time.Duration) {
	if pause(c.t.net, after) != nil {
		return
	}
	answer := "no answer"
	if resp, _, err := c.send(c.t.net); err == nil {
		resp.Body.Close()
		answer = resp.Status
	}
	c.t.trace.add(&entry{
		At: time.Now(), Process: c.r.Process, Node: c.log.Node, What: c.log.What, Detail: c.r.Detail, Answer: answer,
		Faults: []string{what}, Write: c.log.Write, Lease: c.log.Lease, Request: true,
	})
}

// repeat sends the request a second time, as a proxy does, and returns the answer to the one that the fault's mode names.
func (c *call) repeat(first *http.Response) (*http.Response, error) {
	if c.fault.Mode == modeFirst {
		c.t.start(func() { c.land("repeated", c.fault.For) })
		return first, nil
	}
	first.Body.Close()
	if err := pause(c.ctx, c.fault.For); err != nil {
		return nil, err
	}
	return c.answer()
}

// answer sends the request and waits for the answer. A write that was sent arrives even if its sender gives up.
func (c *call) answer() (*http.Response, error) {
	if c.r.Verb == "watch" {
		return c.watch()
	}
	type result struct {
		resp  *http.Response
		whole []byte
		err   error
	}
	ctx := c.ctx
	if c.r.Write() {
		ctx = c.t.net
	}
	done := make(chan result, 1)
	c.t.start(func() {
		resp, whole, err := c.send(ctx)
		done <- result{resp, whole, err}
	})
	select {
	case got := <-done:
		c.whole = got.whole
		return got.resp, got.err
	case <-c.ctx.Done():
		return nil, context.Cause(c.ctx)
	}
}

// send sends the request to the next RoundTripper, and returns the answer and all of its body.
func (c *call) send(ctx context.Context) (*http.Response, []byte, error) {
	resp, err := c.t.next.RoundTrip(c.copy(ctx))
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	whole, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, err
	}
	read := *resp
	read.Body, read.ContentLength = io.NopCloser(bytes.NewReader(whole)), int64(len(whole))
	return &read, whole, nil
}

// copy returns the request with another context, and a body that is read from its start.
func (c *call) copy(ctx context.Context) *http.Request {
	out := c.hr.Clone(ctx)
	if c.body != nil {
		out.Body = io.NopCloser(bytes.NewReader(c.body))
		out.ContentLength = int64(len(c.body))
	}
	return out
}

// proxyAnswer returns what a proxy answers in place of the API server. The mode of the fault is a status with options.
func (c *call) proxyAnswer() *http.Response {
	status, _, _ := strings.Cut(c.fault.Mode, ",")
	code, err := strconv.Atoi(status)
	if err != nil {
		panic("the mode of a proxy's answer: " + c.fault.Mode)
	}
	body := fmt.Sprintf("<html><head><title>%d %s</title></head><body>a proxy</body></html>", code, http.StatusText(code))
	header := http.Header{"Content-Type": {"text/html"}, "Date": {time.Now().UTC().Format(http.TimeFormat)}}
	if hasOption(c.fault.Mode, "plain") {
		body = http.StatusText(code)
		header.Set("Content-Type", "text/plain; charset=utf-8")
	}
	if hasOption(c.fault.Mode, "retry") {
		header.Set("Retry-After", "2")
	}
	return c.respond(code, header, []byte(body))
}

// refusal returns the API server's own answer to a request that it refuses.
func (c *call) refusal() *http.Response {
	status := refusals[c.fault.Mode]
	status.TypeMeta, status.Status = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, metav1.StatusFailure
	body, err := json.Marshal(&status)
	if err != nil {
		panic(fmt.Sprintf("encoding a Status: %v", err))
	}
	header := http.Header{"Content-Type": {"application/json"}, "Date": {time.Now().UTC().Format(http.TimeFormat)}}
	if status.Code == http.StatusTooManyRequests {
		header.Set("Retry-After", "1")
	}
	return c.respond(int(status.Code), header, body)
}

// respond returns an answer that the API server in memory has not given.
func (c *call) respond(code int, header http.Header, body []byte) *http.Response {
	return &http.Response{
		Status: fmt.Sprintf("%d %s", code, http.StatusText(code)), StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: c.hr,
	}
}

// truncated is a body that ends too early.
type truncated struct {
	io.ReadCloser
	left  int64
	fails bool
}

// Read implements [io.Reader].
func (b *truncated) Read(p []byte) (int, error) {
	if b.left <= 0 {
		if b.fails {
			return 0, io.ErrUnexpectedEOF
		}
		return 0, io.EOF
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
