package systemd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	loginName    = "org.freedesktop.login1"
	loginPath    = dbus.ObjectPath("/org/freedesktop/login1")
	loginManager = "org.freedesktop.login1.Manager"
)

// login is for queries. systemd lets the bus start logind, so a query starts logind if it does not run.
var login = target{service: loginName, path: loginPath, mayStart: true}

// Logind asks systemd-logind (org.freedesktop.login1). Its methods may be called from any goroutine; each D-Bus
// call is bounded by 10 s. The zero value asks the system bus.
type Logind struct{ Bus *Bus }

func (l Logind) bus() *Bus {
	if l.Bus == nil {
		return systemBus
	}
	return l.Bus
}

// systemBus serves zero values of Logind and Units.
var systemBus = &Bus{}

// rootChecksInhibitors is logind's SD_LOGIND_ROOT_CHECK_INHIBITORS: block inhibitors hold for root as well. Up to
// systemd 256 logind respects only those of other users: one that root itself holds lets root pass with or without the
// flag (seen with 252), so the caller has to read the list right before. From 257 on logind respects root's own as well (seen
// with 257).
const rootChecksInhibitors = uint64(1) << 0

// Reboot asks logind to reboot the host, and returns when logind has accepted: the reboot itself follows, at most
// InhibitDelayMaxSec later if there are delay inhibitors. An inhibitor that was taken after the caller read the list is
// respected as far as logind can (see Inhibited): Reboot uses RebootWithFlags with the flag for that, without it where
// logind does not know it, or Reboot(false) where logind is older still.
//
// Reboot repeats nothing. It ends with ctx, and after 10 s at the latest. The call reaches the logind that runs now or
// none: the bus does not start logind for it, and does not deliver it to a logind that starts later.
//
// A failure wraps a *CallError, whose Refused method reports whether it is certain that nothing was started. It matches
// ErrAbsent if logind does not run. logind also refuses while a reboot is under way
// (org.freedesktop.login1.OperationInProgress): a caller asks RebootUnderway before it takes a refusal for "no reboot".
func (l Logind) Reboot(ctx context.Context) error {
	limit := l.bus().limit()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %v: %w", limit, context.DeadlineExceeded))
	defer cancel()
	// The call has its own connection, which closes when the time is over. logind asks the bus who the caller is, and refuses
	// a call whose caller is gone.
	bus := l.bus().separate()
	bus.revoke = true
	defer bus.Close()
	owner, err := bus.owner(ctx, loginName)
	if err != nil {
		return err
	}
	logind := target{service: owner, path: loginPath}
	_, err = bus.call(ctx, logind, loginManager+".RebootWithFlags", rootChecksInhibitors)
	if e, ok := errors.AsType[*CallError](err); ok && e.Name == dbusName+".Error.InvalidArgs" {
		_, err = bus.call(ctx, logind, loginManager+".RebootWithFlags", uint64(0))
	}
	if e, ok := errors.AsType[*CallError](err); ok && e.Name == dbusName+".Error.UnknownMethod" {
		_, err = bus.call(ctx, logind, loginManager+".Reboot", false)
	}
	if err != nil {
		return fmt.Errorf("asking logind to reboot: %w", err)
	}
	return nil
}

// Inhibited reports whether an error of Reboot says that a block inhibitor prevents it. The host has to wait, as it would
// have done if it had seen the inhibitor before. systemd 252 and 257 answer AccessDenied with a text that names an
// inhibitor; newer releases answer BlockedByInhibitorLock.
func Inhibited(err error) bool {
	e, ok := errors.AsType[*CallError](err)
	return ok && (e.Name == loginName+".BlockedByInhibitorLock" ||
		e.Name == dbusName+".Error.AccessDenied" && strings.Contains(e.Message, "inhibitor"))
}

// Inhibitor is one lock held in logind. All texts are the holder's, sanitised and at most 256 bytes.
type Inhibitor struct {
	What []string // "shutdown", "sleep", "idle", ...
	Who  string   // the holder's name for itself
	Why  string
	Mode string // "block", "block-weak" or "delay"
	UID  uint32
	PID  uint32
}

// BlocksShutdown reports whether somebody asks with this lock that the host is not shut down for now. Delay
// inhibitors do not: logind waits for them by itself, and not for long. Any other mode does, block-weak too although
// logind would let root pass, and so would a mode that is not known yet.
func (i Inhibitor) BlocksShutdown() bool {
	return slices.Contains(i.What, "shutdown") && i.Mode != "delay"
}

