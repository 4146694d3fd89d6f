// Package notify sends notifications to the one receiver in the coordinator's
// configuration file: a chat room, or a program that accepts them over HTTP.
//
// The leader's loop queues a message and does not wait for it. A goroutine sends one
// message after the other, and tries each for a bounded time. A message is lost if the
// queue is full or the receiver does not accept it in time. Nothing depends on a
// notification.
//
// The package must not know what is decided, or about Nodes, policies and who leads.
package notify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator/webclient"
)

const (
	// MaxQueue is how many messages can wait at the same time. If another one arrives,
	// the oldest one is lost.
	MaxQueue = 100
	// Timeout bounds one attempt.
	Timeout = 10 * time.Second
	// MaxAttempts bounds the attempts to send one message.
	MaxAttempts = 12
	// MaxAge is how long a message is sent again, counted from the call of Send.
	MaxAge = 10 * time.Minute
	// FirstPause is the pause after the first attempt. It doubles after each attempt. The
	// receiver's Retry-After can make it longer.
	FirstPause = 2 * time.Second
	// MaxPause bounds the doubled pause. A longer Retry-After is respected.
	MaxPause = time.Minute
	// MaxText bounds the text of a message, in bytes.
	MaxText = 2000
	// MaxNames is how many nodes a message names.
	MaxNames = 10
	// MaxAnswer bounds what is read of the receiver's answer, in bytes.
	MaxAnswer = 64 << 10

	maxField  = 256 // bytes of any other field
	maxDetail = 256 // bytes of the answer in the journal
	// minHidden is the length of the shortest part of the URL that hide replaces, in bytes. Shorter ones are words
	// such as "api".
	minHidden = 6
)

// Options configures a Sender.
type Options struct {
	// URL is the receiver's URL. Without one, nothing is sent.
	URL string
	// TokenFile contains the bearer token. It is read for each request. "" means no
	// token.
	TokenFile string
	Format    v1alpha1.NotifyFormat
	// Cluster is the cluster's name in each message. It may be empty.
	Cluster string
	// On are the occasions to report. Messages about other occasions are dropped.
	On []v1alpha1.Occasion
	// HeldLongerThan is how long a node is held before that is an occasion.
	HeldLongerThan time.Duration
	// Version is lockkeeper's version, for the user agent.
	Version string
	// Count is called for each message with one of the results in api/v1alpha1. It may
	// be called from any goroutine. It may be nil.
	Count func(result string)
	Log   *slog.Logger
}

// Sender sends messages. Create it with [New]. A nil Sender sends nothing.
type Sender struct {
	o Options
	// post sends a body once.
	post func(ctx context.Context, body []byte) error
	kick chan struct{}

	mu     sync.Mutex
	queue  []Message
	losing bool // the queue was full, and that was logged
}

