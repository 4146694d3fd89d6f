package systemd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

const (
	wallPatience = 200 * time.Millisecond // for one terminal that does not take what is written
	maxTerminals = 256                    // in one call
	maxWallLine  = 512                    // bytes
)

// Wall writes a message to the terminals of the sessions, as wall(1) does, and returns how many it reached. dev is
// /dev. A session whose terminal logind does not know (sshd tells it late, or not at all) is looked for by its owner
// among the pseudo terminals. At most 256 terminals are written to, each has 200 ms to take the text, and one that has
// no room for it is left out. The error tells of those that could not be written to, for the log.
//
// logind's own SetWallMessage speaks only when a shutdown is called or scheduled, and a shutdown that is scheduled
// outlives whoever scheduled it: a host must not go down because we crashed while we waited.
//
// Whoever calls this needs the group tty, and to see the host's /dev: no PrivateDevices.
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

// terminals are the sessions' terminals, relative to dev, each once.
func terminals(dev string, sessions []Session) []string {
	var names []string
	seen := map[string]bool{}
	add := func(name string) {
		if filepath.IsLocal(name) && !seen[name] && len(names) < maxTerminals {
			seen[name] = true
			names = append(names, name)
		}
	}
	ownerless := map[uint32]bool{} // users with a session of which logind does not know the terminal
	for _, s := range sessions {
		if s.TTY != "" {
			add(s.TTY)
		} else {
			ownerless[s.UID] = true
		}
	}
	if len(ownerless) == 0 {
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
		if st, ok := info.Sys().(*syscall.Stat_t); ok && ownerless[st.Uid] {
			add("pts/" + e.Name())
		}
	}
	return names
}

// wallText is the message as it goes to a terminal: on lines of its own, with a bell, and without what would make the
// terminal do anything but show it.
func wallText(text string) []byte {
	var b strings.Builder
	b.WriteString("\r\n\a")
	for line := range strings.Lines(text) {
		b.WriteString(printable(strings.TrimRight(line, "\n"), maxWallLine) + "\r\n")
	}
	b.WriteString("\r\n")
	return []byte(b.String())
}

// writeTerminal writes to a terminal and to nothing else.
func writeTerminal(path string, message []byte) error {
	const flags = os.O_WRONLY | syscall.O_NOCTTY | syscall.O_NONBLOCK // not to wait for a modem, nor to become its session
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := isTerminal(f); err != nil {
		return err
	}
	if err := f.SetWriteDeadline(time.Now().Add(wallPatience)); err != nil {
		return err
	}
	_, err = f.Write(message)
	return err
}

func isTerminal(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Mode()&os.ModeCharDevice == 0 {
		return errors.New("it is no terminal")
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	var termios syscall.Termios
	err = conn.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TCGETS, uintptr(unsafe.Pointer(&termios)))
	})
	if err == nil && errno != 0 {
		err = fmt.Errorf("it is no terminal: %w", errno)
	}
	return err
}
