package source

import (
	"fmt"
	"slices"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/watched"
)

// Files sets what w watches, and returns the files and units that differ from what is in
// effect; read is false before the first read. published are the changes that the host has
// published in this boot. With an error, some files or units cannot be read: the published
// changes in those are returned too.
func Files(w *watched.Watcher, paths, units []string, published []v1alpha1.Change) (changes []v1alpha1.Change, read bool, err error) {
	w.Watch(paths, units, published)
	report := w.Report()
	if report.Unread {
		return nil, false, nil
	}
	changes = slices.Clone(report.Changes)
	for _, p := range report.Problems {
		if err == nil {
			err = fmt.Errorf("%s %s cannot be read: %w", p.Source, p.Name, p.Err)
		}
		for _, c := range published {
			if p.Covers(c) && !slices.ContainsFunc(changes, c.Same) {
				changes = append(changes, c)
			}
		}
	}
	return changes, true, err
}
