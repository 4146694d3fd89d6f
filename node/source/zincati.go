package source

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"lockkeeper.dev/lockkeeper/node/hostfs"
)

const zincati = "zincati.service"

// zincatiDirs are the directories of Zincati's configuration. A file in a later one replaces a file
// of the same name in an earlier one.
var zincatiDirs = []string{"/usr/lib/zincati/config.d", "/run/zincati/config.d", "/etc/zincati/config.d"}

const maxZincatiFiles = 256

// zincatiConfig is the part of Zincati's configuration that says whether it asks before it reboots.
type zincatiConfig struct {
	Updates struct {
		Enabled   *bool  `toml:"enabled"`
		Strategy  string `toml:"strategy"`
		FleetLock struct {
			BaseURL string `toml:"base_url"`
		} `toml:"fleet_lock"`
	} `toml:"updates"`
}

// asksFirst reports whether Zincati is configured not to reboot this host by itself: its updates
// are switched off, or it asks for permission at the address, which is that of our FleetLock or "".
func asksFirst(r hostfs.FS, address string) (bool, error) {
	files := map[string]string{}
	for _, dir := range zincatiDirs {
		names, err := r.Names(dir)
		if err != nil {
			return false, fmt.Errorf("Zincati's configuration: %w", err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, ".toml") && !strings.HasPrefix(name, ".") {
				files[name] = path.Join(dir, name)
			}
		}
	}
	if len(files) > maxZincatiFiles {
		return false, fmt.Errorf("Zincati's configuration: %d files, expected at most %d", len(files), maxZincatiFiles)
	}
	var c zincatiConfig
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		text, err := r.Read(files[name])
		if err != nil {
			return false, fmt.Errorf("Zincati's configuration: %w", err)
		}
		// Each file sets some of the keys, over those of the files before it.
		if _, err := toml.Decode(text, &c); err != nil {
			return false, fmt.Errorf("Zincati's configuration: %s: %w", files[name], err)
		}
	}
	if u := &c.Updates; u.Enabled != nil && !*u.Enabled {
		return true, nil
	}
	// Zincati joins its paths to the URL, and drops what follows the last slash.
	return address != "" && c.Updates.Strategy == "fleet_lock" && c.Updates.FleetLock.BaseURL == "http://"+address+"/", nil
}
