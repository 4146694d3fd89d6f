package identity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/packaging/manifests"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// A rule is a match condition or a validation of a policy, with a request that depends on it alone.
//
// A validation refuses the request, which passes without it. A match condition lets the request pass, which the policy refuses
// without it.
type rule struct {
	policy string
	// condition is the name of the match condition, "" for a validation.
	condition string
	// message is what the validation answers, or for a match condition what the policy answers without it.
	message string
	client  kubernetes.Interface
	do      do
}

func (r *rule) String() string {
	return strings.TrimSpace(r.policy + ": " + r.condition + " " + r.message)
}

// rules are all of the manifests, by hand.
func rules(t *testing.T) []rule {
	admin, leader, pat, olga := cp.Client(), asCoordinator(t), asUser(t, "pat"), asUser(t, "olga")
	agent, host := asUser(t, "agent"), asHost(t, "id-a")
	tess := asUser(t, "tess")
	expire := func(name string) do {
		return nodeAs("lockkeeper-coordinator", name, `{"metadata":{"annotations":{"lockkeeper.dev/paused":null,"lockkeeper.dev/expired":"now"}}}`)
	}
	return []rule{
		{"lockkeeper-keys", "is-not-the-coordinator", "written by lockkeeper alone: lockkeeper.dev/held", leader, node("id-a", label("lockkeeper.dev/held", `"Budget"`))},
		{"lockkeeper-keys", "changes-a-key", "through nodes/status, only the Node's own host changes lockkeeper's keys", agent, status("id-a", `{"status":{"conditions":[{"type":"KernelDeadlock","status":"False"}]}}`)},
		{"lockkeeper-keys", "", "through nodes/status, only the Node's own host changes lockkeeper's keys", agent, status("id-b", annotation("lockkeeper.dev/paused", `"x"`))},
		{"lockkeeper-keys", "", "not for a host to change: lockkeeper.dev/paused", host, node("id-a", annotation("lockkeeper.dev/paused", "null"))},
		{"lockkeeper-keys", "", "written by lockkeeper alone: lockkeeper.dev/state", admin, node("id-c", label("lockkeeper.dev/state", `"idle"`))},
		{"lockkeeper-keys", "", "removing what lockkeeper wrote needs the verb override on nodes.lockkeeper.dev: lockkeeper.dev/state", pat, node("id-a", label("lockkeeper.dev/state", "null"))},
		{"lockkeeper-keys", "", "changing lockkeeper.dev/paused needs the verb pause on nodes.lockkeeper.dev", olga, node("id-b", annotation("lockkeeper.dev/paused", `"x"`))},
		{"lockkeeper-keys", "", "changing lockkeeper.dev/detached needs the verb detach on nodes.lockkeeper.dev", olga, node("id-b", annotation("lockkeeper.dev/detached", "null"))},
		{"lockkeeper-keys", "", "changing lockkeeper.dev/managed needs the verb manage on nodes.lockkeeper.dev", olga, node("id-a", label("lockkeeper.dev/managed", `"false"`))},
		{"lockkeeper-keys", "", "changing lockkeeper.dev/request needs the verb request on nodes.lockkeeper.dev", olga, node("id-b", annotation("lockkeeper.dev/request", `"reboot"`))},
		{"lockkeeper-keys", "", "changing lockkeeper.dev/request-now needs the verb request-now on nodes.lockkeeper.dev", olga, node("id-b", annotation("lockkeeper.dev/request-now", `"reboot"`))},
		{"lockkeeper-keys", "", "changing lockkeeper.dev/retry needs the verb retry on nodes.lockkeeper.dev", olga, node("id-a", annotation("lockkeeper.dev/retry", `"t1"`))},
		{"lockkeeper-keys", "", "confirming a hook that the turn waits for needs the verb confirm on nodes.lockkeeper.dev", pat, node("id-a", annotation("hook.lockkeeper.dev/backup", `"t2"`))},

		{"lockkeeper-prefixes", "is-not-the-coordinator", "changing annotations under hook.lockkeeper.dev/ needs the verb confirm on nodes.lockkeeper.dev", leader, node("id-b", annotation("hook.lockkeeper.dev/old", "null"))},
		{"lockkeeper-prefixes", "is-not-a-host-that-joins", "not keys of lockkeeper: lockkeeper.dev/puased", asHost(t, "id-new"), create(newNode("id-new", map[string]string{"lockkeeper.dev/puased": "x"}, nil))},
		{"lockkeeper-prefixes", "", "no hook is confirmed through nodes/status", agent, status("id-c", annotation("hook.lockkeeper.dev/x", `"x"`))},
		{"lockkeeper-prefixes", "", "changing annotations under hook.lockkeeper.dev/ needs the verb confirm on nodes.lockkeeper.dev", pat, node("id-c", annotation("hook.lockkeeper.dev/x", `"x"`))},
		{"lockkeeper-prefixes", "", "not keys of lockkeeper: lockkeeper.dev/puased", admin, node("id-c", annotation("lockkeeper.dev/puased", `"x"`))},

		{"lockkeeper-owners", "", "only those who may delete a Node change its ownerReferences", pat, node("id-a", owned)},

		{"lockkeeper-coordinator", "is-the-coordinator", "labels not for the coordinator to change: example.com/rack", admin, node("id-a", label("example.com/rack", `"7"`))},
		{"lockkeeper-coordinator", "", "the coordinator creates no Node and writes no Node's status", leader, status("id-a", `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`)},
		{"lockkeeper-coordinator", "", "this Node has more than 2000 labels or annotations", leader, node("id-crowded", label("lockkeeper.dev/held", `"Budget"`))},
		{"lockkeeper-coordinator", "", "labels not for the coordinator to change: example.com/rack", leader, node("id-a", label("example.com/rack", `"7"`))},
		{"lockkeeper-coordinator", "", "annotations not for the coordinator to set: lockkeeper.dev/request", leader, node("id-b", annotation("lockkeeper.dev/request", `"reboot"`))},
		{"lockkeeper-coordinator", "", "annotations not for the coordinator to remove are among these: example.com/keep", leader, node("id-b", annotation("example.com/keep", "null"))},
		{"lockkeeper-coordinator", "", "the coordinator removes a pause or a detach only after its until", leader, expire("id-c")},
		{"lockkeeper-coordinator", "", "the coordinator changes labels and annotations only", leader, node("id-c", `{"spec":{"unschedulable":true}}`)},
		{"lockkeeper-coordinator", "", "the coordinator does not record that others manage what they do not", leader, node("id-c", prepared)},

		{"lockkeeper-coordinator-lease", "is-the-coordinator", "the coordinator changes only the spec of a Lease", admin, patchLease},
		{"lockkeeper-coordinator-lease", "", "the coordinator changes only the spec of a Lease", leader, changeLease(func(l *coordinationv1.Lease) {
			l.Annotations = nil // all of them: who manages an annotation that is left might change
		})},
		{"lockkeeper-coordinator-lease", "", "the coordinator does not change who manages the metadata of a Lease", leader, changeLease(trap)},

		{"lockkeeper-hostupdates", "", "a host writes only the HostUpdate of its own Node", asHost(t, "id-b"), hostUpdate("id-a", label("example.com/rack", `"7"`))},
		{"lockkeeper-hostupdates", "", "only the Node's own host writes the status of its HostUpdate", admin, hostUpdate("id-a", `{"status":{"wants":"nothing"}}`)},
		{"lockkeeper-hostupdates", "", "the owner of a HostUpdate is the Node of the same name", host, hostUpdate("id-a", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"id-b","uid":"u"}]}}`)},
		{"lockkeeper-hostupdates", "", "a host changes no labels, annotations or finalizers of its HostUpdate", host, hostUpdate("id-a", label("example.com/rack", `"7"`))},

		{"lockkeeper-policies", "is-not-the-garbage-collector", "writing or deleting a policy without rulesOnly needs the verb rollout",
			asUser(t, "system:serviceaccount:kube-system:generic-garbage-collector"), deletePolicyAs("theirs")},
		{"lockkeeper-policies", "", "spec.nodeSelector has keys that no label can have: not a key; expected", admin, createPolicyAs("mine", `{"nodeSelector":{"matchLabels":{"not a key":"x"}}}`)},
		{"lockkeeper-policies", "", "spec.nodeSelector has values that no label can have: a b; expected", admin, createPolicyAs("mine", `{"nodeSelector":{"matchLabels":{"pool":"a b"}}}`)},
		{"lockkeeper-policies", "", "writing or deleting a policy without rulesOnly needs the verb rollout", tess, createPolicyAs("mine", `{"priority":-10}`)},
		{"lockkeeper-policies", "", "a policy with rulesOnly and a priority of 0 or more needs the verb rollout", tess, deletePolicyAs("ranked")},
		{"lockkeeper-policies", "", "rules for OSUpdate, Sentinel, Request and FleetLock need the verb rollout", tess, deletePolicyAs("held-back")},

		{"lockkeeper-coordinator-token", "is-the-coordinator", "the coordinator's token is valid for at most 365 days", admin, mint("default", 2*v1alpha1.MaxTokenLifetime)},
		{"lockkeeper-coordinator-token", "", "the coordinator's token is valid for at most 365 days", leader, mint(v1alpha1.CoordinatorServiceAccount, v1alpha1.MaxTokenLifetime+time.Second)},
		{"lockkeeper-coordinator-token", "", "the coordinator asks for no token for sts.example.com; lockkeeper manifests --audience names what it may ask for", leader, mint(v1alpha1.CoordinatorServiceAccount, time.Hour, "sts.example.com")},
	}
}

// trap has the next server-side apply of the manifests lift the emergency stop: it records the applier of the manifests as the owner of its annotation.
func trap(l *coordinationv1.Lease) {
	l.ManagedFields = append(l.ManagedFields, metav1.ManagedFieldsEntry{
		Manager: "kubectl", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "coordination.k8s.io/v1", FieldsType: "FieldsV1",
		Time: new(metav1.Now()), FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:lockkeeper.dev/paused":{}}}}`),
	})
}

