package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	urfave "github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/coordinator/forecast"
	"lockkeeper.dev/lockkeeper/coordinator/notify"
	"lockkeeper.dev/lockkeeper/node/config"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/packaging/render"
	"lockkeeper.dev/lockkeeper/policy"
)

// The test binary is also the real one: with beMain in its environment it runs
// main. With noSleep, a process does not sleep for a second when it ends, which it
// does when it is built with -race.
const (
	beMain  = "LOCKKEEPER_TEST_MAIN"
	noSleep = "GORACE=atexit_sleep_ms=0"
)

func TestMain(m *testing.M) {
	if os.Getenv(beMain) != "" {
		version = "v0.0.0-test"
		main()
		panic("main returned")
	}
	os.Exit(m.Run())
}

// lockkeeper runs the real main in dir, with no kubeconfig but what env names.
func lockkeeper(t *testing.T, dir string, env []string, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	return program(t, os.Args[0], dir, env, args...)
}

// program is lockkeeper at another path.
func program(t *testing.T, path, dir string, env []string, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = dir
	cmd.Env = append([]string{beMain + "=1", noSleep, "HOME=" + dir, "PATH=/nowhere"}, env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		t.Fatal(err)
	}
	clean := strings.NewReplacer(dir+"/", "", dir, "")
	return clean.Replace(out.String()), clean.Replace(errs.String()), cmd.ProcessState.ExitCode()
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

const helpText = `lockkeeper rolls host updates through a Kubernetes cluster.

Usage: lockkeeper COMMAND [FLAG…] [ARGUMENT…]

  run                     Run the service on this host; systemd starts it
  status [NODE]           Show the state of the rollout, or of one node
  history [NODE]          Show finished turns and how long each stage took
  wait [NODE]             Wait until the fleet or a node is up to date, idle or
                          held
  plan [NODE]             Show what changes would cost, and when, before they
                          happen
  simulate FILE…          Estimate how long a rollout takes
  check-config            Check this host's configuration
  pause [NODE…]           Freeze nodes where they are, or stop the whole cluster
  resume [NODE…]          End a pause of nodes, or the emergency stop
  detach [NODE…]          Hand nodes to another owner
  attach [NODE…]          Take nodes back that were detached
  manage [NODE…]          Let lockkeeper manage nodes
  unmanage [NODE…]        Keep lockkeeper from managing nodes
  request reboot [NODE…]  Request a reboot of nodes
  retry NODE…             Clear the failed turn of nodes
  confirm NODE HOOK       Confirm a hook that a node's turn waits for
  leave [NODE…]           Take nodes out for good, before lockkeeper is removed
                          from them
  manifests               Print what the cluster needs, for kubectl apply -f -
  init                    Create the Lease for the election, once for each
                          cluster
  kubeconfig              Create a kubeconfig for the coordinator
  migrate                 Migrate from FLUO, kured or locksmith
  version                 Show the version
  help [COMMAND]          Show help for all commands or for one

` + "`lockkeeper help COMMAND` describes a command. Flags may follow arguments.\n`lockkeeper help exit-status` lists the exit statuses.\n"

const statusHelp = `Usage: lockkeeper status [FLAG…] [NODE]

Show the state of the rollout, or of one node.

Reads the cluster with your own credential. On a host without one, or if the API
server cannot be reached, it shows what this host knows.

Exit statuses: ` + "`lockkeeper help exit-status`" + `.

Flags:
  -A, --all                show all nodes, also idle ones that need nothing
  -w, --watch              keep showing changes until interrupted
  -l, --selector SELECTOR  only nodes that match this label SELECTOR
  --exit-code              let the exit status reflect the report
  -o, --output FORMAT      output FORMAT: text, table, wide, json, yaml or name
                           (default: "text")
  --no-headers             print the table without a header; implies -o table
  -h, --help               show this help
` + connectionHelp

const connectionHelp = `
Connection:
  --kubeconfig FILE           your kubeconfig FILE, default $KUBECONFIG or
                              ~/.kube/config
  --context NAME              NAME of a context in it, default the current one
  --request-timeout DURATION  how long to wait for an answer, a DURATION from 1s
                              to 10m, default 30s
  -v LEVEL                    log requests to standard error, LEVEL 0 to 7 as in
                              kubectl
  -n, --namespace NAME        NAME of lockkeeper's namespace, default this
                              host's or lockkeeper
  --lease NAME                NAME of the Lease in it, default this host's or
                              lockkeeper
`

const exitHelp = `Exit statuses of lockkeeper:

  0   Success. ` + "`status` and `plan`" + ` made their report, whatever it says. ` + "`wait`" + `
      reached its goal.
  1   An error. With ` + "`status --exit-code`" + ` also: the API server cannot be
      reached, so the report is about this host alone; or lockkeeper does not
      run on this host, and the report is its last one.
  2   ` + "`status --exit-code`" + `: the rollout is under way.
  3   ` + "`status --exit-code`" + `: the rollout is held, halted or stopped. ` + "`plan" + `
      --exit-code` + "`" + `: a node would be held. ` + "`simulate --exit-code`" + `: the rollout
      would stop.
  4   ` + "`wait`, `leave` and `init`" + `: the timeout expired first.
  64  The command line is wrong. Nothing was done.
  78  This host's configuration is invalid. Nothing was started. systemd does
      not start the service again.
`

// TestHelpFits: every help text fits a terminal of 80 columns, and each flag and the
// description of each command are in its help.
func TestHelpFits(t *testing.T) {
	for _, cmd := range append(commands(), &urfave.Command{}) {
		out, stderr, exit := lockkeeper(t, t.TempDir(), nil, strings.Fields("help "+cmd.Name)...)
		if exit != 0 || stderr != "" {
			t.Errorf("help %s: %d, %q", cmd.Name, exit, stderr)
		}
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("help %s: %d columns: %s", cmd.Name, n, line)
			}
		}
		joined := strings.Join(strings.Fields(out), " ")
		if about := strings.Join(strings.Fields(cmd.Description), " "); !strings.Contains(joined, about) {
			t.Errorf("help %s lacks %q", cmd.Name, about)
		}
		for _, f := range cmd.VisibleFlags() {
			if name := f.Names()[0]; !regexp.MustCompile("(?m)^  (-., )?--?" + name + " ").MatchString(out) {
				t.Errorf("help %s lacks %s", cmd.Name, name)
			}
		}
	}
}

