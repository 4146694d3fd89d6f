package systemd

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/godbus/dbus/v5"
)

// maxUnitFiles bounds what UnitFiles gives: names of one unit times folders.
const maxUnitFiles = 1000

// UnitFiles says where a unit's files are, and where they may yet appear, as absolute paths: fragments in the order in
// which systemd prefers them, of which the first that is there is the unit's; and the folders of its drop-ins, of which
// all *.conf count, with single drop-ins from elsewhere. See systemd.unit(5): a template's instance has the template's
// too, each unit those of its type (service.d) and of its name's beginnings (foo-.service.d for foo-bar.service and for
// foo-bar@x.service).
//
// It does not matter whether systemd has been reloaded since a file came or went. Links that enable the unit are not
// among them, and neither is what `systemctl set-property` wrote, or systemd itself for a transient unit: that is in
// effect already. A unit without a file is no error. The error matches ErrAbsent where systemd is not on the bus.
func (u Units) UnitFiles(ctx context.Context, unit string) (fragments, dropIns []string, err error) {
	var folders []string
	if err := u.bus().property(ctx, manager, managerIface, "UnitPath", &folders); err != nil {
		return nil, nil, fmt.Errorf("asking where units are: %w", err)
	}
	_, all, err := u.all(ctx, unit, unitIface)
	if err != nil {
		return nil, nil, err
	}
	f, err := readFiles(all)
	if err != nil {
		return nil, nil, fmt.Errorf("reading unit %q: %w", unit, err)
	}
	folders = slices.DeleteFunc(folders, func(dir string) bool {
		return !path.IsAbs(dir) || path.Base(dir) == "system.control" || path.Base(dir) == "transient"
	})
	// An alias has its files under the unit's own name.
	for _, name := range withTemplate(f.id) {
		for _, dir := range folders {
			fragments = append(fragments, path.Join(dir, name))
		}
	}
	if f.fragment != "" && !slices.Contains(folders, path.Dir(f.fragment)) && !ownWork(f.fragment) {
		fragments = append(fragments, f.fragment)
	}
	names := append([]string{f.id}, f.names...)
	var below []string
	for _, name := range names {
		below = append(below, dropInNames(name)...)
	}
	slices.Sort(below)
	for _, name := range slices.Compact(below) {
		for _, dir := range folders {
			dropIns = append(dropIns, path.Join(dir, name))
		}
	}
	for _, file := range f.dropIns {
		if !slices.Contains(dropIns, path.Dir(file)) && !ownWork(file) {
			dropIns = append(dropIns, file)
		}
	}
	if n := len(fragments) + len(dropIns); n > maxUnitFiles {
		return nil, nil, fmt.Errorf("unit %q: its files may be at %d places, expected at most %d", unit, n, maxUnitFiles)
	}
	return fragments, dropIns, nil
}

// ownWork reports whether systemd wrote the file itself, at somebody's word on the bus.
func ownWork(file string) bool {
	return strings.Contains(file, "/systemd/system.control/") || strings.Contains(file, "/systemd/transient/")
}

// Names returns all names that a unit has on this host, its aliases included. For a unit without a file it returns the name
// that it was called with. The names are those in the unit files as systemd last read them; see [Units.DaemonReload]. A name
// that systemd does not accept is a [JobError]. The error matches [ErrAbsent] if systemd is not on the bus.
func (u Units) Names(ctx context.Context, unit string) ([]string, error) {
	_, all, err := u.all(ctx, unit, unitIface)
	var names []string
	if err == nil {
		err = store(all, map[string]any{"Names": &names})
	}
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("unit %q has no names", unit)
	}
	if err != nil {
		return nil, managing(unit, err)
	}
	return names, nil
}

// withTemplate gives a unit's name, and that of the template that it is an instance of.
func withTemplate(name string) []string {
	kind := path.Ext(name)
	stem := strings.TrimSuffix(name, kind)
	if i := strings.IndexByte(stem, '@'); i >= 0 && i < len(stem)-1 {
		return []string{name, stem[:i+1] + kind}
	}
	return []string{name}
}

// dropInNames are the names that a unit's folders of drop-ins may have. A template's instance has, of its name's
// beginnings, those with its instance, those of templates, and those without either.
func dropInNames(name string) []string {
	kind := path.Ext(name)
	names := []string{strings.TrimPrefix(kind, ".") + ".d"}
	for _, n := range withTemplate(name) {
		names = append(names, n+".d")
		stem, _, _ := strings.Cut(strings.TrimSuffix(n, kind), "@")
		rest := strings.TrimSuffix(n, kind)[len(stem):]
		for i := strings.LastIndexByte(strings.TrimSuffix(stem, "-"), '-'); i > 0; i = strings.LastIndexByte(stem[:i], '-') {
			names = append(names, stem[:i+1]+rest+kind+".d", stem[:i+1]+kind+".d")
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// unitFiles are the properties that say where a unit's files are.
type unitFiles struct {
	id, fragment   string
	names, dropIns []string
}

func readFiles(all map[string]dbus.Variant) (unitFiles, error) {
	var f unitFiles
	for name, to := range map[string]any{"Id": &f.id, "FragmentPath": &f.fragment, "Names": &f.names, "DropInPaths": &f.dropIns} {
		v, ok := all[name]
		if !ok {
			return f, fmt.Errorf("no property %s", name)
		}
		if err := v.Store(to); err != nil {
			return f, fmt.Errorf("property %s: %w", name, err)
		}
	}
	for _, name := range append([]string{f.id}, f.names...) {
		if name == "" || strings.ContainsRune(name, '/') {
			return f, fmt.Errorf("%q is no unit's name", printable(name, maxText))
		}
	}
	for _, file := range f.dropIns {
		if !path.IsAbs(file) {
			return f, fmt.Errorf("%q is no absolute path", printable(file, maxText))
		}
	}
	if f.fragment != "" && !path.IsAbs(f.fragment) {
		return f, fmt.Errorf("%q is no absolute path", printable(f.fragment, maxText))
	}
	return f, nil
}
