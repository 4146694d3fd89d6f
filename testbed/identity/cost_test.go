package identity

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/packaging/manifests"
	"lockkeeper.dev/lockkeeper/testbed/fullnode"
)

const (
	// most is the share of its limit that an expression may cost that asks no authorizer.
	most = 0.01
	// mostAsking is for one that does: the API server counts 350,000 of 1,000,000 for each question.
	mostAsking = 0.45
	// mostReading is for those that read all keys of a Node, up to the policy's own bound, or all of a long nodeSelector.
	mostReading = 0.05
	// mostOfThief is for Nodes with which a thief of the coordinator's credential tries to exceed the limits.
	mostOfThief = 0.70
)

var (
	nodes          = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	policyNode     = schema.GroupVersionKind{Version: "v1", Kind: "Node"}
	leader         = v1alpha1.CoordinatorUser(v1alpha1.DefaultLeaseNamespace)
	forAll         = []string{"lockkeeper-keys", "lockkeeper-prefixes", "lockkeeper-owners"} // they judge the Node writes of everyone else
	policyPrefixes = map[string]string{"hooks": v1alpha1.HookPrefix, "own": v1alpha1.Prefix}
)

// TestOldestVersion compiles the policies with what the oldest Kubernetes has that lockkeeper is written for.
func TestOldestVersion(t *testing.T) {
	policies, err := compileAll(30)
	if err != nil {
		t.Fatal(err)
	}
	if len(policies) != 8 {
		t.Errorf("%d policies, want 8", len(policies))
	}
	// What is newer is found: two-variable comprehensions came with 1.32.
	p := policies[0]
	p.spec.Validations[0].Expression = `object.metadata.labels.transformMap(k, v, v).size() == 0`
	if _, err := compileAdmission("newer", p.spec, version(30)); err == nil {
		t.Error("an expression of Kubernetes 1.32 compiles")
	}
	if _, err := compileAdmission("newer", p.spec, version(32)); err != nil {
		t.Error(err)
	}
}

// usual is a Node in a turn, as there are many.
func usual(n *corev1.Node) {
	n.Labels, n.Annotations = map[string]string{}, map[string]string{}
	for i := range 30 {
		n.Labels[fmt.Sprintf("node.example.com/label-%d", i)] = "value"
		n.Annotations[fmt.Sprintf("node.example.com/annotation-%d", i)] = "value"
	}
	n.Labels[v1alpha1.LabelState], n.Labels[v1alpha1.LabelWants] = string(v1alpha1.StateBeforeReboot), string(v1alpha1.WantsReboot)
	n.Annotations[v1alpha1.AnnotationHost] = strings.Repeat("h", 2000)
	n.Annotations[v1alpha1.AnnotationGrant] = v1alpha1.FormatRecord(&v1alpha1.Grant{Turn: "t1", Terms: v1alpha1.Terms{
		BeforeReboot: []v1alpha1.Hook{{Name: "backup"}, {Name: "database"}},
	}})
}

// A Node whose annotations a thief of the coordinator's credential has filled with one grant.
func hugeGrant(n *corev1.Node) {
	var b strings.Builder
	for i := 0; b.Len() < 255<<10; i++ {
		fmt.Fprintf(&b, `{"name":"%d","timeout"`, i)
	}
	n.Annotations = map[string]string{v1alpha1.AnnotationGrant: b.String()}
}

// changed is a Node with a key of every kind changed.
func changed(n *corev1.Node) *corev1.Node {
	out := *n
	out.Labels, out.Annotations = clone(n.Labels), clone(n.Annotations)
	out.Labels[v1alpha1.LabelState], out.Labels[v1alpha1.LabelManaged], out.Labels[v1alpha1.Prefix+"unknown"] = "idle", "false", ""
	for _, key := range []string{v1alpha1.AnnotationPaused, v1alpha1.AnnotationDetached, v1alpha1.AnnotationRequest, v1alpha1.AnnotationRequestNow, v1alpha1.AnnotationRetry,
		v1alpha1.HookAnnotation("backup"), v1alpha1.Prefix + "unknown"} {
		out.Annotations[key] = "changed"
	}
	delete(out.Annotations, v1alpha1.AnnotationGrant)
	return &out
}

func clone(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return maps.Clone(m)
}