func TestUsage(t *testing.T) {
	type result struct {
		args           string
		stdout, stderr string // stderr without its "lockkeeper: "
		exit           int
	}
	for _, tc := range []result{
		{"", helpText, "", 0},
		{"--help", helpText, "", 0},
		{"-h", helpText, "", 0},
		{"help", helpText, "", 0},
		{"help status", statusHelp, "", 0},
		{"help exit-status", exitHelp, "", 0},
		{"status -h", statusHelp, "", 0},
		{"status --help n1", statusHelp, "", 0},
		{"status n1 -h", statusHelp, "", 0},
		{"--help status", statusHelp, "", 0},

		{"frobnicate", "", "unknown command \"frobnicate\"; see `lockkeeper help`", 64},
		{"help frobnicate", "", "unknown command \"frobnicate\"; see `lockkeeper help`", 64},
		{"--frobnicate", "", "unknown flag --frobnicate before the command; see `lockkeeper help`", 64},
		{"status --frobnicate", "", "unknown flag --frobnicate; see `lockkeeper help status`", 64},
		{"status --config a", "", "unknown flag --config (did you mean --kubeconfig?); see `lockkeeper help status`", 64},
		{"status -o", "", "-o requires a value; see `lockkeeper help status`", 64},
		{"status --all=maybe", "", "invalid boolean value \"maybe\" for -all: parse error; see `lockkeeper help status`", 64},
		{"status -o text/x", "", "-o \"text/x\", expected text, table, wide, json, yaml or name", 64},
		{"status -o name -w", "", "-w and -o name cannot be combined", 64},
		{"status -l a=b n1", "", "-l and a node name (n1) cannot be combined", 64},
		{"wait --for=idle -l a=b n1", "", "-l and a node name (n1) cannot be combined", 64},
		{"history -l ! n1", "", "-l and a node name (n1) cannot be combined", 64},
		{"history -l =", "", "-l found '=', expected: !, identifier, or 'end of string'", 64},
		{"history -o name", "", "-o \"name\", expected table, wide, json or yaml", 64},
		{"status -A n1", "", "-A and a node name (n1) cannot be combined", 64},
		{"status n1 n2", "", "status accepts [NODE], got [\"n1\" \"n2\"]; see `lockkeeper help status`", 64},
		{"wait", "", "--for \"\", expected up-to-date, idle or held", 64},
		{"wait --for=done", "", "--for \"done\", expected up-to-date, idle or held", 64},
		{"wait --for=idle --timeout 5", "", "--timeout \"5\", expected 1s to 720h, such as 90s", 64},
		{"wait --for=idle --timeout 1ms", "", "--timeout \"1ms\", expected 1s to 720h, such as 90s", 64},
		{"wait --for=idle --timeout 800h", "", "--timeout \"800h\", expected 1s to 720h, such as 90s", 64},
		{"wait --for=idle n1 n2", "", "wait accepts [NODE], got [\"n1\" \"n2\"]; see `lockkeeper help wait`", 64},
		{"wait --for=idle", "", "no kubeconfig: none named by --kubeconfig or KUBECONFIG, and no ~/.kube/config", 1},
		{"plan -o wide", "", "-o \"wide\", expected text, table, json or yaml", 64},
		{"plan --change reboot", "", "--change \"reboot\", expected file:/etc/…, unit:NAME, sentinel:/run/…, os, os:VERSION, request or fleetlock", 64},
		{"plan --change os --change os:2", "", "--change \"os:2\", expected each change once, and only one OS version", 64},
		{"plan -l pool=web n1", "", "-l and a node name (n1) cannot be combined", 64},
		{"plan -l pool=(", "", "-l unable to parse requirement: found '(', expected: identifier", 64},
		{"plan n1 n2", "", "plan accepts [NODE], got [\"n1\" \"n2\"]; see `lockkeeper help plan`", 64},
		{"plan n1 --change x", "", "--change \"x\", expected file:/etc/…, unit:NAME, sentinel:/run/…, os, os:VERSION, request or fleetlock", 64},
		{"plan --change file:/a,b", "", "no kubeconfig: none named by --kubeconfig or KUBECONFIG, and no ~/.kube/config", 1},
		{"retry", "", "retry requires NODE…; see `lockkeeper help retry`", 64},
		{"confirm", "", "confirm requires NODE HOOK; see `lockkeeper help confirm`", 64},
		{"confirm n1", "", "confirm requires NODE HOOK; see `lockkeeper help confirm`", 64},
		{"confirm n1 a b", "", "confirm accepts NODE HOOK, got [\"n1\" \"a\" \"b\"]; see `lockkeeper help confirm`", 64},
		{"run n1", "", "run accepts no arguments, got [\"n1\"]; see `lockkeeper help run`", 64},
		{"pause", "", "pause requires exactly one of: node names, -l SELECTOR, --policy NAME or --cluster; nothing was done", 64},
		{"pause --cluster n1", "", "pause requires exactly one of: node names, -l SELECTOR, --policy NAME or --cluster; nothing was done", 64},
		{"pause -l a=b --policy web", "", "pause requires exactly one of: node names, -l SELECTOR, --policy NAME or --cluster; nothing was done", 64},
		{"detach --policy= ", "", "detach requires exactly one of: node names, -l SELECTOR or --policy NAME; nothing was done", 64},
		{"detach -l=", "", "-l \"\", expected a label selector", 64},
		{"detach --cluster", "", "unknown flag --cluster; see `lockkeeper help detach`", 64},
		{"retry -l a=b", "", "unknown flag -l; see `lockkeeper help retry`", 64},
		{"pause --until 2h --cluster", "", "--until and --cluster cannot be combined: the emergency stop lasts until `lockkeeper resume --cluster`", 64},
		{"request", "", "request requires reboot [NODE…]; see `lockkeeper help request`", 64},
		{"request reset n1", "", "request \"reset\", expected reboot", 64},
		{"request reboot", "", "request requires exactly one of: node names, -l SELECTOR or --policy NAME; nothing was done", 64},
		{"stop", "", "unknown command \"stop\"; see `lockkeeper help`", 64},
		{"go", "", "unknown command \"go\"; see `lockkeeper help`", 64},
		{"version 2", "", "version accepts no arguments, got [\"2\"]; see `lockkeeper help version`", 64},

		{"kubeconfig --lifetime 2y", "", "--lifetime \"2y\", expected 1h to 365d, such as 36h or 90d", 64},
		{"kubeconfig", "", "no kubeconfig: none named by --kubeconfig or KUBECONFIG, and no ~/.kube/config", 1},
		{"manifests --without-lease --policy", "", "--without-lease cannot be combined with --policy, which prints no Lease, or with --delete, which deletes the Lease too", 64},
		{"manifests --without-lease --delete", "", "--without-lease cannot be combined with --policy, which prints no Lease, or with --delete, which deletes the Lease too", 64},
		{"init x", "", "init accepts no arguments, got [\"x\"]; see `lockkeeper help init`", 64},
		{"init", "", "no kubeconfig: none named by --kubeconfig or KUBECONFIG, and no ~/.kube/config", 1},
		{"init -o table", "", "-o \"table\", expected text, name, yaml or json", 64},
		{"init --timeout 0s", "", "--timeout \"0s\", expected 1s to 720h, such as 90s", 64},
		{"manifests x", "", "manifests accepts no arguments, got [\"x\"]; see `lockkeeper help manifests`", 64},
		{"manifests --namespace Lock", "", "namespace \"Lock\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end " +
			"with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')", 64},

		{"simulate", "", "simulate requires FILE…; see `lockkeeper help simulate`", 64},
		{"simulate none.yaml", "", "open none.yaml: no such file or directory", 1},
		{"simulate --seed x none.yaml", "", "invalid value \"x\" for flag -seed: parse error; see `lockkeeper help simulate`", 64},

		{"migrate", "", "--from \"\", expected fluo, kured or locksmith", 64},
		{"migrate --from kured n1", "", "migrate accepts no arguments, got [\"n1\"]; see `lockkeeper help migrate`", 64},
		{"migrate --from kured -o json", "", "-o \"json\", expected text, yaml or toml", 64},
		{"migrate --from kured --apply -o yaml", "", "--apply and -o cannot be combined", 64},
		{"migrate --from kured --dry-run", "", "--dry-run and --yes belong to --apply; without it nothing is changed", 64},
		{"migrate --from locksmith --apply", "", "--apply has nothing to do for locksmith, which leaves nothing in the cluster; `systemctl mask --now locksmithd` stops it on a host", 64},
		{"migrate --from fluo", "", "no kubeconfig: none named by --kubeconfig or KUBECONFIG, and no ~/.kube/config", 1},
		{"migrate --from locksmith --root .", "", "neither /etc/flatcar/update.conf nor /usr/share/flatcar/update.conf exists: run the command on a Flatcar host", 1},

		{"status n1 -w -o x", "", "-o \"x\", expected text, table, wide, json, yaml or name", 64},
		{"status n1 -wox", "", "-o \"x\", expected text, table, wide, json, yaml or name", 64},
		{"retry n1 --kubeconfig=none", "", "kubeconfig: stat none: no such file or directory", 1},
		{"--kubeconfig none retry n1", "", "kubeconfig: stat none: no such file or directory", 1},
		{"confirm -- n1 --kubeconfig x", "", "confirm accepts NODE HOOK, got [\"n1\" \"--kubeconfig\" \"x\"]; see `lockkeeper help confirm`", 64},
		{"retry n1 --request-timeout 5", "", "--request-timeout \"5\", expected 1s to 10m, such as 90s", 64},
		{"retry n1 --request-timeout 11m", "", "--request-timeout \"11m\", expected 1s to 10m, such as 90s", 64},
		{"history -v8", "", "-v \"8\", expected 0 to 7", 64},
		{"kubeconfig -v x", "", "-v \"x\", expected 0 to 7", 64},
	} {
		t.Run(tc.args, func(t *testing.T) {
			stdout, stderr, exit := lockkeeper(t, t.TempDir(), nil, strings.Fields(tc.args)...)
			if tc.stderr != "" {
				tc.stderr = "lockkeeper: " + tc.stderr + "\n"
			}
			if got := (result{tc.args, stdout, stderr, exit}); got != tc {
				t.Errorf("got\n%+v\nexpected\n%+v", got, tc)
			}
		})
	}
}