// New returns a Sender, which sends while Run runs. It returns nil if there is no
// receiver.
func New(o Options) *Sender {
	if o.URL == "" {
		return nil
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Count == nil {
		o.Count = func(string) {}
	}
	client := webclient.New(webclient.Options{
		TokenFile: o.TokenFile, TokenKey: "notify.token_file", Agent: "lockkeeper-coordinator/" + o.Version, MaxAnswer: MaxAnswer, Conns: 1,
	})
	return &Sender{o: o, kick: make(chan struct{}, 1), post: func(ctx context.Context, body []byte) error { return post(ctx, client, o.URL, body) }}
}

// HeldLongerThan returns how long a node is held before that is an occasion; 0 if it
// never is.
func (s *Sender) HeldLongerThan() time.Duration {
	if s == nil || !slices.Contains(s.o.On, v1alpha1.OccasionHeld) {
		return 0
	}
	return s.o.HeldLongerThan
}

// Send queues a message. It sets the message's time and cluster, and truncates its texts.
// It does not block. Any goroutine may call it.
func (s *Sender) Send(m Message) {
	if s == nil || !slices.Contains(s.o.On, m.Occasion) {
		return
	}
	m.Time, m.Cluster = time.Now().UTC().Truncate(time.Millisecond), s.o.Cluster
	m.bound()
	s.mu.Lock()
	full, first := len(s.queue) >= MaxQueue, false
	if full {
		first, s.losing = !s.losing, true
		s.queue = slices.Delete(s.queue, 0, 1)
	} else {
		s.losing = false
	}
	s.queue = append(s.queue, m)
	s.mu.Unlock()
	if full {
		s.o.Count(v1alpha1.NotificationDropped)
	}
	if first {
		s.o.Log.Warn("the oldest notifications are lost, because the queue is full", "queue", MaxQueue, "url", s.host())
	}
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// host returns the receiver's URL without the path, for messages. The rest of a webhook's
// URL is often a secret.
func (s *Sender) host() string {
	u, err := url.Parse(s.o.URL)
	if err != nil {
		return "notify.url"
	}
	return u.Scheme + "://" + u.Host
}

// next removes the oldest message from the queue and returns it. It returns false if the
// queue is empty.
func (s *Sender) next() (Message, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return Message{}, false
	}
	m := s.queue[0]
	s.queue = slices.Delete(s.queue, 0, 1)
	return m, true
}

// Run sends messages until ctx ends. The messages that are still queued then are lost.
func (s *Sender) Run(ctx context.Context) {
	if s == nil {
		return
	}
	lost := 0
	for {
		m, ok := s.next()
		switch {
		case ok && ctx.Err() != nil, ok && !s.deliver(ctx, &m):
			lost++
			s.o.Count(v1alpha1.NotificationDropped)
			continue
		case ok:
			continue
		case ctx.Err() != nil:
			if lost > 0 {
				s.o.Log.Warn("notifications are lost, because lockkeeper stops", "count", lost, "url", s.host())
			}
			return
		}
		select {
		case <-ctx.Done():
		case <-s.kick:
		}
	}
}

// deliver repeats a message until the receiver accepts it or a bound is reached. It
// returns false if ctx ends before that.
func (s *Sender) deliver(ctx context.Context, m *Message) bool {
	body, err := encode(m, s.o.Format)
	if err != nil {
		s.failed(m, 0, err)
		return true
	}
	deadline := m.Time.Add(MaxAge)
	pause := FirstPause
	for attempt := 1; ; attempt++ {
		limited, cancel := context.WithTimeout(ctx, Timeout)
		err := s.post(limited, body)
		cancel()
		if err == nil {
			s.o.Count(v1alpha1.NotificationSent)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		refused, _ := errors.AsType[refusal](err)
		wait := max(pause, refused.after)
		if refused.final || attempt == MaxAttempts || time.Now().Add(wait).After(deadline) {
			s.failed(m, attempt, err)
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
		pause = min(2*pause, MaxPause)
	}
}

// failed records that the receiver did not accept a message.
func (s *Sender) failed(m *Message, attempts int, err error) {
	s.o.Count(v1alpha1.NotificationFailed)
	s.o.Log.Warn("a notification is lost", "occasion", m.Occasion, "message", m.Text, "attempts", attempts,
		"url", s.host(), "err", v1alpha1.OneLine(err.Error(), maxDetail))
}

// refusal is why a message was not accepted.
type refusal struct {
	text  string
	final bool          // another attempt would fail in the same way
	after time.Duration // how long the receiver asks to wait
}

func (r refusal) Error() string { return r.text }

// post sends a body once. Its errors contain no part of the URL but the host, because the
// rest may be a secret.
func post(ctx context.Context, client *http.Client, to string, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return refusal{text: "notify.url is not a valid address", final: true}
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return refusal{text: "no answer within " + Timeout.String()}
		}
		if redirect, ok := errors.AsType[webclient.Redirect](err); ok {
			return refusal{text: "it redirects to " + redirect.To.Scheme + "://" + redirect.To.Host + "; redirects are not followed, so set notify.url to the receiver's own address", final: true}
		}
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		return refusal{text: hide(err.Error(), r.URL)}
	}
	defer resp.Body.Close()
	// The connection can be reused only after the answer has been read.
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode/100 == 2 {
		return nil
	}
	detail := hide(string(text), r.URL)
	answer := refusal{text: "it answers " + strconv.Itoa(resp.StatusCode) + ": " + detail[:min(len(detail), maxDetail)]}
	switch resp.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
	default:
		answer.final = resp.StatusCode/100 != 5
	}
	answer.after = retryAfter(resp.Header.Get("Retry-After"), time.Now())
	return answer
}

// hide replaces what the text repeats of the URL after the host. The error pages of many servers name the path of the
// request, and some the query.
func hide(text string, u *url.URL) string {
	parts := strings.FieldsFunc(u.EscapedPath()+"?"+u.RawQuery, func(r rune) bool { return strings.ContainsRune("/?&=", r) })
	for _, part := range parts {
		if plain, err := url.PathUnescape(part); err == nil {
			parts = append(parts, plain)
		}
	}
	// The longest first: one part may contain another.
	slices.SortFunc(parts, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, part := range parts {
		if len(part) >= minHidden {
			text = strings.ReplaceAll(text, part, "…")
		}
	}
	return text
}

// retryAfter parses the Retry-After header, which holds seconds or a date. It returns 0 if
// the header is missing or invalid.
func retryAfter(text string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}
