package config

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// defaults returns a file with all defaults.
func defaults() string {
	var b strings.Builder
	if err := Default().WriteEffective(&b); err != nil {
		panic(err)
	}
	return b.String()
}

// tree writes files below a new directory and returns it. "-> X" as content
// makes a link to X.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// below is the layout of a whole host below dir.
func below(dir string) layout {
	l := layoutOf("")
	l.file = filepath.Join(dir, l.file)
	for i := range l.dropIns {
		l.dropIns[i] = filepath.Join(dir, l.dropIns[i])
	}
	return l
}

// loadText loads one file with this text and returns the error without the
// directory in it.
func loadText(t *testing.T, text string) (*Config, string) {
	t.Helper()
	dir := tree(t, map[string]string{"lockkeeper.toml": text})
	c, _, err := Load(Options{File: filepath.Join(dir, "lockkeeper.toml")})
	if err == nil {
		return c, ""
	}
	return c, strings.ReplaceAll(err.Error(), dir+"/", "")
}

// TestDocumentsFiles loads the TOML of the documents, except Zincati's.
func TestDocumentsFiles(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range regexp.MustCompile("(?ms)^ *```toml\n(.*?)^ *```$").FindAllSubmatch(text, -1) {
			if bytes.Contains(block[1], []byte("[updates]\n")) {
				continue
			}
			found[filepath.Base(page)]++
			if _, err := loadText(t, string(block[1])); err != "" {
				t.Errorf("%s: %s\n%s", page, err, block[1])
			}
		}
	}
	if len(found) < 5 || found["fedora-coreos.md"] != 1 {
		t.Errorf("files of lockkeeper's: %v", found)
	}
}

func TestDefaultsAreTheContract(t *testing.T) {
	c, _, err := load(below(t.TempDir()), false)
	if err != nil {
		t.Fatalf("a host without a file: %v", err)
	}
	want := &Config{
		Mode: ModeAct, ManagedByDefault: true, LogLevel: slog.LevelInfo,
		Lease:       Lease{"lockkeeper", "lockkeeper", 30 * time.Second, 20 * time.Second, 5 * time.Second},
		Coordinator: Coordinator{Kubeconfig: "/etc/lockkeeper/coordinator.kubeconfig"},
		Notify:      Notify{Format: v1alpha1.NotifyGeneric, On: []v1alpha1.Occasion{"failed", "halted", "held", "stop"}, HeldLongerThan: 24 * time.Hour},
		Sources:     Sources{UpdateEngineAuto, 30 * time.Second, []string{"/run/reboot-required", "/run/reboot-needed"}, []string{}},
		Reboot:      Reboot{5 * time.Minute, 2 * time.Minute},
		Hooks:       Hooks{10 * time.Minute, HookTimeoutAbort},
		Health:      Health{[]string{}, 15 * time.Minute},
		Metrics:     Metrics{"127.0.0.1:9477"},
		origins:     map[string]origin{},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("the defaults are\n%+v\nexpected\n%+v", c, want)
	}
	// Written down, they are a valid file that says the same.
	again, wrong := loadText(t, defaults())
	if wrong != "" {
		t.Fatalf("the defaults do not validate: %s", wrong)
	}
	for i := range keys {
		if k, was, is := &keys[i], (target{c, nil}), (target{again, nil}); !k.List && k.text(is) != k.text(was) {
			t.Errorf("%s: %s, expected %s", k.Name, k.text(is), k.text(was))
		}
	}
}

