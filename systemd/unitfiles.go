package systemd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// maxUnitFiles bounds the answer of UnitFiles: names of one unit times directories.
const maxUnitFiles = 1000

// UnitFiles returns where a unit's files are, and where they may yet appear, as absolute paths. fragments are in the order in
// which systemd prefers them: the first that exists is the unit's file. dropIns are the directories of its drop-ins, of which
// all *.conf count, and single drop-ins from elsewhere. See systemd.unit(5): the instance of a template has the template's
// files too, and each unit has the drop-ins of its type (service.d) and of the beginnings of its name (foo-.service.d for
// foo-bar.service and for foo-bar@x.service).
//
// The answer does not depend on whether systemd has been reloaded since a file came or went. It leaves out the links that
// enable the unit, and what `systemctl set-property`, or systemd itself for a transient unit, wrote: that is in effect
// already. It is not an error if a unit has no file.
func (u Units) UnitFiles(ctx context.Context, name string) (fragments, dropIns []string, err error) {
	var dirs []string
	if err := u.manager().property(ctx, managerIface, "UnitPath", &dirs); err != nil {
		return nil, nil, fmt.Errorf("asking systemd where unit files are: %w", err)
	}
	p, err := u.unit(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	dirs = slices.DeleteFunc(dirs, func(dir string) bool {
		return !path.IsAbs(dir) || path.Base(dir) == "system.control" || path.Base(dir) == "transient"
	})
	// An alias has its files under the unit's own name.
	fragments = join(dirs, withTemplate(p.Id))
	if p.FragmentPath != "" && !slices.Contains(dirs, path.Dir(p.FragmentPath)) && !bySystemd(p.FragmentPath) {
		fragments = append(fragments, p.FragmentPath)
	}
	var below []string
	for _, n := range append([]string{p.Id}, p.Names...) {
		below = append(below, dropInNames(n)...)
	}
	slices.Sort(below)
	dropIns = join(dirs, slices.Compact(below))
	for _, file := range p.DropInPaths {
		if !slices.Contains(dropIns, path.Dir(file)) && !bySystemd(file) {
			dropIns = append(dropIns, file)
		}
	}
	if n := len(fragments) + len(dropIns); n > maxUnitFiles {
		return nil, nil, fmt.Errorf("unit %q: its files may be at %d places, expected at most %d", name, n, maxUnitFiles)
	}
	return fragments, dropIns, nil
}

// bySystemd reports whether systemd wrote the file itself, because of a call on the bus.
func bySystemd(file string) bool {
	return strings.Contains(file, "/systemd/system.control/") || strings.Contains(file, "/systemd/transient/")
}

// join returns each name in each directory.
func join(dirs, names []string) (paths []string) {
	for _, name := range names {
		for _, dir := range dirs {
			paths = append(paths, path.Join(dir, name))
		}
	}
	return paths
}

// Names returns all names that a unit has on this host, including its aliases. A unit without a file has the name that it was
// called with. The names are those in the unit files as systemd last read them; see [Units.DaemonReload]. A name that
// systemd does not accept is a [JobError].
func (u Units) Names(ctx context.Context, name string) ([]string, error) {
	p, err := u.unit(ctx, name)
	if err == nil && len(p.Names) == 0 {
		err = errors.New("it has no names")
	}
	if err != nil {
		return nil, managing(name, err)
	}
	return p.Names, nil
}

// withTemplate returns a unit's name, and the name of the template that it is an instance of.
func withTemplate(name string) []string {
	kind := path.Ext(name)
	stem := strings.TrimSuffix(name, kind)
	if i := strings.IndexByte(stem, '@'); i >= 0 && i < len(stem)-1 {
		return []string{name, stem[:i+1] + kind}
	}
	return []string{name}
}

// dropInNames returns the names that a unit's drop-in directories may have. For each beginning of its name, the instance of a
// template has directories with the instance, of templates, and without either.
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