// TestMigrateFromLocksmith runs the command on a host with locksmith's files.
func TestMigrateFromLocksmith(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "usr/share/flatcar/update.conf", "GROUP=stable\n")
	write(t, dir, "etc/flatcar/update.conf", "REBOOT_STRATEGY=etcd-lock\nLOCKSMITHD_REBOOT_WINDOW_START=\"Thu 23:00\"\n")
	write(t, dir, "etc/systemd/system/locksmithd.service.d/10.conf", "[Service]\nEnvironment=LOCKSMITHD_REBOOT_WINDOW_LENGTH=1h30m\n")
	if err := os.Symlink("../usr/share/zoneinfo/Europe/Berlin", filepath.Join(dir, "etc/localtime")); err != nil {
		t.Fatal(err)
	}
	const want = "[[window]]\ndays = [\"Thu\"]\nstart = \"23:00\"\nduration = \"1h30m\"\ntime_zone = \"Europe/Berlin\"\n"
	file, stderr, exit := lockkeeper(t, dir, nil, "migrate", "--from", "locksmith", "--root", dir, "-o", "toml")
	if file != want || exit != 0 {
		t.Errorf("got %q, %q, %d, expected %q", file, stderr, exit, want)
	}
	write(t, dir, "lockkeeper.toml", file)
	if _, stderr, exit := lockkeeper(t, dir, nil, "check-config", "--config", "lockkeeper.toml"); exit != 0 {
		t.Errorf("check-config: %q, %d", stderr, exit)
	}
	text, _, exit := lockkeeper(t, dir, nil, "migrate", "--from", "locksmith", "--root", dir)
	for _, want := range []string{"== DisruptionPolicy from-locksmith ==", want, "- GROUP=\"stable\": update_engine reads it", "systemctl mask --now locksmithd"} {
		if !strings.Contains(text, want) || exit != 0 {
			t.Errorf("%d, and %q is not in\n%s", exit, want, text)
		}
	}
}

// TestSimulate rolls a node whose reboot works, and one whose reboot does not.
func TestSimulate(t *testing.T) {
	dir := t.TempDir()
	fleet := func(reboot string) string {
		return "start: 2026-03-02T12:00:00Z\nnodes:\n- {name: n, count: 1, takes: {drain: 2m, reboot: " + reboot + "}, changes: [{os: 4230.2.0}]}\n" +
			"---\napiVersion: lockkeeper.dev/v1alpha1\nkind: DisruptionPolicy\nmetadata: {name: every}\n"
	}
	write(t, dir, "good.yaml", fleet("5m"))
	write(t, dir, "lost.yaml", fleet("never"))
	write(t, dir, "policy.yaml", "apiVersion: lockkeeper.dev/v1alpha1\nkind: DisruptionPolicy\nmetadata: {name: all}\nspec: {rollout: {maxUnavailabel: 1}}\n")
	for args, c := range map[string]struct {
		stdout, stderr string
		exit           int
	}{
		"good.yaml":                      {"All of them are up to date.", "", 0},
		"lost.yaml":                      {"IT STOPS", "", 0},
		"--exit-code --seed 3 lost.yaml": {"IT STOPS", "", 3},
		"good.yaml lost.yaml":            {"", "lockkeeper: lost.yaml: a second fleet, expected one", 1},
		"good.yaml policy.yaml":          {"", "lockkeeper: policy.yaml: policy all: ", 1},
		"policy.yaml":                    {"", "lockkeeper: policy.yaml: policy all: ", 1},
	} {
		stdout, stderr, exit := lockkeeper(t, dir, nil, append([]string{"simulate"}, strings.Fields(args)...)...)
		if !strings.Contains(stdout, c.stdout) || !strings.HasPrefix(stderr, c.stderr) || exit != c.exit {
			t.Errorf("%s: %d, %q, %q; expected %+v", args, exit, stdout, stderr, c)
		}
	}
}

