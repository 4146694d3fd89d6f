package identity

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/policy"
)

// selectorCases are keys and values of labels, and whether a label can have them.
var selectorCases = []struct {
	key, value string
	valid      bool
}{
	{"a", "b", true}, {"A.b_c-9", "", true}, {"9", "9", true}, {"node.kubernetes.io/instance-type", "m5.LARGE_2-x", true},
	{"a--b/c", "a--b", true}, {"a.b-c.9/A__b", "a..b", true},
	{strings.Repeat("k", 63), strings.Repeat("v", 63), true}, {strings.Repeat("p", 253) + "/" + strings.Repeat("k", 63), "b", true},

	{"", "b", false}, {"not a key", "b", false}, {"-a", "b", false}, {"a.", "b", false}, {"ä", "b", false}, {"a\n", "b", false}, {"a*", "b", false},
	{"/a", "b", false}, {"a/", "b", false}, {"a/b/c", "b", false}, {"A.b/c", "b", false}, {"a_b/c", "b", false}, {".a/c", "b", false}, {"a..b/c", "b", false}, {"a-.b/c", "b", false}, {"a.-b/c", "b", false},
	{strings.Repeat("k", 64), "b", false}, {strings.Repeat("p", 254) + "/k", "b", false},
	{"a", " ", false}, {"a", "a b", false}, {"a", "-", false}, {"a", "a_", false}, {"a", ".a", false}, {"a", "a/b", false}, {"a", "ü", false}, {"a", "b\n", false},
	{"a", strings.Repeat("v", 64), false},
}

// TestSelectors: in a nodeSelector, the admission policy accepts the keys and values that policy.Compile accepts, and no others.
func TestSelectors(t *testing.T) {
	all, err := compileAll(30)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range selectorCases {
		for form, selector := range map[string]metav1.LabelSelector{
			"matchLabels": {MatchLabels: map[string]string{"first": "", c.key: c.value}},
			"matchExpressions": {MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "first", Operator: metav1.LabelSelectorOpExists}, {Key: c.key, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"x", c.value}}}},
		} {
			p := teamPolicy(selector)
			if problems := policy.Compile(p, time.LoadLocation).Problems; (len(problems) == 0) != c.valid {
				t.Errorf("%s %q=%q: policy.Compile: %v, expected it to be valid: %t", form, c.key, c.value, problems, c.valid)
			}
			if policyPasses(t, all, p) != c.valid {
				t.Errorf("%s %q=%q: the admission policy accepts it: %t, expected %t", form, c.key, c.value, !c.valid, c.valid)
			}
		}
	}
}

// teamPolicy returns a policy that a user without the verb rollout may write.
func teamPolicy(selector metav1.LabelSelector) *v1alpha1.DisruptionPolicy {
	p := &v1alpha1.DisruptionPolicy{Spec: v1alpha1.DefaultPolicySpec()}
	p.Name, p.Spec.RulesOnly, p.Spec.Priority, p.Spec.NodeSelector = "team", true, -10, selector
	return p
}

// policyPasses reports whether all rules of lockkeeper-policies let a user without the verb rollout create a policy.
func policyPasses(t *testing.T, all []*admissionPolicy, p *v1alpha1.DisruptionPolicy) bool {
	t.Helper()
	return policyWithin(t, all, []string{"lockkeeper-policies"}, fmt.Sprintf("%.60v", p.Spec.NodeSelector), &write{
		user: "tess", resource: v1alpha1.PolicyResource, kind: v1alpha1.GroupVersion.WithKind("DisruptionPolicy"), new: p,
	}, everyone)
}