func TestEveryKeyIsRead(t *testing.T) {
	c, wrong := loadText(t, `
mode = "observe"
managed_by_default = false
paused = "disk on order"
node_name = "n1.example.org"
log_level = "debug"
lifecycle_conditions = true
kubernetes.kubeconfig = "/a"
[lease]
namespace = "kube-system"
name = "other"
duration = "10s"
renew_deadline = "5s"
retry_period = "1s"
[coordinator]
kubeconfig = ""
prometheus_url = "https://prometheus.example.com:9443/main"
prometheus_token_file = "/d"
[notify]
url = "https://hooks.example.com/a?b=c"
token_file = "/e"
format = "teams"
on = ["turn-ended", "stop"]
held_longer_than = "720h"
cluster = "prod"
[sources]
update_engine = "off"
poll_interval = "1h"
sentinels = ["/b", "/c"]
manager_namespaces = ["reboot-coordinator"]
[fleetlock]
listen = "[::1]:9478"
id = "978a225b3d7b40e9acd7ce9b62f68444"
[reboot]
session_delay = "0s"
min_uptime = "1m"
[[window]]
days = ["Sun", "Fri"]
start = "22:30"
duration = "24h"
time_zone = "Europe/Berlin"
[hooks]
timeout = "1s"
on_timeout = "wait"
[health]
units = ["a@b.service", "c.target"]
timeout = "2h"
[metrics]
listen = "[::1]:9477"
`)
	if wrong != "" {
		t.Fatal(wrong)
	}
	want := Config{
		Mode: ModeObserve, Paused: "disk on order", NodeName: "n1.example.org", LogLevel: slog.LevelDebug, LifecycleConditions: true,
		Kubernetes:  Kubernetes{"/a"},
		Lease:       Lease{"kube-system", "other", 10 * time.Second, 5 * time.Second, time.Second},
		Coordinator: Coordinator{"", "https://prometheus.example.com:9443/main", "/d"},
		Notify:      Notify{"https://hooks.example.com/a?b=c", "/e", v1alpha1.NotifyTeams, []v1alpha1.Occasion{"turn-ended", "stop"}, 720 * time.Hour, "prod"},
		Sources:     Sources{UpdateEngineOff, time.Hour, []string{"/b", "/c"}, []string{"reboot-coordinator"}},
		Windows: []policy.Window{{
			Days: [7]bool{time.Sunday: true, time.Friday: true}, Hour: 22, Minute: 30, Duration: 24 * time.Hour, Zone: zone(t, "Europe/Berlin"),
		}},
		FleetLock: FleetLock{"[::1]:9478", "978a225b3d7b40e9acd7ce9b62f68444"},
		Reboot:    Reboot{0, time.Minute},
		Hooks:     Hooks{time.Second, HookTimeoutWait},
		Health:    Health{[]string{"a@b.service", "c.target"}, 2 * time.Hour},
		Metrics:   Metrics{"[::1]:9477"},
	}
	got := *c
	got.origins, got.windows, got.files = nil, nil, nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read\n%+v\nexpected\n%+v", got, want)
	}
	for _, v := range c.Effective() {
		if v.Origin == "default" {
			t.Errorf("%s is not in this test", v.Name)
		}
	}
}