// policyWithin measures a write under policies and reports what costs too much, and whether all validations passed.
func policyWithin(t *testing.T, policies []*admissionPolicy, names []string, what string, w *write, limit func(*cost) float64) (passed bool) {
	t.Helper()
	passed = true
	for _, p := range policies {
		if !slices.Contains(names, p.name) {
			continue
		}
		worst := cost{limit: 1}
		for _, c := range p.measure(t.Context(), w) {
			passed = passed && c.passed
			if c.err != nil {
				t.Errorf("%s: %s: %v", what, c.expression, c.err)
			}
			if c.share() > limit(&c) {
				t.Errorf("%s: %s costs %.1f %% of its limit, expected at most %.0f %%", what, c.expression, 100*c.share(), 100*limit(&c))
			}
			if c.share() > worst.share() {
				worst = c
			}
		}
		t.Logf("%-28s at most %4.1f %% (%v): %s", what, 100*worst.share(), worst.elapsed.Round(100*time.Microsecond), worst.expression)
	}
	return passed
}

func everyone(c *cost) float64 {
	if c.asks {
		return mostAsking
	}
	return most
}

// TestAnyNode measures what everyone else than the coordinator may meet, on every Node that an API server stores.
func TestAnyNode(t *testing.T) {
	policies, err := compileAll(0)
	if err != nil {
		t.Fatal(err)
	}
	shapes := append(fullnode.Shapes(policyPrefixes), fullnode.Shape{Name: "usual", Fill: usual}, fullnode.Shape{Name: "huge grant", Fill: hugeGrant},
		fullnode.Shape{Name: "empty", Fill: func(*corev1.Node) {}})
	for _, s := range shapes {
		limit := everyone
		if s.Name == "huge grant" {
			limit = func(*cost) float64 { return mostOfThief }
		}
		old := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		s.Fill(old)
		cordoned := *old
		cordoned.Spec.Unschedulable = true
		policyWithin(t, policies, forAll, s.Name+": cordon", &write{user: "ann", resource: nodes, kind: policyNode, old: old, new: &cordoned}, limit)
		policyWithin(t, policies, forAll, s.Name+": all keys", &write{user: "ann", resource: nodes, kind: policyNode, old: old, new: changed(old)}, limit)
		policyWithin(t, policies, forAll, s.Name+": status", &write{user: "system:node:n", resource: nodes, kind: policyNode, subresource: "status", old: old, new: old}, limit)
		policyWithin(t, policies, forAll, s.Name+": create", &write{user: "ann", resource: nodes, kind: policyNode, new: old}, limit)
		policyWithin(t, policies, forAll, s.Name+": strip", &write{user: "ann", resource: nodes, kind: policyNode, old: old, new: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}, limit)
	}
}

