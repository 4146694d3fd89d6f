package systemd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/coreos/go-systemd/v22/login1"
	"github.com/godbus/dbus/v5"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const (
	loginName    = "org.freedesktop.login1"
	loginPath    = dbus.ObjectPath("/org/freedesktop/login1")
	loginManager = "org.freedesktop.login1.Manager"
)

// Logind asks systemd-logind (org.freedesktop.login1). Its methods may be called from any goroutine. Each D-Bus call takes at
// most 10 s. The zero value uses the system bus.
type Logind struct{ Bus *Bus }

// manager is logind for calls that must not start it.
func (l Logind) manager() Object { return l.Bus.Object(loginName, loginPath) }

// queries is logind for queries. systemd lets the bus start logind, so a query starts logind if it does not run.
func (l Logind) queries(path dbus.ObjectPath) Object {
	o := l.Bus.Object(loginName, path)
	o.mayStart = true
	return o
}

// rootChecksInhibitors is logind's SD_LOGIND_ROOT_CHECK_INHIBITORS: block inhibitors hold for root as well. Up to systemd 256
// logind respects only those of other users. One that root itself holds lets root pass with or without the flag (seen with
// 252), so the caller has to read the list right before. From 257 on logind respects root's own as well (seen with 257).
const rootChecksInhibitors = uint64(1) << 0

// Reboot asks logind to reboot the host, and returns when logind has accepted. The reboot itself follows, at most
// InhibitDelayMaxSec later if there are delay inhibitors. An inhibitor that was taken after the caller read the list is
// respected as far as logind can (see Inhibited). It needs systemd 247 or later.
//
// Reboot repeats nothing. It ends with ctx, and after 10 s at the latest. The call reaches the logind that runs now or none:
// the bus does not start logind for it, and does not deliver it to a logind that starts later.
//
// A failure wraps a *CallError, whose Refused method reports whether it is certain that no reboot was started. It matches
// ErrAbsent if logind does not run. logind also refuses while a reboot is under way
// (org.freedesktop.login1.OperationInProgress): a caller asks RebootUnderway before it takes a refusal for "no reboot".
func (l Logind) Reboot(ctx context.Context) error {
	// The call has a connection of its own, which closes when the time is over. logind asks the bus who the caller is, and
	// refuses a call whose caller is gone.
	bus := l.manager().bus.separate()
	bus.closesOnStop = true
	defer bus.Close()
	if _, err := bus.Object(loginName, loginPath).Call(ctx, loginManager+".RebootWithFlags", rootChecksInhibitors); err != nil {
		return fmt.Errorf("asking logind to reboot: %w", err)
	}
	return nil
}

// Inhibited reports whether an error of Reboot means that a block inhibitor prevents the reboot. The host has to wait, as it
// would have done if it had read the inhibitor before. systemd 252 and 257 answer AccessDenied with a text that names an
// inhibitor; newer releases answer BlockedByInhibitorLock.
func Inhibited(err error) bool {
	e, ok := errors.AsType[*CallError](err)
	return answeredWith(err, loginName+".BlockedByInhibitorLock") ||
		ok && e.Name == dbusName+".Error.AccessDenied" && strings.Contains(e.Message, "inhibitor")
}

// Inhibitor is one lock held in logind. The texts come from its holder; each is one line of at most 256 bytes.
type Inhibitor struct {
	What []string // "shutdown", "sleep", "idle", ...
	Who  string   // the holder's name for itself
	Why  string
	Mode string // "block" or "block-weak"
	UID  uint32
	PID  uint32
}

// BlockingInhibitors lists the inhibitors whose holders ask that the host is not shut down. A delay inhibitor does not ask
// that: logind waits for it, for a bounded time. Every other mode does: block-weak, although logind would let root pass, and
// unknown modes. logind's InhibitorsMax (8192) bounds their number.
func (l Logind) BlockingInhibitors(ctx context.Context) ([]Inhibitor, error) {
	var rows []struct {
		What, Who, Why, Mode string
		UID, PID             uint32
	}
	if err := l.queries(loginPath).call(ctx, loginManager+".ListInhibitors", nil, &rows); err != nil {
		return nil, fmt.Errorf("listing logind's inhibitors: %w", err)
	}
	var all []Inhibitor
	for _, r := range rows {
		what := strings.Split(v1alpha1.OneLine(r.What, maxText), ":")
		if !slices.Contains(what, "shutdown") || r.Mode == "delay" {
			continue
		}
		all = append(all, Inhibitor{
			What: what, Who: v1alpha1.OneLine(r.Who, maxText), Why: v1alpha1.OneLine(r.Why, maxText), Mode: v1alpha1.OneLine(r.Mode, maxText),
			UID: r.UID, PID: r.PID,
		})
	}
	return all, nil
}

