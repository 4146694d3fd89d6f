package source

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/node/watched"
)

// TestTooManyWatched: what is watched beyond the bound cannot be read, and that is an error
// from the beginning. There is no baseline of this boot: what was published remains a
// change, whether it can be read or not.
func TestTooManyWatched(t *testing.T) {
	w := watched.New(watched.Options{Root: t.TempDir(), StateDir: t.TempDir(), BootID: "b", Log: slog.New(slog.DiscardHandler)})
	var paths []string
	for i := range watched.MaxWatched + 1 {
		paths = append(paths, fmt.Sprintf("/p/%03d", i))
	}
	change := func(name, version string) v1alpha1.Change {
		return v1alpha1.Change{Source: v1alpha1.SourceFile, Name: name, Version: version}
	}
	published := []v1alpha1.Change{change("/p/000", "1"), change("/p/500", "1")}
	if changes, read, err := Files(w, paths, nil, published); read {
		t.Errorf("nothing was read, and there are %v, %v", changes, err)
	}
	_ = w.Refresh(t.Context())
	want := []v1alpha1.Change{change("/p/000", v1alpha1.VersionAbsent), published[1]}
	if changes, read, err := Files(w, paths, nil, published); !read || err == nil || !slices.Equal(changes, want) {
		t.Errorf("read %t, and there are %v, %v, expected %v", read, changes, err, want)
	}
}