// shipped are the policies as the manifests have them.
func shipped(t *testing.T) map[string]*admissionv1.ValidatingAdmissionPolicy {
	t.Helper()
	text, err := manifests.Render(manifests.Options{})
	must(t, err)
	all := map[string]*admissionv1.ValidatingAdmissionPolicy{}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4<<10)
	for {
		p := &admissionv1.ValidatingAdmissionPolicy{}
		if err := decoder.Decode(p); errors.Is(err, io.EOF) {
			return all
		} else {
			must(t, err)
		}
		if p.Kind == "ValidatingAdmissionPolicy" {
			all[p.Name] = p
		}
	}
}

// remove takes a rule out of its policy, and reports where it was.
func (r *rule) remove(p *admissionv1.ValidatingAdmissionPolicy) (at string, err error) {
	if r.condition != "" {
		for i, c := range p.Spec.MatchConditions {
			if c.Name == r.condition {
				p.Spec.MatchConditions = append(p.Spec.MatchConditions[:i:i], p.Spec.MatchConditions[i+1:]...)
				return fmt.Sprintf("%s: match condition %d", p.Name, i), nil
			}
		}
		return "", fmt.Errorf("%s has no such match condition", r)
	}
	found := -1
	for i, v := range p.Spec.Validations {
		text := v.Message
		if v.MessageExpression != "" {
			text = strings.Split(v.MessageExpression, `"`)[1] // what it begins with
		}
		if strings.HasPrefix(r.message, text) || strings.HasPrefix(text, r.message) {
			if found >= 0 {
				return "", fmt.Errorf("%s is the message of two validations", r)
			}
			found = i
		}
	}
	if found < 0 {
		return "", fmt.Errorf("%s has no such validation", r)
	}
	p.Spec.Validations[found].Expression = "true" // for there has to be one
	return fmt.Sprintf("%s: validation %d", p.Name, found), nil
}