// A host may lack the time zone database: the binary has it. Nothing but the
// import says so, and nothing on a machine that has one would notice.
func TestTimeZonesAreBuiltIn(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "main.go", nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"time/tzdata"` }) {
		t.Error("main.go does not import time/tzdata")
	}
}

func TestVersion(t *testing.T) {
	for _, arg := range []string{"version", "--version"} {
		stdout, stderr, exit := lockkeeper(t, t.TempDir(), nil, arg)
		if !strings.HasPrefix(stdout, "lockkeeper v0.0.0-test (go1.") || strings.Count(stdout, "\n") != 1 || stderr != "" || exit != 0 {
			t.Errorf("%s: %q, %q, %d", arg, stdout, stderr, exit)
		}
	}
}

func TestCheckConfig(t *testing.T) {
	for _, tc := range []struct {
		name           string
		files          map[string]string
		args           string
		stdout, stderr string
		exit           int
	}{
		{"valid", map[string]string{"l.toml": "mode = \"observe\"\n", "config.d/9.toml": "", "config.d/README": ""}, "--config l.toml",
			"valid: l.toml, config.d/9.toml\n", "lockkeeper: config.d/README: not read, because its name does not end in .toml\n", 0},
		{"one error", map[string]string{"l.toml": "mode = \"watch\"\n"}, "--config l.toml", "",
			"lockkeeper: l.toml:1: mode: \"watch\", expected \"act\" or \"observe\"\nlockkeeper: 1 error in the configuration; nothing was started or changed\n", 78},
		{"two errors in two files", map[string]string{"l.toml": "mod = \"act\"\n", "config.d/1.toml": "[lease]\nduration = \"1s\"\n"}, "--effective --config l.toml", "",
			"lockkeeper: l.toml:1: mod: not a known key, expected mode\nlockkeeper: config.d/1.toml:2: lease.duration: \"1s\", expected 10s to 5m\n" +
				"lockkeeper: 2 errors in the configuration; nothing was started or changed\n", 78},
		{"no such file", nil, "--config none.toml", "",
			"lockkeeper: none.toml: no such file or directory\nlockkeeper: 1 error in the configuration; nothing was started or changed\n", 78},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range tc.files {
				write(t, dir, name, text)
			}
			stdout, stderr, exit := lockkeeper(t, dir, nil, append([]string{"check-config"}, strings.Fields(tc.args)...)...)
			if stdout != tc.stdout || stderr != tc.stderr || exit != tc.exit {
				t.Errorf("got %d\n%s%s\nexpected %d\n%s%s", exit, stdout, stderr, tc.exit, tc.stdout, tc.stderr)
			}
		})
	}
	dir := t.TempDir()
	write(t, dir, "l.toml", "paused = \"a\"\n")
	stdout, _, exit := lockkeeper(t, dir, nil, "check-config", "--effective", "--config", "l.toml")
	if exit != 0 || !strings.HasPrefix(stdout, "mode = \"act\"                  # default\nmanaged_by_default = true     # default\npaused = \"a\"                  # l.toml:1\n") {
		t.Errorf("%d\n%s", exit, stdout)
	}
}

// A coordinator's kubeconfig that others can read is a warning, and the configuration is valid.
func TestCheckConfigWarnsOfTheCredential(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "coordinator.kubeconfig")
	write(t, dir, "l.toml", fmt.Sprintf("[coordinator]\nkubeconfig = %q\n", path))
	for _, tc := range []struct {
		mode   os.FileMode // of the kubeconfig, 0 for none
		stderr string
	}{
		{0, ""},
		{0o600, ""},
		{0o644, "lockkeeper: coordinator.kubeconfig: users other than root can read coordinator.kubeconfig (mode 0644): chmod 0600 coordinator.kubeconfig\n"},
	} {
		if tc.mode != 0 {
			write(t, dir, "coordinator.kubeconfig", "x")
			if err := os.Chmod(path, tc.mode); err != nil {
				t.Fatal(err)
			}
		}
		stdout, stderr, exit := lockkeeper(t, dir, nil, "check-config", "--config", "l.toml")
		if stdout != "valid: l.toml\n" || stderr != tc.stderr || exit != 0 { // of paths the directory is cut off
			t.Errorf("mode %v: %d, %q, %q, expected %q", tc.mode, exit, stdout, stderr, tc.stderr)
		}
	}
}

// Bad configuration never gets as far as the lock.
func TestRunRefusesBadConfiguration(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "l.toml", "[sources]\npoll_interval = \"1ms\"\n")
	for _, tc := range []struct{ args, stderr string }{
		{"--root r --config l.toml", "lockkeeper: l.toml:2: sources.poll_interval: \"1ms\", expected 200ms to 1h\n"},
	} {
		stdout, stderr, exit := lockkeeper(t, dir, nil, append([]string{"run"}, strings.Fields(tc.args)...)...)
		if want := tc.stderr + "lockkeeper: 1 error in the configuration; nothing was started or changed\n"; stdout != "" || stderr != want || exit != 78 {
			t.Errorf("%d, %q, %q", exit, stdout, stderr)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "r")); err == nil {
		t.Error("something was left below the root")
	}
}

func TestOnlyOneInstanceRuns(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "ok.toml", "")
	lock, err := local.Acquire(filepath.Join(dir, "r", local.Dir))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	_, stderr, exit := lockkeeper(t, dir, nil, "run", "--root", "r", "--config", "ok.toml")
	if exit != 1 || !strings.HasPrefix(stderr, "lockkeeper: taking the lock r/run/lockkeeper/lock: another lockkeeper runs on this host (process ") {
		t.Errorf("%d, %q", exit, stderr)
	}
}

// kubeconfig writes one for url and returns its environment.
func kubeconfig(t *testing.T, dir, url string) []string {
	t.Helper()
	return []string{"KUBECONFIG=" + write(t, dir, "kubeconfig", `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": "`+url+`"}}], "users": [{"name": "c", "user": {"token": "x"}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]}`)}
}

// A command line that is wrong is refused before anything is sent. The error of what is sent names the
// cluster.
func TestNothingIsDoneBeforeArgumentsAreRead(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		http.Error(w, "no", http.StatusForbidden)
	}))
	defer server.Close()
	dir := t.TempDir()
	env := kubeconfig(t, dir, server.URL)
	for _, args := range []string{"pause --cluster -w", "resume --cluster x", "pause n1 -f", "retry n1 -f", "pause --until=never n1", "detach", "confirm n1", "confirm n1 a -f", "status n1 -A", "status -o x", "plan --change x", "plan -l = n1", "wait"} {
		if _, _, exit := lockkeeper(t, dir, env, strings.Fields(args)...); exit != 64 {
			t.Errorf("%s: exit status %d", args, exit)
		}
	}
	for _, args := range []string{"kubeconfig --server https://127.0.0.1:1 --file none/x", "kubeconfig --csr --server https://127.0.0.1:1 --file none/x"} {
		if _, stderr, exit := lockkeeper(t, dir, env, strings.Fields(args)...); exit != 1 || !strings.HasPrefix(stderr, "lockkeeper: writing none/x: ") {
			t.Errorf("%s: %d, %q", args, exit, stderr)
		}
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
	// The server does see what is well formed.
	for _, args := range []string{"pause --cluster", "resume --cluster", "pause n1", "detach -l a=b", "unmanage --policy web", "request reboot n1", "retry n1 n2", "confirm n1 storage", "status", "plan", "wait --for=idle", "history", "history n1 -n x", "kubeconfig --server https://127.0.0.1:1"} {
		stdout, stderr, exit := lockkeeper(t, dir, env, strings.Fields(args)...)
		if exit != 1 || stdout != "" || !strings.HasPrefix(stderr, "lockkeeper: ") || strings.Count(stderr, "\n") != 1 ||
			!strings.HasSuffix(stderr, " (cluster "+server.URL+", context c)\n") {
			t.Errorf("%s: %d, %q, %q", args, exit, stdout, stderr)
		}
	}
	if requests.Load() == 0 {
		t.Error("no request was sent at all")
	}
}

// TestConnectionFlags asks a server, and reads what it was asked and how long it could take.
func TestConnectionFlags(t *testing.T) {
	asked := make(chan string, 100)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		<-r.Context().Done()
	}))
	defer silent.Close()
	dir := t.TempDir()
	env := kubeconfig(t, dir, silent.URL)
	unused := write(t, dir, "unused", "")
	began := time.Now()
	out, stderr, exit := lockkeeper(t, dir, env, "pause", "--cluster", "--request-timeout", "1s", "-n", "ns", "--lease=le")
	if want := "no complete answer within 1s (--request-timeout) (cluster " + silent.URL + ", context c)\n"; out != "" || !strings.HasSuffix(stderr, want) || exit != 1 {
		t.Errorf("%d, %q, %q", exit, out, stderr)
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("gave up after %s", took)
	}
	if got, want := <-asked, "/apis/coordination.k8s.io/v1/namespaces/ns/leases/le"; got != want {
		t.Errorf("asked for %s, expected %s", got, want)
	}
	_, stderr, _ = lockkeeper(t, dir, env, "history", "-v=6", "--request-timeout=1s")
	if !strings.Contains(stderr, "GET") || !strings.Contains(stderr, "/apis/lockkeeper.dev/v1alpha1/hostupdates") {
		t.Errorf("-v=6: %q", stderr)
	}
	_, stderr, exit = lockkeeper(t, dir, env, "--context", "none", "history")
	if want := "lockkeeper: kubeconfig: context \"none\" does not exist\n"; stderr != want || exit != 1 {
		t.Errorf("--context: %d, %q", exit, stderr)
	}
	if _, stderr, exit = lockkeeper(t, dir, env, "history", "--kubeconfig", unused); exit != 1 || !strings.HasPrefix(stderr, "lockkeeper: kubeconfig: unused is empty") {
		t.Errorf("--kubeconfig: %d, %q", exit, stderr)
	}
}

