package systemd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/coreos/go-systemd/v22/journal"
)

const (
	// MessageID is the key of the attribute that goes to the journal as MESSAGE_ID: 32 hexadecimal digits. It does not
	// appear in text.
	MessageID = "message_id"

	journalPrefix     = "LOCKKEEPER_"
	journalIdentifier = "lockkeeper"
	maxFieldName      = 64      // bytes; journald refuses longer ones
	maxLogText        = 8 << 10 // bytes of a message or a value; longer ones are cut
)

// NewLogger returns the process's logger. It writes structured entries to the journal if w is os.Stderr and connected to
// journald (JOURNAL_STREAM). Otherwise it writes one line of text for each entry to w:
//
//	15:04:05 INFO  granted node=n1 turn=7f3a "held by"="a, b"
//
// In the journal each attribute is a field too (node is LOCKKEEPER_NODE; the name of a group and a _ precede the names of its
// members), so that `journalctl LOCKKEEPER_NODE=n1` works. MESSAGE is the text with its attributes, without the time and
// level, which journald has. If journald cannot be reached, the line goes to w.
//
// A process that logs to a stderr that may go away should ignore SIGPIPE: Go ends a process because of it on descriptor 2.
func NewLogger(w io.Writer, level slog.Leveler) *slog.Logger {
	text := &textSink{w: w}
	if f, ok := w.(*os.File); ok && f == os.Stderr {
		if is, err := journal.StderrIsJournalStream(); err == nil && is {
			return slog.New(&handler{level: level, out: &journalSink{send: journal.Send, fallback: text}})
		}
	}
	return slog.New(&handler{level: level, out: text})
}

// sink writes records.
type sink interface {
	write(t time.Time, level slog.Level, msg string, fields []field) error
}

// field is one attribute as text. Its key begins with the names of its groups, with dots between.
type field struct{ key, value string }

// handler flattens attributes, and leaves their format to the sink.
type handler struct {
	level  slog.Leveler
	out    sink
	prefix string // open groups, with a dot at the end
	fields []field
}

func (h *handler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level.Level() }

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.fields = h.fields[:len(h.fields):len(h.fields)]
	for _, a := range attrs {
		c.fields = flatten(c.fields, h.prefix, a)
	}
	return &c
}

func (h *handler) WithGroup(name string) slog.Handler {
	c := *h
	if name != "" {
		c.prefix += name + "."
	}
	return &c
}

func (h *handler) Handle(_ context.Context, r slog.Record) error {
	fields := h.fields[:len(h.fields):len(h.fields)]
	r.Attrs(func(a slog.Attr) bool {
		fields = flatten(fields, h.prefix, a)
		return true
	})
	return h.out.write(r.Time, r.Level, shorten(r.Message), fields)
}

func flatten(fields []field, prefix string, a slog.Attr) []field {
	v := a.Value.Resolve()
	if a.Key == "" && v.Kind() != slog.KindGroup && v.Any() == nil {
		return fields // the empty attribute
	}
	if v.Kind() == slog.KindGroup {
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, member := range v.Group() {
			fields = flatten(fields, prefix, member)
		}
		return fields
	}
	return append(fields, field{prefix + a.Key, shorten(valueText(v))})
}

// valueText returns a value as text. Package fmt calls a value's own method, and survives if that panics.
func valueText(v slog.Value) string {
	if v.Kind() == slog.KindTime {
		return v.Time().Format(time.RFC3339Nano)
	}
	if b, ok := v.Any().([]byte); ok {
		return string(b)
	}
	return v.String()
}

func shorten(s string) string {
	if len(s) > maxLogText {
		s = strings.ToValidUTF8(s[:maxLogText], "") + "…"
	}
	return strings.ToValidUTF8(s, "?")
}

// textSink writes lines.
type textSink struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *textSink) write(t time.Time, level slog.Level, msg string, fields []field) error {
	var b strings.Builder
	if !t.IsZero() {
		b.WriteString(t.Format(time.TimeOnly) + " ")
	}
	fmt.Fprintf(&b, "%-5s ", level)
	writeText(&b, msg, fields)
	b.WriteByte('\n')
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := io.WriteString(s.w, b.String())
	return err
}

// writeText writes the message and its attributes on one line.
func writeText(b *strings.Builder, msg string, fields []field) {
	if strings.ContainsFunc(msg, unicode.IsControl) {
		msg = strconv.Quote(msg)
	}
	b.WriteString(msg)
	for _, f := range fields {
		if !journalOnly[f.key] {
			b.WriteString(" " + quoted(f.key) + "=" + quoted(f.value))
		}
	}
}

func quoted(s string) string {
	plain := func(r rune) bool { return r > ' ' && r != '=' && r != '"' && unicode.IsPrint(r) }
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return strconv.Quote(s)
}

// journalSink sends entries to journald. Like every client of journald, it waits while journald does not read.
type journalSink struct {
	send     func(message string, priority journal.Priority, vars map[string]string) error
	fallback sink
}

func (s *journalSink) write(t time.Time, level slog.Level, msg string, fields []field) error {
	var text strings.Builder
	writeText(&text, msg, fields)
	if err := s.send(text.String(), priority(level), journalFields(fields)); err != nil {
		return s.fallback.write(t, level, msg, append(fields[:len(fields):len(fields)], field{"journal_err", err.Error()}))
	}
	return nil
}

// priority returns syslog's priority for a level; journalctl -p filters by it.
func priority(level slog.Level) journal.Priority {
	switch {
	case level < slog.LevelInfo:
		return journal.PriDebug
	case level < slog.LevelWarn:
		return journal.PriInfo
	case level < slog.LevelError:
		return journal.PriWarning
	}
	return journal.PriErr
}

// journalFields returns the fields of an entry. Of two attributes with the same name the later one counts.
func journalFields(fields []field) map[string]string {
	vars := map[string]string{"SYSLOG_IDENTIFIER": journalIdentifier}
	for _, f := range fields {
		if f.key == MessageID {
			vars["MESSAGE_ID"] = f.value
			continue
		}
		vars[fieldName(f.key)] = f.value
	}
	return vars
}

// fieldName returns the name of an attribute's field: upper case letters, digits and _, at most 64 bytes.
func fieldName(key string) string {
	name := journalPrefix + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, key)
	return name[:min(len(name), maxFieldName)]
}
