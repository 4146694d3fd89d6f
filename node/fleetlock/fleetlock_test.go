package fleetlock

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const clientsID = "978a225b3d7b40e9acd7ce9b62f68444"

// host is the part of a host that uses a Server.
type host struct {
	*Server
	mu       sync.Mutex
	changes  int
	answered []string
}

func newHost() *host {
	h := &host{}
	h.Server = New(Options{
		ID: clientsID, Log: slog.New(slog.DiscardHandler), Changed: func() { h.note(func() { h.changes++ }) },
		Answered: func(result string) { h.note(func() { h.answered = append(h.answered, result) }) },
	})
	return h
}

func (h *host) note(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// ask sends a request to the host and returns where its answer comes. ctx is the client's connection.
func (h *host) ask(ctx context.Context, path string) <-chan *httptest.ResponseRecorder {
	body := "{\n  \"client_params\": {\n    \"id\": \"" + clientsID + "\",\n    \"group\": \"default\"\n  }\n}"
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:9478"+path, strings.NewReader(body))
	r.Header.Set("fleet-lock-protocol", "true")
	answer := make(chan *httptest.ResponseRecorder, 1)
	go func() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		answer <- w
	}()
	return answer
}

func (h *host) is(t *testing.T, when string, want State) {
	t.Helper()
	if got := h.State(); got != want {
		t.Errorf("%s: %+v, expected %+v", when, got, want)
	}
}

// no checks that a request has no answer yet.
func no(t *testing.T, answer <-chan *httptest.ResponseRecorder) {
	t.Helper()
	synctest.Wait()
	select {
	case w := <-answer:
		t.Fatalf("answered %d %s, expected no answer yet", w.Code, w.Body)
	default:
	}
}

// gets checks the answer to a request.
func gets(t *testing.T, answer <-chan *httptest.ResponseRecorder, code int, body string) {
	t.Helper()
	synctest.Wait()
	select {
	case w := <-answer:
		if w.Code != code || w.Body.String() != body {
			t.Errorf("answered %d %q, expected %d %q", w.Code, w.Body, code, body)
		}
	default:
		t.Fatal("no answer")
	}
}

func TestPermission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		h.is(t, "at its start", State{})
		first := h.ask(t.Context(), "/v1/pre-reboot")
		no(t, first)
		h.is(t, "with a request", State{Asked: true, Open: true, Known: true})
		if h.changes != 1 {
			t.Errorf("%d changes, expected 1", h.changes)
		}
		if !h.Permit(time.Now().Add(10*time.Second)) || h.Permit(time.Now().Add(10*time.Second)) {
			t.Error("expected that the first call permits, and the second finds the permission given")
		}
		gets(t, first, 200, "")
		h.is(t, "after its answer", State{Asked: true, Known: true})
		// The client asks again: its users are logged in.
		time.Sleep(time.Minute)
		again := h.ask(t.Context(), "/v1/pre-reboot")
		no(t, again)
		h.Permit(time.Now().Add(10 * time.Second))
		gets(t, again, 200, "")
		if got := strings.Join(h.answered, " "); got != "permitted permitted" {
			t.Errorf("counted %q", got)
		}
	})
}

// Permission that comes too late is none: the reads behind it are too old.
func TestLatePermission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		asks := h.ask(t.Context(), "/v1/pre-reboot")
		synctest.Wait()
		h.Permit(time.Now())
		no(t, asks)
		h.is(t, "after permission that was late", State{Asked: true, Open: true, Known: true})
		h.Permit(time.Now().Add(time.Nanosecond))
		gets(t, asks, 200, "")
	})
}

func TestNotYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		asks := h.ask(t.Context(), "/v1/pre-reboot")
		synctest.Wait()
		h.Explain("Budget: waits for its turn")
		time.Sleep(25*time.Minute - time.Nanosecond)
		no(t, asks)
		time.Sleep(time.Nanosecond)
		gets(t, asks, 423, `{"kind":"not_yet","value":"Budget: waits for its turn"}`+"\n")
		h.is(t, "after the refusal", State{Asked: true, Known: true})
		// The client does not ask again.
		time.Sleep(17*time.Minute - time.Nanosecond)
		h.is(t, "before the request counts as withdrawn", State{Asked: true, Known: true})
		time.Sleep(time.Nanosecond)
		h.is(t, "at its end", State{Known: true})
		if h.answered[0] != v1alpha1.FleetLockNotYet {
			t.Errorf("counted %q", h.answered)
		}
	})
}

// A client that hangs up still wants to reboot, and so does one whose host's process has been replaced.
func TestHangUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		ctx, hangUp := context.WithCancel(t.Context())
		h.ask(ctx, "/v1/pre-reboot")
		synctest.Wait()
		hangUp()
		synctest.Wait()
		h.is(t, "after it hung up", State{Asked: true, Known: true})

		next := newHost()
		time.Sleep(17*time.Minute - time.Nanosecond)
		next.is(t, "in the next process", State{})
		time.Sleep(time.Nanosecond)
		next.is(t, "when the client must have asked again", State{Known: true})
	})
}

func TestSteadyState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		gets(t, h.ask(t.Context(), "/v1/steady-state"), 200, "")
		h.is(t, "after steady-state", State{Known: true})
		asks := h.ask(t.Context(), "/v1/pre-reboot")
		no(t, asks)
		gets(t, h.ask(t.Context(), "/v1/steady-state"), 200, "")
		h.is(t, "after steady-state with an older request", State{Asked: true, Open: true, Known: true})
		h.Permit(time.Now().Add(time.Second))
		gets(t, asks, 200, "")
		h.is(t, "after that", State{Known: true})
	})
}

// At most four requests wait: another program on the host cannot use up its connections.
func TestManyRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		for range 4 {
			no(t, h.ask(t.Context(), "/v1/pre-reboot"))
		}
		gets(t, h.ask(t.Context(), "/v1/pre-reboot"), 423, `{"kind":"not_yet","value":"4 requests wait already"}`+"\n")
		h.Permit(time.Now().Add(time.Second))
		synctest.Wait()
		h.is(t, "after permission for all", State{Asked: true, Known: true})
	})
}

// A server without an ID permits no one anything.
func TestNoID(t *testing.T) {
	s := New(Options{Log: slog.New(slog.DiscardHandler), Changed: func() {}})
	if s.known("") || s.known(clientsID) {
		t.Error("it knows a client")
	}
}

func TestAppID(t *testing.T) {
	for machine, want := range map[string]string{
		"1c09ca98649c4c7abc779cd04c96812e\n": clientsID,
		"1c09ca98649c4c7abc779cd04c96812e":   clientsID,
		"uninitialized\n":                    "",
		"":                                   "",
		"1c09ca98649c4c7abc779cd04c9681":     "",
	} {
		if got, err := AppID(machine); got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v, expected %q", machine, got, err, want)
		}
	}
}
