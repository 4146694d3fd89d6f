package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/godbus/dbus/v5"
)

// These are the names of logind on the bus.
const (
	loginName  = "org.freedesktop.login1"
	loginPath  = dbus.ObjectPath("/org/freedesktop/login1")
	loginIface = "org.freedesktop.login1.Manager"
)

// rewatchEvery is the delay before another attempt after a watch failed or could not start.
const rewatchEvery = 100 * time.Millisecond

// runWatch holds a delay inhibitor under the name who, and writes a line when logind has announced a shutdown. It
// releases the inhibitor when it gets a line as the answer. It runs until its input ends, whatever restarts on the
// host.
func runWatch(ctx context.Context, who string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan struct{})
	go func() {
		defer cancel()
		for input := bufio.NewScanner(os.Stdin); input.Scan(); {
			answers <- struct{}{}
		}
	}()
	for ctx.Err() == nil {
		_ = watch(ctx, who, answers) // the bus or logind does not run yet, or no longer runs
		select {
		case <-ctx.Done():
		case <-time.After(rewatchEvery):
		}
	}
	return nil
}

// errAgain ends a watch that must restart.
var errAgain = errors.New("the watch has to restart")

func watch(ctx context.Context, who string, answers <-chan struct{}) error {
	conn, err := dbus.ConnectSystemBus()
	if err != nil {
		return err
	}
	defer conn.Close()
	signals := make(chan *dbus.Signal, 16)
	conn.Signal(signals)
	if err := conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface(loginIface), dbus.WithMatchMember("PrepareForShutdown")); err != nil {
		return err
	}
	if err := conn.AddMatchSignalContext(ctx, dbus.WithMatchSender("org.freedesktop.DBus"), dbus.WithMatchMember("NameOwnerChanged"),
		dbus.WithMatchArg(0, loginName)); err != nil {
		return err
	}
	var fd dbus.UnixFD
	if err := conn.Object(loginName, loginPath).CallWithContext(ctx, loginIface+".Inhibit", 0,
		"shutdown", who, "tells the test of reboots", "delay").Store(&fd); err != nil {
		return err
	}
	inhibitor := os.NewFile(uintptr(fd), "inhibitor")
	defer inhibitor.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case s, ok := <-signals:
			switch {
			case !ok:
				return errAgain
			case s.Name == loginIface+".PrepareForShutdown" && len(s.Body) == 1 && s.Body[0] == true:
				fmt.Println("PrepareForShutdown")
				select {
				case <-answers:
				case <-ctx.Done():
				}
				inhibitor.Close()
			case s.Name == loginIface+".PrepareForShutdown", s.Name == "org.freedesktop.DBus.NameOwnerChanged" && len(s.Body) == 3 && s.Body[0] == loginName:
				return errAgain // canceled, or logind restarted
			}
		}
	}
}