func TestMistakes(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"unknown key", "mode = \"act\"\nwid = 1\n",
			"lockkeeper.toml:2: wid: not a known key, expected one of the keys that `lockkeeper check-config --effective` lists"},
		{"misspelt", "manged_by_default = true\n",
			"lockkeeper.toml:1: manged_by_default: not a known key, expected managed_by_default"},
		{"misspelt table", "[heath]\nunits = []\n",
			"lockkeeper.toml:1: heath: not a known key, expected [health]"},
		{"without its table", "poll_interval = \"5s\"\n",
			"lockkeeper.toml:1: poll_interval: not a known key, expected sources.poll_interval (in the table [sources])"},
		{"in another table", "[reboot]\n\npoll_interval = \"5s\"\n",
			"lockkeeper.toml:3: reboot.poll_interval: not a known key, expected sources.poll_interval"},
		{"quoted into one key", "\"lease.duration\" = \"30s\"\n",
			"lockkeeper.toml:1: \"lease.duration\": not a known key, expected lease.duration"},
		{"wrong type", "\n\nmanaged_by_default = \"yes\"\n",
			"lockkeeper.toml:3: managed_by_default: \"yes\", expected true or false"},
		{"a number for a duration", "[lease]\nduration = 30\n",
			"lockkeeper.toml:2: lease.duration: 30, expected a duration in quotes, with its unit, such as \"90s\": 10s to 5m"},
		{"a duration without a unit", "[lease]\nduration = \"30\"\n",
			"lockkeeper.toml:2: lease.duration: \"30\", expected a duration with its unit, such as \"90s\" or \"1h30m\": 10s to 5m"},
		{"below its bounds", "lease = { duration = \"9999ms\" }\n",
			"lockkeeper.toml:1: lease.duration: \"9999ms\", expected 10s to 5m"},
		{"above its bounds", "[sources]\n# comment\npoll_interval = \"1h1s\"\n",
			"lockkeeper.toml:3: sources.poll_interval: \"1h1s\", expected 5s to 1h"},
		{"no such word", "mode = \"Act\"\n",
			"lockkeeper.toml:1: mode: \"Act\", expected \"act\" or \"observe\""},
		{"no such level", "log_level = \"trace\"\n",
			"lockkeeper.toml:1: log_level: \"trace\", expected \"error\" or \"warn\" or \"info\" or \"debug\""},
		{"a line feed", "paused = \"a\\nb\"\n",
			"lockkeeper.toml:1: paused: \"a b\", expected one line of at most 256 bytes"},
		{"a relative path", "[kubernetes]\nkubeconfig = \"kubelet.conf\"\n",
			"lockkeeper.toml:2: kubernetes.kubeconfig: \"kubelet.conf\", expected an absolute path without . and .. and // in it, or \"\" for the first kubelet's kubeconfig that exists"},
		{"a name that no Node can have", "node_name = \"N1\"\n",
			"lockkeeper.toml:1: node_name: \"N1\", expected a DNS name: at most 253 of a-z, 0-9, - and ., beginning and ending with a letter or digit, or \"\" for the name in the host's credential"},
		{"no such occasion", "[notify]\non = [\"failed\", \"fail\"]\n",
			"lockkeeper.toml:2: notify.on: the list [failed fail], expected turn-ended, failed, halted, held and stop, not \"fail\""},
		{"a receiver that others could read along to", "[notify]\nurl = \"http://hooks.example.com/secret\"\nheld_longer_than = \"1s\"\nformat = \"xml\"\n",
			"lockkeeper.toml:2: notify.url: a value that is not shown, expected an address such as \"https://hooks.example.com/path\", or \"http://127.0.0.1:8080/path\" on this host, of at most 2048 bytes, without a user and #, or \"\" for no notifications; " +
				"lockkeeper.toml:3: notify.held_longer_than: \"1s\", expected 10m to 720h; lockkeeper.toml:4: notify.format: \"xml\", expected \"slack\" or \"teams\" or \"generic\""},
		{"a list with a number", "[sources]\nsentinels = [\n  \"/a\",\n  1,\n]\n",
			"lockkeeper.toml:2: sources.sentinels: the list [/a 1], expected strings in quotes, not 1"},
		{"a list with the same twice", "[sources]\nsentinels = [\"/a\", \"/a\"]\n",
			"lockkeeper.toml:2: sources.sentinels: the list [/a /a], expected each value once, not \"/a\" twice"},
		{"no name of a namespace", "[sources]\nmanager_namespaces = [\"Kube_System\"]\n",
			"lockkeeper.toml:2: sources.manager_namespaces: the list [Kube_System], expected a DNS label: at most 63 of a-z, 0-9 and -, beginning and ending with a letter or digit, not \"Kube_System\""},
		{"a path that leaves its root", "[sources]\nsentinels = [\"/a/../../b\"]\n",
			"lockkeeper.toml:2: sources.sentinels: the list [/a/../../b], expected an absolute path without . and .. and // in it, not \"/a/../../b\""},
		{"no port", "[metrics]\nlisten = \"127.0.0.1\"\n",
			"lockkeeper.toml:2: metrics.listen: \"127.0.0.1\", expected HOST:PORT, such as \"127.0.0.1:9477\" or \"[::1]:9477\", or \"\" for no server"},
		{"a port too high", "[metrics]\nlisten = \":65536\"\n",
			"lockkeeper.toml:2: metrics.listen: \":65536\", expected HOST:PORT, such as \"127.0.0.1:9477\" or \"[::1]:9477\", or \"\" for no server"},
		{"a port's name", "[metrics]\nlisten = \"localhost:http\"\n",
			"lockkeeper.toml:2: metrics.listen: \"localhost:http\", expected HOST:PORT, such as \"127.0.0.1:9477\" or \"[::1]:9477\", or \"\" for no server"},
		{"FleetLock for other hosts", "[fleetlock]\nlisten = \":9478\"\n",
			"lockkeeper.toml:2: fleetlock.listen: \":9478\", expected a loopback ADDRESS:PORT, such as \"127.0.0.1:9478\" or \"[::1]:9478\", or \"\" for no FleetLock"},
		{"FleetLock by a name", "[fleetlock]\nlisten = \"localhost:9478\"\n",
			"lockkeeper.toml:2: fleetlock.listen: \"localhost:9478\", expected a loopback ADDRESS:PORT, such as \"127.0.0.1:9478\" or \"[::1]:9478\", or \"\" for no FleetLock"},
		{"a client's ID with hyphens", "[fleetlock]\nid = \"978a225b-3d7b-40e9-acd7-ce9b62f68444\"\n",
			"lockkeeper.toml:2: fleetlock.id: \"978a225b-3d7b-40e9-acd7-ce9b62f68444\", expected 32 of 0-9 and a-f, without hyphens, or \"\" for the ID that Zincati derives from the machine-id"},
		{"one address for two servers", "[fleetlock]\nlisten = \"127.0.0.1:9477\"\n",
			"lockkeeper.toml:2: fleetlock.listen: \"127.0.0.1:9477\", expected another address than metrics.listen"},
		{"a delay that no request outlasts", "[fleetlock]\nlisten = \"127.0.0.1:9478\"\n[reboot]\nsession_delay = \"20m1s\"\n",
			"lockkeeper.toml:4: reboot.session_delay: \"20m1s\", expected at most 20m with fleetlock.listen"},
		{"no unit", "[health]\nunits = [\"chronyd\"]\n",
			"lockkeeper.toml:2: health.units: the list [chronyd], expected names of systemd units with their suffix, such as \"chronyd.service\", not \"chronyd\""},
		{"a value for a table", "lease = 1\n",
			"lockkeeper.toml:1: lease: 1, expected a table [lease]"},
		{"tables for a table", "[[lease]]\nname = \"a\"\n",
			"lockkeeper.toml:1: lease: a list of tables, expected a table [lease]"},
		{"a table for a value", "[mode]\n",
			"lockkeeper.toml:1: mode: a table, expected \"act\" or \"observe\""},
		{"the deadline is the duration", "[lease]\nrenew_deadline = \"30s\"\n",
			"lockkeeper.toml:2: lease.renew_deadline: \"30s\", expected lease.duration (30s) longer than lease.renew_deadline (30s)"},
		{"the duration is too short for the default deadline", "[lease]\nduration = \"15s\"\n",
			"lockkeeper.toml:2: lease.duration: \"15s\", expected lease.duration (15s) longer than lease.renew_deadline (20s)"},
		{"the period is too long for client-go", "[lease]\nduration = \"12s\"\nrenew_deadline = \"6s\"\nretry_period = \"5s\"\n",
			"lockkeeper.toml:4: lease.retry_period: \"5s\", expected lease.renew_deadline (6s) longer than 1.2 times lease.retry_period (5s)"},
		{"twice", "mode = \"act\"\nmode = \"act\"\n",
			"lockkeeper.toml:2: mode: Key 'mode' has already been defined., expected TOML"},
		{"no TOML", "mode = act\n",
			"lockkeeper.toml:1: mode: expected value but found \"act\" instead, expected TOML"},
		{"a value of many lines", "mode = \"act\"\n[sources]\nsentinels = [\n" + strings.Repeat("# one\n", 198) + "]\n",
			""},
		{"a value of too many lines", "mode = \"act\"\n\n[sources]\nsentinels = [" + strings.Repeat("\n", 200) + "]\n",
			"lockkeeper.toml:4: a value of many lines, expected at most 200 lines"},
		{"after values of several lines", "# é\r\npaused = \"\"\"\na = 1 \\\n\"\"\" # ]\n[sources]\nsentinels = [ # [\n\n\"/a\", \"]\"]\n\n[lease]\nduration = 1\n",
			"lockkeeper.toml:6: sources.sentinels: the list [/a ]], expected an absolute path without . and .. and // in it, not \"]\"; " +
				"lockkeeper.toml:11: lease.duration: 1, expected a duration in quotes, with its unit, such as \"90s\": 10s to 5m"},
		{"a table in a table", "[lease.mode]\nmode = 1\n[sources]\npoll_interval = 1\n",
			"lockkeeper.toml:1: lease.mode: not a known key, expected one of the keys that `lockkeeper check-config --effective` lists; " +
				"lockkeeper.toml:4: sources.poll_interval: 1, expected a duration in quotes, with its unit, such as \"90s\": 5s to 1h"},
		{"several", "mode = 1\nfoo = 2\n[lease]\nduration = \"1s\"\n",
			"lockkeeper.toml:1: mode: 1, expected \"act\" or \"observe\"; " +
				"lockkeeper.toml:2: foo: not a known key, expected one of the keys that `lockkeeper check-config --effective` lists; " +
				"lockkeeper.toml:4: lease.duration: \"1s\", expected 10s to 5m"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, got := loadText(t, tc.text)
			if got != tc.want {
				t.Errorf("got\n%s\nexpected\n%s", got, tc.want)
			}
			if c != nil && tc.want != "" {
				t.Error("a Config came with the error")
			}
		})
	}
}

