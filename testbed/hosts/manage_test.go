package hosts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/systemd"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
)

// service returns a unit file. The shell script runs until it is stopped.
func service(lines ...string) []byte {
	return []byte("[Service]\n" + strings.Join(lines, "\n") + "\n")
}

// failing returns a service that prints an error and fails once the file exists.
func failing(file string) []byte {
	return service("Type=notify", "NotifyAccess=all", "ExecStart=/bin/sh -c 'test ! -e "+file+
		" || { systemd-notify --status=\"no such directive: frobnicate\"; exit 3; }; systemd-notify --ready; exec sleep infinity'")
}

const sleeps = "ExecStart=/bin/sleep infinity"

// TestUnitsAreManaged reloads and restarts units of each kind under a real systemd. The texts are the error messages
// for users.
func TestUnitsAreManaged(t *testing.T) {
	const dir = "/usr/lib/systemd/system/"
	self, err := os.Executable()
	must(t, err)
	h := start(t, "manage-", realhost.Options{
		Files: map[string][]byte{
			dir + "good.service":      service("Type=exec", sleeps, "ExecReload=/bin/sh -c 'echo reloaded >>/run/good'", "ExecStartPre=/bin/sh -c 'echo started >>/run/good'"),
			dir + "stiff.service":     service(sleeps),
			dir + "idle.service":      service(sleeps),
			dir + "masked.service":    service(sleeps),
			dir + "broken.service":    service("Type=nonsense"),
			dir + "badreload.service": service(sleeps, "ExecReload=/bin/sh -c 'exit 7'"),
			dir + "badstart.service":  failing("/run/bad"),
			dir + "badpre.service":    service("ExecStartPre=/bin/sh -c 'test ! -e /run/bad || exit 4'", sleeps),
			dir + "short.service":     service("ExecStart=/bin/sh -c 'test ! -e /run/bad || exit 5; exec sleep infinity'"),
			dir + "again.service":     service("ExecStart=/bin/sh -c 'test ! -e /run/bad || exit 6; exec sleep infinity'", "Restart=always", "RestartSec=1"),
			dir + "later.service":     service("ExecStart=/bin/sh -c 'test ! -e /run/bad || exit 6; exec sleep infinity'", "ExecReload=/bin/true", "Restart=always", "RestartSec=1h"),
			dir + "slow.service":      service("Type=oneshot", "RemainAfterExit=yes", "TimeoutStartSec=1", "ExecStart=/bin/sh -c 'test ! -e /run/bad || exec sleep infinity'"),
			dir + "once.service":      service("Type=oneshot", "ExecStart=/bin/sh -c 'echo ran >>/run/once'"),
			dir + "cond.service":      append(service(sleeps), []byte("[Unit]\nConditionPathExists=/run/cond\n[Install]\nWantedBy=multi-user.target\n")...),
			dir + "base.service":      service("Type=oneshot", "ExecStart=/bin/sh -c 'test ! -e /run/bad'"),
			dir + "needy.service":     append(service(sleeps), []byte("[Unit]\nRequires=base.service\nAfter=base.service\n")...),
			dir + "late.service":      service("Type=oneshot", "RemainAfterExit=yes", "ExecStart=/bin/sh -c 'test ! -e /run/bad || while [ ! -e /run/go ]; do sleep 0.1; done'"),
			dir + "itself.service":    service("Type=exec", "Environment="+selfEnv+"=1", "ExecStart=/opt/itself", "StandardOutput=append:/run/itself"),
		},
		Binds: map[string]string{"/opt/itself": self},
	}, "good.service", "stiff.service", "badreload.service", "badstart.service", "badpre.service", "short.service", "again.service", "later.service", "slow.service", "cond.service", "needy.service")
	u := systemd.Units{Bus: bus(t, h)}
	exec(t, h, "systemctl mask --runtime masked; touch /run/bad")
	// The enabled units are active since the boot, before /run/bad existed.
	for _, c := range []struct {
		verb, unit, want string
	}{
		{"restart", "good.service", ""},
		{"reload", "good.service", ""},
		{"reload", "stiff.service", "stiff.service cannot be reloaded: it has no ExecReload= and is not of a type that reloads; a rule has to restart it"},
		{"restart", "idle.service", "left inactive"},
		{"reload", "idle.service", "left inactive"},
		{"restart", "masked.service", "masked.service is masked"},
		{"restart", "gone.service", "gone.service is not there: no such unit on this host"},
		{"restart", "broken.service", "broken.service cannot be loaded (bad-setting): Unit broken.service has a bad unit file setting."},
		{"reload", "badreload.service", "reload of badreload.service failed (exit-code, ExecReload=sh status 7): journalctl -u badreload.service"},
		{"restart", "badstart.service", `restart of badstart.service failed (exit-code, ExecStart=sh status 3): "no such directive: frobnicate": journalctl -u badstart.service`},
		{"restart", "badpre.service", "restart of badpre.service failed (exit-code, ExecStartPre=sh status 4): journalctl -u badpre.service"},
		{"restart", "badpre.service", "restart of badpre.service failed (exit-code, ExecStartPre=sh status 4): journalctl -u badpre.service"},
		{"reload", "badpre.service", "left failed"},
		{"restart", "short.service", "restart of short.service failed (exit-code, ExecStart=sh status 5): journalctl -u short.service"},
		{"restart", "again.service", "restart of again.service failed (exit-code, ExecStart=sh status 6): journalctl -u again.service"},
		{"restart", "later.service", "restart of later.service failed (exit-code, ExecStart=sh status 6): journalctl -u later.service"},
		{"reload", "later.service", "left activating"}, // until systemd starts it again
		{"restart", "slow.service", "restart of slow.service failed (timeout): journalctl -u slow.service"},
		{"restart", "once.service", ""},
		{"restart", "cond.service", ""}, // its condition does not hold yet
		{"restart", "needy.service", "restart of needy.service failed (dependency: a unit that it requires failed): journalctl -u needy.service"},
	} {
		if got := manage(t.Context(), u, c.verb, c.unit); got != c.want {
			t.Errorf("%s %s: %s\nexpected %s", c.verb, c.unit, got, c.want)
		}
	}
	if got := exec(t, h, "cat /run/good /run/once | tr '\\n' ' '"); got != "started started reloaded ran" {
		t.Errorf("what ran: %q", got)
	}
	if got := exec(t, h, "systemctl is-active idle masked cond stiff | tr '\\n' ' '"); got != "inactive inactive inactive active" {
		t.Errorf("idle, masked, cond and stiff are %s", got)
	}
	// The host does not start an action after its deadline.
	past := time.Now().Add(-time.Nanosecond)
	_, restart := u.Restart(t.Context(), "good.service", past)
	_, reload := u.Reload(t.Context(), "good.service", past)
	for what, err := range map[string]error{"restart": restart, "reload": reload, "daemon-reload": u.DaemonReload(t.Context(), past)} {
		if !errors.Is(err, systemd.ErrTooLate) {
			t.Errorf("%s after the deadline: %v", what, err)
		}
	}
	if got := exec(t, h, "cat /run/good | tr '\n' ' '"); got != "started started reloaded" {
		t.Errorf("good.service, too late: %q", got)
	}
	exec(t, h, "rm /run/bad; touch /run/cond")
	for _, unit := range []string{"cond.service", "badstart.service", "later.service"} { // the cause of their failure is gone
		if got := manage(t.Context(), u, "restart", unit) + exec(t, h, "systemctl is-active "+unit); got != "active" {
			t.Errorf("restart %s: %s", unit, got)
		}
	}
	testDaemonReload(t, h, u)
	testCalledOff(t, h, u)
	testBusRestarts(t, h, u)
	testItself(t, h)
	testUnitFiles(t, h, u)
	testNames(t, h, u)
	testBusIsRoot(t, h)
}

