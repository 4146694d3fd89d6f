package systemd

import (
	"context"
	"errors"
	"net"
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
