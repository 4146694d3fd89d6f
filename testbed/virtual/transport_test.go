package virtual

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// standIn is an API server that answers each request at once with its number, and streams what a test sends to a watch.
type standIn struct {
	mu       sync.Mutex
	arrivals []arrival
	events   chan string // for the one watch
	clean    bool        // the watch ended because its request's context did
}

type arrival struct {
	at   time.Time
	line string
	body string
}

func (s *standIn) RoundTrip(hr *http.Request) (*http.Response, error) {
	if err := hr.Context().Err(); err != nil {
		return nil, err
	}
	var body []byte
	if hr.Body != nil {
		body, _ = io.ReadAll(hr.Body)
	}
	s.mu.Lock()
	s.arrivals = append(s.arrivals, arrival{time.Now(), hr.Method + " " + hr.URL.Path, string(body)})
	n := len(s.arrivals)
	s.mu.Unlock()
	resp := &http.Response{Status: "200 OK", StatusCode: 200, Header: http.Header{}, Request: hr}
	if hr.URL.Query().Has("watch") {
		r, w := io.Pipe()
		resp.Body, resp.ContentLength = r, -1
		stop := context.AfterFunc(hr.Context(), func() { s.mu.Lock(); s.clean = true; s.mu.Unlock(); w.CloseWithError(hr.Context().Err()) })
		go func() {
			defer stop()
			defer w.Close()
			for {
				select {
				case e, ok := <-s.events:
					if !ok {
						return
					}
					if _, err := io.WriteString(w, e+"\n"); err != nil {
						return
					}
				case <-hr.Context().Done():
					return
				}
			}
		}()
		return resp, nil
	}
	answer := fmt.Sprintf(`{"answer":%02d}`, n)
	resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(answer)), int64(len(answer))
	return resp, nil
}

func (s *standIn) arrived() []arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]arrival(nil), s.arrivals...)
}

// script is a controller that does the same to every request.
type script struct {
	mu     sync.Mutex
	faults []Fault
	down   bool
	acted  []Fault
	begin  func(Fault) // what act does; it may block
	lag    time.Duration
}

func (s *script) decide(*request) []Fault { s.mu.Lock(); defer s.mu.Unlock(); return s.faults }
func (s *script) cut(string) bool         { s.mu.Lock(); defer s.mu.Unlock(); return s.down }
func (s *script) latency(*request) (there, back time.Duration) {
	return s.lag, s.lag
}
func (s *script) act(f Fault) <-chan struct{} {
	done := make(chan struct{})
	s.mu.Lock()
	s.acted = append(s.acted, f)
	s.mu.Unlock()
	go func() {
		if s.begin != nil {
			s.begin(f)
		}
		close(done)
	}()
	return done
}

const patchOfState = `{"metadata":{"labels":{"lockkeeper.dev/state":"draining"}}}`

func newRequest(ctx context.Context, t *testing.T, method, path, body string) *http.Request {
	t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	hr, err := http.NewRequestWithContext(ctx, method, "http://apiserver"+path, reader)
	if err != nil {
		t.Fatal(err)
	}
	return hr
}

// bubble runs f with a stand-in and a Transport to it for which the script decides.
func bubble(t *testing.T, faults []Fault, f func(t *testing.T, s *standIn, c *script, rt *Transport)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &standIn{events: make(chan string, 10)}
		c := &script{faults: faults}
		rt := newTransport("n1", roleHost, s, c, newTrace())
		defer rt.Close()
		f(t, s, c, rt)
	})
}

