package systemd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const (
	wallTimeout  = 200 * time.Millisecond // for one terminal that does not take what is written
	maxTerminals = 256                    // in one call
	maxWallLine  = 512                    // bytes
)

// Wall writes a message to the terminals of the sessions, as wall(1) does, and returns how many it reached. dev is /dev. If
// logind does not know the terminal of a session (sshd reports it late, or not at all), Wall writes to all pseudo terminals
// of the session's user. It writes to at most 256 terminals. Each has 200 ms to take the text. The error names the terminals
// that could not be written to.
//
// logind's own SetWallMessage writes only when a shutdown is called or scheduled, and a scheduled shutdown remains when the
// process that scheduled it ends: the host must not shut down because this process crashed while it waited.
//
// The process needs the group tty and the host's /dev: no PrivateDevices.
func Wall(dev string, sessions []Session, text string) (reached int, err error) {
	message := wallText(text)
	var errs []error
	for _, name := range terminals(dev, sessions) {
		if err := writeTerminal(filepath.Join(dev, name), message); err != nil {
			errs = append(errs, fmt.Errorf("warning on %s: %w", name, err))
			continue
		}
		reached++
	}
	return reached, errors.Join(errs...)
}

// terminals returns the sessions' terminals, relative to dev, each once.
func terminals(dev string, sessions []Session) []string {
	var names []string
	add := func(name string) {
		if filepath.IsLocal(name) && !slices.Contains(names, name) && len(names) < maxTerminals {
			names = append(names, name)
		}
	}
	users := map[uint32]bool{} // with a session whose terminal logind does not know
	for _, s := range sessions {
		if s.TTY != "" {
			add(s.TTY)
		} else {
			users[s.UID] = true
		}
	}
	if len(users) == 0 {
		return names
	}
	entries, err := os.ReadDir(filepath.Join(dev, "pts"))
	if err != nil {
		return names // no pseudo terminals on this host
	}
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(dev, "pts", e.Name()))
		if err != nil || e.Name() == "ptmx" {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && users[st.Uid] {
			add("pts/" + e.Name())
		}
	}
	return names
}

// wallText returns the message as it goes to a terminal: on lines of its own, with a bell, and without characters that make
// the terminal do anything but show it.
func wallText(text string) []byte {
	var b strings.Builder
	b.WriteString("\r\n\a")
	for line := range strings.Lines(text) {
		b.WriteString(v1alpha1.OneLine(strings.TrimRight(line, "\n"), maxWallLine) + "\r\n")
	}
	b.WriteString("\r\n")
	return []byte(b.String())
}

// writeTerminal writes to a terminal, and to no other file.
func writeTerminal(path string, message []byte) error {
	const flags = os.O_WRONLY | syscall.O_NOCTTY | syscall.O_NONBLOCK // do not wait for a modem, do not become its session
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var notTerminal error
	err = conn.Control(func(fd uintptr) { _, notTerminal = unix.IoctlGetTermios(int(fd), unix.TCGETS) })
	if err != nil || notTerminal != nil {
		return fmt.Errorf("it is not a terminal: %w", errors.Join(err, notTerminal))
	}
	if err := f.SetWriteDeadline(time.Now().Add(wallTimeout)); err != nil {
		return err
	}
	_, err = f.Write(message)
	return err
}