// BlockingShutdown picks those that block a shutdown.
func BlockingShutdown(all []Inhibitor) []Inhibitor {
	return slices.DeleteFunc(slices.Clone(all), func(i Inhibitor) bool { return !i.BlocksShutdown() })
}

// Inhibitors lists the locks. How many there can be is logind's InhibitorsMax (8192).
func (l Logind) Inhibitors(ctx context.Context) ([]Inhibitor, error) {
	body, err := l.bus().call(ctx, login, loginManager+".ListInhibitors")
	var raw []struct {
		What, Who, Why, Mode string
		UID, PID             uint32
	}
	if err == nil {
		err = dbus.Store(body, &raw)
	}
	if err != nil {
		return nil, fmt.Errorf("listing logind's inhibitors: %w", err)
	}
	all := make([]Inhibitor, 0, len(raw))
	for _, r := range raw {
		all = append(all, Inhibitor{
			What: strings.Split(printable(r.What, maxText), ":"),
			Who:  printable(r.Who, maxText), Why: printable(r.Why, maxText), Mode: printable(r.Mode, maxText),
			UID: r.UID, PID: r.PID,
		})
	}
	return all, nil
}

// Session is a login of a person.
type Session struct {
	ID     string
	User   string // name
	UID    uint32
	Seat   string // "" if none
	TTY    string // "" if none
	Remote bool
	Since  time.Time // zero if logind does not say
}

// Sessions lists interactive sessions that are not closing: of class user (not greeter, lock-screen, background or
// manager), on a seat, on a terminal or from remote. It takes a call for each session and at most 10 s in all. A
// session that ends meanwhile is left out.
func (l Logind) Sessions(ctx context.Context) ([]Session, error) {
	ctx, cancel := context.WithTimeout(ctx, l.bus().limit())
	defer cancel()
	body, err := l.bus().call(ctx, login, loginManager+".ListSessions")
	var raw []struct {
		ID   string
		UID  uint32
		User string
		Seat string
		Path dbus.ObjectPath
	}
	if err == nil {
		err = dbus.Store(body, &raw)
	}
	if err != nil {
		return nil, fmt.Errorf("listing logind's sessions: %w", err)
	}
	var all []Session
	for _, r := range raw {
		if !r.Path.IsValid() {
			return nil, fmt.Errorf("listing logind's sessions: path %q of session %q is none", printable(string(r.Path), maxText), printable(r.ID, maxText))
		}
		body, err := l.bus().call(ctx, target{service: loginName, path: r.Path}, dbusName+".Properties.GetAll", "org.freedesktop.login1.Session")
		if gone(err) {
			continue
		}
		var props map[string]dbus.Variant
		if err == nil {
			err = dbus.Store(body, &props)
		}
		if err != nil {
			return nil, fmt.Errorf("reading session %s of %s: %w", printable(r.ID, maxText), printable(r.User, maxText), err)
		}
		s := Session{ID: printable(r.ID, maxText), User: printable(r.User, maxText), UID: r.UID, Seat: printable(r.Seat, maxText)}
		if s.interactive(props) {
			all = append(all, s)
		}
	}
	return all, nil
}

// gone recognises the errors for an object that was there when it was listed.
func gone(err error) bool {
	e, ok := errors.AsType[*CallError](err)
	return ok && (e.Name == dbusName+".Error.UnknownObject" || e.Name == loginName+".NoSuchSession")
}

// interactive fills in what the properties say and judges.
func (s *Session) interactive(props map[string]dbus.Variant) bool {
	var class, state string
	var since uint64
	for name, to := range map[string]any{"Class": &class, "State": &state, "TTY": &s.TTY, "Remote": &s.Remote, "Timestamp": &since} {
		if v, ok := props[name]; ok {
			_ = v.Store(to) // a property of another type is one we do not know
		}
	}
	s.TTY = printable(s.TTY, maxText)
	if const9999 := uint64(253402300800e6); since > 0 && since < const9999 {
		s.Since = time.UnixMicro(int64(since))
	}
	// user, user-early, user-light, ...: people all of them. A session without a class is taken for a person's.
	person := class == "" || class == "user" || strings.HasPrefix(class, "user-")
	return person && state != "closing" && (s.Seat != "" || s.TTY != "" || s.Remote)
}