// TestFaultsOfRequests sends one write, whose sender waits 10 s, under each fault. "arrives" are the times at which the API server carries the
// write out; "gets" is what the sender gets, and when.
func TestFaultsOfRequests(t *testing.T) {
	one := func(k Kind, mode string, d time.Duration) Fault { return Fault{Kind: k, Mode: mode, For: d} }
	for _, c := range []struct {
		fault   Fault
		arrives string
		gets    string
	}{
		{Fault{}, "0s", `200 {"answer":01} at 0s`},
		{one(kindLost, modeError, 0), "", "connection reset by peer at 0s"},
		{one(kindLost, modeSilent, 0), "", "context deadline exceeded at 10s"},
		{one(kindDelay, "", 3*time.Second), "3s", `200 {"answer":01} at 3s`},
		{one(kindDelay, "", 11*time.Second), "", "context deadline exceeded at 10s"},
		{one(kindLate, modeError, 3*time.Second), "3s", "connection reset by peer at 0s"},
		{one(kindLate, modeSilent, 3*time.Second), "13s", "context deadline exceeded at 10s"},
		{one(kindAnswerLost, modeError, 0), "0s", "connection reset by peer at 0s"},
		{one(kindAnswerLost, modeSilent, 0), "0s", "context deadline exceeded at 10s"},
		{one(kindAnswerLate, "", 3*time.Second), "0s", `200 {"answer":01} at 3s`},
		{one(kindAnswerLate, "", 11*time.Second), "0s", "context deadline exceeded at 10s"},
		{one(kindProxy, "502", 0), "", `502 text/html retry="" at 0s`},
		{one(kindProxy, "503,retry", 0), "", `503 text/html retry="2" at 0s`},
		{one(kindProxy, "504,delivered", 0), "0s", `504 text/html retry="" at 0s`},
		{one(kindProxy, "404", 0), "", `404 text/html retry="" at 0s`},
		{one(kindProxy, "401,plain", 0), "", `401 text/plain; charset=utf-8 retry="" at 0s`},
		{one(kindProxy, "429,retry,delivered", 0), "0s", `429 text/html retry="2" at 0s`},
		{one(kindLate, "503,retry", 3*time.Second), "3s", `503 text/html retry="2" at 0s`},
		{one(kindRefuse, "403", 0), "", `403 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"admission webhook \"virtual\" denied the request","reason":"Forbidden","code":403} at 0s`},
		{one(kindRefuse, "504,delivered", 0), "0s", `504 {"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Timeout: request did not complete within the allotted timeout","reason":"Timeout","code":504} at 0s`},
		{one(kindRepeat, modeFirst, 3*time.Second), "0s 3s", `200 {"answer":01} at 0s`},
		{one(kindRepeat, modeSecond, 3*time.Second), "0s 3s", `200 {"answer":02} at 3s`},
		{one(kindTruncate, modeError, 0), "0s", `200 {"answ: unexpected EOF at 0s`},
		{one(kindTruncate, modeClean, 0), "0s", `200 {"answ at 0s`},
	} {
		name := c.fault.action()
		t.Run(name, func(t *testing.T) {
			bubble(t, []Fault{c.fault}, func(t *testing.T, s *standIn, _ *script, rt *Transport) {
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				resp, err := rt.RoundTrip(newRequest(ctx, t, http.MethodPatch, "/api/v1/nodes/n1", patchOfState))
				got := describeAnswer(resp, err) + fmt.Sprintf(" at %v", time.Since(start))
				if got != c.gets {
					t.Errorf("the sender gets %q, expected %q", got, c.gets)
				}
				time.Sleep(time.Hour)
				var times []string
				for _, a := range s.arrived() {
					times = append(times, a.at.Sub(start).String())
					if a.body != patchOfState {
						t.Errorf("the body is %q", a.body)
					}
				}
				if got := strings.Join(times, " "); got != c.arrives {
					t.Errorf("it arrives at %q, expected %q", got, c.arrives)
				}
			})
		})
	}
}

// describeAnswer returns the status and the body or, of a proxy's page, its headers.
func describeAnswer(resp *http.Response, err error) string {
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	if kind := resp.Header.Get("Content-Type"); strings.HasPrefix(kind, "text/") {
		return fmt.Sprintf("%d %s retry=%q", resp.StatusCode, kind, resp.Header.Get("Retry-After"))
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Sprintf("%d %s: %v", resp.StatusCode, body, err)
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, body)
}

// TestSilenceEnds: a request without a deadline ends when the pings of the connection fail.
func TestSilenceEnds(t *testing.T) {
	bubble(t, []Fault{{Kind: kindLost, Mode: modeSilent}}, func(t *testing.T, _ *standIn, _ *script, rt *Transport) {
		start := time.Now()
		_, err := rt.RoundTrip(newRequest(t.Context(), t, http.MethodGet, "/api/v1/nodes/n1", ""))
		if !errors.Is(err, errPings) || time.Since(start) != silence {
			t.Errorf("%v after %v, expected %v after %v", err, time.Since(start), errPings, silence)
		}
	})
}

// TestSever: everything under way ends at once, what was sent before lands, and what is sent after does not.
func TestSever(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *standIn, c *script, rt *Transport) {
		start := time.Now()
		ended := make(chan error)
		w := openWatch(t, rt)
		c.mu.Lock()
		c.faults = []Fault{{Kind: kindLate, Mode: modeSilent, For: time.Minute}}
		c.mu.Unlock()
		go func() {
			_, err := rt.RoundTrip(newRequest(t.Context(), t, http.MethodPatch, "/api/v1/nodes/n1", patchOfState))
			ended <- err
		}()
		time.Sleep(time.Second)
		rt.Sever()
		if err := <-ended; !errors.Is(err, errSevered) || time.Since(start) != time.Second {
			t.Errorf("the request ends with %v after %v, expected %v after 1s", err, time.Since(start), errSevered)
		}
		if _, err := io.ReadAll(w); !errors.Is(err, errSevered) || time.Since(start) != time.Second {
			t.Errorf("the watch ends with %v after %v, expected %v after 1s", err, time.Since(start), errSevered)
		}
		c.mu.Lock()
		c.faults = nil
		c.mu.Unlock()
		if _, err := rt.RoundTrip(newRequest(t.Context(), t, http.MethodGet, "/api/v1/nodes/n1", "")); !errors.Is(err, errSevered) {
			t.Errorf("a later request ends with %v, expected %v", err, errSevered)
		}
		synctest.Wait()
		if rt.over() {
			t.Error("the Transport is over while a write is under way")
		}
		time.Sleep(time.Hour)
		if got := s.arrived(); len(got) != 2 || got[1].at.Sub(start) != time.Minute+time.Second {
			t.Errorf("these arrived: %v, expected the watch, and the write a minute after its sender ended", got)
		}
		if !rt.over() {
			t.Error("the Transport is not over")
		}
	})
}

