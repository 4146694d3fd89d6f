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

// Where things are on a host.
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

// ownProc is what no host in a container can do without: with any of these systemd mounts a fresh /proc for the service, and that
// shows the machine's boot id and uptime instead of the host's.
const ownProc = `[Service]
ProtectProc=default
ProcSubset=all
ProtectKernelTunables=no
ProtectControlGroups=no
`

// dropIn is what differs from the unit as it is shipped where hosts take turns. --root allows durations below the minima. The
// directory is what the image for Flatcar adds: these hosts have an update_engine.
const dropIn = ownProc + `RuntimeDirectory=update-engine
ExecStart=
ExecStart=/usr/bin/lockkeeper run --root /
`

// uptimeUnit has /proc/uptime tell how long ago the host was booted; of itself a container shows its machine's.
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

// policy allows as many turns a day as a policy can: some hosts take more than the default of 6 in a run.
const policy = `
rollout: {settle: 2s, backoff: 5s, backoffMax: 10s, maxTurnsPerDay: 48}
timeouts: {rebooting: 90s}
`

// hookUnit is someone's work on the host before it is drained.
const hookUnit = `[Unit]
Description=counts the turns of this host
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'cat /proc/sys/kernel/random/boot_id >>` + hookLog + `'
[Install]
WantedBy=lockkeeper-before-drain.target
`

// A fleet is three hosts that lockkeeper is installed on, and their referee.
type fleet struct {
	*realhost.Fleet
	referee *referee.Referee
	staged  int // how many versions were staged
	hosts   []string

	mu       sync.Mutex
	onReboot func(host string, at time.Time) // called when logind has announced a reboot, before it begins
}

// startFleet boots three hosts, without lockkeeper.
func startFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{}
	life := context.WithoutCancel(t.Context()) // that of a test ends before its cleanups
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
	t.Cleanup(func() { // before the hosts go
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

// each does something on every host, on all at once.
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

// install installs a package as an administrator does.
func install(ctx context.Context, h *realhost.Host, deb string) (string, error) {
	if err := h.CopyIn(ctx, deb, debPath); err != nil {
		return "", err
	}
	return h.Exec(ctx, "dpkg", "-i", debPath)
}

// admin is the command on the machine of someone with a cluster administrator's credential. An exit status is not judged.
func (f *fleet) admin(t *testing.T, args ...string) string {
	t.Helper()
	return f.run(t, filepath.Join(f.Hosts[0].Dir(), "up/usr/bin/lockkeeper"), "", args...)
}

// status is `lockkeeper status`.
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

// showHost shows what a person on the host sees of lockkeeper.
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

// showBoot shows how far a host has come with its boot.
func showBoot(ctx context.Context, t *testing.T, h *realhost.Host) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	const look = "systemctl list-jobs --no-pager; systemctl list-units --failed --no-pager; journalctl --boot --no-pager --lines=80"
	out, err := h.Exec(ctx, "sh", "-c", look)
	console, _ := os.ReadFile(h.ConsoleLog())
	t.Logf("%s# %s\n%s%v\nits console, the end of it:\n%s", h.Name(), look, out, err, console[max(0, len(console)-4000):])
}

// show shows all hosts.
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

// until waits until cond holds for a host's Node, and returns that version of it.
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

// stage stages the next version on hosts, at once, and returns it.
func (f *fleet) stage(t *testing.T, hosts ...*realhost.Host) string {
	t.Helper()
	f.staged++
	version := fmt.Sprintf("4.2.%d", f.staged)
	for _, h := range hosts {
		must(t, h.StageUpdate(within(t, soon), version))
	}
	return version
}

// updated waits until hosts run the version, idle and content.
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

// leader is the host that coordinates, or nil.
func (f *fleet) leader(t *testing.T) *realhost.Host {
	t.Helper()
	term := epoch(t)
	if term == "" {
		return nil
	}
	name, _, _ := strings.Cut(term, "_")
	return f.Host(name)
}

// follower is a host that may be granted a turn now and does not coordinate: the last one of them.
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

// pid is that of lockkeeper's process on the host, in its own numbering; 0 if there is none.
func pid(ctx context.Context, h *realhost.Host) (int, error) {
	out, err := h.Exec(ctx, "systemctl", "show", "--property=MainPID", "--value", "lockkeeper")
	if err != nil {
		return 0, err
	}
	n := 0
	_, err = fmt.Sscan(out, &n)
	return n, err
}

// hostWords are what `lockkeeper status -o json` says on a host without a person's credential.
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
