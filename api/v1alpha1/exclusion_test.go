package v1alpha1

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestCordon checks what a mark says, and that each value is a mark.
func TestCordon(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]struct {
		turn string
		at   time.Time
		set  string
		ours bool
	}{
		"t1/2026-01-02T03:04:05Z/Cordon":                           {"t1", at, "Cordon", true},
		"t1/2026-01-02T03:04:05Z/Cordon,LoadBalancers,Remediation": {"t1", at, "Cordon LoadBalancers Remediation", true},
		"t1/2026-01-02T03:04:05Z/ScaleDown":                        {"t1", at, "ScaleDown", false},
		"t1/2026-01-02T03:04:05Z/ScaleDown,ScaleDown,Rank,Cordon":  {"t1", at, "ScaleDown Cordon", true},
		"t1/2026-01-02T03:04:05Z/,Rank,Rank2":                      {"t1", at, "Rank", false}, // a newer version's, on a Node that was cordoned before
		"t1/2026-01-02T03:04:05Z/Rank,Cordon":                      {"t1", at, "Cordon", true},
		"t1/2026-01-02T03:04:05Z/":                                 {"t1", at, "", true},
		"t1/2026-01-02T03:04:05Z/LoadBalancers/more":               {"t1/2026-01-02T03:04:05Z/LoadBalancers/more", time.Time{}, "", true},
		"t1/yesterday/LoadBalancers":                               {"t1/yesterday/LoadBalancers", time.Time{}, "", true},
		"t 1/2026-01-02T03:04:05Z/LoadBalancers":                   {"t 1/2026-01-02T03:04:05Z/LoadBalancers", time.Time{}, "", true},
		"t1":                                                       {"t1", time.Time{}, "", true},
		"":                                                         {"", time.Time{}, "", true},
		`{"turn":"t1"}`:                                            {`{"turn":"t1"}`, time.Time{}, "", true},
		"t1/2026-01-02T04:04:05+01:00/" + strings.Repeat("Cordon,", 9): {"t1", at, "Cordon", true},
	} {
		c := ParseCordon(value)
		if c.Turn != want.turn || !c.At.Equal(want.at) || strings.Join(c.Set, " ") != want.set || c.Ours() != want.ours {
			t.Errorf("%q: %+v, ours %t", value, c, c.Ours())
		}
	}
	if c := (Cordon{"t1", at, []string{CordonOurs, ExclusionScaleDown}}); c.String() != "t1/2026-01-02T03:04:05Z/Cordon,ScaleDown" {
		t.Errorf("a mark is %q", c.String())
	}
}

// TestOwnCordon checks when a cordon is lockkeeper's: the Node has a mark, which does not say otherwise.
func TestOwnCordon(t *testing.T) {
	for mark, want := range map[string]bool{"t1/2026-01-02T03:04:05Z/Cordon": true, "t1/2026-01-02T03:04:05Z/ScaleDown": false, "t1": true} {
		if k := ReadKeys(nil, map[string]string{AnnotationCordon: mark}); k.OwnCordon() != want {
			t.Errorf("%q: own %t", mark, k.OwnCordon())
		}
	}
	if k := ReadKeys(nil, nil); k.OwnCordon() {
		t.Error("a Node without a mark has a cordon of ours")
	}
}

// TestExclusions checks which keys of a Node a turn sets and which it undoes.
func TestExclusions(t *testing.T) {
	const lb, scale, fence = "node.kubernetes.io/exclude-from-external-load-balancers", "cluster-autoscaler.kubernetes.io/scale-down-disabled", "remediation.medik8s.io/exclude-from-remediation"
	all := Exclusions{ExcludeFromLoadBalancers: true, DisableScaleDown: true, ExcludeFromRemediation: true}
	names := func(all []Exclusion) (out []string) {
		for _, x := range all {
			out = append(out, x.Name)
		}
		return out
	}
	for name, c := range map[string]struct {
		labels, annotations map[string]string
		mark, sets, undoes  string
	}{
		"nothing":             {sets: "LoadBalancers ScaleDown Remediation"},
		"ours":                {map[string]string{lb: "", fence: "true"}, map[string]string{scale: "true"}, "t1/2026-01-02T03:04:05Z/Cordon,LoadBalancers,ScaleDown,Remediation", "", "LoadBalancers ScaleDown Remediation"},
		"not ours":            {map[string]string{lb: "", fence: "true"}, map[string]string{scale: "true"}, "t1/2026-01-02T03:04:05Z/Cordon", "", ""},
		"changed":             {map[string]string{lb: "false", fence: "no"}, map[string]string{scale: "false"}, "t1/2026-01-02T03:04:05Z/Cordon,LoadBalancers,ScaleDown,Remediation", "", ""},
		"removed":             {nil, nil, "t1/2026-01-02T03:04:05Z/Cordon,LoadBalancers,ScaleDown,Remediation", "LoadBalancers ScaleDown Remediation", ""},
		"one of each":         {map[string]string{lb: ""}, map[string]string{scale: "true"}, "t1/2026-01-02T03:04:05Z/ScaleDown", "Remediation", "ScaleDown"},
		"no mark":             {map[string]string{lb: "", fence: "true"}, map[string]string{scale: "true"}, "", "", ""},
		"a mark of any text":  {map[string]string{lb: ""}, nil, "LoadBalancers", "ScaleDown Remediation", ""},
		"in the wrong places": {map[string]string{scale: "true"}, map[string]string{lb: "", fence: "true"}, "t1/2026-01-02T03:04:05Z/LoadBalancers,ScaleDown,Remediation", "LoadBalancers ScaleDown Remediation", ""},
	} {
		annotations := map[string]string{}
		maps.Copy(annotations, c.annotations)
		if c.mark != "" {
			annotations[AnnotationCordon] = c.mark
		}
		k := ReadKeys(c.labels, annotations)
		if got := names(k.ToSet(all.Names())); !slices.Equal(got, strings.Fields(c.sets)) {
			t.Errorf("%s: sets %q, expected %q", name, got, c.sets)
		}
		if got := names(k.ToUndo()); !slices.Equal(got, strings.Fields(c.undoes)) {
			t.Errorf("%s: undoes %q, expected %q", name, got, c.undoes)
		}
	}
	if got := (&Exclusions{}).Names(); got != nil {
		t.Errorf("no exclusion: %q", got)
	}
}
