package membus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/godbus/dbus/v5"
)

// client returns a connection whose messages are subject to Fault.
func client(t *testing.T, b *Bus, opts ...dbus.ConnOption) *dbus.Conn {
	t.Helper()
	return clientFor(t, b, nil, opts...)
}

// clientFor is client for the process by.
func clientFor(t *testing.T, b *Bus, by any, opts ...dbus.ConnOption) *dbus.Conn {
	t.Helper()
	end, err := b.DialFor(t.Context(), by)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := dbus.NewConn(end, opts...)
	if err == nil {
		err = conn.Auth(nil)
	}
	if err == nil {
		err = conn.Hello()
	}
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// service exports a service that records its calls.
func service(t *testing.T, b *Bus, name string) (conn *dbus.Conn, calls func() []string) {
	t.Helper()
	conn, err := b.Connect()
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var got []string
	err = conn.ExportMethodTable(map[string]any{"Do": func(what string) (string, *dbus.Error) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, what)
		return what, nil
	}}, "/o", name)
	if err == nil {
		_, err = conn.RequestName(name, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return conn, func() []string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(got)
	}
}

// TestDelay checks that messages between the same two ends keep their order, and that others overtake them.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		b.Fault = func(m Transit) (v Verdict) {
			args, err := m.Body()
			if err != nil {
				t.Error(err)
			}
			if m.Method == "x.y.Z.Do" && !m.ToClient && slices.Equal(args, []any{"late"}) {
				v.Delay = time.Minute
			}
			return v
		}
		_, calls := service(t, b, "x.y.Z")
		_, others := service(t, b, "x.y.Other")
		c := client(t, b)
		do := func(name, what string) *dbus.Call { return c.Object(name, "/o").Go(name+".Do", 0, nil, what) }
		began := time.Now()
		late := do("x.y.Z", "late")
		synctest.Wait()
		next := do("x.y.Z", "next")
		synctest.Wait()
		<-do("x.y.Other", "other").Done
		if d := time.Since(began); d != 0 || !slices.Equal(others(), []string{"other"}) || len(calls()) > 0 {
			t.Errorf("after %v: %v and %v", d, calls(), others())
		}
		<-late.Done
		<-next.Done
		if d := time.Since(began); d != time.Minute || len(calls()) != 2 {
			t.Errorf("after %v: %v", d, calls())
		}
		b.Close()
	})
}

// TestDelayedAnswer checks that a delayed answer holds back the signals that its service sends later.
func TestDelayedAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		b.Fault = func(m Transit) (v Verdict) {
			if m.ToClient && m.Method == "x.y.Z.Do" {
				v.Delay = time.Minute
			}
			return v
		}
		s, _ := service(t, b, "x.y.Z")
		c := client(t, b)
		synctest.Wait() // NameAcquired has arrived
		signals := make(chan *dbus.Signal, 10)
		c.Signal(signals)
		if err := c.AddMatchSignal(dbus.WithMatchSender("x.y.Z")); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		call := c.Object("x.y.Z", "/o").Go("x.y.Z.Do", 0, nil, "a")
		synctest.Wait()
		if err := s.Emit("/o", "x.y.Z.Changed"); err != nil {
			t.Fatal(err)
		}
		if err := c.BusObject().Call(daemonName+".GetId", 0).Err; err != nil || time.Since(began) != 0 || len(signals) > 0 {
			t.Errorf("the bus itself: %v after %v, %d signals", err, time.Since(began), len(signals))
		}
		<-call.Done
		<-signals
		if d := time.Since(began); d != time.Minute || call.Err != nil {
			t.Errorf("after %v: %v", d, call.Err)
		}
		b.Close()
	})
}

// TestLateCallOfAGoneCaller checks that a call is delivered after its caller is gone, and that the bus then says so.
func TestLateCallOfAGoneCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		b.Fault = func(m Transit) (v Verdict) {
			if m.Method == "x.y.Z.Do" {
				v.Delay = time.Minute
			}
			return v
		}
		s, calls := service(t, b, "x.y.Z")
		c := client(t, b)
		name := c.Names()[0]
		c.Object("x.y.Z", "/o").Go("x.y.Z.Do", 0, nil, "a")
		synctest.Wait()
		c.Close()
		time.Sleep(time.Minute)
		if !slices.Equal(calls(), []string{"a"}) {
			t.Errorf("calls %v", calls())
		}
		err := s.BusObject().Call(daemonName+".GetConnectionUnixUser", 0, name).Err
		if e, ok := errors.AsType[dbus.Error](err); !ok || e.Name != errorNames+"NameHasNoOwner" {
			t.Errorf("the caller: %v", err)
		}
		b.Close()
	})
}

// TestDialFor checks that Fault sees for which process the connection of a call, and of its answer, was opened.
func TestDialFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		defer b.Close()
		var mu sync.Mutex
		var seen []string
		b.Fault = func(m Transit) Verdict {
			mu.Lock()
			defer mu.Unlock()
			if m.Peer == "x.y.Z" {
				seen = append(seen, fmt.Sprintf("%v, to the client: %t", m.By, m.ToClient))
			}
			return Verdict{}
		}
		service(t, b, "x.y.Z")
		var want []string
		for _, by := range []any{"first", "second", nil} {
			if err := clientFor(t, b, by).Object("x.y.Z", "/o").Call("x.y.Z.Do", 0, "a").Err; err != nil {
				t.Error(err)
			}
			want = append(want, fmt.Sprintf("%v, to the client: false", by), fmt.Sprintf("%v, to the client: true", by))
		}
		if !slices.Equal(seen, want) {
			t.Errorf("Fault has seen %q, expected %q", seen, want)
		}
	})
}