// Session is a user's login. The texts are each one line of at most 256 bytes.
type Session struct {
	ID   string
	User string // name
	UID  uint32
	TTY  string // "" if none, or if logind does not know it
}

// Sessions lists the interactive sessions that are not closing: of class user (not greeter, lock-screen, background or
// manager), on a seat, on a terminal or remote. It makes a call for each session, and takes at most 10 s in all. It leaves
// out a session that ends meanwhile.
func (l Logind) Sessions(ctx context.Context) ([]Session, error) {
	ctx, cancel := context.WithTimeout(ctx, l.manager().bus.limit())
	defer cancel()
	var rows []login1.Session
	if err := l.queries(loginPath).call(ctx, loginManager+".ListSessions", nil, &rows); err != nil {
		return nil, fmt.Errorf("listing logind's sessions: %w", err)
	}
	var all []Session
	for _, r := range rows {
		s := Session{ID: v1alpha1.OneLine(r.ID, maxText), User: v1alpha1.OneLine(r.User, maxText), UID: r.UID}
		var p struct {
			Class, State, TTY string
			Remote            bool
		}
		err := fmt.Errorf("its path %q is invalid", v1alpha1.OneLine(string(r.Path), maxText))
		if r.Path.IsValid() {
			err = l.queries(r.Path).properties(ctx, loginName+".Session", &p)
		}
		if answeredWith(err, dbusName+".Error.UnknownObject", loginName+".NoSuchSession") {
			continue // it has ended
		}
		if err != nil {
			return nil, fmt.Errorf("reading session %s of %s: %w", s.ID, s.User, err)
		}
		s.TTY = v1alpha1.OneLine(p.TTY, maxText)
		// The classes of users are user, user-early, user-light and so on. A session without a class is taken for a user's.
		user := p.Class == "" || p.Class == "user" || strings.HasPrefix(p.Class, "user-")
		if user && p.State != "closing" && (r.Seat != "" || s.TTY != "" || p.Remote) {
			all = append(all, s)
		}
	}
	return all, nil
}

// shutdownUnits are the units that a host starts when it shuts down, no matter who asked for that.
var shutdownUnits = []string{
	"shutdown.target", "reboot.target", "kexec.target", "soft-reboot.target", "poweroff.target", "halt.target", "exit.target",
	"systemd-reboot.service", "systemd-kexec.service", "systemd-soft-reboot.service", "systemd-poweroff.service", "systemd-halt.service",
}

// RebootUnderway reports whether this host is shutting down: logind prepares for a shutdown, or systemd has a job to start one
// of the shutdown targets. A shutdown that is scheduled for later is not under way. One of the two suffices for true. For
// false both have to answer, but one that is not on the bus is left out. If neither is there, or there is no bus, RebootUnderway
// returns an error.
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

// preparingForShutdown does not start logind: if logind does not run, it does not prepare for a shutdown, and at the end of a
// shutdown it has stopped.
func (l Logind) preparingForShutdown(ctx context.Context) (preparing bool, err error) {
	err = l.manager().property(ctx, loginManager, "PreparingForShutdown", &preparing)
	return preparing, err
}

// shutdownJob reports whether systemd has a job to start a unit that shuts the host down.
func (l Logind) shutdownJob(ctx context.Context) (bool, error) {
	var jobs []sd.JobStatus
	if err := l.Bus.Object(managerName, managerPath).call(ctx, managerIface+".ListJobs", nil, &jobs); err != nil {
		return false, fmt.Errorf("listing systemd's jobs: %w", err)
	}
	return slices.ContainsFunc(jobs, func(j sd.JobStatus) bool {
		return slices.Contains(shutdownUnits, j.Unit) && (j.JobType == "start" || j.JobType == "restart")
	}), nil
}

// WatchShutdown calls f(true) when logind begins to prepare for a shutdown (PrepareForShutdown), and f(false) when that was
// called off. It starts from "no shutdown", so the first call is f(true), at once if a shutdown is under way already. While
// logind or the bus is away, the last call stays valid. The signal is only a reason to read logind's property
// PreparingForShutdown. f must not block. WatchShutdown returns the cause of ctx's end.
func (l Logind) WatchShutdown(ctx context.Context, f func(active bool)) error {
	active := false
	return l.manager().Watch(ctx, loginManager+".PrepareForShutdown", signalPoll, func(ctx context.Context) error {
		now, err := l.preparingForShutdown(ctx)
		if err == nil && now != active {
			active = now
			f(active)
		}
		return err
	})
}
