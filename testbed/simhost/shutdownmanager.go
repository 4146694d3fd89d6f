package simhost

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/godbus/dbus/v5"
)

// shutdownManager is the kubelet's connection to logind. It holds a delay inhibitor and releases it when the kubelet
// has finished its part of a shutdown that logind announced.
type shutdownManager struct {
	conn    *dbus.Conn
	inhibit *os.File
	once    sync.Once
	end     context.CancelFunc
	done    chan struct{}
}

// manageShutdown takes the inhibitor and waits for PrepareForShutdown. It calls onShutdown once. onShutdown may take long; its context ends
// with the manager.
func manageShutdown(ctx context.Context, b *bus, onShutdown func(context.Context)) (*shutdownManager, error) {
	conn, err := b.connect()
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*shutdownManager, error) {
		conn.Close()
		return nil, fmt.Errorf("starting the kubelet's shutdown manager: %w", err)
	}
	signals := make(chan *dbus.Signal, 8)
	conn.Signal(signals)
	if err := conn.AddMatchSignal(dbus.WithMatchInterface(loginIface), dbus.WithMatchMember("PrepareForShutdown")); err != nil {
		return fail(err)
	}
	var fd dbus.UnixFD
	err = conn.Object(loginName, loginPath).Call(loginIface+".Inhibit", 0, "shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay").Store(&fd)
	if err != nil {
		return fail(err)
	}
	m := &shutdownManager{conn: conn, inhibit: os.NewFile(uintptr(fd), "inhibitor"), done: make(chan struct{})}
	ctx, m.end = context.WithCancel(ctx)
	go func() {
		defer close(m.done)
		for s := range signals { // closed with the connection
			if len(s.Body) == 1 && s.Body[0] == true {
				onShutdown(ctx)
				m.release()
				return
			}
		}
	}()
	return m, nil
}

func (m *shutdownManager) release() { m.once.Do(func() { m.inhibit.Close() }) }

func (m *shutdownManager) stop() {
	m.end()
	m.conn.Close()
	<-m.done
	m.release()
}