// TestSeveralNodesAreConfirmed: without a terminal and without --yes, or if the user does not agree,
// nothing is changed on several nodes.
func TestSeveralNodesAreConfirmed(t *testing.T) {
	var patches atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.Method == http.MethodPatch:
			patches.Add(1)
			w.WriteHeader(http.StatusForbidden)
			io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"no"}`)
		case r.URL.Path == "/api/v1/nodes":
			io.WriteString(w, `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[`+
				`{"metadata":{"name":"n1","uid":"u1","resourceVersion":"7"}},{"metadata":{"name":"n2","uid":"u2","resourceVersion":"8"}}]}`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	dir := t.TempDir()
	env := kubeconfig(t, dir, server.URL)
	args := []string{"unmanage", "-l", "pool!=db"}
	const refused = "lockkeeper: unmanage would change 2 nodes (n1, n2); add --yes, because there is no terminal to ask; nothing was changed\n"
	if out, stderr, exit := lockkeeper(t, dir, env, args...); out != "" || stderr != refused || exit != 64 || patches.Load() != 0 {
		t.Errorf("no terminal: %q, %q, %d, %d patches", out, stderr, exit, patches.Load())
	}
	question := "n1 n2\nunmanage 2 nodes (cluster " + server.URL + ", context c)? [y/N] "
	for _, input := range []string{"n\n", "\n", "yo\n", "\x03", "\x04", "y\x04\x04"} {
		shown, exit := pty(t, dir, env, input, args...)
		// At Ctrl-C the kernel sends the signal, and then discards what is on its way to the terminal: sometimes the answer.
		answered := input == "\x03" || strings.Contains(shown, "lockkeeper: not confirmed, nothing was changed (cluster ")
		if !strings.Contains(shown, question) || !answered || exit != 1 || patches.Load() != 0 {
			t.Errorf("%q: %d, %d patches\n%s", input, exit, patches.Load(), shown)
		}
	}
	for i, input := range []string{"y\n", "YES\n"} {
		if shown, _ := pty(t, dir, env, input, args...); !strings.Contains(shown, question) || patches.Load() != int32(2*i+2) {
			t.Errorf("%q: %d patches\n%s", input, patches.Load(), shown)
		}
	}
	if _, _, exit := lockkeeper(t, dir, env, append(args, "--yes")...); exit != 1 || patches.Load() != 6 {
		t.Errorf("--yes: exit status %d, %d patches", exit, patches.Load())
	}
}

// On a host without a kubeconfig, or with the API server away, status is the
// host's own view.
func TestStatusOfThisHost(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "r")
	state := filepath.Join(root, local.Dir)
	run := func(env []string, args ...string) (string, string, int) {
		t.Helper()
		return lockkeeper(t, dir, env, append([]string{"status", "--root", root}, args...)...)
	}
	const none = "lockkeeper: no kubeconfig: none named by --kubeconfig or KUBECONFIG, and no ~/.kube/config; "
	if out, errs, exit := run(nil); out != "" || errs != none+"lockkeeper has not run on this host since it booted\n" || exit != 1 {
		t.Errorf("nothing there: %d, %q, %q", exit, out, errs)
	}
	lock, err := local.Acquire(state)
	if err != nil {
		t.Fatal(err)
	}
	if out, errs, exit := run(nil); out != "" || errs != none+"lockkeeper runs on this host but has not reported yet\n" || exit != 1 {
		t.Errorf("nothing said: %d, %q, %q", exit, out, errs)
	}
	if err := local.Write(state, local.Status{Time: time.Now(), Host: local.Host{Node: "n1", State: "idle", Wants: "nothing"}, Line: "up to date", Version: "v1", PID: 3}); err != nil {
		t.Fatal(err)
	}
	out, errs, exit := run(nil)
	if exit != 0 || errs != "" || !strings.Contains(out, "lockkeeper v1 is running (process 3). Its report last changed ") || !strings.Contains(out, "  status  up to date\n") {
		t.Errorf("%d, %q, %q", exit, out, errs)
	}
	if _, errs, exit := run(nil, "n2"); exit != 1 || !strings.HasSuffix(errs, "; this host is not n2\n") {
		t.Errorf("another node: %d, %q", exit, errs)
	}
	if out, _, exit := run(nil, "-o", "json", "n1"); exit != 0 || !strings.Contains(out, `"view": "host"`) {
		t.Errorf("JSON: %d, %q", exit, out)
	}
	server := httptest.NewServer(nil)
	env := kubeconfig(t, dir, server.URL)
	server.Close()
	if out, errs, exit := run(env); exit != 0 || errs != "" || !strings.HasPrefix(out, "Showing what this host knows, because listing nodes: ") || !strings.Contains(out, "connection refused") {
		t.Errorf("API server away: %d, %q, %q", exit, out, errs)
	}
	// This host is up to date, and a script that asks about the fleet must not take that for an answer.
	for args, want := range map[string]int{"--exit-code": 1, "--exit-code -o json": 1, "--exit-code n1": 0} {
		if out, errs, exit := run(env, strings.Fields(args)...); exit != want || errs != "" || out == "" {
			t.Errorf("API server away, %s: %d, %q, %q", args, exit, out, errs)
		}
	}
	if out, errs, exit := run(env, "-w"); exit != 1 || !strings.HasPrefix(out, "Showing what this host knows") ||
		!strings.HasPrefix(errs, "lockkeeper: not watching the cluster: listing nodes: ") {
		t.Errorf("API server away, -w: %d, %q, %q", exit, out, errs)
	}
	for _, args := range []string{"-o name", "-o table", "-o wide", "--no-headers", "-l pool=db"} {
		if out, errs, exit := run(env, strings.Fields(args)...); exit != 1 || out != "" || !strings.HasPrefix(errs, "lockkeeper: listing nodes: ") {
			t.Errorf("API server away, %s: %d, %q, %q", args, exit, out, errs)
		}
	}
	// docs/install.md: root on a host may have a kubeconfig too.
	if err := os.Mkdir(filepath.Join(dir, ".kube"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "kubeconfig"), filepath.Join(dir, ".kube/config")); err != nil {
		t.Fatal(err)
	}
	if out, _, exit := run([]string{"KUBECONFIG=/dev/null"}); exit != 0 || !strings.HasPrefix(out, "Showing what this host knows, because no kubeconfig: KUBECONFIG names /dev/null") {
		t.Errorf("KUBECONFIG=/dev/null: %d, %q", exit, out)
	}
	if err := os.RemoveAll(filepath.Join(dir, ".kube")); err != nil {
		t.Fatal(err)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	for env, want := range map[string]bool{"": true, "NO_COLOR=": true, "NO_COLOR=1": false, "TERM=dumb": false} {
		out, _ := pty(t, dir, []string{env}, "", "status", "--root", root)
		const alert = "lockkeeper is NOT RUNNING on this host: systemctl status lockkeeper"
		if !strings.Contains(out, alert) || strings.Contains(out, "\x1b[31m"+alert+"\x1b[0m\n") != want {
			t.Errorf("%s: red should be %t: %q", env, want, out)
		}
	}
	for _, tc := range []struct {
		args []string
		exit int
	}{{nil, 0}, {[]string{"--exit-code"}, 1}} {
		if out, _, exit := run(nil, tc.args...); exit != tc.exit || !strings.Contains(out, "lockkeeper is NOT RUNNING on this host") {
			t.Errorf("dead, %q: %d, %q", tc.args, exit, out)
		}
	}
}

// TestKubectlPlugin runs lockkeeper under the names by which kubectl starts its plugins.
func TestKubectlPlugin(t *testing.T) {
	for _, tc := range []struct {
		name, args, stdout, stderr string
		exit                       int
	}{
		{"kubectl-lockkeeper", "help version", "Usage: kubectl lockkeeper version [FLAG…]\n\nShow the version.\n\nFlags:\n  -h, --help  show this help\n", "", 0},
		{"kubectl-lockkeeper", "", strings.ReplaceAll(strings.ReplaceAll(helpText, "Usage: lockkeeper", "Usage: kubectl lockkeeper"), "`lockkeeper", "`kubectl lockkeeper"), "", 0},
		{"kubectl-lockkeeper", "statu", "", "lockkeeper: unknown command \"statu\" (did you mean status?); see `kubectl lockkeeper help`\n", 64},
		{"kubectl-lockkeeper", "status --al", "", "lockkeeper: unknown flag --al (did you mean --all?); see `kubectl lockkeeper help status`\n", 64},
		{"kubectl_complete-lockkeeper", "status -o j", "text\t\ntable\t\nwide\t\njson\t\nyaml\t\nname\t\n:4\n", "", 0},
		{"kubectl_complete-lockkeeper", "retry --kubeconfig /e", ":0\n", "", 0},
	} {
		link := filepath.Join(t.TempDir(), tc.name)
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(self, link); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, exit := program(t, link, t.TempDir(), nil, strings.Fields(tc.args)...)
		if stdout != tc.stdout || stderr != tc.stderr || exit != tc.exit {
			t.Errorf("%s %s: got %d\n%s%s\nexpected %d\n%s%s", tc.name, tc.args, exit, stdout, stderr, tc.exit, tc.stdout, tc.stderr)
		}
	}
}

// TestComplete asks what the shells ask: what the last of these words can be.
func TestComplete(t *testing.T) {
	const connection = "--kubeconfig --context --request-timeout -v --namespace -n --lease"
	for _, tc := range []struct {
		words []string
		want  string // the candidates
	}{
		{[]string{""}, "run status history wait plan simulate check-config pause resume detach attach manage unmanage request retry confirm leave manifests init kubeconfig migrate version help"},
		{[]string{"help", ""}, "run status history wait plan simulate check-config pause resume detach attach manage unmanage request retry confirm leave manifests init kubeconfig migrate version help exit-status --help -h"},
		{[]string{"confirm", ""}, "--dry-run " + connection + " --help -h"},
		{[]string{"status", "-A", "--"}, "--all -A --watch -w --selector -l --exit-code --output -o --no-headers " + connection + " --help -h"},
		{[]string{"status", "-o", ""}, "text table wide json yaml name"},
		{[]string{"wait", "--for", "i"}, "up-to-date idle held"},
		{[]string{"retry", "--kubeconfig", "/e"}, ":files"},
		{[]string{"kubeconfig", "--file", ""}, ":files"},
		{[]string{"kubeconfig", "--lifetime", ""}, ""},
		{[]string{"frobnicate", ""}, ""},
		{nil, "run status history wait plan simulate check-config pause resume detach attach manage unmanage request retry confirm leave manifests init kubeconfig migrate version help"},
	} {
		out, stderr, exit := lockkeeper(t, t.TempDir(), nil, append([]string{"__complete"}, tc.words...)...)
		var got []string
		for line := range strings.Lines(out) {
			word, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
			got = append(got, word)
		}
		if strings.Join(got, " ") != tc.want || stderr != "" || exit != 0 {
			t.Errorf("%q: %q, expected %s; %q, %d", tc.words, got, tc.want, stderr, exit)
		}
	}
}

// TestCompleteNames asks for names of nodes, policies and hooks. Without an answer there are none, and
// the shell does not wait for long.
func TestCompleteNames(t *testing.T) {
	const grant = `{\"turn\":\"t1\",\"epoch\":\"e\",\"nodeUID\":\"u1\",\"bootID\":\"b\",\"wants\":\"reboot\",\"policy\":\"p\",` +
		`\"terms\":{\"beforeDrain\":[{\"name\":\"storage\",\"timeout\":\"1h\",\"onTimeout\":\"Wait\"},{\"name\":\"cache\",\"timeout\":\"1h\",\"onTimeout\":\"Wait\"}]},` +
		`\"startedAt\":\"2026-11-23T10:00:00Z\",\"stageAt\":\"2026-11-23T10:00:00Z\"}`
	silent := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		table := func(names ...string) {
			var rows []string
			for _, name := range names {
				rows = append(rows, `{"cells":["`+name+`","Ready"]}`)
			}
			if r.Header.Get("Accept") != "application/json;as=Table;g=meta.k8s.io;v=v1" || r.FormValue("includeObject") != "None" {
				http.Error(w, "too large", http.StatusInternalServerError)
				return
			}
			io.WriteString(w, `{"kind":"Table","apiVersion":"meta.k8s.io/v1","columnDefinitions":[],"rows":[`+strings.Join(rows, ",")+`]}`)
		}
		switch r.URL.Path {
		case "/api/v1/nodes":
			table("n1", "n2")
		case "/apis/lockkeeper.dev/v1alpha1/disruptionpolicies":
			table("web")
		case "/api/v1/nodes/n1":
			io.WriteString(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","uid":"u1","resourceVersion":"7","labels":{"lockkeeper.dev/state":"before-drain"},`+
				`"annotations":{"lockkeeper.dev/turn":"t1","hook.lockkeeper.dev/cache":"t1","lockkeeper.dev/grant":"`+grant+`"}}}`)
		case "/silent/api/v1/nodes":
			<-silent
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	defer close(silent)
	dir := t.TempDir()
	complete := func(env []string, words ...string) string {
		t.Helper()
		out, stderr, exit := lockkeeper(t, dir, env, append([]string{"__complete"}, words...)...)
		if stderr != "" || exit != 0 {
			t.Errorf("%q: %d, %q", words, exit, stderr)
		}
		return strings.Join(strings.Fields(out), " ")
	}
	env := kubeconfig(t, dir, server.URL)
	for _, tc := range []struct{ words, want string }{
		{"pause .", "n1 n2"},
		{"pause n1 --reason x .", "n2"},
		{"pause --policy .", "web"},
		{"detach n1 --context c --policy w", "web"},
		{"status .", "n1 n2"},
		{"request .", "reboot"},
		{"request reboot .", "n1 n2"},
		{"confirm .", "n1 n2"},
		{"confirm n1 .", "storage"},
	} {
		if got := complete(env, strings.Fields(strings.ReplaceAll(tc.words, " .", " x"))...); got != tc.want {
			t.Errorf("%s: %q, expected %q", tc.words, got, tc.want)
		}
	}
	if got := complete(env, "pause", "--context", "none", "n"); strings.Contains(got, "n1") {
		t.Errorf("nodes of another context: %q", got)
	}
	for name, env := range map[string][]string{
		"no kubeconfig": nil, "not served": kubeconfig(t, t.TempDir(), server.URL+"/none"), "no answer": kubeconfig(t, t.TempDir(), server.URL+"/silent"),
	} {
		began := time.Now()
		if got := complete(env, "pause", "n"); strings.Contains(got, "n1") || !strings.Contains(got, "--reason") {
			t.Errorf("%s: nodes %q", name, got)
		}
		if took := time.Since(began); took > 20*time.Second { // 2 s, and what a loaded machine adds
			t.Errorf("%s: took %s", name, took)
		}
	}
}

var update = flag.Bool("update", false, "rewrite what is rendered from this code")

// TestPackagedUpToDate holds what is shipped beside the binary against the code
// that it is rendered from.
func TestPackagedUpToDate(t *testing.T) {
	commands := renderedCommands(t)
	keys := config.Keys()
	page := func(name string, parts map[string]func(*render.Roff)) string {
		text, err := os.ReadFile("packaging/man/" + name + ".in")
		if err != nil {
			t.Fatal(err)
		}
		rendered := map[string]*render.Roff{}
		for part, fill := range parts {
			if !strings.Contains(string(text), "\n@"+part+"@\n") {
				t.Fatalf("%s.in has no place for @%s@", name, part)
			}
			rendered[part] = &render.Roff{}
			fill(rendered[part])
		}
		return render.Page(string(text), rendered)
	}
	const head = "What this host decides about itself; see lockkeeper.toml(5). Every key is listed with its default. To set a key, remove the # before it and before the [table] above it. " +
		"After a change: lockkeeper check-config, then systemctl reload lockkeeper."
	crd, err := os.ReadFile("packaging/manifests/crds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	reference, err := render.Reference(crd)
	if err != nil {
		t.Fatal(err)
	}
	reference += "\n## Units that no plan reloads or restarts\n\n" +
		"An entry with a `*` is a pattern. An entry also covers the instances of a template of that name. The API server refuses a\n" +
		"policy that names one of these units. It accepts a policy that names an instance, but that policy is invalid\n" +
		"(`InvalidPolicy`). A host also refuses a unit that has such a name as an alias.\n\n" + policy.RefusedUnitsTable()
	outputs := map[string]string{}
	for _, o := range jsonOutputs {
		outputs[o.title] = render.JSONTable(jsonFields(t, o.of))
	}
	var exits strings.Builder
	exits.WriteString("| status | meaning |\n| --- | --- |\n")
	for _, e := range report.ExitStatuses() {
		exits.WriteString(fmt.Sprintf("| %d | %s |\n", e.Status, e.Means))
	}
	for file, want := range map[string]string{
		"docs/policy-reference.md":        reference,
		"docs/status.md":                  filled(t, "docs/status.md", map[string]string{"exit statuses": exits.String()}),
		"docs/json.md":                    filled(t, "docs/json.md", outputs),
		"packaging/lockkeeper.toml":       render.Sample(head, keys),
		"packaging/man/lockkeeper.8":      page("lockkeeper.8", map[string]func(*render.Roff){"COMMANDS": func(r *render.Roff) { r.Commands(commands) }, "EXITS": exitItems}),
		"packaging/man/lockkeeper.toml.5": page("lockkeeper.toml.5", map[string]func(*render.Roff){"KEYS": func(r *render.Roff) { r.Keys(keys) }}),
	} {
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
		} else if string(have) != want {
			t.Errorf("%s is not what the code says: make docs", file)
		}
	}
}

// filled returns the page with its rendered parts.
func filled(t *testing.T, page string, parts map[string]string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want, err := render.Fill(string(text), parts)
	if err != nil {
		t.Fatalf("%s: %v", page, err)
	}
	return want
}

// jsonOutputs are the JSON outputs of the commands.
var jsonOutputs = []struct {
	title string
	of    reflect.Type
}{
	{"status", reflect.TypeFor[report.Report]()},
	{"status on a host", reflect.TypeFor[report.HostView]()},
	{"plan", reflect.TypeFor[forecast.Forecast]()},
	{"history", reflect.TypeFor[report.HistoryList]()},
	{"notification", reflect.TypeFor[notify.Message]()},
}

// elsewhere has the types whose fields docs/json.md does not list.
var elsewhere = map[reflect.Type]string{
	reflect.TypeFor[v1alpha1.Host]():             "Its fields are those of the annotation `" + v1alpha1.AnnotationHost + "`.",
	reflect.TypeFor[v1alpha1.Grant]():            "Its fields are those of the annotation `" + v1alpha1.AnnotationGrant + "`.",
	reflect.TypeFor[v1alpha1.Last]():             "Its fields are those of the annotation `" + v1alpha1.AnnotationLast + "`.",
	reflect.TypeFor[v1alpha1.HostUpdateStatus](): "See [hostupdate.md](hostupdate.md).",
	reflect.TypeFor[v1alpha1.Hook]():             "See [policy-reference.md](policy-reference.md).",
}

func jsonFields(t *testing.T, of reflect.Type) []render.JSONField {
	fields, err := render.JSONFields(".", of, elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	return fields
}

// TestJSONFields compares the documented fields with what encoding/json writes if no field is empty.
func TestJSONFields(t *testing.T) {
	for _, o := range jsonOutputs {
		v := reflect.New(o.of).Elem()
		fill(v)
		text, err := json.Marshal(v.Interface())
		if err != nil {
			t.Fatal(err)
		}
		var written any
		if err := json.Unmarshal(text, &written); err != nil {
			t.Fatal(err)
		}
		var documented, got []string
		closed := map[string]bool{} // fields whose own fields are listed somewhere else
		for _, f := range jsonFields(t, o.of) {
			documented = append(documented, f.Path)
			closed[f.Path] = f.Same != ""
			for _, other := range elsewhere {
				closed[f.Path] = closed[f.Path] || strings.HasSuffix(f.Meaning, other)
			}
			if f.Meaning == "" && !strings.HasPrefix(f.Path, "host.") && !strings.Contains(f.Path, ".paused.") {
				t.Errorf("%s: no comment says what %s means", o.title, f.Path)
			}
		}
		var collect func(prefix string, v any)
		collect = func(prefix string, v any) {
			switch v := v.(type) {
			case []any:
				collect(strings.TrimSuffix(prefix, ".")+"[].", v[0])
			case map[string]any:
				for name, v := range v {
					if name == anyKey {
						continue
					}
					if got = append(got, prefix+name); !closed[prefix+name] {
						collect(prefix+name+".", v)
					}
				}
			}
		}
		collect("", written)
		slices.Sort(documented)
		slices.Sort(got)
		if !slices.Equal(got, documented) {
			t.Errorf("%s: written\n%q\ndocumented\n%q", o.title, got, documented)
		}
	}
}

// anyKey is the key that fill adds to a map.
const anyKey = "any"

// fill makes a value and all that is in it something that is not empty.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf(anyKey).Convert(v.Type().Key()), reflect.Zero(v.Type().Elem()))
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1, 0)))
		}
		for _, f := range v.Fields() {
			if f.CanSet() {
				fill(f)
			}
		}
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	}
}

