package step

import (
	"fmt"
	"testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

func TestChangedAgain(t *testing.T) {
	of := func(source v1alpha1.Source, name, version string) v1alpha1.Change {
		return v1alpha1.Change{Source: source, Name: name, Version: version}
	}
	list := func(changes ...v1alpha1.Change) []v1alpha1.Change { return changes }
	a1, a2, x1, x2 := of("File", "/a", "1"), of("File", "/a", "2"), of("File", "/x", "1"), of("File", "/x", "2")
	unit1, unit2 := of("Unit", "b.service", "1"), of("Unit", "b.service", "2")
	const again = " changed again while it was applied; does a unit of the plan write it?"
	for name, c := range map[string]struct {
		before, present []v1alpha1.Change
		streak          int
		text, others    string
	}{
		"all gone":                    {list(a1), nil, 0, "", "[]"},
		"written again":               {list(a1), list(a2), 0, "File /a@2" + again, "[]"},
		"a unit written again":        {list(a1, unit1), list(unit2), 0, "Unit b.service@2" + again, "[]"},
		"as it was before":            {list(a1), list(a1), 0, "", "[]"},
		"another was there before":    {list(a1, x1), list(x1), 2, "", "[]"},
		"the same content, other key": {list(a1, of("File", "/x", "11111111-89abcdef0123")), list(of("File", "/x", "22222222-89abcdef0123")), 2, "", "[]"},
		"an update came":              {list(a1), list(of("OSUpdate", "", "4.2")), 2, "", "[]"},
		"another changed":             {list(a1), list(x1), 0, "", "[File /x@1]"},
		"another changed twice":       {list(a1, x1), list(x2), 1, "", "[File /x@2]"},
		"another, the third time": {list(a1), list(x1), 2,
			"File /x@1 changed while the plan was carried out, as in the 2 turns before; does a unit of the plan write it?", "[]"},
		"the turn's own comes first": {list(a1), list(x1, a2), 2, "File /a@2" + again, "[]"},
	} {
		text, others := ChangedAgain(list(a1, unit1), c.before, c.present, c.streak)
		if text != c.text || fmt.Sprint(others) != c.others {
			t.Errorf("%s: %q, %v, expected %q, %s", name, text, others, c.text, c.others)
		}
	}
}

// TestNextStreak: a turn that is for none of the files that changed in the turn before ends
// the streak.
func TestNextStreak(t *testing.T) {
	file := func(name, version string) v1alpha1.Change {
		return v1alpha1.Change{Source: v1alpha1.SourceFile, Name: name, Version: version}
	}
	others := []v1alpha1.Change{file("/x", "1")}
	for _, c := range []struct {
		streak  int
		changes []v1alpha1.Change
		want    int
	}{
		{0, []v1alpha1.Change{file("/x", "1")}, 1},
		{1, []v1alpha1.Change{file("/a", "1"), file("/x", "2")}, 2},
		{1, []v1alpha1.Change{file("/a", "1")}, 0},
		{1, nil, 0},
	} {
		if got := NextStreak(c.streak, others, c.changes); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
