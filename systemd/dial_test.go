package systemd

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestDial checks that all connections of a Bus, and of those that share nothing with it, are opened by its Dial.
func TestDial(t *testing.T) {
	b := newBus(t)
	f := newLogin(t, b)
	var dialed atomic.Int32
	name, err := socketName(b.Address)
	must(t, err)
	bus := &Bus{Address: "unix:path=/nowhere", Dial: func(ctx context.Context) (net.Conn, error) {
		dialed.Add(1)
		return new(net.Dialer).DialContext(ctx, "unix", name)
	}}
	defer bus.Close()
	l := Logind{Bus: bus}
	if _, err := l.BlockingInhibitors(t.Context()); err != nil {
		t.Fatal(err)
	}
	must(t, l.Reboot(t.Context()))
	if dialed.Load() != 2 || len(f.called()) != 1 {
		t.Errorf("%d connections, %d reboots, want 2 and 1", dialed.Load(), len(f.called()))
	}
}

// TestCallEndsWhileAnotherConnects checks that a call ends with its context while another call waits for a bus that accepts a
// connection and then sends nothing, and that this wait is bounded.
func TestCallEndsWhileAnotherConnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := &Bus{Dial: func(context.Context) (net.Conn, error) {
			silent, _ := net.Pipe()
			return silent, nil
		}}
		began, first := time.Now(), make(chan error)
		go func() {
			_, err := bus.Object(loginName, loginPath).Call(t.Context(), loginManager+".ListSessions")
			first <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := bus.Object(loginName, loginPath).Call(ctx, loginManager+".ListSessions")
		if d := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || d != time.Second {
			t.Errorf("the second call ended after %v with %v, want a timeout after 1s", d, err)
		}
		if err := <-first; err == nil || time.Since(began) != callTimeout {
			t.Errorf("the first call ended after %v with %v, want a timeout after %v", time.Since(began), err, callTimeout)
		}
	})
}

// deadlines counts the write deadlines that are set on a socket.
type deadlines struct {
	*net.UnixConn
	set int
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.set++
	return d.UnixConn.SetWriteDeadline(at)
}

// TestWriteSetsNoDeadline: what the socket takes at once needs no timer, which would wake an idle process 10 s after each call.
func TestWriteSetsNoDeadline(t *testing.T) {
	at := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "bus"), Net: "unix"}
	l, err := net.ListenUnix("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.DialUnix("unix", nil, at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	d := &deadlines{UnixConn: conn}
	if n, err := (&stream{nil, d}).Write([]byte("a call")); n != 6 || err != nil || d.set != 0 {
		t.Errorf("wrote %d bytes, %v; %d deadlines", n, err, d.set)
	}
	got := make([]byte, 10)
	bus, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Close()
	if n, err := bus.Read(got); string(got[:n]) != "a call" || err != nil {
		t.Errorf("the bus got %q, %v", got[:n], err)
	}
}