// exitItems lists the exit statuses for the manual page.
func exitItems(r *render.Roff) {
	for _, e := range report.ExitStatuses() {
		r.Item(fmt.Sprintf("`%d`", e.Status), e.Means)
	}
}

// renderedCommands are the visible commands and flags of the command line.
func renderedCommands(t *testing.T) []render.Command {
	var out []render.Command
	for _, c := range newApp(nil, nil).Commands {
		if c.Hidden {
			continue
		}
		cmd := render.Command{Name: c.Name, Args: c.ArgsUsage, Usage: c.Usage, About: c.Description}
		for _, f := range c.VisibleFlags() {
			said, ok := any(f).(interface {
				TakesValue() bool
				GetUsage() string
				GetValue() string
			})
			if !ok {
				t.Fatalf("%s: flag %v tells nothing of itself", c.Name, f.Names())
			}
			cmd.Flags = append(cmd.Flags, render.Flag{Names: f.Names()}.Takes(said.TakesValue(), said.GetUsage(), said.GetValue()))
		}
		out = append(out, cmd)
	}
	if len(out) < 8 {
		t.Fatalf("only %d commands", len(out))
	}
	return out
}

// TestSampleConfiguration reads the file that the packages install: as it is it
// changes nothing, and with every key in force it says the defaults, and one
// window.
func TestSampleConfiguration(t *testing.T) {
	text, err := os.ReadFile("packaging/lockkeeper.toml")
	if err != nil {
		t.Fatal(err)
	}
	inForce := regexp.MustCompile(`(?m)^#(\[[a-z_]+\]$|\[\[[a-z_]+\]\]$|[a-z_]+ = )`).ReplaceAllString(string(text), "$1")
	values := map[string]string{
		"window.days": `["Sat"]`, "window.start": `"02:00"`, "window.duration": `"4h"`, "window.time_zone": `"UTC"`,
	}
	for _, v := range config.Default().Effective() {
		values[v.Name] = v.Value
	}
	for name, c := range map[string]struct {
		text string
		set  int
	}{"as installed": {string(text), 0}, "in force": {inForce, len(config.Keys())}} {
		cfg, warnings, err := config.Load(config.Options{File: write(t, t.TempDir(), "lockkeeper.toml", c.text)})
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%s: %v, warnings %v", name, err, warnings)
		}
		set := 0
		for _, v := range cfg.Effective() {
			if v.Origin != "default" {
				set++
			}
			if v.Value != values[v.Name] {
				t.Errorf("%s: %s is %s, expected %s", name, v.Name, v.Value, values[v.Name])
			}
		}
		if set != c.set {
			t.Errorf("%s: %d keys are set, expected %d", name, set, c.set)
		}
	}
}