// Zincati's rules: by name over all three directories, /run over /etc over
// /usr/lib, a link to /dev/null masks.
func TestDropIns(t *testing.T) {
	const vendor, admin, run = "usr/lib/lockkeeper/config.d/", "etc/lockkeeper/config.d/", "run/lockkeeper/config.d/"
	dir := tree(t, map[string]string{
		"etc/lockkeeper/lockkeeper.toml": "paused = \"file\"\n[sources]\nsentinels = [\"/file\"]\npoll_interval = \"6s\"\n",
		vendor + "10-a.toml":             "paused = \"vendor 10\"\n[sources]\nsentinels = [\"/v10\"]\n",
		admin + "90-z.toml":              "paused = \"admin 90\"\n",
		run + "50-m.toml":                "paused = \"run 50\"\nlog_level = \"warn\"\n",
		vendor + "60-same.toml":          "node_name = \"vendor\"\nmode = \"observe\"\n",
		admin + "60-same.toml":           "node_name = \"admin\"\n",
		admin + "70-masked.toml":         "mode = \"observe\"\n",
		run + "70-masked.toml":           "-> /dev/null",
		vendor + "80-linked.toml":        "-> ../real",
		"usr/lib/lockkeeper/real":        "log_level = \"error\"\n",
		admin + "99-last.conf":           "not read",
		admin + ".99-hidden.toml":        "not read",
	})
	c, warnings, err := load(below(dir), false)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, f := range c.Files() {
		files = append(files, strings.TrimPrefix(f, dir+"/"))
	}
	want := []string{"etc/lockkeeper/lockkeeper.toml", vendor + "10-a.toml", run + "50-m.toml", admin + "60-same.toml", vendor + "80-linked.toml", admin + "90-z.toml"}
	if !slices.Equal(files, want) {
		t.Errorf("read %q, expected %q", files, want)
	}
	if len(warnings) != 1 || warnings[0].String() != dir+"/"+admin+"99-last.conf: not read, because its name does not end in .toml" {
		t.Errorf("warnings: %v", warnings)
	}
	got := map[string]string{}
	for _, v := range c.Effective() {
		got[v.Name] = v.Value + " " + strings.TrimPrefix(v.Origin, dir+"/")
	}
	for key, want := range map[string]string{
		"paused":                `"admin 90" ` + admin + "90-z.toml:1",
		"mode":                  `"act" default`,
		"node_name":             `"admin" ` + admin + "60-same.toml:1",
		"log_level":             `"error" ` + vendor + "80-linked.toml:1",
		"sources.sentinels":     `["/v10"] ` + vendor + "10-a.toml:3",
		"sources.poll_interval": `"6s" etc/lockkeeper/lockkeeper.toml:4`,
	} {
		if got[key] != want {
			t.Errorf("%s: %s, expected %s", key, got[key], want)
		}
	}
}

