package systemd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/godbus/dbus/v5"
)

// WatchJobs calls f soon after a job of one of the units has ended: it was started, stopped or restarted. That is a
// reason to look and no more; a unit that ends by itself has no job and is not told of. It returns ctx's error when ctx
// ends. systemd and the bus may be missing, go and come back. f must not block.
func (u Units) WatchJobs(ctx context.Context, units []string, f func()) error {
	b := u.bus()
	signal := &subscription{service: managerName, path: manager.path, iface: managerIface, member: "JobRemoved"}
	defer b.subscribe(signal)()
	retry := watchRetry
	for {
		conn, err := u.listenForJobs(ctx, signal, units)
		if err != nil {
			if err := rest(ctx, retry/2+rand.N(retry), nil, nil); err != nil {
				return err
			}
			retry = min(2*retry, watchPoll)
			continue
		}
		retry = watchRetry
		// The bus may have been away for a while.
		f()
		for conn.Connected() {
			if err := rest(ctx, watchSpacing, nil, nil); err != nil {
				return err
			}
			if err := rest(ctx, watchPoll, conn.Context().Done(), signal.hint); err != nil {
				return err
			}
			f()
		}
	}
}

// listenForJobs asks systemd for its signals, which it sends nobody unasked, and the bus for those of these units.
func (u Units) listenForJobs(ctx context.Context, s *subscription, units []string) (*dbus.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, u.bus().limit())
	defer cancel()
	conn, err := u.bus().connect(ctx)
	if err != nil {
		return nil, err
	}
	if conn != s.on {
		for _, unit := range units {
			err := conn.AddMatchSignalContext(ctx, dbus.WithMatchSender(s.service), dbus.WithMatchInterface(s.iface),
				dbus.WithMatchObjectPath(s.path), dbus.WithMatchMember(s.member), dbus.WithMatchArg(2, unit))
			if err != nil {
				u.bus().drop(conn)
				return nil, fmt.Errorf("subscribing to systemd's jobs: %w", err)
			}
		}
		s.on = conn
	}
	return conn, u.askForSignals(ctx)
}

// askForSignals has systemd send its signals on the present connection.
func (u Units) askForSignals(ctx context.Context) error {
	_, err := u.bus().call(ctx, manager, managerIface+".Subscribe")
	if e, ok := errors.AsType[*CallError](err); ok && e.Name == managerName+".AlreadySubscribed" {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("subscribing to systemd's jobs: %w", err)
	}
	return nil
}