// pty runs the real main on a terminal of 80 columns, types the input when the main asks for
// it, and returns what the terminal received.
func pty(t *testing.T, dir string, env []string, input string, args ...string) (shown string, exit int) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("there are no pseudo-terminals here: %v", err)
	}
	defer master.Close()
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80})
	}
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, terminal, terminal, terminal
	cmd.Env = append([]string{beMain + "=1", noSleep, "HOME=" + dir, "PATH=/nowhere", "TERM=xterm"}, env...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true} // Ctrl-C is a signal
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	terminal.Close()
	var out bytes.Buffer
	for chunk := make([]byte, 4096); err == nil; { // it ends with EIO when no process has the terminal open
		var n int
		n, err = master.Read(chunk)
		out.Write(chunk[:n])
		if input != "" && strings.HasSuffix(out.String(), "[y/N] ") {
			if _, err := io.WriteString(master, input); err != nil {
				t.Fatal(err)
			}
			input = ""
		}
	}
	if err := cmd.Wait(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(out.String(), "\r", ""), cmd.ProcessState.ExitCode()
}

// What fits a terminal of 80 columns there is neither cut nor broken when it is piped.
func TestTextFitsTheTerminal(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "r")
	state := filepath.Join(root, local.Dir)
	lock, err := local.Acquire(state)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	long := "one \x1b[31m" + strings.Repeat("\u4e16 ", 60) + "end"
	if err := local.Write(state, local.Status{Time: time.Now(), Host: local.Host{Node: "n1", State: "idle", Wants: "nothing"}, Line: long, Version: "v1", PID: 3}); err != nil {
		t.Fatal(err)
	}
	visible := strings.ReplaceAll(long, "\x1b", `\x1b`)
	piped, _, _ := lockkeeper(t, dir, nil, "status", "--root", root)
	if !strings.Contains(piped, "\n  status  "+visible+"\n") {
		t.Errorf("piped it is\n%s", piped)
	}
	shown, exit := pty(t, dir, nil, "", "status", "--root", root)
	if exit != 0 {
		t.Errorf("exit status %d", exit)
	}
	if strings.Contains(shown, visible) || strings.Contains(shown, "\x1b") {
		t.Errorf("on a terminal it is\n%s", shown)
	}
	for line := range strings.SplitSeq(shown, "\n") {
		if n := len([]rune(line)) + strings.Count(line, "\u4e16"); n > 80 {
			t.Errorf("a line has %d columns: %s", n, line)
		}
	}
	words := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	if !strings.Contains(words(shown), words(visible)) {
		t.Errorf("on a terminal something is missing:\n%s", shown)
	}
}

