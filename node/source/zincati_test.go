package source

import (
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestZincati has Zincati's configuration, and whether a Zincati that runs is another manager.
func TestZincati(t *testing.T) {
	const ours = "127.0.0.1:9478"
	page, err := os.ReadFile("../../docs/fedora-coreos.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s) ```toml\n( +\\[updates\\]\n.*?)```").FindSubmatch(page)
	if block == nil || !strings.Contains(string(page), "[fleetlock]\n   listen = \""+ours+"\"\n") {
		t.Fatalf("docs/fedora-coreos.md does not configure both for %s", ours)
	}
	asks := string(block[1])
	for name, c := range map[string]struct {
		files   map[string]string
		address string
		asks    bool
		wrong   string
	}{
		"no configuration":            {address: ours},
		"another strategy":            {files: map[string]string{"etc/zincati/config.d/a.toml": "[updates]\nstrategy = \"immediate\"\n"}, address: ours},
		"asks here":                   {files: map[string]string{"etc/zincati/config.d/a.toml": asks}, address: ours, asks: true},
		"asks here, FleetLock is off": {files: map[string]string{"etc/zincati/config.d/a.toml": asks}},
		"asks another server":         {files: map[string]string{"etc/zincati/config.d/a.toml": asks}, address: "127.0.0.1:9479"},
		"without the last slash":      {files: map[string]string{"etc/zincati/config.d/a.toml": strings.Replace(asks, "9478/", "9478", 1)}, address: ours, asks: true},
		"with a path":                 {files: map[string]string{"etc/zincati/config.d/a.toml": strings.Replace(asks, "9478/", "9478/a/", 1)}, address: ours},
		"keys of another case":        {files: map[string]string{"etc/zincati/config.d/a.toml": "[Updates]\nEnabled = false\n"}, address: ours},
		"a link, which Zincati ignores": {files: map[string]string{
			"etc/mine.toml": asks, "etc/zincati/config.d/a.toml": "-> ../../mine.toml",
		}, address: ours},
		"masked": {files: map[string]string{
			"usr/lib/zincati/config.d/a.toml": "[updates]\nstrategy = \"periodic\"\n", "etc/zincati/config.d/a.toml": "-> /dev/null", "etc/zincati/config.d/0.toml": asks,
		}, address: ours, asks: true},
		"a mask that is masked by a file": {files: map[string]string{
			"run/zincati/config.d/a.toml": "-> /dev/null", "etc/zincati/config.d/a.toml": asks,
		}, address: ours, asks: true},
		"a link to nothing, and a directory": {files: map[string]string{
			"etc/zincati/config.d/a.toml": "-> /nowhere", "etc/zincati/config.d/b.toml/c": "", "etc/zincati/config.d/c.toml": asks,
		}, address: ours, asks: true},
		"updates are off": {files: map[string]string{"usr/lib/zincati/config.d/90-off.toml": "[updates]\nenabled = false\n"}, asks: true},
		"two files": {files: map[string]string{
			"usr/lib/zincati/config.d/10-a.toml": "[updates]\nstrategy = \"fleet_lock\"\n", "run/zincati/config.d/20-b.toml": "[updates.fleet_lock]\nbase_url = \"http://127.0.0.1:9478/\"\n",
		}, address: ours, asks: true},
		"a later file decides": {files: map[string]string{
			"etc/zincati/config.d/10-a.toml": asks, "usr/lib/zincati/config.d/20-b.toml": "[updates]\nstrategy = \"periodic\"\n",
		}, address: ours},
		"a file of the same name in /etc decides": {files: map[string]string{
			"etc/zincati/config.d/a.toml": asks, "usr/lib/zincati/config.d/a.toml": "[updates]\nstrategy = \"periodic\"\n",
		}, address: ours, asks: true},
		"a file that is none":    {files: map[string]string{"etc/zincati/config.d/a.toml.rpmsave": asks}, address: ours},
		"a file that is no TOML": {files: map[string]string{"etc/zincati/config.d/a.toml": "updates\n"}, address: ours, wrong: "the configuration of Zincati: /etc/zincati/config.d/a.toml: "},
	} {
		m := NewManagers(Options{Root: root(t, c.files), Log: slog.New(slog.DiscardHandler), Changed: func() {}},
			&runs{units: []string{zincati}}, func() (string, error) { return "", nil }, c.address)
		err := m.Read(t.Context())
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: %v, expected %q", name, err, c.wrong)
			}
			continue
		}
		if got := len(m.Active()) == 0; err != nil || got != c.asks {
			t.Errorf("%s: asks first %t, %v, expected %t", name, got, err, c.asks)
		}
	}
}