// testBusIsRoot checks the statement of docs/security.md about the bus: a process with uid 0 and only the bus, without
// any capability, can make systemd run any command with all capabilities. Another user is refused.
func testBusIsRoot(t *testing.T, h *realhost.Host) {
	call := func(user, out string) string {
		return "setpriv --reuid=" + user + " --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs busctl -- call org.freedesktop.systemd1 /org/freedesktop/systemd1" +
			" org.freedesktop.systemd1.Manager StartTransientUnit 'ssa(sv)a(sa(sv))' " + out + ".service fail 2 Type s oneshot ExecStart 'a(sasb)' 1" +
			" /bin/sh 3 /bin/sh -c 'grep CapEff /proc/self/status >/run/" + out + "' false 0; echo status $?"
	}
	if got := exec(t, h, call("nobody", "of-nobody")); !strings.HasSuffix(got, "status 1") || !strings.Contains(got, "denied") && !strings.Contains(got, "authentication") {
		t.Errorf("a unit that nobody created: %s", got)
	}
	if got := exec(t, h, call("root", "of-root")); !strings.HasSuffix(got, "status 0") {
		t.Errorf("a unit that root created: %s", got)
	}
	eventually(t, 90*time.Second, "the unit to write its capabilities", func() bool {
		return strings.HasPrefix(exec(t, h, "cat /run/of-root"), "CapEff:")
	})
	if got, pid1 := exec(t, h, "cat /run/of-root"), exec(t, h, "grep CapEff /proc/1/status"); got != pid1 {
		t.Errorf("the unit has %s, systemd itself %s", got, pid1)
	}
}

// testNames checks that a unit has all its names on a host, including those that were added without a daemon-reload and
// those of a service whose file is a link.
func testNames(t *testing.T, h *realhost.Host, u systemd.Units) {
	exec(t, h, "cd /etc/systemd/system && ln -s /usr/lib/systemd/system/reboot.target away.target && ln -s /usr/lib/systemd/system/systemd-suspend.service nap.service")
	for unit, want := range map[string]string{
		"away.target": "reboot.target", "nap.service": "systemd-suspend.service", "runlevel6.target": "reboot.target", "ctrl-alt-del.target": "reboot.target",
		"default.target": "graphical.target", "good.service": "good.service", "gone.service": "gone.service",
	} {
		names, err := u.Names(t.Context(), unit)
		if must(t, err); !slices.Contains(names, want) || !slices.Contains(names, unit) {
			t.Errorf("%s has the names %q, expected %s and %s among them", unit, names, unit, want)
		}
	}
}

