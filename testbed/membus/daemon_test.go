package membus

import (
	"bufio"
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/godbus/dbus/v5"
)

const daemonConfig = `<busconfig>
  <type>system</type>
  <listen>unix:path=%s</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*"/><allow send_type="signal"/><allow receive_sender="*"/><allow own="*"/>
  </policy>
</busconfig>`

// startDaemon starts a real dbus-daemon and returns its address.
func startDaemon(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bus") // t.TempDir can be too long for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	config, socket := filepath.Join(dir, "conf"), filepath.Join(dir, "bus")
	if err := os.WriteFile(config, fmt.Appendf(nil, daemonConfig, socket), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("dbus-daemon", "--config-file="+config, "--nofork", "--nopidfile", "--nosyslog", "--print-address")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatalf("starting dbus-daemon (Debian's package dbus-daemon is needed): %v", err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return "unix:path=" + socket
}

// world runs the script on one bus and records what each connection receives.
type world struct {
	t       *testing.T
	connect func(...dbus.ConnOption) (*dbus.Conn, error)
	conns   map[string]*dbus.Conn
	serial  atomic.Uint32     // of the last message that was sent
	unique  map[string]string // labels by unique name

	mu    sync.Mutex
	lines []string            // the steps
	got   map[string][]string // since the last step, by connection
}

func (w *world) open(label string) {
	w.t.Helper()
	conn, err := w.connect(dbus.WithIncomingInterceptor(func(m *dbus.Message) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.got[label] = append(w.got[label], w.describe(m))
	}), dbus.WithOutgoingInterceptor(func(m *dbus.Message) { w.serial.Store(m.Serial()) }))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	w.mu.Lock()
	w.unique[conn.Names()[0]] = label
	w.mu.Unlock()
	w.conns[label] = conn
}

var uniqueName = regexp.MustCompile(`:1\.\d+`)

// describe returns everything about a message that both buses have in common. The mutex must be held.
func (w *world) describe(m *dbus.Message) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%v flags=%d", m.Type, m.Flags)
	for f := dbus.FieldPath; f <= dbus.FieldSignature; f++ {
		if v, ok := m.Headers[f]; ok && f != dbus.FieldReplySerial {
			fmt.Fprintf(&s, " %d=%v", f, v.Value())
		}
	}
	if name, _ := m.Headers[dbus.FieldErrorName].Value().(string); name != errorNames+"AccessDenied" { // its text has PIDs
		fmt.Fprintf(&s, " %v", m.Body)
	}
	return s.String()
}

