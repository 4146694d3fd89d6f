package source

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
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

// asksFirst reports whether Zincati is configured not to reboot this host by itself: its updates
// are switched off, or it asks for permission at the address, which is that of our FleetLock or "".
func asksFirst(r hostfs.FS, address string) (bool, error) {
	files, err := zincatiFiles(r)
	if err != nil {
		return false, fmt.Errorf("the configuration of Zincati: %w", err)
	}
	var enabled, strategy, url any
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text, err := r.Read(files[name])
		if err != nil {
			return false, fmt.Errorf("the configuration of Zincati: %w", err)
		}
		// The keys of a struct would match in any case. Zincati's do not.
		var c map[string]any
		if _, err := toml.Decode(text, &c); err != nil {
			return false, fmt.Errorf("the configuration of Zincati: %s: %w", files[name], err)
		}
		updates, _ := c["updates"].(map[string]any)
		fleetLock, _ := updates["fleet_lock"].(map[string]any)
		// Each file sets some of the keys, over those of the files before it.
		for at, v := range map[*any]any{&enabled: updates["enabled"], &strategy: updates["strategy"], &url: fleetLock["base_url"]} {
			if v != nil {
				*at = v
			}
		}
	}
	asks := address != "" && strategy == "fleet_lock" && (url == "http://"+address+"/" || url == "http://"+address)
	return asks || enabled == false, nil
}

// zincatiFiles returns the paths of the configuration's files by their names, as Zincati finds them: it
// ignores a link, except that one to /dev/null masks the files of its name in other directories.
func zincatiFiles(r hostfs.FS) (map[string]string, error) {
	files := map[string]string{}
	for _, dir := range zincatiDirs {
		names, err := r.Names(dir)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if !strings.HasSuffix(name, ".toml") || strings.HasPrefix(name, ".") {
				continue
			}
			file := path.Join(dir, name)
			info, err := r.Lstat(file)
			switch {
			case errors.Is(err, fs.ErrNotExist): // removed just now
			case err != nil:
				return nil, err
			case info.Mode().IsRegular():
				files[name] = file
			case info.Mode().Type() == fs.ModeSymlink:
				if to, err := r.Readlink(file); err == nil && to == os.DevNull {
					delete(files, name)
				}
			}
		}
	}
	if len(files) > maxZincatiFiles {
		return nil, fmt.Errorf("%d files, expected at most %d", len(files), maxZincatiFiles)
	}
	return files, nil
}
