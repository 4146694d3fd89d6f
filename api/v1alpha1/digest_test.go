package v1alpha1

import (
	"slices"
	"testing"
)

func TestDigestKey(t *testing.T) {
	for version, want := range map[string]string{
		"01234567-89abcdef0123": "01234567", "": "", "absent": "", "89abcdef0123": "", "01234567-": "", "01234567-89abcdef012": "",
		"01234567-89abcdef01234": "", "0123456-089abcdef0123": "", "01234567-89ABCDEF0123": "", "01234567-89abcdef-123": "", "-89abcdef0123": "",
		"01234567-absent": "", "4081.2.0-rc1": "",
	} {
		if got := DigestKey(version); got != want {
			t.Errorf("%q: %q, expected %q", version, got, want)
		}
	}
}

// The outcomes are what is safe in every place that compares changes.
func TestSame(t *testing.T) {
	const one, two, three = "11111111-89abcdef0123", "11111111-89abcdef0124", "22222222-89abcdef0123"
	for _, c := range []struct {
		a, b Change
		want bool
		why  string
	}{
		{Change{SourceFile, "/a", one}, Change{SourceFile, "/a", one}, true, "equal"},
		{Change{SourceFile, "/a", one}, Change{SourceFile, "/a", two}, false, "one key, another content"},
		{Change{SourceFile, "/a", one}, Change{SourceFile, "/a", three}, true, "another key"},
		{Change{SourceUnit, "a.service", two}, Change{SourceUnit, "a.service", three}, true, "another key"},
		{Change{SourceFile, "/a", one}, Change{SourceFile, "/b", three}, false, "another file"},
		{Change{SourceFile, "/a", one}, Change{SourceUnit, "/a", three}, false, "another source"},
		{Change{SourceFile, "/a", one}, Change{SourceFile, "/a", VersionAbsent}, false, "it is gone, under any key"},
		{Change{SourceFile, "/a", VersionAbsent}, Change{SourceFile, "/a", VersionAbsent}, true, "gone is gone"},
		{Change{SourceFile, "/a", one}, Change{SourceFile, "/a", ""}, false, "no digest"},
		{Change{SourceFile, "/a", one}, Change{SourceFile, "/a", "89abcdef0123"}, false, "no keyed digest"},
		{Change{SourceOSUpdate, "", one}, Change{SourceOSUpdate, "", three}, false, "versions of an OS are no digests"},
		{Change{SourceSentinel, "/a", one}, Change{SourceSentinel, "/a", three}, false, "sentinels have no digests"},
	} {
		if c.a.Same(c.b) != c.want || c.b.Same(c.a) != c.want {
			t.Errorf("%s: %v and %v: %t, expected %t", c.why, c.a, c.b, !c.want, c.want)
		}
	}

	update := Change{SourceOSUpdate, "", "9"}
	a := []Change{{SourceFile, "/a", one}, update, {SourceFile, "/b", two}}
	b := []Change{{SourceFile, "/b", three}, {SourceFile, "/a", three}, update}
	if !SameChanges(a, b) || !SameChanges(b, a) {
		t.Errorf("%v and %v: a new key alone makes a difference", a, b)
	}
	for i := range b {
		if SameChanges(a, slices.Delete(slices.Clone(b), i, i+1)) {
			t.Errorf("%v is as good as gone", b[i])
		}
	}
	b[2].Version = "10"
	if SameChanges(a, b) {
		t.Error("another update is the same")
	}
}

// The digest tells plans apart by each action, its unit and the order. A plan without steps has none.
func TestStepsDigest(t *testing.T) {
	restart := func(unit string) Action { return Action{Type: ActionRestart, Unit: unit} }
	a, b := restart("a.service"), restart("b.service")
	seen := map[string][]Action{}
	for _, steps := range [][]Action{nil, {a}, {b}, {a, b}, {b, a}, {a, a}, {{Type: ActionReload, Unit: "a.service"}}, {{Type: ActionDrain}, a}} {
		d := StepsDigest(steps)
		if other, taken := seen[d]; taken {
			t.Errorf("%v and %v have the digest %q", steps, other, d)
		}
		if seen[d] = steps; (d == "") != (len(steps) == 0) || d != "" && len(d) != 32 {
			t.Errorf("%v: %q", steps, d)
		}
	}
	if StepsDigest([]Action{a, b}) != StepsDigest(slices.Clone([]Action{a, b})) {
		t.Error("the same steps have two digests")
	}
}