// step does one thing, lets the bus finish, and records what the connections have received.
func (w *world) step(what string, f func()) {
	w.mu.Lock()
	clear(w.got)
	w.mu.Unlock()
	f()
	labels := slices.Sorted(maps.Keys(w.conns))
	var id string
	// The bus keeps the order of each connection. After the first round it has what was sent in this step, and after the second
	// one the connections have what it sends because of that.
	for _, label := range slices.Concat(labels, labels) {
		if err := w.conns[label].BusObject().Call(daemonName+".GetId", 0).Store(&id); err != nil {
			w.t.Fatalf("%s: %s: %v", what, label, err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, "# "+what)
	for _, label := range slices.Sorted(maps.Keys(w.got)) {
		for _, line := range w.got[label] {
			if strings.HasSuffix(line, "["+id+"]") {
				continue // an answer to GetId
			}
			w.lines = append(w.lines, label+" receives "+uniqueName.ReplaceAllStringFunc(line, func(name string) string {
				return cmp.Or(w.unique[name], "?")
			}))
		}
	}
}

// ask has a connection call the daemon.
func (w *world) ask(label, method string, args ...any) {
	w.step(fmt.Sprintf("%s: %s%v", label, method, args), func() {
		w.conns[label].BusObject().Call(daemonName+"."+method, 0, args...)
	})
}

// call has a connection call a service.
func (w *world) call(label, dest, method string, flags dbus.Flags, args ...any) {
	w.step(fmt.Sprintf("%s: %s of %s, flags %d", label, method, dest, flags), func() {
		w.conns[label].Object(dest, "/o").Call(method, flags, args...)
	})
}

func (w *world) emit(label, path, signal string, args ...any) {
	w.step(fmt.Sprintf("%s: emit %s %s%v", label, path, signal, args), func() {
		w.conns[label].Emit(dbus.ObjectPath(path), signal, args...)
	})
}

// names is a part of the script: who owns which name.
func (w *world) names() {
	w.ask("A", "AddMatch", "type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged'")
	w.step("C opens", func() { w.open("C") })
	w.ask("B", "RequestName", "x.y.Z", uint32(dbus.NameFlagDoNotQueue))
	w.ask("B", "RequestName", "x.y.Z", uint32(dbus.NameFlagAllowReplacement))
	w.ask("C", "RequestName", "x.y.Z", uint32(dbus.NameFlagDoNotQueue))
	w.ask("C", "RequestName", "x.y.Z", uint32(0))
	w.ask("A", "GetNameOwner", "x.y.Z")
	w.ask("A", "GetNameOwner", "org.freedesktop.DBus")
	w.ask("A", "GetNameOwner", "x.y.None")
	w.ask("A", "GetNameOwner", ":1.999")
	w.ask("A", "NameHasOwner", "x.y.Z")
	w.ask("A", "NameHasOwner", "x.y.None")
	w.ask("A", "NameHasOwner", w.conns["B"].Names()[0])
	w.ask("B", "ReleaseName", "x.y.Z")
	w.ask("B", "ReleaseName", "x.y.Z")
	w.ask("B", "ReleaseName", "x.y.None")
	w.ask("C", "RequestName", "x.y.Z", uint32(dbus.NameFlagAllowReplacement))
	w.ask("B", "RequestName", "x.y.Z", uint32(dbus.NameFlagReplaceExisting))
	w.ask("B", "ReleaseName", "x.y.Z")
	w.ask("C", "ReleaseName", "x.y.Z")
	w.ask("A", "Hello")
	w.ask("A", "NoSuchMethod")
	w.ask("A", "GetNameOwner")
	w.ask("A", "GetNameOwner", uint32(1))
	w.ask("A", "GetConnectionUnixProcessID", w.conns["B"].Names()[0])
	w.ask("A", "GetConnectionUnixProcessID", "x.y.None")
	w.ask("A", "GetConnectionUnixUser", w.conns["B"].Names()[0])
	w.ask("A", "GetConnectionUnixUser", "x.y.None")
	w.step("A: Ping", func() { w.conns["A"].BusObject().Call(daemonName+".Peer.Ping", 0) })
	w.ask("A", "ListNames")
}

// traffic is a part of the script: calls, answers and signals.
func (w *world) traffic() {
	w.ask("B", "RequestName", "x.y.Z", uint32(dbus.NameFlagDoNotQueue))
	type pair struct {
		S string
		N uint32
	}
	w.conns["B"].ExportMethodTable(map[string]any{
		"Echo": func(s dbus.Sender, p pair, m map[string]dbus.Variant) (pair, map[string]dbus.Variant, *dbus.Error) {
			return p, m, nil
		},
		"Fail": func() *dbus.Error { return dbus.NewError("x.y.Error", []any{"no"}) },
	}, "/o", "x.y.Z")
	arg := map[string]dbus.Variant{"k": dbus.MakeVariant([]pair{{"a", 1}})}
	w.call("A", "x.y.Z", "x.y.Z.Echo", 0, pair{"s", 7}, arg)
	w.call("A", w.conns["B"].Names()[0], "x.y.Z.Echo", dbus.FlagNoAutoStart, pair{"s", 7}, arg)
	w.call("A", "x.y.Z", "x.y.Z.Fail", 0)
	w.call("A", "x.y.Z", "x.y.Z.Echo", dbus.FlagNoReplyExpected, pair{"s", 7}, arg)
	w.call("A", "x.y.Z", "x.y.Z.Missing", 0)
	w.call("A", "x.y.None", "x.y.Z.Echo", 0)
	w.call("A", "x.y.None", "x.y.Z.Echo", dbus.FlagNoAutoStart)
	w.call("A", ":1.999", "x.y.Z.Echo", dbus.FlagNoAutoStart)
	w.call("A", ":1.999", "x.y.Z.Echo", 0)
	for _, r := range []string{
		"type='signal',sender='x.y.Z',interface='x.y.Z',path='/o',member='Changed'",
		"type='signal',interface='x.y.Z',member='Changed',arg0='one',arg1='two'",
	} {
		w.ask("A", "AddMatch", r)
	}
	w.ask("C", "AddMatch", "path_namespace='/o'")
	w.ask("A", "AddMatch", "nonsense")
	w.ask("A", "AddMatch", "color='red'")
	w.emit("B", "/o", "x.y.Z.Changed")
	w.emit("B", "/o", "x.y.Z.Changed", "one", "two")
	w.emit("B", "/o/p", "x.y.Z.Changed", "one", "two", pair{"a", 1})
	w.emit("B", "/other", "x.y.Z.Changed", "one")
	w.emit("C", "/o", "x.y.Z.Changed")
	w.emit("C", "/o", "x.y.Z.Other", "one", "two")
	w.ask("A", "RemoveMatch", "type='signal',sender='x.y.Z',interface='x.y.Z',path='/o',member='Changed'")
	w.ask("A", "RemoveMatch", "type='signal',sender='x.y.Z',interface='x.y.Z',path='/o',member='Changed'")
	w.emit("B", "/o", "x.y.Z.Changed")
	w.step("C: a signal to A alone", func() {
		w.conns["C"].Send(&dbus.Message{Type: dbus.TypeSignal, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldPath: dbus.MakeVariant(dbus.ObjectPath("/p")), dbus.FieldInterface: dbus.MakeVariant("x.y.Z"),
			dbus.FieldMember: dbus.MakeVariant("Changed"), dbus.FieldDestination: dbus.MakeVariant(w.conns["A"].Names()[0]),
			dbus.FieldSender: dbus.MakeVariant("x.y.Z"), // forged
		}}, nil)
	})
	w.step("C: an answer that no call waits for", func() {
		w.conns["C"].Send(&dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldReplySerial: dbus.MakeVariant(uint32(1000)), dbus.FieldDestination: dbus.MakeVariant(w.conns["A"].Names()[0]),
		}}, nil)
	})
}