// TestCoordinatorsNodes measures the coordinator's writes up to the bound for which its policy judges them. Beyond it they are refused by a
// rule, with nothing read.
func TestCoordinatorsNodes(t *testing.T) {
	policies, err := compileAll(0)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"lockkeeper-coordinator"}
	for _, s := range append(fullnode.Shapes(nil), fullnode.Shape{Name: "usual", Fill: usual}, fullnode.Shape{Name: "bound", Fill: func(n *corev1.Node) {
		usual(n)
		for i := 0; len(n.Labels) < manifests.MaxKeys; i++ {
			n.Labels[fmt.Sprintf("example.com/%d", i)] = ""
		}
		for i := 0; len(n.Annotations) < manifests.MaxKeys-1; i++ {
			n.Annotations[fmt.Sprintf("example.com/%d", i)] = ""
		}
		// One tool has written all of them, and as many others as the API server tells apart a few.
		fields := func(keys map[string]string) string {
			return `{"f:` + strings.Join(slices.Sorted(maps.Keys(keys)), `":{},"f:`) + `":{}}`
		}
		for i := range 20 {
			e := metav1.ManagedFieldsEntry{Manager: fmt.Sprint("m", i), Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:example.com/x":{}}}}`)}
			if i == 19 {
				e.FieldsV1 = metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":` + fields(n.Annotations) + `,"f:labels":` + fields(n.Labels) + `}}`)
			}
			n.ManagedFields = append(n.ManagedFields, e)
		}
	}}) {
		old := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		s.Fill(old)
		promoted := *old
		promoted.Labels, promoted.Annotations = clone(old.Labels), clone(old.Annotations)
		promoted.Labels[v1alpha1.LabelState], promoted.Annotations[v1alpha1.AnnotationTurn] = "rebooting", "t1"
		judged := !slices.Contains([]string{"annotations", "labels", "both"}, s.Name)
		if passed := policyWithin(t, policies, names, s.Name+": promote", &write{user: leader, resource: nodes, kind: policyNode, old: old, new: &promoted},
			func(*cost) float64 { return mostReading }); passed != judged {
			t.Errorf("%s: passed: %t, expected %t", s.Name, passed, judged)
		}
	}

	// Anyone who may patch a Node can write any managedFields: an entry without a manager, or hundreds of entries of tools that apply it.
	for _, m := range []struct {
		entries int
		manager string
		passed  bool
	}{{1, "", true}, {manifests.MaxManagers, "m", true}, {manifests.MaxManagers + 1, "m", false}, {600, "m", false}} {
		old := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		usual(old)
		for i := range m.entries {
			e := metav1.ManagedFieldsEntry{Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:example.com/x":{}}}}`)}
			if m.manager != "" {
				e.Manager = fmt.Sprint(m.manager, i)
			}
			old.ManagedFields = append(old.ManagedFields, e)
		}
		promoted := old.DeepCopy()
		promoted.Labels[v1alpha1.LabelState] = "rebooting"
		if passed := policyWithin(t, policies, names, fmt.Sprintf("%d managers %q", m.entries, m.manager), &write{user: leader, resource: nodes, kind: policyNode, old: old, new: promoted},
			func(*cost) float64 { return 2 * mostReading }); passed != m.passed {
			t.Errorf("%d managers %q: passed: %t, expected %t", m.entries, m.manager, passed, m.passed)
		}
	}

	// A pause that ends, as long as one may be, on a Node that as many have written as the API server tells apart.
	paused := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	usual(paused)
	const end = `","until":"2020-01-01T00:00:00Z"}`
	paused.Annotations[v1alpha1.AnnotationPaused] = `{"reason":"` + strings.Repeat("x", 32<<10-len(end)-11) + end
	ended := *paused
	ended.Annotations = maps.Clone(paused.Annotations)
	delete(ended.Annotations, v1alpha1.AnnotationPaused)
	ended.Annotations[v1alpha1.AnnotationExpired] = "2026-01-01T00:00:00.5Z"
	for i := range 20 {
		e := metav1.ManagedFieldsEntry{Manager: fmt.Sprint("m", i), Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:example.com/x":{}}}}`), Time: new(metav1.Now())}
		if i > 0 {
			paused.ManagedFields = append(paused.ManagedFields, e)
		} else {
			e.Manager, e.FieldsV1 = "lockkeeper-coordinator", metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:lockkeeper.dev/expired":{}}}}`)
		}
		ended.ManagedFields = append(ended.ManagedFields, e)
	}
	if !policyWithin(t, policies, names, "a long pause ends", &write{user: leader, resource: nodes, kind: policyNode, old: paused, new: &ended},
		func(*cost) float64 { return mostAsking }) {
		t.Error("the end of a long pause is refused")
	}
}

// TestCoordinatorsOthers measures what else the coordinator writes.
func TestCoordinatorsOthers(t *testing.T) {
	policies, err := compileAll(0)
	if err != nil {
		t.Fatal(err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "lockkeeper", Annotations: map[string]string{v1alpha1.AnnotationStop: strings.Repeat("x", 200<<10)}}}
	for i := range 20 {
		lease.ManagedFields = append(lease.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: fmt.Sprint("m", i), Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "coordination.k8s.io/v1", FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:example.com/x":{}}}}`),
		})
	}
	if !policyWithin(t, policies, []string{"lockkeeper-coordinator-lease"}, "renew the Lease", &write{
		user: leader, resource: schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
		kind: schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}, old: lease, new: lease.DeepCopy(),
	}, everyone) {
		t.Error("a renewal is refused")
	}
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{"https://kubernetes.default.svc.cluster.local"}, ExpirationSeconds: new(int64(v1alpha1.MaxTokenLifetime / time.Second)),
	}}
	if !policyWithin(t, policies, []string{"lockkeeper-coordinator-token"}, "renew the token", &write{
		user: leader, resource: schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}, subresource: "token",
		kind: schema.GroupVersionKind{Group: "authentication.k8s.io", Version: "v1", Kind: "TokenRequest"}, new: token,
	}, everyone) {
		t.Error("a renewal is refused")
	}
}

// TestPolicyWriters measures what a team writes: a policy with as many rules as one can have, for 500 nodes by name.
func TestPolicyWriters(t *testing.T) {
	all, err := compileAll(0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range 500 {
		names = append(names, fmt.Sprintf("node-%04d.rack-7.berlin.example.com", i))
	}
	team := teamPolicy(metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: corev1.LabelHostname, Operator: metav1.LabelSelectorOpIn, Values: names}}})
	for i := range 100 {
		team.Spec.Rules = append(team.Spec.Rules, v1alpha1.Rule{Source: v1alpha1.SourceFile, Path: fmt.Sprint("/", i), Actions: []v1alpha1.Action{{Type: v1alpha1.ActionNone}}})
	}
	if !policyWithin(t, all, []string{"lockkeeper-policies"}, "100 rules", &write{
		user: "tess", resource: v1alpha1.PolicyResource, kind: v1alpha1.GroupVersion.WithKind("DisruptionPolicy"), old: team, new: team.DeepCopy(),
	}, func(c *cost) float64 { return max(everyone(c), mostReading) }) {
		t.Error("a team's change to its rules is refused")
	}
}
