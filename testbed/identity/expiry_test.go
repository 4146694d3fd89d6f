package identity

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// What the coordinator's policy answers to a pause that is removed too early.
const tooEarly = "the coordinator removes a pause or a detach only after its until"

// What it answers to made-up managedFields.
const notTheirs = "the coordinator does not record that others manage what they do not"

// leaderName is the coordinator's in managedFields.
var leaderName = kube.FieldManager("coordinator")

// ends is a patch that removes the pause and says so, with managedFields of its own if it has any.
func ends(expired string, managers ...metav1.ManagedFieldsEntry) string {
	meta := map[string]any{"annotations": map[string]any{v1alpha1.AnnotationPaused: nil, v1alpha1.AnnotationExpired: expired}}
	if managers != nil {
		meta["managedFields"] = managers
	}
	return object2json(map[string]any{"metadata": meta})
}

func object2json(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// claims is an entry of managedFields from the far future that owns the two annotations, and a field that no request changes, so
// that the API server does not drop it.
func claims(manager string, change ...func(*metav1.ManagedFieldsEntry)) metav1.ManagedFieldsEntry {
	e := metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
		Time:     new(metav1.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)),
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:lockkeeper.dev/expired":{},"f:lockkeeper.dev/paused":{}}},"f:spec":{"f:podCIDR":{}}}`),
	}
	for _, c := range change {
		c(&e)
	}
	return e
}

// crowd are more entries than the API server keeps apart. It merges the oldest, which here is the request's own, with the next ones.
func crowd() []metav1.ManagedFieldsEntry {
	var all []metav1.ManagedFieldsEntry
	for i := range 12 {
		all = append(all, claims(fmt.Sprint("m", i)))
	}
	return all
}

// An expiryAttack tries to remove the pause of a Node whose until is in 2099. What it does before may be refused too.
type expiryAttack struct {
	name string
	do   func(ctx context.Context, t *testing.T, c kubernetes.Interface, node string) error
}

// attack is one request.
func attack(kind types.PatchType, manager, body string) func(context.Context, *testing.T, kubernetes.Interface, string) error {
	return func(ctx context.Context, _ *testing.T, c kubernetes.Interface, node string) error {
		_, err := c.CoreV1().Nodes().Patch(ctx, node, kind, []byte(strings.ReplaceAll(body, "NODE", node)), metav1.PatchOptions{FieldManager: manager, DryRun: dryRun})
		return err
	}
}

