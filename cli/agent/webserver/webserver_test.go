package webserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"lockkeeper.dev/lockkeeper/node/fleetlock"
)

// serve serves a handler under limits of a test's own at an address that it returns.
func serve(t *testing.T, l limits, handler http.Handler) (address string) {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = free.Addr().String()
	free.Close()
	s := New("tests", handler, slog.New(slog.DiscardHandler), nil)
	s.limits = l
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	s.Listen(address)
	return address
}

// open connects and sends the text.
func open(t *testing.T, address, text string) net.Conn {
	t.Helper()
	var conn net.Conn
	deadline := time.Now().Add(time.Minute)
	for {
		var err error
		if conn, err = net.Dial("tcp", address); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

// scrape is a client that waits for its turn, and fails the test after a minute.
func scrape(t *testing.T, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || string(text) != "ok" {
		t.Fatalf("%q, %v", text, err)
	}
}

const aRequest = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

// Clients that hold all connections do not keep the next scrape out.
func TestHeldConnections(t *testing.T) {
	tight := limits{connections: 3, request: 500 * time.Millisecond, answer: 500 * time.Millisecond}
	large := strings.Repeat("x", 64<<20) // more than the kernel keeps for a connection
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			_, _ = io.WriteString(w, large)
			return
		}
		_, _ = io.WriteString(w, "ok")
	})
	for name, hold := range map[string]func(t *testing.T, address string){
		"silent":         func(t *testing.T, address string) { open(t, address, "") },
		"a slow request": func(t *testing.T, address string) { drip(t, open(t, address, "GET / HTTP/1.1\r\nHost: x\r\n")) },
		"asks again": func(t *testing.T, address string) {
			again(t, open(t, address, aRequest))
		},
		"takes no answer": func(t *testing.T, address string) {
			open(t, address, strings.Replace(aRequest, "/", "/large", 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := serve(t, tight, handler)
			for range 3 * tight.connections {
				hold(t, address)
			}
			scrape(t, address)
		})
	}
}

// drip goes on sending a little until the server closes the connection or the test ends.
func drip(t *testing.T, conn net.Conn) {
	ctx := t.Context()
	go func() {
		for ctx.Err() == nil {
			if _, err := io.WriteString(conn, "a: b\r\n"); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
}

// again asks on the same connection until the server closes it or the test ends.
func again(t *testing.T, conn net.Conn) {
	ctx := t.Context()
	go func() {
		from := bufio.NewReader(conn)
		for ctx.Err() == nil {
			response, err := http.ReadResponse(from, nil)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, response.Body)
			time.Sleep(20 * time.Millisecond)
			if _, err := io.WriteString(conn, aRequest); err != nil {
				return
			}
		}
	}()
}

// No more clients than the limit are served at the same time, and none is turned away.
func TestSimultaneousConnections(t *testing.T) {
	var now, most atomic.Int32
	entered, let := make(chan struct{}, 100), make(chan struct{})
	const limit, clients = 3, 12
	l := defaultLimits
	l.connections = limit
	address := serve(t, l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		entered <- struct{}{}
		<-let
		_, _ = io.WriteString(w, "ok")
	}))
	open(t, address, "").Close() // it listens
	var scraping sync.WaitGroup
	for range clients {
		scraping.Go(func() { scrape(t, address) })
	}
	for range limit {
		<-entered
	}
	select {
	case <-entered:
		t.Error("one more is served than the limit")
	case <-time.After(500 * time.Millisecond): // nothing says that a client is kept waiting
	}
	close(let)
	scraping.Wait()
	if got := most.Load(); got != limit {
		t.Errorf("%d served at the same time, want %d", got, limit)
	}
}