// TestFreeze: nothing goes out and nothing comes in until Thaw. A request whose context ends meanwhile still goes out.
func TestFreeze(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *standIn, _ *script, rt *Transport) {
		start := time.Now()
		w := openWatch(t, rt)
		rt.Freeze()
		rt.Freeze()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		done := make(chan time.Duration, 2)
		go func() {
			_, _ = rt.RoundTrip(newRequest(ctx, t, http.MethodPatch, "/api/v1/nodes/n1", patchOfState))
			done <- time.Since(start)
		}()
		go func() {
			_, _ = w.Read(make([]byte, 10))
			done <- time.Since(start)
		}()
		s.events <- "{}"
		time.Sleep(time.Minute)
		if n := len(s.arrived()); n != 1 || len(done) != 0 {
			t.Errorf("%d requests arrived and %d things came in at a frozen process, expected the watch and nothing", n, len(done))
		}
		rt.Thaw()
		for range 2 {
			if after := <-done; after != time.Minute {
				t.Errorf("after %v, expected 1m", after)
			}
		}
		synctest.Wait()
		if n := len(s.arrived()); n != 2 {
			t.Errorf("%d requests arrived, expected the watch and the write", n)
		}
	})
}

// TestFreezeKeepsAnAnswer: an answer that comes while the process is frozen comes in at Thaw.
func TestFreezeKeepsAnAnswer(t *testing.T) {
	bubble(t, []Fault{{Kind: kindAnswerLate, For: time.Second}}, func(t *testing.T, _ *standIn, _ *script, rt *Transport) {
		start := time.Now()
		time.AfterFunc(500*time.Millisecond, rt.Freeze)
		time.AfterFunc(time.Minute, rt.Thaw)
		if _, err := rt.RoundTrip(newRequest(t.Context(), t, http.MethodGet, "/api/v1/nodes/n1", "")); err != nil || time.Since(start) != time.Minute {
			t.Errorf("%v after %v, expected an answer after 1m", err, time.Since(start))
		}
	})
}

// TestMoments: a fault that is not the request's happens before it, when it has landed, or after its answer; and a process that is killed in its
// own request does not wait for itself.
func TestMoments(t *testing.T) {
	for _, c := range []struct {
		moment  Moment
		arrived int
		err     error
	}{{momentBefore, 0, errSevered}, {momentLanded, 1, errSevered}, {momentAnswered, 1, nil}} {
		t.Run("moment "+string(c.moment), func(t *testing.T) {
			bubble(t, []Fault{{Kind: kindKill, At: Trigger{Moment: c.moment}}}, func(t *testing.T, s *standIn, script *script, rt *Transport) {
				ended := make(chan struct{})
				script.begin = func(Fault) { rt.Sever(); <-ended } // as a fleet that waits for the process
				_, err := rt.RoundTrip(newRequest(t.Context(), t, http.MethodPatch, "/api/v1/nodes/n1", patchOfState))
				close(ended)
				synctest.Wait()
				if !errors.Is(err, c.err) || len(s.arrived()) != c.arrived || len(script.acted) != 1 {
					t.Errorf("%v, %d arrived, %d kills; expected %v, %d and 1", err, len(s.arrived()), len(script.acted), c.err, c.arrived)
				}
			})
		})
	}
}

// TestCutNetwork: nothing arrives while the network is down, nor does an answer that comes then.
func TestCutNetwork(t *testing.T) {
	bubble(t, []Fault{{Kind: kindAnswerLate, For: time.Second}}, func(t *testing.T, s *standIn, c *script, rt *Transport) {
		cutAt := func(down bool) { c.mu.Lock(); c.down = down; c.mu.Unlock() }
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		time.AfterFunc(500*time.Millisecond, func() { cutAt(true) })
		if _, err := rt.RoundTrip(newRequest(ctx, t, http.MethodPatch, "/api/v1/nodes/n1", patchOfState)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, expected the deadline: the answer came when the network was down", err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := rt.RoundTrip(newRequest(ctx, t, http.MethodPatch, "/api/v1/nodes/n1", patchOfState)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, expected the deadline", err)
		}
		if n := len(s.arrived()); n != 1 {
			t.Errorf("%d arrived, expected the first", n)
		}
	})
}