// testDaemonReload checks that a changed unit file takes effect after a daemon-reload and not before.
func testDaemonReload(t *testing.T, h *realhost.Host, u systemd.Units) {
	exec(t, h, "mkdir -p /run/systemd/system/good.service.d && printf '[Service]\\nEnvironment=NEW=1\\n' >/run/systemd/system/good.service.d/new.conf")
	environment := func() string { return exec(t, h, "systemctl show -P Environment good") }
	if got := environment(); got != "" {
		t.Errorf("before the daemon-reload: %q", got)
	}
	must(t, u.DaemonReload(t.Context(), soon()))
	if got := environment(); got != "NEW=1" {
		t.Errorf("after the daemon-reload: %q", got)
	}
}

// testCalledOff checks that waiting for a slow restart ends with the context, while the restart itself continues. A
// restart that another user's stop replaces must fail.
func testCalledOff(t *testing.T, h *realhost.Host, u systemd.Units) {
	exec(t, h, "touch /run/bad; rm -f /run/go")
	over := errors.New("the process ends")
	ctx, cancel := context.WithCancelCause(t.Context())
	ends := make(chan string, 1)
	go func() { ends <- manage(ctx, u, "restart", "late.service") }()
	starting := func() bool { return exec(t, h, "systemctl is-active late") == "activating" }
	eventually(t, 90*time.Second, "the restart to be in progress", starting)
	cancel(over)
	if got := <-ends; got != "error: managing late.service: the process ends" {
		t.Errorf("result in the process that ended: %s", got)
	}
	if !starting() {
		t.Error("the restart did not continue without the process that requested it")
	}
	go func() { ends <- manage(t.Context(), u, "restart", "late.service") }()
	stopped := false
	eventually(t, 90*time.Second, "the restart to be canceled", func() bool {
		exec(t, h, "systemctl stop late")
		select {
		case got := <-ends:
			stopped = true
			// The stop replaces the job or kills its process, whichever systemd processes first; or it came before
			// the job was queued.
			if !strings.Contains(got, "(canceled: another job replaced it)") && !strings.Contains(got, "(signal, ExecStart=sh signal 15)") && got != "left inactive" && got != "left deactivating" {
				t.Errorf("called off: %s", got)
			}
		default:
		}
		return stopped
	})
	exec(t, h, "rm /run/bad")
}

// testBusRestarts restarts the bus that would carry the answer.
func testBusRestarts(t *testing.T, h *realhost.Host, u systemd.Units) {
	before, err := u.Invocation(t.Context(), "dbus.service")
	must(t, err)
	if got := manage(t.Context(), u, "restart", "dbus.service"); got != "" {
		t.Errorf("restart of the bus: %s", got)
	}
	after, err := u.Invocation(t.Context(), "dbus.service")
	must(t, err)
	if before == after || after == "" {
		t.Errorf("the bus was not restarted: invocation %q before, %q after", before, after)
	}
	if got := manage(t.Context(), u, "reload", "good.service"); got != "" {
		t.Errorf("reload of another unit afterwards: %s", got)
	}
}

// testItself checks that a service can find its own unit and restart it.
func testItself(t *testing.T, h *realhost.Host) {
	exec(t, h, "systemctl start itself")
	said := func() []string { return strings.Split(exec(t, h, "cat /run/itself"), "\n") }
	eventually(t, 90*time.Second, "the service to print its unit", func() bool { return len(said()) == 1 && said()[0] != "" })
	exec(t, h, "touch /run/itself-go")
	eventually(t, 90*time.Second, "the service to have restarted itself", func() bool { return len(said()) > 1 })
	lines := said()
	first, second := strings.Fields(lines[0]), strings.Fields(lines[1])
	if len(lines) != 2 || len(first) != 2 || len(second) != 2 || first[0] != "itself.service" || second[0] != "itself.service" || len(first[1]) != 32 || first[1] == second[1] {
		t.Errorf("output %q, expected the unit's name and a new invocation each time", lines)
	}
}

// itself prints the name of its unit and restarts that unit when requested. It does not see the end of the restart.
func itself() int {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var u systemd.Units
	names, run, err := u.Own(ctx)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(strings.Join(names, ","), run)
	for {
		if os.Remove("/run/itself-go") == nil {
			fmt.Println("not restarted:", manage(ctx, u, "restart", names[0]))
			return 1
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func manage(ctx context.Context, u systemd.Units, verb, unit string) string {
	do := u.Restart
	if verb == "reload" {
		do = u.Reload
	}
	left, err := do(ctx, unit, soon())
	if e, ok := errors.AsType[*systemd.JobError](err); ok {
		return e.Text
	}
	switch {
	case err != nil:
		return "error: " + err.Error()
	case left != "":
		return "left " + left
	}
	return ""
}