// A FleetLock request waits for longer than other requests may take, and is over at once when its client hangs up.
func TestLongRequest(t *testing.T) {
	changed := make(chan struct{}, 10)
	client := fleetlock.New(fleetlock.Options{ID: "an-id", Log: slog.New(slog.DiscardHandler), Changed: func() { changed <- struct{}{} }})
	address := serve(t, limits{connections: 8, request: 100 * time.Millisecond, answer: 100 * time.Millisecond}, client)
	const body = `{"client_params": {"id": "an-id", "group": "default"}}`
	request := fmt.Sprintf("POST /v1/pre-reboot HTTP/1.1\r\nHost: x\r\nfleet-lock-protocol: true\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	conn := open(t, address, request)
	<-changed
	// Two silent connections, one after the other, last for as long as a request may take.
	for range 2 {
		silent := open(t, address, "")
		if _, err := silent.Read(make([]byte, 1)); err != io.EOF {
			t.Fatalf("a silent connection: %v, expected that the server closes it", err)
		}
	}
	if s := client.State(); !s.Open {
		t.Fatal("the request is over before it was answered")
	}
	client.Permit(time.Now().Add(time.Minute))
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || line != "HTTP/1.1 200 OK\r\n" {
		t.Errorf("%q, %v", line, err)
	}
	<-changed

	open(t, address, request).Close()
	<-changed
	<-changed
	if s := client.State(); s.Open || !s.Asked {
		t.Errorf("%+v after the client hung up", s)
	}
}

// scarce lacks the memory for its first connection.
type scarce struct {
	net.Listener
	failed bool
}

func (s *scarce) Accept() (net.Conn, error) {
	if !s.failed {
		s.failed = true
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.ENOMEM)}
	}
	return s.Listener.Accept()
}

// TestTireless checks that a server survives a connection for which the kernel lacks memory, and ends when it is closed.
func TestTireless(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(tireless{&scarce{Listener: l}}) }()
	scrape(t, l.Addr().String())
	server.Close()
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// A header that is too long is refused before it is read whole.
func TestLongHeader(t *testing.T) {
	address := serve(t, defaultLimits, http.NotFoundHandler())
	conn := open(t, address, "GET / HTTP/1.1\r\nHost: x\r\nA: "+strings.Repeat("b", 2*maxHeader))
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || !strings.Contains(line, fmt.Sprint(http.StatusRequestHeaderFieldsTooLarge)) {
		t.Errorf("%q, %v", line, err)
	}
}

// What the service runs with is bounded in every way, and lets a scrape in within Prometheus's timeout.
func TestDefaultLimits(t *testing.T) {
	s := New("tests", http.NotFoundHandler(), slog.New(slog.DiscardHandler), nil)
	if l := s.limits; l.connections != 32 || l.request != 5*time.Second || l.answer != 15*time.Second {
		t.Errorf("%+v", l)
	}
}

// waits counts how often Done is called, which is once for each wait of a loop.
type waits struct {
	context.Context
	n atomic.Int32
}

func (w *waits) Done() <-chan struct{} {
	w.n.Add(1)
	return w.Context.Done()
}

// TestNoAddressNoTimer checks that a server without an address, as FleetLock's on most hosts, does not wake its process.
func TestNoAddressNoTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New("tests", http.NotFoundHandler(), slog.New(slog.DiscardHandler), nil)
		ctx, stop := context.WithCancel(t.Context())
		w := &waits{Context: ctx}
		var running sync.WaitGroup
		running.Go(func() { s.Run(w) })
		time.Sleep(time.Hour)
		if n := w.n.Load(); n != 1 {
			t.Errorf("waited %d times", n)
		}
		stop()
		running.Wait()
	})
}

// TestTriesAgain checks that a server that cannot listen on its address tries again every minute, and reports the problem once.
func TestTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports []string
		s := New("tests", http.NotFoundHandler(), slog.New(slog.DiscardHandler), func(problem string) { reports = append(reports, problem) })
		s.Listen("127.0.0.1:99999") // no such port, so that nothing is served in the bubble
		ctx, stop := context.WithCancel(t.Context())
		w := &waits{Context: ctx}
		var running sync.WaitGroup
		running.Go(func() { s.Run(w) })
		time.Sleep(time.Hour)
		stop()
		running.Wait()
		if n := w.n.Load(); n < 60 {
			t.Errorf("waited %d times within an hour", n)
		}
		if len(reports) != 2 || reports[0] != "" || !strings.Contains(reports[1], "invalid port") {
			t.Errorf("reported %q", reports)
		}
	})
}

// TestAddressThatWasTaken checks that a server takes its address once another process has left it.
func TestAddressThatWasTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	reports := make(chan string, 10)
	s := New("tests", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }),
		slog.New(slog.DiscardHandler), func(problem string) { reports <- problem })
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { s.Run(ctx) })
	reported := func(part string) {
		t.Helper()
		for {
			select {
			case problem := <-reports:
				if problem == part || part != "" && strings.Contains(problem, part) {
					return
				}
			case <-time.After(time.Minute):
				t.Fatalf("%q was not reported", part)
			}
		}
	}
	address := taken.Addr().String()
	s.Listen(address)
	reported("address already in use")
	taken.Close()
	s.Listen(address) // a reload; without one, it tries again after a minute
	reported("")
	scrape(t, address)
}