func openWatch(t *testing.T, rt *Transport) io.ReadCloser {
	t.Helper()
	resp, err := rt.RoundTrip(newRequest(t.Context(), t, http.MethodGet, "/api/v1/nodes?watch=1", ""))
	if err != nil {
		t.Fatal(err)
	}
	return resp.Body
}

// TestWatches streams three events, one a second, to a watch under each fault, which begins after a second and a half. "gets" is what the
// reader has read and when; the last is how the watch ends.
func TestWatches(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*watch)
		after  func(*watch) // 10 s later
		gets   string
	}{
		"none": {func(*watch) {}, nil, "one@0s two@1s three@2s EOF@3s"},
		"lag":  {func(w *watch) { w.lag = 5 * time.Second }, nil, "one@0s two@1s three@7s EOF@8s"},
		"cut":  {func(w *watch) { w.ending, w.half = errReset, true }, nil, "one@0s two@1s thr@2s connection reset by peer@2s"},
		"end":  {func(w *watch) { w.ending = io.EOF }, nil, "one@0s two@1s EOF@1.5s"},
		"hang and survive": {
			func(w *watch) { w.hung = true }, func(w *watch) { w.resume(true) }, "one@0s two@1s three@11.5s EOF@11.5s",
		},
		"hang and break": {
			func(w *watch) { w.hung = true }, func(w *watch) { w.resume(false) },
			"one@0s two@1s client connection lost: no answer to pings@11.5s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, s *standIn, _ *script, rt *Transport) {
				start := time.Now()
				body := openWatch(t, rt)
				go func() {
					for _, e := range []string{"one", "two", "three"} {
						s.events <- e
						time.Sleep(time.Second)
					}
					close(s.events)
				}()
				go func() {
					time.Sleep(1500 * time.Millisecond)
					rt.eachWatch("pods", func(*watch) { t.Error("a watch of pods") })
					rt.eachWatch("nodes", c.change)
					if c.after != nil {
						time.Sleep(10 * time.Second)
						rt.eachWatch("", c.after)
					}
				}()
				var got []string
				buffer := make([]byte, 100)
				for {
					n, err := body.Read(buffer)
					if n > 0 {
						got = append(got, fmt.Sprintf("%s@%v", bytes.TrimSpace(buffer[:n]), time.Since(start)))
					}
					if err != nil {
						got = append(got, fmt.Sprintf("%v@%v", err, time.Since(start)))
						break
					}
				}
				if text := strings.Join(got, " "); text != c.gets {
					t.Errorf("the reader gets %q, expected %q", text, c.gets)
				}
				body.Close()
				synctest.Wait()
				if len(rt.watches) != 0 {
					t.Error("the watch is still counted")
				}
				time.Sleep(20 * time.Second)
			})
		})
	}
}

// TestWatchIsClosed: a reader that closes its watch, or whose context ends, ends the API server's request.
func TestWatchIsClosed(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *standIn, _ *script, rt *Transport) {
		openWatch(t, rt).Close()
		synctest.Wait()
		if s.mu.Lock(); !s.clean {
			t.Error("the API server's request has not ended")
		}
		s.mu.Unlock()
	})
}

// TestCloseEndsEverything: Close ends a request that hangs, a watch and a write under way in the network, and returns.
func TestCloseEndsEverything(t *testing.T) {
	bubble(t, []Fault{{Kind: kindLate, Mode: modeError, For: time.Hour}}, func(t *testing.T, s *standIn, c *script, rt *Transport) {
		_, _ = rt.RoundTrip(newRequest(t.Context(), t, http.MethodPatch, "/api/v1/nodes/n1", patchOfState))
		c.mu.Lock()
		c.faults = []Fault{{Kind: kindLost, Mode: modeSilent}}
		c.mu.Unlock()
		go func() { _, _ = rt.RoundTrip(newRequest(t.Context(), t, http.MethodGet, "/api/v1/nodes", "")) }()
		synctest.Wait()
		start := time.Now()
		rt.Close()
		if time.Since(start) != 0 || len(s.arrived()) != 0 {
			t.Errorf("Close took %v, and %d requests arrived", time.Since(start), len(s.arrived()))
		}
		if _, err := rt.RoundTrip(newRequest(t.Context(), t, http.MethodGet, "/api/v1/nodes", "")); !errors.Is(err, errClosed) {
			t.Errorf("%v, expected %v", err, errClosed)
		}
	})
}
