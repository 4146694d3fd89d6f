package systemd

import (
	"context"
	"fmt"
	"path"
	"strings"
)

// managed is what has to be known of a unit that is to be reloaded or restarted.
type managed struct {
	runProps
	id        string // the first of its names
	load      string
	loadError string // why it could not be loaded
	canReload bool
	fileState string // "enabled", "disabled", "static" and so on

	// Of services.
	kind         string // its Type=
	restarts     uint32 // by itself, since it was last started
	reloadResult string
	statusText   string
	commands     map[string][]command // by the property's name
}

// command is one of a service's, with what came of it when it last ran.
type command struct {
	Path                                 string
	Argv                                 []string
	IgnoreFailure                        bool
	Start, StartMono, Exited, ExitedMono uint64
	PID                                  uint32
	Code, Status                         int32
}

var (
	startCommands  = []string{"ExecCondition", "ExecStartPre", "ExecStart", "ExecStartPost"}
	reloadCommands = []string{"ExecReload"}
)

// managed reads a unit, loading it if need be.
func (u Units) managed(ctx context.Context, unit string) (m managed, err error) {
	object, all, err := u.all(ctx, unit, unitIface)
	if err != nil {
		return m, err
	}
	var loadError struct{ Name, Text string }
	if m.runProps, err = readRun(all); err == nil {
		err = store(all, map[string]any{
			"Id": &m.id, "LoadState": &m.load, "LoadError": &loadError, "CanReload": &m.canReload, "UnitFileState": &m.fileState,
		})
	}
	m.loadError = printable(loadError.Text, maxText)
	if err == nil && strings.HasSuffix(m.id, ".service") {
		err = u.managedService(ctx, object, &m)
	}
	if err != nil {
		return m, fmt.Errorf("reading unit %q: %w", unit, err)
	}
	return m, nil
}

func (u Units) managedService(ctx context.Context, object target, m *managed) error {
	service, err := u.props(ctx, object, serviceIface)
	if err == nil {
		err = m.readService(service)
	}
	if err == nil {
		err = store(service, map[string]any{
			"Type": &m.kind, "NRestarts": &m.restarts, "ReloadResult": &m.reloadResult, "StatusText": &m.statusText,
		})
	}
	m.commands = map[string][]command{}
	for _, name := range append(startCommands, reloadCommands...) {
		var commands []command
		if v, ok := service[name]; ok && err == nil {
			err = v.Store(&commands)
			m.commands[name] = commands
		}
	}
	m.statusText, m.reloadResult = printable(m.statusText, maxText), printable(m.reloadResult, maxText)
	return err
}

// usable says why a unit can be neither reloaded nor restarted, or nil.
func (m *managed) usable(unit string) error {
	why := ""
	switch m.load {
	case "loaded":
		return nil
	case "masked":
		why = "is masked"
	case "not-found":
		why = "is not there: no such unit on this host"
	default:
		why = "cannot be loaded (" + m.load + "): " + m.loadError
	}
	return &JobError{unit, printable(unit+" "+why, maxText)}
}

// why says in systemd's words what went wrong, naming the command if it is one besides the main process.
func (m *managed) why(verb string) string {
	result, names := m.result, startCommands
	if verb == "reload" {
		result, names = m.reloadResult, reloadCommands
	}
	if result != "exit-code" && result != "signal" && result != "core-dump" {
		if result == "" || result == "success" {
			return m.active
		}
		return result
	}
	for _, name := range names {
		for _, c := range m.commands[name] {
			if word := c.failed(); word != "" {
				return fmt.Sprintf("%s, %s=%s %s", result, name, printable(path.Base(c.Path), maxText/4), word)
			}
		}
	}
	if verb == "reload" {
		return result
	}
	return m.runProps.why()
}

// failed says how a command failed, or "".
func (c *command) failed() string {
	const exited = 1 // CLD_EXITED
	switch {
	case c.IgnoreFailure || c.Status == 0 || c.Code == 0:
		return ""
	case c.Code == exited:
		return fmt.Sprintf("status %d", c.Status)
	}
	return fmt.Sprintf("signal %d", c.Status)
}

// words are for people: what failed, how, what the unit said last of itself, and where to look; at most 256 bytes.
func (m *managed) words(unit, verb, why string) string {
	text, where := fmt.Sprintf("%s of %s failed (%s)", verb, unit, why), ": journalctl -u "+unit
	if room := maxText - len(text) - len(where) - len(`: ""`); m.statusText != "" && room > 8 {
		text += `: "` + cut(m.statusText, room) + `"`
	}
	return printable(text+where, maxText)
}
