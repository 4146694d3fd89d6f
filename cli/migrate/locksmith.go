package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// The files that say how locksmithd runs, as of systemd/locksmithd.service in
// flatcar/locksmith. Both are environment files of the unit; the second one wins.
const (
	VendorUpdateConf = "/usr/share/flatcar/update.conf"
	UpdateConf       = "/etc/flatcar/update.conf"
)

// LocksmithDropIns are the directories of the unit's drop-ins, the one that wins last.
func LocksmithDropIns() []string {
	return []string{"/usr/lib/systemd/system/locksmithd.service.d", "/run/systemd/system/locksmithd.service.d", "/etc/systemd/system/locksmithd.service.d"}
}

const locksmithWindowHow = "a [[window]] of this host. locksmith checks only when its wait ends; lockkeeper also fits spec.rollout.expectedDuration only into windows of policies, so keep the window long enough for a turn"

var locksmithSettings = []Setting{
	{Program: "locksmithd", Name: "REBOOT_STRATEGY", restricts: true,
		How: "reboot: no lock, so that all hosts may reboot at once; etcd-lock: one after the other. With lockkeeper one node at a time has its turn in both cases: raise spec.rollout.maxUnavailable for more. off: mode = \"observe\", which reboots nothing either"},
	{Program: "locksmithd", Name: "LOCKSMITHD_REBOOT_WINDOW_START", Becomes: "[[window]] days, start", restricts: true, How: locksmithWindowHow},
	{Program: "locksmithd", Name: "LOCKSMITHD_REBOOT_WINDOW_LENGTH", Becomes: "[[window]] duration", restricts: true, How: locksmithWindowHow},
	{Program: "locksmithd", Name: "REBOOT_WINDOW_START", Becomes: "[[window]] days, start", restricts: true, How: "the older name; LOCKSMITHD_REBOOT_WINDOW_START takes precedence"},
	{Program: "locksmithd", Name: "REBOOT_WINDOW_LENGTH", Becomes: "[[window]] duration", restricts: true, How: "the older name; LOCKSMITHD_REBOOT_WINDOW_LENGTH takes precedence"},
	{Program: "locksmithd", Name: "LOCKSMITHD_GROUP", How: "a group has a lock of its own. Label its nodes and write a policy with a nodeSelector for them: each policy has its own maxUnavailable"},
	{Program: "locksmithd", Name: "LOCKSMITHD_ENDPOINT", How: "not needed: there is no etcd next to the cluster's. `locksmithctl status` prints the lock's Max, which is the policy's maxUnavailable"},
	{Program: "locksmithd", Name: "LOCKSMITHD_ETCD_KEYFILE", How: "not needed: there is no etcd next to the cluster's"},
	{Program: "locksmithd", Name: "LOCKSMITHD_ETCD_CERTFILE", How: "not needed: there is no etcd next to the cluster's"},
	{Program: "locksmithd", Name: "LOCKSMITHD_ETCD_CAFILE", How: "not needed: there is no etcd next to the cluster's"},
	{Program: "locksmithd", Name: "LOCKSMITHD_ETCD_USERNAME", How: "not needed: there is no etcd next to the cluster's"},
	{Program: "locksmithd", Name: "LOCKSMITHD_ETCD_PASSWORD", secret: true, How: "not needed: there is no etcd next to the cluster's"},
	{Program: "locksmithd", Name: "LOCKSMITHD_DEBUG", How: "log_level of the host's file"},
	{Program: "update_engine", Name: "GROUP", How: "update_engine reads it, not locksmith: it stays in update.conf"},
	{Program: "update_engine", Name: "SERVER", How: "update_engine reads it, not locksmith: it stays in update.conf"},
}

// MaxFile bounds one of the host's files, in bytes.
const MaxFile = 64 << 10

func fromLocksmith(r *Result, in *Input) {
	d := newDraft(in, &hostFile{}, nil)
	env := d.locksmithEnvironment()
	for _, name := range slices.Sorted(maps.Keys(env)) {
		i := slices.IndexFunc(locksmithSettings, func(s Setting) bool { return s.Name == name })
		shown := name + "=" + quote(env[name])
		switch {
		case i < 0:
			d.note(Note{shown, NotCarried, "unknown: locksmithd reads no such variable"})
		case locksmithSettings[i].secret:
			d.note(Note{name + "=(not shown)", NotCarried, locksmithSettings[i].How})
		case strings.Contains(name, "REBOOT_WINDOW"), name == "REBOOT_STRATEGY": // below
		default:
			d.note(Note{shown, NotCarried, locksmithSettings[i].How})
		}
	}
	mode := d.strategy(env["REBOOT_STRATEGY"])
	d.locksmithWindow(env, in.HostZone)
	for _, n := range d.notes {
		if n.Outcome == Decide {
			d.host.paused = append(d.host.paused, n.Setting)
		}
	}
	r.HostFile = mode + d.host.text()
	p := Policy{Source: "locksmithd"}
	p.Object = d.policy("from-locksmith", p.Source).Object
	p.Object.Spec = v1alpha1.DefaultPolicySpec() // what cannot be carried over pauses the host, not the cluster
	r.Policies, r.Notes = []Policy{p}, d.notes
}

