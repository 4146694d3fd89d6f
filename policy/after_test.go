package policy

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestAfter: what is wrong with rollout.after is said of its field, with its value. The policy that is compiled is p.
func TestAfter(t *testing.T) {
	after := func(name string, d time.Duration) v1alpha1.AfterPolicy {
		return v1alpha1.AfterPolicy{Policy: name, For: metav1.Duration{Duration: d}}
	}
	var many []v1alpha1.AfterPolicy
	for i := range 9 {
		many = append(many, after(fmt.Sprint("p", i), 0))
	}
	for name, c := range map[string]struct {
		after []v1alpha1.AfterPolicy
		want  string
	}{
		"one":           {[]v1alpha1.AfterPolicy{after("canary", 24*time.Hour)}, ""},
		"no time":       {[]v1alpha1.AfterPolicy{after("canary", 0)}, ""},
		"30 days":       {[]v1alpha1.AfterPolicy{after("canary.web", 720*time.Hour)}, ""},
		"longer":        {[]v1alpha1.AfterPolicy{after("canary", 720*time.Hour+1)}, "spec.rollout.after[0].for: 720h0m0.000000001s, expected 0s to 720h"},
		"less":          {[]v1alpha1.AfterPolicy{after("canary", -1)}, "spec.rollout.after[0].for: -1ns, expected 0s to 720h"},
		"itself":        {[]v1alpha1.AfterPolicy{after("canary", 0), after("p", 0)}, `spec.rollout.after[1].policy: "p" waits for itself, expected the name of another policy`},
		"twice":         {[]v1alpha1.AfterPolicy{after("canary", 0), after("canary", 1)}, `spec.rollout.after[1].policy: "canary" is in the list already, expected each policy once`},
		"no name":       {[]v1alpha1.AfterPolicy{after("", 0)}, `spec.rollout.after[0].policy: "", expected the name of a policy: lower-case letters, digits, - and .`},
		"not a name":    {[]v1alpha1.AfterPolicy{after("Canary", 0)}, `spec.rollout.after[0].policy: "Canary", expected the name of a policy: lower-case letters, digits, - and .`},
		"eight":         {many[:8], ""},
		"nine policies": {many, "spec.rollout.after: 9 policies, expected at most 8"},
	} {
		obj := &v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
		obj.Name, obj.Spec.Rollout.After = "p", c.after
		p := Compile(obj, time.LoadLocation)
		got := ""
		if len(p.Problems) > 0 {
			got = p.Problems[0].String()
		}
		if got != c.want || len(p.Problems) > 1 {
			t.Errorf("%s: %v, expected %q", name, p.Problems, c.want)
		}
		if c.want == "" && !slices.EqualFunc(p.After, c.after, func(a After, b v1alpha1.AfterPolicy) bool { return a.Policy == b.Policy && a.For == b.For.Duration }) {
			t.Errorf("%s: %v", name, p.After)
		}
	}
}
