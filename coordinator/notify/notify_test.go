package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// journal collects what was logged.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

// counts receives what happened to messages.
type counts chan string

func (c counts) next(t *testing.T) string {
	t.Helper()
	select {
	case result := <-c:
		return result
	case <-time.After(time.Hour): // virtual time in a bubble
		t.Fatal("nothing happened to the message")
		return ""
	}
}

// start runs a Sender that sends with post, or by HTTP if post is nil.
func start(t *testing.T, o Options, post func(context.Context, []byte) error) (*Sender, counts, *journal) {
	t.Helper()
	c, j := make(counts, 1000), new(journal)
	o.On, o.Version, o.Count, o.Log = []v1alpha1.Occasion{v1alpha1.OccasionFailed}, "v1", func(r string) { c <- r }, slog.New(slog.NewTextHandler(j, nil))
	s := New(o)
	if post != nil {
		s.post = post
	}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { stop(); wg.Wait() })
	return s, c, j
}

func message(text string) Message {
	return Message{Occasion: v1alpha1.OccasionFailed, Nodes: []string{"n1"}, Policy: "web", Turn: "abc", Result: v1alpha1.ResultFailed, Reason: "NotUpdated", Text: text}
}

// TestFormats checks the three formats with a real server.
func TestFormats(t *testing.T) {
	var got []*http.Request
	var bodies []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got, bodies = append(got, r), append(bodies, string(body))
		w.WriteHeader(http.StatusAccepted)
	}))
	defer server.Close()
	for _, c := range []struct {
		format  v1alpha1.NotifyFormat
		cluster string
		want    string
	}{
		{v1alpha1.NotifySlack, "", `{"text":"Node n1: \u0026lt;!channel\u0026gt; \u0026amp; *x* ]0;y","mrkdwn":false,"unfurl_links":false,"unfurl_media":false}`},
		{v1alpha1.NotifySlack, "prod", `{"text":"prod: Node n1: \u0026lt;!channel\u0026gt; \u0026amp; *x* ]0;y","mrkdwn":false,"unfurl_links":false,"unfurl_media":false}`},
		{v1alpha1.NotifyTeams, "prod", `{"type":"message","attachments":[{"contentType":"application/vnd.microsoft.card.adaptive","content":{"$schema":"http://adaptivecards.io/schemas/adaptive-card.json","type":"AdaptiveCard","version":"1.4",` +
			`"body":[{"type":"RichTextBlock","inlines":[{"type":"TextRun","text":"prod: Node n1: \u003c!channel\u003e \u0026 *x* ]0;y"}]}]}}]}`},
		{v1alpha1.NotifyGeneric, "prod", `{"time":"TIME","cluster":"prod","occasion":"failed","nodes":["n1"],"policy":"web","turn":"abc","result":"Failed","reason":"NotUpdated","message":"Node n1: \u003c!channel\u003e \u0026 *x* ]0;y"}`},
	} {
		got, bodies = nil, nil
		s, counts, _ := start(t, Options{URL: server.URL + "/services/T/B?sig=x", Format: c.format, Cluster: c.cluster}, nil)
		before := time.Now()
		s.Send(message("Node n1: <!channel> & *x*\x1b]0;y"))
		s.Send(Message{Occasion: v1alpha1.OccasionStop, Text: "not in On"})
		if result := counts.next(t); result != v1alpha1.NotificationSent || len(bodies) != 1 {
			t.Fatalf("%s: %s, %q", c.format, result, bodies)
		}
		body := bodies[0]
		if c.format == v1alpha1.NotifyGeneric {
			var m Message
			if err := json.Unmarshal([]byte(body), &m); err != nil || m.Time.Before(before.Truncate(time.Millisecond)) || m.Time.After(time.Now()) || m.Time.Location() != time.UTC {
				t.Errorf("%v: %s", err, body)
			}
			body = strings.Replace(body, m.Time.Format(time.RFC3339Nano), "TIME", 1)
		}
		if body != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.format, body, c.want)
		}
		r := got[0]
		if r.Method != "POST" || r.URL.RequestURI() != "/services/T/B?sig=x" || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("User-Agent") != "lockkeeper-coordinator/v1" || r.Header.Get("Authorization") != "" {
			t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
		}
	}
}