var expiryAttacks = []expiryAttack{
	{"remove it", attack(types.MergePatchType, leaderName, annotation(v1alpha1.AnnotationPaused, "null"))},
	{"remove it and say so", attack(types.MergePatchType, leaderName, ends("now"))},
	{"say so before", func(ctx context.Context, t *testing.T, c kubernetes.Interface, node string) error {
		must(t, really(c, node, annotation(v1alpha1.AnnotationExpired, `"before"`)))
		return attack(types.MergePatchType, leaderName, annotation(v1alpha1.AnnotationPaused, "null"))(ctx, t, c, node)
	}},
	{"forge an owner", attack(types.MergePatchType, leaderName, ends("now", claims("other")))},
	{"forge an entry of its own", attack(types.MergePatchType, leaderName, ends("now", claims(leaderName)))},
	{"forge an applier of its own name", attack(types.MergePatchType, leaderName, ends("now", claims(leaderName, func(e *metav1.ManagedFieldsEntry) {
		e.Operation = metav1.ManagedFieldsOperationApply
	})))},
	{"forge a subresource's entry of its own name", attack(types.MergePatchType, leaderName, ends("now", claims(leaderName, func(e *metav1.ManagedFieldsEntry) { e.Subresource = "status" })))},
	{"forge an entry of another version", attack(types.MergePatchType, leaderName, ends("now", claims(leaderName, func(e *metav1.ManagedFieldsEntry) { e.APIVersion = "v2" })))},
	{"forge an entry of another kind's version", attack(types.MergePatchType, leaderName, ends("now", claims(leaderName, func(e *metav1.ManagedFieldsEntry) { e.APIVersion = "apps/v1" })))},
	{"forge an entry that owns something inside of the annotation", attack(types.MergePatchType, leaderName, ends("now", claims(leaderName, func(e *metav1.ManagedFieldsEntry) {
		e.Subresource, e.FieldsV1 = "status", metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:lockkeeper.dev/expired":{"f:x":{}}}}}`)
	})))},
	{"forge so many that the API server merges", attack(types.MergePatchType, leaderName, ends("now", crowd()...))},
	{"the same under a name of its own", attack(types.MergePatchType, "m0", ends("now", crowd()...))},
	{"the same under the API server's name for merged entries", attack(types.MergePatchType, "ancient-changes", ends("now", crowd()...))},
	{"the same in a strategic merge patch", attack(types.StrategicMergePatchType, leaderName, ends("now", crowd()...))},
	{"the same in a JSON patch", attack(types.JSONPatchType, leaderName, object2json([]map[string]any{
		{"op": "remove", "path": "/metadata/annotations/lockkeeper.dev~1paused"}, {"op": "add", "path": "/metadata/annotations/lockkeeper.dev~1expired", "value": "now"},
		{"op": "add", "path": "/metadata/managedFields", "value": crowd()}}))},
	{"the same in an update", func(ctx context.Context, _ *testing.T, c kubernetes.Interface, node string) error {
		for {
			n, err := c.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			delete(n.Annotations, v1alpha1.AnnotationPaused)
			n.Annotations[v1alpha1.AnnotationExpired] = "now"
			n.ManagedFields = crowd()
			_, err = c.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{FieldManager: leaderName, DryRun: dryRun})
			if !apierrors.IsConflict(err) { // with a controller that taints the new Node
				return err
			}
		}
	}},
	{"write what is there already, with a forged owner", func(ctx context.Context, t *testing.T, c kubernetes.Interface, node string) error {
		must(t, really(c, node, annotation(v1alpha1.AnnotationExpired, `"again"`)))
		return attack(types.MergePatchType, leaderName, ends("again", claims(leaderName)))(ctx, t, c, node)
	}},
	{"twice in one second, with a forged owner", func(ctx context.Context, t *testing.T, c kubernetes.Interface, node string) error {
		// Wherever the second begins, two of these are in the same one.
		var err error
		for i := range 4 {
			_, err = c.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(annotation(v1alpha1.AnnotationExpired, fmt.Sprintf(`"%d"`, i))), metav1.PatchOptions{FieldManager: leaderName})
			must(t, err)
			if err = attack(types.MergePatchType, leaderName, ends("now", claims(leaderName), claims("other")))(ctx, t, c, node); err == nil {
				return nil
			}
		}
		return err
	}},
	{"make managedFields be forgotten", attack(types.MergePatchType, leaderName, `{"metadata":{"managedFields":[{}],"annotations":{"lockkeeper.dev/paused":null,"lockkeeper.dev/expired":"now"}}}`)},
	{"make managedFields be forgotten before", func(ctx context.Context, t *testing.T, c kubernetes.Interface, node string) error {
		must(t, really(c, node, `{"metadata":{"managedFields":[{}]}}`))
		return attack(types.MergePatchType, leaderName, ends("now"))(ctx, t, c, node)
	}},
	{"keep the API server from recording the write, after forging an entry of its own", func(ctx context.Context, t *testing.T, c kubernetes.Interface, node string) error {
		_, err := c.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(object2json(map[string]any{"metadata": map[string]any{
			"labels": map[string]any{v1alpha1.LabelHeld: "Budget"}, "managedFields": []metav1.ManagedFieldsEntry{claims(leaderName)},
		}})), metav1.PatchOptions{FieldManager: "other"})
		if err != nil {
			return err
		}
		// The API server cannot convert the Node to this version. Since 1.37 it then keeps the entries that were there.
		return attack(types.MergePatchType, leaderName, ends("now", claims(leaderName), claims("other", func(e *metav1.ManagedFieldsEntry) { e.APIVersion = "a/b/c" })))(ctx, t, c, node)
	}},
	{"apply without it, after forging that it was applied with it", func(ctx context.Context, t *testing.T, c kubernetes.Interface, node string) error {
		if err := really(c, node, object2json(map[string]any{"metadata": map[string]any{
			"annotations":   map[string]any{v1alpha1.AnnotationExpired: "before"},
			"managedFields": []metav1.ManagedFieldsEntry{claims(leaderName, func(e *metav1.ManagedFieldsEntry) { e.Operation = metav1.ManagedFieldsOperationApply })},
		}})); err != nil {
			return err
		}
		n, err := c.CoreV1().Nodes().Patch(ctx, node, types.ApplyPatchType, []byte(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"`+node+`","annotations":{"lockkeeper.dev/expired":"now"}}}`),
			metav1.PatchOptions{FieldManager: leaderName, Force: new(true), DryRun: dryRun})
		if err == nil {
			if _, kept := n.Annotations[v1alpha1.AnnotationPaused]; kept {
				t.Error("the apply keeps the pause: it is no attack")
			}
		}
		return err
	}},
	{"write a status", func(ctx context.Context, _ *testing.T, c kubernetes.Interface, node string) error {
		_, err := c.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(ends("now", crowd()...)), metav1.PatchOptions{FieldManager: leaderName, DryRun: dryRun}, "status")
		return err
	}},
}

// pausedNode makes a Node with a pause.
func pausedNode(t *testing.T, name, payload string) {
	t.Helper()
	_, err := cp.Client().CoreV1().Nodes().Create(t.Context(), newNode(name, nil, map[string]string{v1alpha1.AnnotationPaused: payload}), metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, cp.Client().CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}))
	})
}

// TestPausesEnd has the coordinator remove pauses that have ended, and none that has not, whatever their text.
func TestPausesEnd(t *testing.T) {
	fixture(t)
	leader := asCoordinator(t)
	now := time.Now()
	east, west := time.FixedZone("", 14*60*60), time.FixedZone("", -11*60*60)
	for i, c := range []struct {
		text  string
		ended bool
	}{
		{`{"until":"2020-01-01T00:00:00Z"}`, true},
		{`{"reason":"disk","by":"ann","until":"2020-01-01T00:00:00Z","force":false}`, true},
		{` { "reason" : "\u003c\"quoted\"\\" , "until" : "2020-01-01T00:00:00.123456789+05:30" } `, true},
		{`{"until":"` + now.Add(-time.Hour).In(east).Format(time.RFC3339Nano) + `"}`, true}, // tomorrow's date
		{`{"until":"` + now.Add(-time.Hour).In(west).Format(time.RFC3339Nano) + `"}`, true},

		{`{"until":"` + now.Add(time.Hour).In(west).Format(time.RFC3339Nano) + `"}`, false}, // yesterday's date
		{`{"until":"` + now.Add(time.Hour).In(east).Format(time.RFC3339Nano) + `"}`, false},
		{`{"until":"2020-01-01T00:00:00Z","until":"2099-01-01T00:00:00Z"}`, false},
		{`{"until":"2099-01-01T00:00:00Z","until":"2020-01-01T00:00:00Z"}`, false},
		{`{"reason":"x"}`, false},
		{`{}`, false},
		{``, false},
		{`disk change`, false},
		{`"until": "2020-01-01T00:00:00Z"`, false},
		{`see "until":"2020-01-01T00:00:00Z"`, false},
		{`{"reason":"\"until\":\"2020-01-01T00:00:00Z\""}`, false},
		{`{"reason":"\"until","by":":\"2020-01-01T00:00:00Z"}`, false},
		{`{"reason":"until","by":"2020-01-01T00:00:00Z"}`, false},
		{`{"\u0075ntil":"2099-01-01T00:00:00Z","until":"2020-01-01T00:00:00Z"}`, false},
		{`{"Until":"2099-01-01T00:00:00Z","until":"2020-01-01T00:00:00Z"}`, false},
		{`{"until":"2020-01-01T00:00:00Z","other":1}`, false},
		{`{"until":"2020-01-01T00:00:00Z"} x`, false},
		{`[{"until":"2020-01-01T00:00:00Z"}]`, false},
		{`{"until":"2020-13-01T00:00:00Z"}`, false}, // no date
		{`{"until":"2020-01-01"}`, false},
		{`{"until":null}`, false},
		{`{"until":"0000-01-01T00:00:00Z"}`, false}, // which CEL cannot read
	} {
		name := fmt.Sprint("end-", i)
		pausedNode(t, name, c.text)
		// What the policy reads as ended is what the coordinator reads as ended.
		intent, _ := v1alpha1.ParseIntent(c.text)
		if ended := intent.Until != nil && intent.Until.Before(now); c.ended && !ended {
			t.Errorf("%s: the coordinator does not take it for ended", c.text)
		}
		err := attack(types.MergePatchType, leaderName, ends("now"))(t.Context(), t, leader, name)
		if c.ended && err != nil || !c.ended && refusedBy(err) != coordinator {
			t.Errorf("%s: ended: %t: %v", c.text, c.ended, err)
		}
		// A detach ends like a pause.
		must(t, really(cp.Client(), name, object2json(map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationPaused: nil, v1alpha1.AnnotationDetached: c.text}}})))
		err = attack(types.MergePatchType, leaderName, `{"metadata":{"annotations":{"lockkeeper.dev/detached":null,"lockkeeper.dev/expired":"now"}}}`)(t.Context(), t, leader, name)
		if c.ended && err != nil || !c.ended && refusedBy(err) != coordinator {
			t.Errorf("detached %s: ended: %t: %v", c.text, c.ended, err)
		}
	}

	// The coordinator's other writes do not delay it, though they have the same name and time in managedFields.
	for i := range 4 { // wherever the second begins, one of these is in the same one
		name := fmt.Sprint("end-at-once-", i)
		pausedNode(t, name, `{"until":"2020-01-01T00:00:00Z"}`)
		for _, patch := range []string{label(v1alpha1.LabelHeld, `"Budget"`), ends("now")} {
			_, err := leader.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: leaderName})
			must(t, err)
		}
	}

	// It ends when its time comes, not before.
	end := time.Now().Add(3 * time.Second)
	pausedNode(t, "end-soon", `{"until":"`+end.Format(time.RFC3339Nano)+`"}`)
	until(t, "the pause to end", func() (bool, error) {
		err := attack(types.MergePatchType, leaderName, ends("now"))(t.Context(), t, leader, "end-soon")
		if err == nil && time.Now().Before(end) {
			t.Errorf("it ends %s before its time", time.Until(end))
		}
		return err == nil, err
	})
}

// TestPausesDoNotEnd sends every attack on a pause until 2099.
func TestPausesDoNotEnd(t *testing.T) {
	fixture(t)
	// The policy has to hold whatever RBAC allows.
	person(t, controlplane.CoordinatorUser, "", "nodes", "update")
	person(t, controlplane.CoordinatorUser, "", "nodes/status", "patch")
	leader := asCoordinator(t)
	for i, a := range expiryAttacks {
		name := fmt.Sprint("never-", i)
		pausedNode(t, name, `{"until":"2099-01-01T00:00:00Z"}`)
		if err := a.do(t.Context(), t, leader, name); refusedBy(err) != coordinator {
			t.Errorf("%s: refused by %q: %v", a.name, refusedBy(err), err)
		}
	}
}

// TestWeakExpiryRules weakens the rule in each of the ways that seem to do, and sees an attack succeed.
func TestWeakExpiryRules(t *testing.T) {
	fixture(t)
	leader := asCoordinator(t)
	byName := func(name string) expiryAttack {
		i := slices.IndexFunc(expiryAttacks, func(a expiryAttack) bool { return a.name == name })
		if i < 0 {
			t.Fatalf("no attack %q", name)
		}
		return expiryAttacks[i]
	}
	simple := byName("remove it and say so")
	defer func() {
		must(t, change(t.Context(), slices.Collect(maps.Values(shipped(t)))...))
		until(t, "the policy to be as before", func() (bool, error) {
			err := node("id-c", prepared)(t.Context(), leader)
			return refusedBy(err) == coordinator, err
		})
	}()
	for i, w := range []struct {
		without, with string // in the expression
		payload       string
		attack        expiryAttack
		newest        bool // the attack does not work on an older minor of Kubernetes
	}{
		{`e.?manager.orValue("") == "lockkeeper-coordinator" &&`, ``, `{"until":"2099-01-01T00:00:00Z"}`, byName("forge so many that the API server merges"), false},
		{`"lockkeeper.dev/expired" in variables.set &&`, ``, `{"until":"2099-01-01T00:00:00Z"}`, byName("write what is there already, with a forged owner"), false},
		{`!oldObject.metadata.?managedFields.orValue([]).exists(o, o.?manager == e.?manager && o.?time == e.?time ` +
			`&& dyn(o).?fieldsV1[?"f:metadata"][?"f:annotations"][?"f:lockkeeper.dev/expired"].hasValue()) &&`, ``, `{"until":"2099-01-01T00:00:00Z"}`,
			byName("keep the API server from recording the write, after forging an entry of its own"), true},
		{`variables.stamps.all(e,`, `variables.stamps.exists(e,`, `{"until":"2099-01-01T00:00:00Z"}`, byName("forge an entry that owns something inside of the annotation"), false},
		{`variables.stamps.size() > 0 &&`, ``, `{"until":"2099-01-01T00:00:00Z"}`, byName("make managedFields be forgotten"), false},
		{`variables.oldAnnotations[k].matches(variables.intentForm) &&`, ``, `{"\u0075ntil":"2099-01-01T00:00:00Z","until":"2020-01-01T00:00:00Z"}`, simple, false},
		{`variables.oldAnnotations[k].findAll(r'"until"\s*:\s*"').size() > 0 &&`, ``, `{"reason":"x"}`, simple, false},
		{`.all(u,`, `.exists(u,`, `{"until":"2020-01-01T00:00:00Z","until":"2099-01-01T00:00:00Z"}`, simple, false},
	} {
		if w.newest && os.Getenv(controlplane.Minor) != "" {
			continue
		}
		p := shipped(t)["lockkeeper-coordinator"]
		weakened := false
		for i := range p.Spec.Validations {
			v := &p.Spec.Validations[i]
			if v.Message == notTheirs {
				v.Expression = "true" // it would refuse some of the attacks too
			}
			if !strings.HasPrefix(v.Message, tooEarly) {
				continue
			}
			folded := strings.Join(strings.Fields(v.Expression), " ")
			v.Expression = strings.Replace(folded, w.without, w.with, 1)
			weakened = weakened || v.Expression != folded
		}
		if !weakened {
			t.Fatalf("the rule has no %s", w.without)
		}
		name := fmt.Sprint("weak-", i)
		pausedNode(t, name, w.payload)
		// With another rule weakened, or none yet, it is refused.
		if err := w.attack.do(t.Context(), t, leader, name); !strings.Contains(fmt.Sprint(err), tooEarly) && !strings.Contains(fmt.Sprint(err), notTheirs) {
			t.Errorf("%s: %s: %v", w.payload, w.attack.name, err)
		}
		must(t, change(t.Context(), p))
		until(t, w.attack.name+" to succeed without "+w.without, func() (bool, error) {
			err := w.attack.do(t.Context(), t, leader, name)
			return err == nil, err
		})
	}
}
