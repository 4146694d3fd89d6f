package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/testbed/realhost"
	"lockkeeper.dev/lockkeeper/testbed/referee"
)

// These are paths on a host.
const (
	debPath        = "/tmp/lockkeeper.deb"
	dropInPath     = "/etc/systemd/system/lockkeeper.service.d/testbed.conf"
	settingsPath   = "/etc/lockkeeper/config.d/testbed.toml"
	credentialPath = "/etc/lockkeeper/coordinator.kubeconfig"
	tokenPath      = "/var/lib/lockkeeper/coordinator-token.json"
	uptimePath     = "/usr/lib/systemd/system/uptime.service"
	hookPath       = "/etc/systemd/system/count-turns.service"
	hookLog        = "/var/lib/count-turns"
)

// ownProc disables the settings that do not work in a container: with any of them systemd mounts a new /proc for the
// service, which shows the boot id and uptime of the machine instead of those of the host.
const ownProc = `[Service]
ProtectProc=default
ProcSubset=all
ProtectKernelTunables=no
ProtectControlGroups=no
`

// dropIn contains the differences from the packaged unit on hosts that have turns. --root allows durations below the
// minimums. The directory is part of the image for Flatcar, because these hosts have an update_engine.
const dropIn = ownProc + `RuntimeDirectory=update-engine
ExecStart=
ExecStart=/usr/bin/lockkeeper run --root /
`

// uptimeUnit makes /proc/uptime show the time since the host's boot. A container otherwise shows the uptime of its
// machine.
const uptimeUnit = `[Unit]
Description=a /proc/uptime of this host's own
Before=lockkeeper.service
[Service]
Type=exec
ExecStartPre=/bin/sh -c 'echo 0000000000.00 0.00 >/run/uptime && mount --bind /run/uptime /proc/uptime'
ExecStart=/bin/sh -c 'begin=$(date +%%s); while :; do printf "%%010d.00 0.00\\n" $(($(date +%%s) - begin)) 1<>/run/uptime; sleep 1; done'
[Install]
WantedBy=multi-user.target
`

const settings = `[lease]
duration = "12s"
renew_deadline = "8s"
retry_period = "2s"
[sources]
poll_interval = "2s"
[reboot]
min_uptime = "5s"
session_delay = "20s"
`

// policy allows the maximum number of turns per day, because some hosts have more than the default of 6 in a run.
const policy = `
rollout: {settle: 2s, backoff: 5s, backoffMax: 10s, maxTurnsPerDay: 48}
timeouts: {rebooting: 90s}
`

// hookUnit is a hook unit that runs before the host is drained.
const hookUnit = `[Unit]
Description=counts the turns of this host
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'cat /proc/sys/kernel/random/boot_id >>` + hookLog + `'
[Install]
WantedBy=lockkeeper-before-drain.target
`

// fleet is three hosts with lockkeeper installed, and their referee.
type fleet struct {
	*realhost.Fleet
	referee *referee.Referee
	staged  int // the number of staged versions
	hosts   []string

	mu       sync.Mutex
	onReboot func(host string, at time.Time) // called when logind has announced a reboot, before the reboot begins
}

// startFleet boots three hosts without lockkeeper.
func startFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{}
	life := context.WithoutCancel(t.Context()) // the context of a test ends before its cleanups
	var err error
	f.referee, err = referee.Start(life, cp, referee.Options{OnEvent: func(line string) { t.Log(line) }, Lag: 20 * time.Second})
	must(t, err)
	t.Cleanup(func() {
		report, err := f.referee.Close()
		if err != nil {
			t.Errorf("the referee: %s", report.String())
		} else {
			t.Log("the referee: " + report.String())
		}
	})
	f.Fleet, err = realhost.StartFleet(life, lab, cp, realhost.FleetOptions{Hosts: len(release), Each: func(i int, o *realhost.Options) {
		o.Release = release[i]
	}, Host: realhost.Options{
		Files: map[string][]byte{
			dropInPath: []byte(dropIn), settingsPath: []byte(settings), hookPath: []byte(hookUnit),
			uptimePath: []byte(uptimeUnit),
		},
		Enable: []string{filepath.Base(uptimePath)},
		Events: f.event,
	}})
	must(t, err)
	t.Cleanup(f.Close)
	for _, h := range f.Hosts {
		f.hosts = append(f.hosts, h.Name())
	}
	t.Cleanup(func() { // runs before the hosts stop
		if t.Failed() {
			for _, h := range f.Hosts {
				f.showHost(context.WithoutCancel(t.Context()), t, h, 60)
				showBoot(context.WithoutCancel(t.Context()), t, h)
			}
		}
	})
	return f
}