// TestHostileTexts checks that texts from others are limited and on one line in every format, and that every body is
// JSON of limited size.
func TestHostileTexts(t *testing.T) {
	for name, evil := range map[string]string{
		"escape sequences": strings.Repeat("\x1b[2J\x07\r\n", 100), "1 MiB": strings.Repeat("x", 1<<20), "invalid UTF-8": strings.Repeat("\xff\xc0<", 10000),
		"direction": strings.Repeat("\u202e\u2066", 10000), "mentions": "<!channel> <@U1> <!subteam^S1> @here <https://x|y>", "ampersands": strings.Repeat("&", 1<<20),
	} {
		m := Message{Occasion: v1alpha1.OccasionFailed, Cluster: evil, Policy: evil, Turn: evil, Result: v1alpha1.Result(evil), Reason: v1alpha1.Reason(evil), Text: evil}
		for range 5000 {
			m.Nodes = append(m.Nodes, evil)
		}
		m.bound()
		if len(m.Nodes) != MaxNames || m.More != 5000-MaxNames {
			t.Errorf("%s: %d nodes and %d more", name, len(m.Nodes), m.More)
		}
		for _, format := range []v1alpha1.NotifyFormat{v1alpha1.NotifySlack, v1alpha1.NotifyTeams, v1alpha1.NotifyGeneric} {
			body, err := encode(&m, format)
			var any map[string]any
			most := 28 << 10 // the limit of Teams
			if format == v1alpha1.NotifyGeneric {
				most = 64 << 10
			}
			if err != nil || json.Unmarshal(body, &any) != nil || len(body) > most || bytes.ContainsFunc(body, func(r rune) bool { return r < ' ' || r == '\u202e' || r == '\u2066' || r == 0x7f }) {
				t.Errorf("%s as %s: %v, %d bytes: %.200q", name, format, err, len(body), body)
			}
			if text, _ := any["text"].(string); strings.ContainsAny(text, "<>") {
				t.Errorf("%s: Slack would read %.100q", name, text)
			}
		}
	}
}

