package systemd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/slogtest"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/coreos/go-systemd/v22/journal"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const id = "8d3ef5b2c1a04f7e9b6d2a1c0f3e4d5b"

// TestHeldLevel: a warning is for a person. A host that starts after its reboot is Unhealthy, and needs none.
func TestHeldLevel(t *testing.T) {
	for reason, want := range map[v1alpha1.Reason]slog.Level{
		v1alpha1.ReasonUnhealthy: slog.LevelInfo, v1alpha1.ReasonBudget: slog.LevelInfo, v1alpha1.ReasonOverdue: slog.LevelWarn,
	} {
		if got := HeldLevel(reason); got != want {
			t.Errorf("%s: %v, expected %v", reason, got, want)
		}
	}
}

func TestText(t *testing.T) {
	var out bytes.Buffer
	log := NewLogger(&out, slog.LevelInfo)
	log.Debug("not shown")
	log.Info("granted", "node", "n1", "waited", 90*time.Second, MessageID, id)
	log.With("host", "h 1").WithGroup("turn").Warn("line\nbreak", "id", "a=b", "empty", "", slog.Group("stage", "no", 3))
	log.Error("failed", "err", fmt.Errorf("reading: %w", io.EOF), "nothing", error(nil), "broken", (*net.UnixAddr)(nil))
	out2 := regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d `).ReplaceAllString(out.String(), "T ")
	want := `T INFO  granted node=n1 waited=1m30s
T WARN  "line\nbreak" host="h 1" turn.id="a=b" turn.empty="" turn.stage.no=3
T ERROR failed err="reading: EOF" nothing=<nil> broken=<nil>
`
	if out2 != want {
		t.Errorf("got\n%s\nwant\n%s", out2, want)
	}
}

func TestTextIsBounded(t *testing.T) {
	var out bytes.Buffer
	NewLogger(&out, slog.LevelInfo).Info("x", "v", strings.Repeat("é", maxLogText))
	if n := out.Len(); n > maxLogText+100 || n < maxLogText {
		t.Errorf("%d bytes", n)
	}
}

func TestLevelCanChange(t *testing.T) {
	var out bytes.Buffer
	var level slog.LevelVar
	log := NewLogger(&out, &level).With("a", 1)
	log.Debug("one")
	level.Set(slog.LevelDebug)
	log.Debug("two")
	if got := out.String(); strings.Contains(got, "one") || !strings.Contains(got, "DEBUG two a=1") {
		t.Errorf("got %q", got)
	}
}

// TestSlogContract runs slog's own test of handlers.
func TestSlogContract(t *testing.T) {
	var lines []map[string]any
	h := &handler{level: slog.LevelDebug, out: sinkFunc(func(at time.Time, level slog.Level, msg string, fields []field) error {
		line := map[string]any{slog.LevelKey: level, slog.MessageKey: msg}
		if !at.IsZero() {
			line[slog.TimeKey] = at
		}
		for _, f := range fields {
			in := line
			path := strings.Split(f.key, ".")
			for _, group := range path[:len(path)-1] {
				if in[group] == nil {
					in[group] = map[string]any{}
				}
				in = in[group].(map[string]any)
			}
			in[path[len(path)-1]] = f.value
		}
		lines = append(lines, line)
		return nil
	})}
	if err := slogtest.TestHandler(h, func() []map[string]any { return lines }); err != nil {
		t.Error(err)
	}
}

type sinkFunc func(time.Time, slog.Level, string, []field) error

func (f sinkFunc) write(t time.Time, l slog.Level, m string, fs []field) error { return f(t, l, m, fs) }

func TestJournalFields(t *testing.T) {
	got := journalFields([]field{
		{"node", "n1"}, {"turn.id", "7f"}, {"Größe", "x"}, {"kubernetes.io/name", "y"}, {"", "z"},
		{strings.Repeat("a", 100), "long"}, {MessageID, id}, {"node", "n2"},
	})
	want := map[string]string{
		"SYSLOG_IDENTIFIER": "lockkeeper", "LOCKKEEPER_NODE": "n2", "LOCKKEEPER_TURN_ID": "7f", "LOCKKEEPER_GR__E": "x",
		"LOCKKEEPER_KUBERNETES_IO_NAME": "y", "LOCKKEEPER_": "z",
		"LOCKKEEPER_" + strings.Repeat("A", 53): "long", "MESSAGE_ID": id,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestJournalPriorities(t *testing.T) {
	for level, want := range map[slog.Level]journal.Priority{
		slog.LevelDebug: journal.PriDebug, slog.LevelInfo: journal.PriInfo, slog.LevelInfo + 2: journal.PriInfo,
		slog.LevelWarn: journal.PriWarning, slog.LevelError: journal.PriErr, slog.LevelError + 4: journal.PriErr,
	} {
		if got := priority(level); got != want {
			t.Errorf("%v: %v", level, got)
		}
	}
}

func TestJournalAway(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(&handler{level: slog.LevelInfo, out: &journalSink{
		send:     func(string, journal.Priority, map[string]string) error { return errors.New("no journald") },
		fallback: &textSink{w: &out},
	}})
	log.Info("granted", "node", "n1")
	if got := out.String(); !strings.Contains(got, `INFO  granted node=n1 journal_err="no journald"`) {
		t.Errorf("got %q", got)
	}
}

// The library has no other way to use a socket of the test.
//
//go:linkname journalSocket github.com/coreos/go-systemd/v22/journal.journalSocket
var journalSocket string

// TestJournalOnARealSocket uses a real logger, a stderr that is connected to "journald", and a real socket to read
// from.
func TestJournalOnARealSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(t, err)
	defer conn.Close()
	defer func(old string) { journalSocket = old }(journalSocket)
	journalSocket = path
	log := loggerOnJournalStream(t)

	must(t, conn.SetReadDeadline(time.Now().Add(15*time.Second)))
	log.With("node", "n1").Warn("held", "reason", "Budget", "note", "two\nlines", MessageID, id)
	buf, oob := make([]byte, 64<<10), make([]byte, 1024)
	n, err := conn.Read(buf)
	must(t, err)
	want := map[string]string{
		"MESSAGE": `held node=n1 reason=Budget note="two\nlines"`, "PRIORITY": "4", "SYSLOG_IDENTIFIER": "lockkeeper",
		"LOCKKEEPER_NODE": "n1", "LOCKKEEPER_REASON": "Budget", "LOCKKEEPER_NOTE": "two\nlines", "MESSAGE_ID": id,
	}
	if got := entry(t, buf[:n]); !maps.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}

	// A message that is too large for a datagram is sent as a file.
	var attrs []any
	for i := range 60 {
		attrs = append(attrs, "v"+strconv.Itoa(i), strings.Repeat("x", maxLogText))
	}
	log.Info("big", attrs...)
	n, oobn, _, _, err := conn.ReadMsgUnix(buf, oob)
	must(t, err)
	messages, err := syscall.ParseSocketControlMessage(oob[:oobn])
	if err != nil || n != 0 || len(messages) != 1 {
		t.Fatalf("%d bytes, %d control messages, %v", n, len(messages), err)
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	must(t, err)
	file := os.NewFile(uintptr(fds[0]), "entry")
	defer file.Close()
	_, err = file.Seek(0, io.SeekStart)
	must(t, err)
	data, err := io.ReadAll(file)
	must(t, err)
	if got := entry(t, data); !strings.HasPrefix(got["MESSAGE"], "big v0=xxx") || len(got["LOCKKEEPER_V59"]) != maxLogText {
		t.Errorf("%d bytes, %d fields", len(data), len(got))
	}
}

// loggerOnJournalStream makes stderr a journal stream, as systemd does, while NewLogger checks it.
func loggerOnJournalStream(t *testing.T) *slog.Logger {
	t.Helper()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	must(t, err)
	defer syscall.Close(pair[0])
	defer syscall.Close(pair[1])
	var stat syscall.Stat_t
	must(t, syscall.Fstat(pair[0], &stat))
	saved, err := syscall.Dup(2)
	must(t, err)
	defer syscall.Close(saved)
	must(t, syscall.Dup3(pair[0], 2, 0))
	defer syscall.Dup3(saved, 2, 0)
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", stat.Dev, stat.Ino))
	log := NewLogger(os.Stderr, slog.LevelInfo)
	if _, ok := log.Handler().(*handler).out.(*journalSink); !ok {
		t.Fatal("the journal was not selected")
	}
	var buf bytes.Buffer
	if _, ok := NewLogger(&buf, slog.LevelInfo).Handler().(*handler).out.(*textSink); !ok {
		t.Error("the journal was selected for a buffer")
	}
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", stat.Dev, stat.Ino+1))
	if _, ok := NewLogger(os.Stderr, slog.LevelInfo).Handler().(*handler).out.(*textSink); !ok {
		t.Error("the journal was selected for a stderr that is not a journal stream")
	}
	return log
}

// entry parses a message of journald's native protocol.
func entry(t *testing.T, data []byte) map[string]string {
	t.Helper()
	fields := map[string]string{}
	for len(data) > 0 {
		line, rest, ok := bytes.Cut(data, []byte{'\n'})
		if !ok {
			t.Fatalf("no end of line in %q", data)
		}
		if name, value, ok := strings.Cut(string(line), "="); ok {
			fields[name], data = value, rest
			continue
		}
		size := int(binary.LittleEndian.Uint64(rest))
		fields[string(line)], data = string(rest[8:8+size]), rest[8+size+1:]
	}
	return fields
}

func TestFieldNamesAreValid(t *testing.T) {
	valid := regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,63}$`)
	for _, key := range []string{"", "_", "9", "a b", "ü", "\x00", strings.Repeat("é", 100)} {
		if name := fieldName(key); !valid.MatchString(name) {
			t.Errorf("%q: %q", key, name)
		}
	}
}
