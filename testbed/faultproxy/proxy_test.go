package faultproxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// patience limits the wait for what takes milliseconds.
const patience = 2 * time.Minute

// server is an API server that counts the writes that reach it.
type server struct {
	*httptest.Server
	writes atomic.Int32
	events chan string // what the watch sends
}

func newServer(t *testing.T) *server {
	s := &server{events: make(chan string)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Get("watch") == "true":
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			for {
				select {
				case text := <-s.events:
					_, _ = io.WriteString(w, text)
					_ = http.NewResponseController(w).Flush()
				case <-r.Context().Done():
					return
				}
			}
		case r.Method == http.MethodGet:
			_, _ = io.WriteString(w, "read")
		default:
			body, _ := io.ReadAll(r.Body)
			s.writes.Add(1)
			w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
			_, _ = w.Write(body)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// wire is a proxy in front of the server, and a client that does not reuse connections.
type wire struct {
	*Proxy
	s      *server
	client *http.Client
	base   string
	mu     sync.Mutex
	ended  []Record
	came   chan Record
}

func newWire(t *testing.T) *wire {
	t.Helper()
	v := &wire{s: newServer(t), came: make(chan Record, 1000)}
	var err error
	v.Proxy, err = Start(Options{
		Name: "test", Config: &rest.Config{Host: v.s.URL}, Dir: t.TempDir(),
		Label: func(r *Request) string { return "body " + string(r.Body) },
		Record: func(r Record) {
			v.mu.Lock()
			v.ended = append(v.ended, r)
			v.mu.Unlock()
			v.came <- r
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg, err := clientcmd.BuildConfigFromFlags("", v.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	v.base = cfg.Host
	v.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return v
}

// do sends one request and returns the status and the body, or the error.
func (v *wire) do(ctx context.Context, method, uri, body string) (int, string, http.Header, error) {
	r, err := http.NewRequestWithContext(ctx, method, v.base+uri, strings.NewReader(body))
	if err != nil {
		return 0, "", nil, err
	}
	resp, err := v.client.Do(r)
	if err != nil {
		return 0, "", nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), resp.Header, err
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// next returns the record of the next request that ends.
func (v *wire) next(t *testing.T) Record {
	t.Helper()
	select {
	case r := <-v.came:
		return r
	case <-time.After(patience):
		t.Fatal("no request came to its end")
		return Record{}
	}
}

// The proxy passes the whole protobuf body on in both directions, including NUL bytes.
const binary = "k8s\x00\n\x02\xff\x00body"

func TestPassesOn(t *testing.T) {
	v := newWire(t)
	status, body, header, err := v.do(within(t), "PATCH", "/api/v1/nodes/n1", binary)
	if status != 200 || body != binary || err != nil {
		t.Fatalf("%d %q %v, expected 200 and the body", status, body, err)
	}
	if header.Get("Date") == "" {
		t.Error("the answer has no Date")
	}
	r := v.next(t)
	if r.Outcome != Answered || r.Code != 200 || r.Verb != "patch" || r.Name != "n1" || r.Number != 1 || r.Label != "body "+binary || r.Body != nil {
		t.Errorf("recorded as %+v", r)
	}
	if _, _, _, err := v.do(within(t), "PATCH", "/api/v1/nodes/n2", ""); err != nil {
		t.Fatal(err)
	}
	if r := v.next(t); r.Number != 2 {
		t.Errorf("the second patch is number %d", r.Number)
	}
}

func TestFaultsOfOneRequest(t *testing.T) {
	for _, c := range []struct {
		name    string
		fault   func(called func()) *Fault
		status  int // 0: the connection is cut
		writes  int // total number of writes that reached the server
		at      int // number of writes that had reached it at the call of the function; -1: no call
		outcome Outcome
	}{
		{"nothing", func(func()) *Fault { return nil }, 200, 1, -1, Answered},
		{"killed before it is sent", KillBefore, 0, 0, 0, Dropped},
		{"killed before the answer", KillAnswered, 0, 1, 1, Withheld},
		{"killed after the answer", KillSent, 200, 1, 1, Answered},
		{"conflict", func(func()) *Fault { return Refuse(409, 0) }, 409, 0, -1, Refused},
		{"too many", func(func()) *Fault { return Refuse(429, 1500*time.Millisecond) }, 429, 0, -1, Refused},
		{"reset before", func(func()) *Fault { return &Fault{Reset: true} }, 0, 0, -1, Dropped},
		{"reset after", func(func()) *Fault { return &Fault{ResetAnswer: true} }, 0, 1, -1, Withheld},
		{"delayed", func(func()) *Fault { return &Fault{Delay: time.Millisecond, DelayAnswer: time.Millisecond} }, 200, 1, -1, Answered},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := newWire(t)
			at := -1
			fault := c.fault(func() { at = int(v.s.writes.Load()) })
			v.Add(func(r *Request) *Fault {
				if r.Is("patch", "nodes") {
					return fault
				}
				return nil
			})
			status, body, header, err := v.do(within(t), "PATCH", "/api/v1/nodes/n1", "x")
			if status != c.status || (err == nil) != (c.status != 0) {
				t.Errorf("the client got %d %v, expected %d", status, err, c.status)
			}
			r := v.next(t)
			if r.Outcome != c.outcome {
				t.Errorf("recorded as %s, expected %s", r.Outcome, c.outcome)
			}
			if got := int(v.s.writes.Load()); got != c.writes {
				t.Errorf("%d writes reached the server, expected %d", got, c.writes)
			}
			if at != c.at {
				t.Errorf("the function saw %d writes at the server, expected %d", at, c.at)
			}
			if c.status == 429 && (header.Get("Retry-After") != "2" || !strings.Contains(body, `"reason":"TooManyRequests"`)) {
				t.Errorf("Retry-After %q, body %s", header.Get("Retry-After"), body)
			}
			// Other requests pass.
			if status, _, _, err := v.do(within(t), "PUT", "/api/v1/nodes/n1", "x"); status != 200 {
				t.Errorf("an update: %d %v", status, err)
			}
		})
	}
}

func TestHold(t *testing.T) {
	for _, c := range []struct {
		name        string
		late, stays bool // the client waits until the request is released
		writes      int32
	}{
		{"released", false, true, 1},
		{"given up", false, false, 0},
		{"late", true, false, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := newWire(t)
			release, held := make(chan struct{}), make(chan struct{})
			v.Add(func(*Request) *Fault {
				close(held)
				return &Fault{Hold: release, Late: c.late}
			})
			ctx, giveUp := context.WithCancel(within(t))
			done := make(chan error, 1)
			go func() {
				_, _, _, err := v.do(ctx, "PATCH", "/api/v1/nodes/n1", "x")
				done <- err
			}()
			<-held
			if !c.stays {
				giveUp()
				if err := <-done; err == nil {
					t.Fatal("an answer to a request that is held")
				}
			}
			if !c.stays && !c.late {
				v.next(t) // dropped when its client gives up
			}
			close(release)
			if c.stays {
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
			if c.stays || c.late {
				v.next(t)
			}
			if got := v.s.writes.Load(); got != c.writes {
				t.Errorf("%d writes reached the server, expected %d", got, c.writes)
			}
			giveUp()
		})
	}
}

func TestWatch(t *testing.T) {
	v := newWire(t)
	r, err := http.NewRequestWithContext(within(t), "GET", v.base+"/api/v1/nodes?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := v.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	// Each event arrives when it is sent, not when a buffer is full.
	for _, text := range []string{"one", "two"} {
		v.s.events <- text
		buffer := make([]byte, 100)
		n, err := resp.Body.Read(buffer)
		if string(buffer[:n]) != text || err != nil {
			t.Fatalf("%q %v, expected %q", buffer[:n], err, text)
		}
	}
	if n := v.CutWatches(); n != 1 {
		t.Errorf("%d watches were cut, expected 1", n)
	}
	if _, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a watch that was cut ends with %v, expected an unexpected end", err)
	}
	v.next(t)
	if n := v.CutWatches(); n != 0 {
		t.Errorf("%d watches were cut, expected none", n)
	}
}

func TestRulesComeAndGo(t *testing.T) {
	v := newWire(t)
	first := v.Add(func(r *Request) *Fault { return Refuse(500, 0) })
	v.Add(func(r *Request) *Fault { return Refuse(503, 0) })
	var got []int
	for range 2 {
		status, _, _, err := v.do(within(t), "GET", "/api/v1/nodes", "")
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, status)
		first()
	}
	if !slices.Equal(got, []int{500, 503}) {
		t.Errorf("answers %v, expected the first rule's and then the second's", got)
	}
}

func TestShiftDate(t *testing.T) {
	v := newWire(t)
	v.ShiftDate(time.Hour)
	_, _, header, err := v.do(within(t), "GET", "/api/v1/nodes", "")
	if err != nil {
		t.Fatal(err)
	}
	date, err := http.ParseTime(header.Get("Date"))
	if ahead := time.Until(date); err != nil || ahead < 59*time.Minute || ahead > 61*time.Minute {
		t.Errorf("the Date %q is %v ahead, expected an hour", header.Get("Date"), ahead)
	}
}

func TestServerAway(t *testing.T) {
	v := newWire(t)
	v.s.Close()
	if status, _, _, err := v.do(within(t), "GET", "/api/v1/nodes", ""); err == nil {
		t.Errorf("an answer %d of a server that is away", status)
	}
	if r := v.next(t); r.Outcome != Unreachable {
		t.Errorf("recorded as %s", r.Outcome)
	}
}

func TestClose(t *testing.T) {
	v := newWire(t)
	held := make(chan struct{})
	v.Add(func(*Request) *Fault {
		close(held)
		return &Fault{Hold: make(chan struct{}), Late: true}
	})
	done := make(chan error, 1)
	go func() {
		_, _, _, err := v.do(context.Background(), "PATCH", "/api/v1/nodes/n1", "x")
		done <- err
	}()
	<-held
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err == nil {
		t.Error("an answer through a closed proxy")
	}
	if _, err := os.Stat(v.Kubeconfig()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the kubeconfig is still there: %v", err)
	}
	if v.s.writes.Load() != 0 {
		t.Error("a held write was forwarded by Close")
	}
}
