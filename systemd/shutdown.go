package systemd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/godbus/dbus/v5"
)

// goingDown are the units that a host starts when it is on its way down, whoever asked for it.
var goingDown = map[string]bool{
	"shutdown.target": true, "reboot.target": true, "kexec.target": true, "soft-reboot.target": true,
	"poweroff.target": true, "halt.target": true, "exit.target": true,
	"systemd-reboot.service": true, "systemd-kexec.service": true, "systemd-soft-reboot.service": true,
	"systemd-poweroff.service": true, "systemd-halt.service": true,
}

// RebootUnderway reports whether this host is going down already: logind prepares for a shutdown, or a job to start
// one of the shutdown targets is queued in systemd. A shutdown scheduled for later is not under way. Either of the
// two suffices for true; false needs the word of both, except that one that is absent from the bus has no say. With
// neither of them there (or the bus away) the error says so.
func (l Logind) RebootUnderway(ctx context.Context) (bool, error) {
	preparing, loginErr := l.preparingForShutdown(ctx)
	if preparing {
		return true, nil
	}
	queued, jobsErr := l.shutdownJob(ctx)
	if queued {
		return true, nil
	}
	if errors.Is(loginErr, ErrAbsent) && jobsErr == nil || errors.Is(jobsErr, ErrAbsent) && loginErr == nil {
		return false, nil
	}
	if err := errors.Join(loginErr, jobsErr); err != nil {
		return false, fmt.Errorf("asking whether a reboot is under way: %w", err)
	}
	return false, nil
}

func (l Logind) preparingForShutdown(ctx context.Context) (preparing bool, err error) {
	// This query does not start logind: if logind does not run, it does not prepare for a shutdown, and at the end of a
	// shutdown it has stopped.
	err = l.bus().property(ctx, target{service: loginName, path: loginPath}, loginManager, "PreparingForShutdown", &preparing)
	return preparing, err
}

// shutdownJob looks for a start job of a unit that takes the host down.
func (l Logind) shutdownJob(ctx context.Context) (bool, error) {
	body, err := l.bus().call(ctx, manager, managerIface+".ListJobs")
	var jobs []struct {
		ID                uint32
		Unit, Type, State string
		Path, UnitPath    dbus.ObjectPath
	}
	if err == nil {
		err = dbus.Store(body, &jobs)
	}
	if err != nil {
		return false, fmt.Errorf("listing systemd's jobs: %w", err)
	}
	for _, j := range jobs {
		if goingDown[j.Unit] && (j.Type == "start" || j.Type == "restart") {
			return true, nil
		}
	}
	return false, nil
}

// ScheduledShutdown tells what `shutdown +10` or somebody's ScheduleShutdown has planned: kind as "reboot" or
// "poweroff" and when, or "" if nothing is.
func (l Logind) ScheduledShutdown(ctx context.Context) (kind string, at time.Time, err error) {
	var s struct {
		Kind string
		Usec uint64
	}
	if err := l.bus().property(ctx, login, loginManager, "ScheduledShutdown", &s); err != nil {
		return "", time.Time{}, err
	}
	if s.Kind == "" {
		return "", time.Time{}, nil
	}
	return printable(s.Kind, maxText), time.UnixMicro(int64(min(s.Usec, 253402300799e6))), nil
}

const (
	watchSpacing = 200 * time.Millisecond // between two looks, however many signals come
	watchPoll    = 30 * time.Second       // a look without any signal
	watchRetry   = 500 * time.Millisecond // first wait when logind or the bus cannot be asked, doubling
)

// WatchShutdown calls f(true) when logind begins to prepare for a shutdown (PrepareForShutdown), f(false) when that
// was called off, and returns ctx's error when ctx ends. The first call comes for a shutdown that is already under
// way, or not at all: it starts from "no shutdown". logind and the bus may be missing, go and come back; while they
// are away the last word stands. The signal is only taken as a reason to read the property PreparingForShutdown,
// since any local user can send signals and a leader gives up its Lease on this one. f must not block.
func (l Logind) WatchShutdown(ctx context.Context, f func(active bool)) error {
	b := l.bus()
	signal := &subscription{service: loginName, path: loginPath, iface: loginManager, member: "PrepareForShutdown"}
	defer b.subscribe(signal)()
	var active bool
	retry := watchRetry
	for {
		wait := watchPoll
		now, conn, err := l.look(ctx, signal)
		switch {
		case err != nil:
			wait = retry/2 + rand.N(retry)
			retry = min(2*retry, watchPoll)
		case now != active:
			active = now
			f(active)
			fallthrough
		default:
			retry = watchRetry
		}
		var lost <-chan struct{}
		if conn != nil {
			lost = conn.Context().Done()
		}
		if err := rest(ctx, watchSpacing, nil, nil); err != nil {
			return err
		}
		if err := rest(ctx, wait, lost, signal.hint); err != nil {
			return err
		}
	}
}

// look makes sure that the signal is listened for, and only then reads the property, so that no change is missed.
func (l Logind) look(ctx context.Context, signal *subscription) (preparing bool, conn *dbus.Conn, err error) {
	conn, err = l.bus().listen(ctx, signal)
	if err != nil {
		return false, nil, err
	}
	preparing, err = l.preparingForShutdown(ctx)
	return preparing, conn, err
}

// rest waits for d, or until the connection is lost or a hint comes; the error is ctx's.
func rest(ctx context.Context, d time.Duration, lost, hint <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
	case <-lost:
	case <-hint:
	}
	return nil
}