// strategy notes what becomes of the strategy, and returns a line of the host's file.
func (d *draft) strategy(strategy string) string {
	name := "REBOOT_STRATEGY=" + quote(strategy)
	switch strategy {
	case "", "reboot":
		d.note(Note{name, Carried, "spec.rollout.maxUnavailable: 1. locksmith takes no lock with this strategy, so that all hosts may reboot at once"})
	case "etcd-lock":
		d.note(Note{name, Carried, "spec.rollout.maxUnavailable: 1. `locksmithctl status` prints the lock's Max; set maxUnavailable to it"})
	case "off":
		d.note(Note{name, Carried, `mode = "observe": this host reboots nothing, as with locksmith. Remove the line to have it take turns`})
		return "mode = \"observe\"\n"
	default:
		d.note(Note{name, Decide, "it is not a strategy of locksmith's, which then reboots nothing"})
	}
	return ""
}

func (d *draft) locksmithWindow(env map[string]string, zone string) {
	start := cmp.Or(env["LOCKSMITHD_REBOOT_WINDOW_START"], env["REBOOT_WINDOW_START"])
	length := cmp.Or(env["LOCKSMITHD_REBOOT_WINDOW_LENGTH"], env["REBOOT_WINDOW_LENGTH"])
	if start == "" && length == "" {
		return
	}
	p, err := parsePeriodic(start, length)
	shown := "REBOOT_WINDOW_START=" + quote(start) + ", _LENGTH=" + quote(length)
	if err == nil && p.length >= p.period() {
		d.note(Note{shown, Carried, "the window never closes, so that none is needed"})
		return
	}
	if err == nil && zone == "" {
		err = errors.New("locksmith uses the host's local time, and the host's time zone is not known: /etc/localtime is not a link into /usr/share/zoneinfo")
	}
	if err == nil {
		d.host.windows, err = p.windows(zone)
	}
	if err == nil {
		err = checkWindows(d.host.windows, d.in.Zones)
	}
	if err != nil {
		d.host.windows = nil
		d.note(Note{shown, Decide, err.Error()})
		return
	}
	d.note(Note{shown, Carried, "[[window]], in the host's local time, " + quote(zone)})
}

// locksmithEnvironment returns the variables that locksmithd has. Files of the environment
// override what the unit sets itself.
func (d *draft) locksmithEnvironment() map[string]string {
	env := map[string]string{}
	for _, dir := range LocksmithDropIns() {
		for _, name := range slices.Sorted(maps.Keys(d.in.Files)) {
			if !strings.HasPrefix(name, dir+"/") {
				continue
			}
			for line := range d.lines(name) {
				switch key, value, _ := strings.Cut(line, "="); strings.TrimSpace(key) {
				case "Environment":
					for _, pair := range words(value) {
						if k, v, ok := strings.Cut(pair, "="); ok {
							env[k] = v
						}
					}
				case "EnvironmentFile":
					d.note(Note{quote(name), NotCarried, "its EnvironmentFile " + quote(strings.TrimSpace(value)) + " was not read"})
				case "ExecStart":
					d.note(Note{quote(name), NotCarried, "its ExecStart was not read: look for flags of locksmithd"})
				}
			}
		}
	}
	for _, file := range []string{VendorUpdateConf, UpdateConf} {
		for line := range d.lines(file) {
			if key, value, ok := strings.Cut(line, "="); ok {
				env[strings.TrimSpace(key)] = strings.Join(words(value), " ")
			}
		}
	}
	// Only variables that locksmith or update_engine could mean.
	maps.DeleteFunc(env, func(name, _ string) bool { return name == "GOMAXPROCS" || name == "" || len(name) > maxShown })
	return env
}

// lines returns the lines of a file that are not comments. A file that is too large is noted.
func (d *draft) lines(file string) func(yield func(string) bool) {
	text := d.in.Files[file]
	if len(text) > MaxFile {
		d.note(Note{quote(file), Decide, fmt.Sprintf("it has more than %d bytes and was not read", MaxFile)})
		text = ""
	}
	return func(yield func(string) bool) {
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			if line != "" && line[0] != '#' && line[0] != ';' && !yield(line) {
				return
			}
		}
	}
}

// words splits text as systemd does: at blanks, except within quotes, which it removes.
func words(text string) (all []string) {
	var word strings.Builder
	quoted, inWord := rune(0), false
	for _, r := range text {
		switch {
		case quoted != 0 && r == quoted:
			quoted = 0
		case quoted == 0 && (r == '"' || r == '\''):
			quoted, inWord = r, true
		case quoted == 0 && (r == ' ' || r == '\t'):
			if inWord {
				all = append(all, word.String())
				word.Reset()
			}
			inWord = false
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	if inWord {
		all = append(all, word.String())
	}
	return all
}