// TestReceiverAnswers checks that the receiver's answer decides whether a message is sent again.
func TestReceiverAnswers(t *testing.T) {
	hangs := make(chan struct{})
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Error("the message was sent to another server")
	}))
	defer elsewhere.Close()
	for _, c := range []struct {
		name   string
		answer func(w http.ResponseWriter, r *http.Request)
		err    string // "" means that the message is accepted
		final  bool
		after  time.Duration
	}{
		{"200", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") }, "", false, 0},
		{"204", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) }, "", false, 0},
		{"10 MiB of success", func(w http.ResponseWriter, r *http.Request) { w.Write(make([]byte, 10<<20)) }, "", false, 0},
		{"10 MiB of failure", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(500)
			w.Write(bytes.Repeat([]byte("x"), 10<<20))
		}, "it answers 500: " + strings.Repeat("x", maxDetail), false, 0},
		{"400", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "invalid_payload", 400) }, "it answers 400: invalid_payload\n", true, 0},
		{"404", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no_service", 404) }, "it answers 404: no_service\n", true, 0},
		{"an error page with the path", func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, `{"status":500,"path":"`+r.URL.Path+`"}`, 500)
		}, `it answers 500: {"status":500,"path":"/…"}` + "\n", false, 0},
		{"one with more, escaped for JSON", func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "Cannot POST "+strings.ReplaceAll(r.URL.RequestURI(), "/", `\/`)+" "+r.URL.Query().Get("sig"), 404)
		}, `it answers 404: Cannot POST \/…?sig=… …` + "\n", true, 0},
		{"a redirect to a broken address", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "https://[::1"+r.URL.Path)
			w.WriteHeader(307)
		}, `failed to parse Location header "https://[::1/…": parse "https://[::1/…": missing ']' in host`, false, 0},
		{"429", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "30")
			w.WriteHeader(429)
		}, "it answers 429: ", false, 30 * time.Second},
		{"503 until a date", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
			w.WriteHeader(503)
		}, "it answers 503: ", false, time.Hour},
		{"an absurd Retry-After", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "99999999999999999999")
			w.WriteHeader(503)
		}, "it answers 503: ", false, 0},
		{"a redirect to another server", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+"/secret", http.StatusTemporaryRedirect)
		}, "it redirects to " + elsewhere.URL + "; redirects are not followed, so set notify.url to the receiver's own address", true, 0},
		{"304", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(304) }, "it answers 304: ", true, 0},
		{"a cut connection", func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, "EOF", false, 0},
		{"no answer", func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); <-hangs }, "no answer within 10s", false, 0},
	} {
		server := httptest.NewServer(http.HandlerFunc(c.answer))
		s := New(Options{URL: server.URL + "/secret?sig=secret%2Fx"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if c.name == "no answer" {
			ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		}
		err := s.post(ctx, []byte("{}"))
		cancel()
		refused, _ := errors.AsType[refusal](err)
		if (err == nil) != (c.err == "") || err != nil && (err.Error() != c.err || refused.final != c.final || refused.after > c.after || refused.after < c.after-2*time.Second) {
			t.Errorf("%s: %v (final %t, after %v), want %q (final %t, after %v)", c.name, err, refused.final, refused.after, c.err, c.final, c.after)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error has the path of the URL: %v", c.name, err)
		}
		if c.name == "no answer" {
			close(hangs)
		}
		server.Close()
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	err := New(Options{URL: gone.URL + "/secret"}).post(t.Context(), nil)
	if refused, ok := errors.AsType[refusal](err); !ok || refused.final || !strings.HasSuffix(err.Error(), "connection refused") || strings.Contains(err.Error(), "secret") {
		t.Errorf("connection refused: %v", err)
	}
}

// TestTokenFile checks that each attempt reads the token from the file, so that a new or replaced token needs no other
// action, and that no message contains the token.
func TestTokenFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	asked := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Authorization")
		if r.Header.Get("Authorization") != "Bearer second" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	s := New(Options{URL: server.URL, TokenFile: file})
	if err := s.post(t.Context(), nil); err == nil || !strings.HasPrefix(err.Error(), "reading notify.token_file: stat "+file) || len(asked) > 0 {
		t.Errorf("no file: %v", err)
	}
	for _, token := range []string{"first\n", "second\n"} {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.post(t.Context(), nil); (err == nil) != (token == "second\n") {
			t.Errorf("%q: %v", token, err)
		}
	}
	if a, b := <-asked, <-asked; a != "Bearer first" || b != "Bearer second" {
		t.Errorf("requests with %q and %q", a, b)
	}
}

// TestMessageIsSentAgain checks that a receiver that fails at first gets the message later, and only once.
func TestMessageIsSentAgain(t *testing.T) {
	var mu sync.Mutex
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if requests++; requests == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer server.Close()
	s, counts, j := start(t, Options{URL: server.URL, Format: v1alpha1.NotifySlack}, nil)
	began := time.Now()
	s.Send(message("x"))
	if result := counts.next(t); result != v1alpha1.NotificationSent || requests != 2 || time.Since(began) < FirstPause || j.String() != "" {
		t.Errorf("%s after %d requests and %v\n%s", result, requests, time.Since(began), j)
	}
}

// TestBounds checks, in virtual time and without a server, how often, for how long and after which pauses a message is
// sent.
func TestBounds(t *testing.T) {
	for name, c := range map[string]struct {
		err      refusal
		attempts int
		min, max time.Duration // until the message is dropped
	}{
		"refused":                {refusal{text: "no", final: true}, 1, 0, 0},
		"fails":                  {refusal{text: "no"}, MaxAttempts, 7 * time.Minute, MaxAge},
		"asks for half a minute": {refusal{text: "no", after: 30 * time.Second}, MaxAttempts, 8 * time.Minute, MaxAge},
		"asks for 4 minutes":     {refusal{text: "no", after: 4 * time.Minute}, 3, 8 * time.Minute, 8 * time.Minute},
		"asks for an hour":       {refusal{text: "no", after: time.Hour}, 1, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, attempts := time.Now(), 0
			s, counts, j := start(t, Options{URL: "http://127.0.0.1:1/secret", Format: v1alpha1.NotifySlack}, func(_ context.Context, body []byte) error {
				if attempts++; string(body) == "" {
					t.Error("no body")
				}
				return c.err
			})
			s.Send(message("Node n1: x"))
			if result := counts.next(t); result != v1alpha1.NotificationFailed || attempts != c.attempts || time.Since(began) < c.min || time.Since(began) > c.max {
				t.Errorf("%s: %s after %d attempts and %v", name, result, attempts, time.Since(began))
			}
			synctest.Wait()
			want := fmt.Sprintf(`level=WARN msg="a notification is lost" occasion=failed message="Node n1: x" attempts=%d url=http://127.0.0.1:1 err=no`, attempts)
			if text := j.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, want) {
				t.Errorf("%s: logged\n%s, want\n%s", name, text, want)
			}
		})
	}
}