// death is a part of the script: a service that goes away while it is asked.
func (w *world) death() {
	asked, conn := make(chan struct{}), w.conns["B"]
	conn.ExportMethodTable(map[string]any{"Hang": func() *dbus.Error {
		close(asked)
		<-conn.Context().Done()
		return nil
	}}, "/o", "x.y.Z")
	w.step("C answers a call to B, and B dies while A waits for it", func() {
		call := w.conns["A"].Object("x.y.Z", "/o").Go("x.y.Z.Hang", 0, nil)
		<-asked
		w.conns["C"].Send(&dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldReplySerial: dbus.MakeVariant(w.serial.Load()), dbus.FieldDestination: dbus.MakeVariant(w.conns["A"].Names()[0]),
		}}, nil)
		if err := w.conns["C"].BusObject().Call(daemonName+".NameHasOwner", 0, "x.y.Z").Err; err != nil { // the bus is done with it
			w.t.Error(err)
		}
		conn.Close()
		<-call.Done
		delete(w.conns, "B")
	})
}

func play(t *testing.T, connect func(...dbus.ConnOption) (*dbus.Conn, error)) []string {
	w := &world{t: t, connect: connect, conns: map[string]*dbus.Conn{}, unique: map[string]string{}, got: map[string][]string{}}
	w.step("A opens", func() { w.open("A") })
	w.step("B opens", func() { w.open("B") })
	w.names()
	w.traffic()
	w.death()
	return w.lines
}

// TestAsTheDaemon holds this bus against a real dbus-daemon: with the same script, every connection receives the same
// messages in the same order.
func TestAsTheDaemon(t *testing.T) {
	address := startDaemon(t)
	want := play(t, func(o ...dbus.ConnOption) (*dbus.Conn, error) { return dbus.Connect(address, o...) })
	b := New()
	defer b.Close()
	got := play(t, b.Connect)
	if len(want) < 100 {
		t.Fatalf("the script has only %d lines", len(want))
	}
	for _, s := range steps(got, want) {
		if g, w := s[1], s[2]; g != w {
			t.Errorf("%s\nthe daemon:\n%sin memory:\n%s", s[0], w, g)
		}
	}
}

// steps returns the title of each step of the script, and what was received in both worlds.
func steps(got, want []string) (all [][3]string) {
	for i, lines := range [][]string{got, want} {
		step := -1
		for _, line := range lines {
			if !strings.HasPrefix(line, "# ") {
				all[step][i+1] += line + "\n"
				continue
			}
			if step++; step == len(all) {
				all = append(all, [3]string{})
			}
			all[step][0] = line
		}
	}
	return all
}