// TestDropAndBreak checks what a client sees, and that Fault does not see services.
func TestDropAndBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		var mu sync.Mutex
		var verdict Verdict
		seen := map[string]int{}
		b.Fault = func(m Transit) Verdict {
			mu.Lock()
			defer mu.Unlock()
			if m.Peer != "x.y.Z" {
				return Verdict{}
			}
			seen[map[bool]string{false: "to ", true: "from "}[m.ToClient]+m.Method]++
			return verdict
		}
		set := func(v Verdict) {
			mu.Lock()
			defer mu.Unlock()
			verdict = v
		}
		s, calls := service(t, b, "x.y.Z")
		c := client(t, b)
		set(Verdict{Drop: true})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Object("x.y.Z", "/o").CallWithContext(ctx, "x.y.Z.Do", 0, "a").Err; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dropped: %v", err)
		}
		set(Verdict{Break: true})
		if err := c.Object("x.y.Z", "/o").Call("x.y.Z.Do", 0, "b").Err; err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("broken: %v", err)
		}
		if len(calls()) > 0 || c.Connected() || !s.Connected() || len(seen) != 1 || seen["to x.y.Z.Do"] != 2 {
			t.Errorf("calls %v, connected %t and %t, seen %v", calls(), c.Connected(), s.Connected(), seen)
		}
		b.Close()
	})
}

// TestClose checks that nothing is left of a bus: the bubble ends only if all goroutines have.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		b.Fault = func(Transit) Verdict { return Verdict{Delay: time.Hour} }
		s, _ := service(t, b, "x.y.Z")
		silent, err := b.Dial(t.Context()) // says nothing
		if err != nil {
			t.Fatal(err)
		}
		end, err := b.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c, err := dbus.NewConn(end)
		if err == nil {
			err = c.Auth(nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		hello := make(chan error)
		go func() { hello <- c.Hello() }()
		time.Sleep(time.Minute)
		b.Close()
		if err := <-hello; err == nil {
			t.Error("Hello was answered")
		}
		synctest.Wait()
		if _, err := silent.Read(make([]byte, 1)); err == nil || s.Connected() || c.Connected() {
			t.Errorf("after Close: %v, connected %t and %t", err, s.Connected(), c.Connected())
		}
		if _, err := b.Dial(t.Context()); err == nil {
			t.Error("Dial works after Close")
		}
		if _, err := b.Connect(); err == nil {
			t.Error("Connect works after Close")
		}
		time.Sleep(2 * time.Hour) // a delayed message has no effect
	})
}

// TestHelloFirst checks that a connection begins with Hello.
func TestHelloFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		end, err := b.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c, err := dbus.NewConn(end)
		if err == nil {
			err = c.Auth(nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := c.BusObject().Call(daemonName+".GetId", 0).Err; err == nil || c.Connected() {
			t.Errorf("a call before Hello: %v", err)
		}
		b.Close()
	})
}

// TestHandshake checks what the bus answers to clients other than godbus.
func TestHandshake(t *testing.T) {
	for _, c := range []struct{ say, want string }{
		{"\x00AUTH\r\n", "REJECTED EXTERNAL\r\n"},
		{"\x00AUTH ANONYMOUS\r\n", "REJECTED EXTERNAL\r\n"},
		{"\x00AUTH EXTERNAL 30\r\n", "OK 00000000000000000000000000000001\r\n"},
		{"\x00AUTH EXTERNAL\r\n", "DATA\r\n"},
		{"\x00NEGOTIATE_UNIX_FD\r\n", "ERROR\r\n"},
		{"\x00\r\n", "ERROR\r\n"},
		{"AUTH\r\n", ""},
		{"\x00BEGIN\r\nlooks like no message", ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := New()
			end, err := b.Dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			go end.Write([]byte(c.say))
			end.SetReadDeadline(time.Now().Add(time.Second))
			got := make([]byte, 100)
			n, err := end.Read(got)
			if string(got[:n]) != c.want {
				t.Errorf("%q: answered %q, %v", c.say, got[:n], err)
			}
			if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
				t.Errorf("%q: the connection stays open", c.say)
			}
			b.Close()
		})
	}
}

// TestActivate checks that calls wait for a service that the bus can start, in order, and others are refused.
func TestActivate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		asked := make(chan string, 10)
		b.Activate = func(name string) bool {
			asked <- name
			return name == "x.y.Z"
		}
		c := client(t, b)
		do := func(name string, flags dbus.Flags, what string) *dbus.Call {
			return c.Object(name, "/o").Go(name+".Do", flags, nil, what)
		}
		for name, flags := range map[string]dbus.Flags{"x.y.Other": 0, "x.y.Z": dbus.FlagNoAutoStart} {
			if call := <-do(name, flags, "refused").Done; call.Err == nil {
				t.Errorf("a call to %s with flags %d was answered", name, flags)
			}
		}
		first := do("x.y.Z", 0, "first")
		second := do("x.y.Z", 0, "second")
		time.Sleep(time.Second)
		_, calls := service(t, b, "x.y.Z")
		<-first.Done
		<-second.Done
		close(asked)
		var names []string
		for name := range asked {
			names = append(names, name)
		}
		if first.Err != nil || second.Err != nil || len(calls()) != 2 || !slices.Equal(names, []string{"x.y.Other", "x.y.Z"}) {
			t.Errorf("%v and %v, calls %v, asked for %v", first.Err, second.Err, calls(), names)
		}
		b.Close()
	})
}