// refused reports whether a request is refused by a rule's policy with its message.
func (r *rule) refused(err error) bool {
	return refusedBy(err) == policyLayer+r.policy && strings.Contains(err.Error(), r.message)
}

// change has the API server use these policies. The tests see from their requests when it does.
func change(ctx context.Context, policies ...*admissionv1.ValidatingAdmissionPolicy) error {
	client := cp.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies()
	for _, p := range policies {
		old, err := client.Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		old.Spec = p.Spec
		if _, err := client.Update(ctx, old, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// crowded makes the Node id-crowded, which has more annotations than the policies read.
func crowded(t *testing.T) {
	t.Helper()
	many := map[string]string{}
	for i := range manifests.MaxKeys + 1 {
		many[fmt.Sprintf("example.com/%d", i)] = ""
	}
	_, err := cp.Client().CoreV1().Nodes().Create(t.Context(), newNode("id-crowded", nil, many), metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, cp.Client().CoreV1().Nodes().Delete(context.Background(), "id-crowded", metav1.DeleteOptions{}))
	})
}

// TestRules takes each rule out of the policies, the others left in, and sees that it alone decides about its request.
func TestRules(t *testing.T) {
	fixture(t)
	people(t)
	crowded(t)
	// RBAC lets the coordinator write no status; the policy would not either.
	person(t, controlplane.CoordinatorUser, "", "nodes/status", "patch")

	// Rules of different policies are taken out side by side: match conditions with each other, and validations with each other. Without
	// its match condition the coordinator's policy refuses most writes of everyone, so that is done alone.
	byRound := map[string][]rule{}
	count := map[string]int{}
	for _, r := range rules(t) {
		err := r.do(t.Context(), r.client)
		if r.condition != "" && err != nil || r.condition == "" && !r.refused(err) {
			t.Errorf("%s: refused by %q: %v", &r, refusedBy(err), err)
		}
		kind := "validation"
		if r.condition != "" {
			kind = "condition"
		}
		if r.condition == "is-the-coordinator" && r.policy == "lockkeeper-coordinator" {
			kind = "alone"
		}
		at := fmt.Sprintf("%s %02d", kind, count[kind+r.policy])
		count[kind+r.policy]++
		byRound[at] = append(byRound[at], r)
	}
	if t.Failed() {
		t.FailNow()
	}
	defer func() {
		must(t, change(t.Context(), slices.Collect(maps.Values(shipped(t)))...))
		for _, r := range rules(t) {
			until(t, r.String()+": to be as before", func() (bool, error) {
				err := r.do(t.Context(), r.client)
				return r.condition != "" && err == nil || r.condition == "" && r.refused(err), err
			})
		}
	}()
	tried := map[string]bool{}
	for _, round := range byRound {
		policies := shipped(t) // those of the round before are whole again
		for _, r := range round {
			at, err := r.remove(policies[r.policy])
			must(t, err)
			tried[at] = true
		}
		must(t, change(t.Context(), slices.Collect(maps.Values(policies))...))
		for _, r := range round {
			if r.condition != "" {
				until(t, r.String()+": to be refused without the condition", func() (bool, error) {
					err := r.do(t.Context(), r.client)
					return r.refused(err), err
				})
			} else {
				until(t, r.String()+": to pass without the rule", func() (bool, error) {
					err := r.do(t.Context(), r.client)
					return err == nil, err
				})
			}
		}
	}
	for name, p := range shipped(t) {
		for i, c := range p.Spec.MatchConditions {
			if !tried[fmt.Sprintf("%s: match condition %d", name, i)] {
				t.Errorf("%s: the match condition %s has no counter-example", name, c.Name)
			}
		}
		for i, v := range p.Spec.Validations {
			if !tried[fmt.Sprintf("%s: validation %d", name, i)] {
				t.Errorf("%s: the validation %s%s has no counter-example", name, v.Message, v.MessageExpression)
			}
		}
	}
	t.Logf("%d rules in %d rounds", len(tried), len(byRound))
}