func TestNamedFileHasTheDropInsBesideIt(t *testing.T) {
	dir := tree(t, map[string]string{"my.toml": "", "config.d/1.toml": "paused = \"here\"\n"})
	c, _, err := Load(Options{File: filepath.Join(dir, "my.toml")})
	if err != nil {
		t.Fatal(err)
	}
	if c.Paused != "here" {
		t.Errorf("paused is %q, expected the drop-in's", c.Paused)
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	dir := tree(t, map[string]string{
		"big.toml": strings.Repeat("#", maxFile+1), "config.d/a.toml/b": "", "config.d/b.toml": "-> nowhere", "ok.toml": "",
	})
	for _, tc := range []struct{ file, want string }{
		{"none.toml", "none.toml: no such file or directory; config.d/a.toml: not a regular file (d---------); config.d/b.toml: no such file or directory"},
		{"big.toml", "big.toml: larger than 64 KiB; config.d/a.toml: not a regular file (d---------); config.d/b.toml: no such file or directory"},
		{"ok.toml", "config.d/a.toml: not a regular file (d---------); config.d/b.toml: no such file or directory"},
	} {
		_, _, err := Load(Options{File: filepath.Join(dir, tc.file)})
		if err == nil || strings.ReplaceAll(err.Error(), dir+"/", "") != tc.want {
			t.Errorf("%s: %v, expected %s", tc.file, err, tc.want)
		}
	}
	if _, _, err := Load(Options{File: filepath.Join(dir, "none.toml")}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
}

func TestTestbedLowersMinimaOnly(t *testing.T) {
	dir := tree(t, map[string]string{"l.toml": `
[lease]
duration = "2s"
renew_deadline = "1500ms"
retry_period = "200ms"
[sources]
poll_interval = "200ms"
[reboot]
min_uptime = "0s"
[health]
timeout = "1s"
`, "high.toml": "[lease]\nduration = \"6m\"\n"})
	if _, _, err := Load(Options{File: filepath.Join(dir, "l.toml")}); err == nil {
		t.Error("the product takes the test bed's durations")
	}
	c, _, err := Load(Options{File: filepath.Join(dir, "l.toml"), Testbed: true})
	if err != nil {
		t.Fatal(err)
	}
	if c.Lease.Duration != 2*time.Second || c.Sources.PollInterval != 200*time.Millisecond {
		t.Errorf("read %+v", c)
	}
	if _, _, err := Load(Options{File: filepath.Join(dir, "high.toml"), Testbed: true}); err == nil {
		t.Error("the test bed lifts a maximum")
	}
}

func TestWriteEffective(t *testing.T) {
	dir := tree(t, map[string]string{"l.toml": "mode = \"observe\"\n\n[lease]\nduration = \"1m30s\"\n"})
	file := filepath.Join(dir, "l.toml")
	c, _, err := Load(Options{File: file})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := c.WriteEffective(&b); err != nil {
		t.Fatal(err)
	}
	const want = `mode = "observe"              # DIR/l.toml:1
managed_by_default = true     # default
paused = ""                   # default
node_name = ""                # default
log_level = "info"            # default
lifecycle_conditions = false  # default

[kubernetes]
kubeconfig = ""  # default

[lease]
namespace = "lockkeeper"  # default
name = "lockkeeper"       # default
duration = "1m30s"        # DIR/l.toml:4
renew_deadline = "20s"    # default
retry_period = "5s"       # default

[coordinator]
kubeconfig = "/etc/lockkeeper/coordinator.kubeconfig"  # default
prometheus_url = "" # default
prometheus_token_file = "" # default

[notify]
url = "" # default
token_file = "" # default
format = "generic" # default
on = ["failed", "halted", "held", "stop"] # default
held_longer_than = "24h" # default
cluster = "" # default

[sources]
update_engine = "auto"                                        # default
poll_interval = "30s"                                         # default
sentinels = ["/run/reboot-required", "/run/reboot-needed"]  # default
manager_namespaces = []                                       # default

[fleetlock]
listen = ""  # default
id = ""      # default

[reboot]
session_delay = "5m"  # default
min_uptime = "2m"     # default

[hooks]
timeout = "10m"       # default
on_timeout = "abort"  # default

[health]
units = []       # default
timeout = "15m"  # default

[metrics]
listen = "127.0.0.1:9477"  # default

# no [[window]]: at all times # default
`
	got := strings.ReplaceAll(b.String(), dir, "DIR")
	if strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("wrote\n%s\nexpected\n%s", got, want)
	}
	again, wrong := loadText(t, b.String())
	if wrong != "" {
		t.Fatalf("what it writes is not valid: %s", wrong)
	}
	if names := append(c.NeedRestart(again), again.NeedRestart(c)...); len(names) > 0 {
		t.Errorf("written and read again, %q differ", names)
	}
}

func TestNeedRestart(t *testing.T) {
	a, wrong := loadText(t, "paused = \"x\"\nnode_name = \"a\"\n")
	if wrong != "" {
		t.Fatal(wrong)
	}
	b, wrong := loadText(t, "paused = \"y\"\nnode_name = \"b\"\n[lease]\nname = \"c\"\n[health]\nunits = [\"a.service\"]\n")
	if wrong != "" {
		t.Fatal(wrong)
	}
	if got := a.NeedRestart(b); !slices.Equal(got, []string{"node_name", "lease.name"}) {
		t.Errorf("a restart is needed for %q, expected node_name and lease.name", got)
	}
}

func TestHostKubeconfigs(t *testing.T) {
	c := &Config{Kubernetes: Kubernetes{"/nowhere/kubelet.conf"}}
	if got := c.HostKubeconfigs("/root"); !slices.Equal(got, []string{"/nowhere/kubelet.conf"}) {
		t.Errorf("%q", got)
	}
	if got := c.NoHostKubeconfig("/root"); got != "no kubeconfig of the kubelet's: looked for /nowhere/kubelet.conf; if it is elsewhere, set kubernetes.kubeconfig" {
		t.Error(got)
	}
	want := []string{
		"/root/etc/kubernetes/kubelet.conf", "/root/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
		"/root/var/lib/rancher/rke2/agent/kubelet.kubeconfig", "/root/var/lib/k0s/kubelet.conf",
		"/root/var/snap/microk8s/current/credentials/kubelet.config",
		"/root/var/lib/kubelet/kubeconfig-real", "/root/var/lib/kubelet/kubeconfig",
	}
	if got := new(Config).HostKubeconfigs("/root"); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := new(Config).NoHostKubeconfig("/"); !strings.Contains(got, "looked for /etc/kubernetes/kubelet.conf, ") {
		t.Error(got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(defaults()))
	f.Add([]byte("lease = { duration = \"9s\" }\n[[window]]\na.\"b.c\" = [1, {d = 2}]\n"))
	f.Add([]byte("[[window]]\nstart = \"02:00\"\nduration = \"4h\"\n[[window]]\ndays = [\"Sat\"]\nstart = \"2:00\"\n"))
	f.Add([]byte("window = [{ start = \"23:59\", duration = \"24h\", time_zone = \"Asia/Tokyo\" }, {}]\n"))
	f.Add([]byte(strings.Repeat("k", 2000)))
	f.Add([]byte("paused = \"\\u0085\"\nsources.sentinels = [\"/a\u200b\", [[]]]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := Default()
		errs := c.apply(file{"f", string(data)}, false)
		if len(errs) == 0 {
			errs = append(c.checkLease(), c.checkFleetLock()...)
		}
		if len(errs) > 0 {
			for _, e := range errs {
				if text := e.Error(); e.File != "f" || strings.ContainsAny(text, "\n\r\x00") || len(text) > 1000 {
					t.Errorf("a bad error: %q", text)
				}
			}
			return
		}
		// What is valid is still so, and the same, when it is written down.
		var b strings.Builder
		if err := c.WriteEffective(&b); err != nil {
			t.Fatal(err)
		}
		again := Default()
		if errs := append(again.apply(file{"g", b.String()}, false), again.checkLease()...); len(errs) > 0 {
			t.Fatalf("%v\n%s", errs, b.String())
		}
		for i := range keys {
			if k, was, is := &keys[i], (target{c, nil}), (target{again, nil}); !k.List && k.text(is) != k.text(was) {
				t.Errorf("%s: %s, was %s", k.Name, k.text(is), k.text(was))
			}
		}
		if len(c.Windows) != len(again.Windows) || len(c.Windows) > 0 && !reflect.DeepEqual(c.Windows, again.Windows) {
			t.Errorf("windows: %+v, was %+v", again.Windows, c.Windows)
		}
	})
}

// The URL of a chat room in a file that others can read is a warning.
func TestExposedWebhook(t *testing.T) {
	for _, c := range []struct {
		text string
		mode os.FileMode
		warn bool
	}{
		{"url = \"https://h/secret\"\nformat = \"slack\"", 0o644, true},
		{"url = \"https://h/secret\"\nformat = \"teams\"", 0o640, true},
		{"url = \"https://h/secret\"\nformat = \"slack\"", 0o600, false},
		{"url = \"https://h/x\"\nformat = \"generic\"", 0o644, false},
		{"url = \"\"\nformat = \"slack\"", 0o644, false},
		{"format = \"slack\"", 0o644, false},
	} {
		file := filepath.Join(tree(t, map[string]string{"l.toml": "[notify]\n" + c.text}), "l.toml")
		if err := os.Chmod(file, c.mode); err != nil {
			t.Fatal(err)
		}
		_, warnings, err := Load(Options{File: file})
		if err != nil || (len(warnings) == 1) != c.warn || c.warn && (warnings[0].File != file || strings.Contains(warnings[0].String(), "secret")) {
			t.Errorf("%q, mode %o: %v, %v", c.text, c.mode, warnings, err)
		}
	}
}

func TestWebhook(t *testing.T) {
	for _, good := range []string{"https://hooks.example.com/services/T0/B0/x", "https://prod-1.example.com:443/workflows/x/invoke?api-version=2016-06-01&sig=a%2Fb", "http://127.0.0.1:8080/x", "http://127.9.9.9/", "http://[::1]:1/", "http://localhost/x"} {
		if wrong := webhook(good); wrong != "" {
			t.Errorf("%s: %s", good, wrong)
		}
	}
	for _, bad := range []string{"hooks.example.com", "http://hooks.example.com/", "http://10.0.0.1/", "http://127.0.0.1.example.com/", "http://localhost.example.com", "ftp://127.0.0.1/", "https://", "https:x", "https://:443", "https://u:p@h/", "https://h/#x", "https://h/ x", "https://h/\n", "https://h/" + strings.Repeat("a", 2048)} {
		if webhook(bad) == "" {
			t.Errorf("%q is accepted", bad)
		}
	}
}