// TestQueueIsBounded checks that Send returns at once while the receiver does not answer, and that the queue is
// limited, keeps the newest messages, and logs once that it is full.
func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var texts []string
		var hang atomic.Bool
		hang.Store(true)
		s, counts, j := start(t, Options{URL: "http://127.0.0.1:1/", Format: v1alpha1.NotifyGeneric}, func(ctx context.Context, body []byte) error {
			if hang.Load() {
				<-ctx.Done()
				return refusal{text: "no answer"}
			}
			var m Message
			if err := json.Unmarshal(body, &m); err != nil {
				t.Error(err)
			}
			texts = append(texts, m.Text)
			return nil
		})
		began := time.Now()
		s.Send(message("0"))
		synctest.Wait() // the first message is being sent
		for i := range MaxQueue + 5 {
			s.Send(message(fmt.Sprint(i + 1)))
		}
		if time.Since(began) != 0 {
			t.Errorf("Send waited for %v", time.Since(began))
		}
		for range 5 {
			if result := counts.next(t); result != v1alpha1.NotificationDropped {
				t.Error(result)
			}
		}
		hang.Store(false)
		for range MaxQueue + 1 {
			if result := counts.next(t); result != v1alpha1.NotificationSent {
				t.Error(result)
			}
		}
		if !slices.Equal([]string{texts[0], texts[1], texts[MaxQueue]}, []string{"0", "6", "105"}) {
			t.Errorf("sent %v", texts)
		}
		if text := j.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "the oldest notifications are lost, because the queue is full") {
			t.Errorf("logged\n%s", text)
		}
	})
}

// TestEnd checks that messages that wait when the process ends are lost, counted, and logged once.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, j := make(counts, 10), new(journal)
		s := New(Options{URL: "http://127.0.0.1:1/", On: []v1alpha1.Occasion{v1alpha1.OccasionFailed}, Count: func(r string) { c <- r }, Log: slog.New(slog.NewTextHandler(j, nil))})
		s.post = func(ctx context.Context, body []byte) error { <-ctx.Done(); return refusal{text: "no answer"} }
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.Run(ctx) })
		for range 3 {
			s.Send(message("x"))
		}
		synctest.Wait()
		stop()
		wg.Wait()
		if text := j.String(); len(c) != 3 || <-c != v1alpha1.NotificationDropped || strings.Count(text, "\n") != 1 || !strings.Contains(text, "because lockkeeper stops\" count=3 ") {
			t.Errorf("%d counted, logged\n%s", len(c), text)
		}
	})
}

// TestNoReceiver checks that without a receiver nothing is kept or sent.
func TestNoReceiver(t *testing.T) {
	s := New(Options{On: []v1alpha1.Occasion{v1alpha1.OccasionHeld}, HeldLongerThan: time.Hour})
	s.Send(message("x"))
	s.Run(t.Context())
	if s.HeldLongerThan() != 0 {
		t.Error("a held node is an occasion without a receiver")
	}
	with := Options{URL: "http://127.0.0.1:1", HeldLongerThan: time.Hour}
	if New(with).HeldLongerThan() != 0 {
		t.Error("a held node is an occasion that is not in On")
	}
	with.On = []v1alpha1.Occasion{v1alpha1.OccasionHeld}
	if New(with).HeldLongerThan() != time.Hour {
		t.Error("a held node is not an occasion")
	}
}