// One HostUpdate that this version cannot decode is left out of the history, with a warning that names it and the field.
func TestHistoryOfAnotherVersion(t *testing.T) {
	const turn = `{"turn":"t1","result":"Done","started":"2026-11-22T10:00:00Z","ended":"2026-11-22T10:05:00Z","changes":["OSUpdate@4.2.0"]}`
	object := func(name, status string) string {
		return fmt.Sprintf(`{"apiVersion":"lockkeeper.dev/v1alpha1","kind":"HostUpdate","metadata":{"name":%q},"status":%s}`, name, status)
	}
	odd := map[string]string{
		"node-2": `{"wants":"reboot","history":[{"turn":"t1","ended":"soon"}]}`,
		"node-3": `{"wants":{"reboot":true}}`,
		"node-4": `"gone"`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		switch {
		case odd[name] != "":
			fmt.Fprint(w, object(name, odd[name]))
		case name != "hostupdates":
			http.NotFound(w, r)
		case r.URL.Query().Get("continue") == "":
			fmt.Fprintf(w, `{"apiVersion":"lockkeeper.dev/v1alpha1","kind":"HostUpdateList","metadata":{"continue":"2"},"items":[%s,%s,%s]}`,
				object("node-2", odd["node-2"]), object("node-3", odd["node-3"]), object("node-4", odd["node-4"]))
		default:
			fmt.Fprintf(w, `{"apiVersion":"lockkeeper.dev/v1alpha1","kind":"HostUpdateList","metadata":{},"items":[%s]}`,
				object("node-1", `{"new":7,"history":[`+turn+`]}`))
		}
	}))
	defer server.Close()
	dir := t.TempDir()
	env := kubeconfig(t, dir, server.URL)

	stdout, stderr, exit := lockkeeper(t, dir, env, "history")
	if exit != 0 || !strings.Contains(stdout, "node-1") || !strings.Contains(stdout, "OSUpdate@4.2.0") {
		t.Errorf("exit status %d, %q", exit, stdout)
	}
	warnings := strings.Split(strings.TrimSpace(stderr), "\n")
	for i, want := range []string{
		"lockkeeper: HostUpdate node-2: this version of lockkeeper cannot decode status.history: parsing time ",
		"lockkeeper: HostUpdate node-3: this version of lockkeeper cannot decode status.wants: json: ",
		"lockkeeper: HostUpdate node-4: this version of lockkeeper cannot decode status: json: ",
	} {
		if len(warnings) != 3 || !strings.HasPrefix(warnings[i], want) || !strings.HasSuffix(warnings[i], "; another version wrote it, and what it says is not shown") {
			t.Errorf("warnings %q, want %q", warnings, want)
		}
	}

	stdout, stderr, exit = lockkeeper(t, dir, env, "history", "node-2")
	if exit != 1 || stdout != "" || !strings.HasPrefix(stderr, "lockkeeper: HostUpdate node-2: this version of lockkeeper cannot decode status.history: ") {
		t.Errorf("exit status %d, %q, %q", exit, stdout, stderr)
	}
	if _, stderr, exit = lockkeeper(t, dir, env, "history", "node-9"); exit != 1 || !strings.Contains(stderr, `HostUpdate "node-9" not found`) {
		t.Errorf("exit status %d, %q", exit, stderr)
	}
}