func (f *fleet) event(ev realhost.Event) {
	f.mu.Lock()
	onReboot := f.onReboot
	f.mu.Unlock()
	if ev.Kind == realhost.RebootCalled && onReboot != nil {
		onReboot(ev.Host, ev.Time)
	}
	f.referee.HostEvent(referee.HostEvent{Time: ev.Time, Host: ev.Host, Kind: referee.Kind(ev.Kind), BootID: ev.BootID, Detail: ev.Detail})
}

// each calls do for all hosts concurrently.
func (f *fleet) each(t *testing.T, do func(h *realhost.Host) error) {
	t.Helper()
	errs := make([]error, len(f.Hosts))
	var wg sync.WaitGroup
	for i, h := range f.Hosts {
		wg.Go(func() { errs[i] = do(h) })
	}
	wg.Wait()
	must(t, errors.Join(errs...))
}

// install installs a package like an administrator.
func install(ctx context.Context, h *realhost.Host, deb string) (string, error) {
	if err := h.CopyIn(ctx, deb, debPath); err != nil {
		return "", err
	}
	return h.Exec(ctx, "dpkg", "-i", debPath)
}

// admin runs the command on the machine with a cluster administrator's credential. It ignores the exit status.
func (f *fleet) admin(t *testing.T, args ...string) string {
	t.Helper()
	return f.run(t, filepath.Join(f.Hosts[0].Dir(), "up/usr/bin/lockkeeper"), "", args...)
}

// status runs `lockkeeper status`.
func (f *fleet) status(t *testing.T, args ...string) string {
	t.Helper()
	return f.admin(t, append([]string{"status"}, args...)...)
}

func (f *fleet) run(t *testing.T, binary, input string, args ...string) string {
	t.Helper()
	kubeconfig, err := cp.Kubeconfig("an-admin", "system:masters")
	must(t, err)
	cmd := exec.CommandContext(within(t, soon), binary, args...)
	cmd.Env = []string{"KUBECONFIG=" + kubeconfig, "HOME=" + t.TempDir()}
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); !exited {
		must(t, err)
	}
	t.Logf("$ %s %s\n%s", filepath.Base(binary), strings.Join(args, " "), out)
	return string(out)
}

// showHost logs what a user on the host can see of lockkeeper.
func (f *fleet) showHost(ctx context.Context, t *testing.T, h *realhost.Host, lines int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	status, err := h.Exec(ctx, "systemctl", "status", "--no-pager", "--full", "--lines=0", "lockkeeper")
	if _, exited := errors.AsType[*realhost.ExecError](err); !exited && err != nil {
		t.Logf("%s: %v", h.Name(), err)
		return
	}
	journal, err := h.Exec(ctx, "journalctl", "--no-pager", "-u", "lockkeeper", "-x", "--output=short-iso", fmt.Sprint("--lines=", lines))
	t.Logf("%s# systemctl status lockkeeper\n%s%s# journalctl -u lockkeeper -x (the last %d)\n%s", h.Name(), status, h.Name(), lines, journal)
	if err != nil {
		t.Log(err)
	}
}

