package identity

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestWhoMayWritePolicies: the manifests let no identity write what a policy says. The coordinator writes its status, and cannot
// change its spec by that.
func TestWhoMayWritePolicies(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), policyTimeout)
	defer cancel()
	as := func(user string, groups ...string) dynamic.ResourceInterface {
		config := cp.AdminConfig()
		config.QPS = -1
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
		client, err := dynamic.NewForConfig(config)
		must(t, err)
		return client.Resource(v1alpha1.PolicyResource)
	}
	coordinator := as("system:serviceaccount:lockkeeper:lockkeeper-coordinator", "system:serviceaccounts", "system:serviceaccounts:lockkeeper")
	_, err := policies.Create(ctx, policyObject(t, "theirs", `{rollout: {maxUnavailable: 1}}`), metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, policies.Delete(context.Background(), "theirs", metav1.DeleteOptions{})) })
	const all = `{"spec":{"rollout":{"maxUnavailable":"100%"}}}`
	for name, c := range map[string]dynamic.ResourceInterface{
		"a host": as("system:node:n1", "system:nodes"), "the coordinator": coordinator, "a user": as("anna"),
		"another service account": as("system:serviceaccount:shop:default", "system:serviceaccounts", "system:serviceaccounts:shop"),
	} {
		_, created := c.Create(ctx, policyObject(t, "mine", `{}`), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		_, patched := c.Patch(ctx, "theirs", types.MergePatchType, []byte(all), metav1.PatchOptions{})
		deleted := c.Delete(ctx, "theirs", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		for verb, err := range map[string]error{"create": created, "patch": patched, "delete": deleted} {
			if !apierrors.IsForbidden(err) {
				t.Errorf("%s may %s a policy: %v", name, verb, err)
			}
		}
	}
	_, err = coordinator.Patch(ctx, "theirs", types.MergePatchType, []byte(all), metav1.PatchOptions{}, "status")
	must(t, err)
	kept, err := policies.Get(ctx, "theirs", metav1.GetOptions{})
	must(t, err)
	if got := typed(t, kept).Spec.Rollout.MaxUnavailable.String(); got != "1" {
		t.Errorf("after a write to its status the policy allows %s", got)
	}
}
