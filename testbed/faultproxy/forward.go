package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// maxBody limits the body of a write, in bytes. The API server's own limit is 3 MiB.
	maxBody = 4 << 20
	// upstreamTimeout limits a write whose client has given up.
	upstreamTimeout = time.Minute
)

// hopByHop are the headers that apply to one connection only.
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// errDropped ends a request that is not forwarded.
var errDropped = errors.New("dropped")

// ServeHTTP handles one request of the process.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	if !p.enter() {
		panic(http.ErrAbortHandler)
	}
	defer p.running.Done()
	r := Describe(hr)
	r.Proxy = p.opts.Name
	body, err := io.ReadAll(http.MaxBytesReader(w, hr.Body, maxBody))
	if err != nil {
		reset(w)
		return
	}
	r.Time = time.Now()
	if r.Write() {
		r.Body = body
		if p.opts.Label != nil {
			r.Label = p.opts.Label(&r)
		}
	}
	f := &Fault{}
	for _, rule := range p.number(&r) {
		if wanted := (*rule)(&r); wanted != nil {
			f = wanted
			break
		}
	}
	e := &exchange{p: p, f: f, r: &r, body: body, w: w, hr: hr}
	rec := Record{Request: r}
	rec.Outcome, rec.Code = e.run()
	rec.Took = time.Since(r.Time)
	if rec.Outcome == Answered && f.CallSent != nil {
		f.CallSent()
	}
	p.record(rec)
	if e.abort {
		panic(http.ErrAbortHandler)
	}
}

// exchange is one request in progress.
type exchange struct {
	p     *Proxy
	f     *Fault
	r     *Request
	body  []byte
	w     http.ResponseWriter
	hr    *http.Request
	abort bool // the answer was cut short
}

func (e *exchange) run() (Outcome, int) {
	f, client := e.f, e.hr.Context()
	waiting := client
	if f.Late {
		waiting = e.p.life
	}
	if e.wait(waiting, f.Hold, f.Delay) != nil {
		reset(e.w)
		return Dropped, 0
	}
	if f.Call != nil {
		f.Call()
	}
	switch {
	case f.Reset:
		reset(e.w)
		return Dropped, 0
	case f.Status != 0:
		f.refuse(e.w, e.r)
		return Refused, f.Status
	}
	ctx, cancel := e.context()
	defer cancel()
	resp, err := e.send(ctx)
	if err != nil {
		reset(e.w)
		return Unreachable, 0
	}
	defer resp.Body.Close()
	if f.HoldAnswer != nil || f.DelayAnswer > 0 || f.CallAnswer != nil || f.ResetAnswer || f.CallSent != nil {
		// Read the whole answer before the calls, so that its length is known. The end of an answer without a length would be sent only
		// when this handler returns.
		whole, err := io.ReadAll(resp.Body)
		if err != nil {
			reset(e.w)
			return Unreachable, resp.StatusCode
		}
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(whole)), int64(len(whole))
		held := e.wait(client, f.HoldAnswer, f.DelayAnswer)
		if f.CallAnswer != nil {
			f.CallAnswer()
		}
		if f.ResetAnswer || held != nil {
			reset(e.w)
			return Withheld, resp.StatusCode
		}
	}
	e.answer(resp)
	return Answered, resp.StatusCode
}

// context returns the context of the request to the API server. A write that was sent continues even if its client gives up.
func (e *exchange) context() (context.Context, context.CancelFunc) {
	if e.r.Write() {
		return context.WithTimeout(e.p.life, upstreamTimeout)
	}
	ctx, cancel := context.WithCancel(e.hr.Context())
	stop := context.AfterFunc(e.p.life, cancel)
	if e.r.Verb != "watch" {
		return ctx, func() { stop(); cancel() }
	}
	w := &watch{cut: cancel}
	e.p.mu.Lock()
	e.p.watches[w] = true
	e.p.mu.Unlock()
	return ctx, func() {
		e.p.mu.Lock()
		delete(e.p.watches, w)
		e.p.mu.Unlock()
		stop()
		cancel()
	}
}

// wait waits until hold is closed, and then for d.
func (e *exchange) wait(ctx context.Context, hold <-chan struct{}, d time.Duration) error {
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return errDropped
		case <-e.p.life.Done():
			return errDropped
		}
	}
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return errDropped
	case <-e.p.life.Done():
		return errDropped
	}
}

func (e *exchange) send(ctx context.Context) (*http.Response, error) {
	to := *e.hr.URL
	to.Scheme, to.Host = e.p.upstream.Scheme, e.p.upstream.Host
	query := to.Query()
	if e.f.ListAt != "" {
		query.Set("resourceVersion", e.f.ListAt)
		query.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchExact))
		to.RawQuery = query.Encode()
	}
	if e.f.Page > 0 {
		query.Set("limit", strconv.FormatInt(e.f.Page, 10))
		to.RawQuery = query.Encode()
	}
	out, err := http.NewRequestWithContext(ctx, e.hr.Method, to.String(), bytes.NewReader(e.body))
	if err != nil {
		return nil, fmt.Errorf("forwarding %s: %w", e.r, err)
	}
	if len(e.body) == 0 {
		out.Body, out.GetBody = nil, nil
	}
	out.Header = e.hr.Header.Clone()
	for _, name := range hopByHop {
		out.Header.Del(name)
	}
	return e.p.speaks.RoundTrip(out)
}

// answer passes the API server's answer on and flushes each piece.
func (e *exchange) answer(resp *http.Response) {
	header := e.w.Header()
	for name, values := range resp.Header {
		if !slices.Contains(hopByHop, name) {
			header[name] = values
		}
	}
	e.p.mu.Lock()
	shift := e.p.shift
	e.p.mu.Unlock()
	if date, err := http.ParseTime(header.Get("Date")); err == nil && shift != 0 {
		header.Set("Date", date.Add(shift).UTC().Format(http.TimeFormat))
	}
	if resp.ContentLength >= 0 {
		header.Set("Content-Length", fmt.Sprint(resp.ContentLength))
	}
	e.w.WriteHeader(resp.StatusCode)
	control := http.NewResponseController(e.w)
	_ = control.Flush() // a watch without events still has headers
	buffer := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buffer)
		if n > 0 {
			if _, err := e.w.Write(buffer[:n]); err != nil {
				return // the client is gone
			}
			_ = control.Flush()
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			e.abort = true // the client must not take this for a normal end
			return
		}
	}
}

// reset cuts the client's connection with a TCP reset, as a router that lost its state would.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // the client is gone
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	conn.Close()
}