// showBoot logs the progress of a host's boot.
func showBoot(ctx context.Context, t *testing.T, h *realhost.Host) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	const look = "systemctl list-jobs --no-pager; systemctl list-units --failed --no-pager; journalctl --boot --no-pager --lines=80"
	out, err := h.Exec(ctx, "sh", "-c", look)
	console, _ := os.ReadFile(h.ConsoleLog())
	t.Logf("%s# %s\n%s%v\nthe end of the console:\n%s", h.Name(), look, out, err, console[max(0, len(console)-4000):])
}

// show logs the state of all hosts.
func (f *fleet) show(t *testing.T, stage string) {
	t.Helper()
	t.Logf("======== %s", stage)
	for _, h := range f.Hosts {
		f.showHost(t.Context(), t, h, 8)
	}
}

func node(t *testing.T, name string) *corev1.Node {
	t.Helper()
	n, err := cp.Client().CoreV1().Nodes().Get(within(t, soon), name, metav1.GetOptions{})
	must(t, err)
	return n
}

// until waits until cond holds for a host's Node, and returns that version of the Node.
func until(t *testing.T, d time.Duration, host, what string, cond func(*turn.Node) bool) *turn.Node {
	t.Helper()
	return cluster(t).Until(host, d, what, cond)
}

func inState(s v1alpha1.State) func(*turn.Node) bool {
	return func(n *turn.Node) bool { return n.State == s }
}

func held(r v1alpha1.Reason) func(*turn.Node) bool {
	return func(n *turn.Node) bool { return n.Held == r }
}

// stage stages the next version on all the hosts concurrently, and returns the version.
func (f *fleet) stage(t *testing.T, hosts ...*realhost.Host) string {
	t.Helper()
	f.staged++
	version := fmt.Sprintf("4.2.%d", f.staged)
	for _, h := range hosts {
		must(t, h.StageUpdate(within(t, soon), version))
	}
	return version
}

// updated waits until the hosts run the version and are idle, with nothing to do.
func (f *fleet) updated(t *testing.T, d time.Duration, version string, hosts ...*realhost.Host) {
	t.Helper()
	deadline := time.Now().Add(d)
	for _, h := range hosts {
		until(t, time.Until(deadline), h.Name(), "to be updated to "+version, func(n *turn.Node) bool {
			return h.Version() == version && n.State == v1alpha1.StateIdle && n.Wants == v1alpha1.WantsNothing && !n.Unschedulable &&
				n.BootID == h.BootID() && n.Last != nil && n.Last.Result == v1alpha1.ResultDone
		})
	}
}

// leader returns the host that coordinates, or nil.
func (f *fleet) leader(t *testing.T) *realhost.Host {
	t.Helper()
	term := epoch(t)
	if term == "" {
		return nil
	}
	name, _, _ := strings.Cut(term, "_")
	return f.Host(name)
}

// follower returns the last host that may get a turn now and does not coordinate.
func (f *fleet) follower(t *testing.T) *realhost.Host {
	t.Helper()
	leader := f.leader(t)
	for _, h := range slices.Backward(f.Hosts) {
		if h != leader {
			return h
		}
	}
	return nil
}

// pid returns the PID of lockkeeper's process in the host's PID namespace, or 0.
func pid(ctx context.Context, h *realhost.Host) (int, error) {
	out, err := h.Exec(ctx, "systemctl", "show", "--property=MainPID", "--value", "lockkeeper")
	if err != nil {
		return 0, err
	}
	n := 0
	_, err = fmt.Sscan(out, &n)
	return n, err
}

// hostWords is the output of `lockkeeper status -o json` on a host without a user's credential.
type hostWords struct {
	Line   string `json:"line"`
	BootID string `json:"bootID"`
}

func words(t *testing.T, h *realhost.Host) (w hostWords) {
	t.Helper()
	out, err := h.Exec(within(t, soon), "cat", "/run/lockkeeper/status.json")
	must(t, err)
	must(t, json.Unmarshal([]byte(out), &w))
	return w
}
