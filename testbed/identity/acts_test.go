package identity

import (
	"context"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// do is what an identity tries. Nothing is changed by it: every write is a dry run, which authorization and admission answer
// as they would the real one.
type do func(ctx context.Context, c kubernetes.Interface) error

var (
	dryRun   = []string{metav1.DryRunAll}
	dryPatch = metav1.PatchOptions{DryRun: dryRun}
)

// node patches a Node, status the same through its status.
func node(name, patch string) do {
	return func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch), dryPatch)
		return err
	}
}

// really patches a Node, not as a dry run.
func really(c kubernetes.Interface, name, patch string) error {
	_, err := c.CoreV1().Nodes().Patch(context.Background(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// nodeAs patches a Node under a name for managedFields.
func nodeAs(manager, name, patch string) do {
	return func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dryRun, FieldManager: manager})
		return err
	}
}

func status(name, patch string) do {
	return func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), dryPatch, "status")
		return err
	}
}

// hostUpdate patches the HostUpdate of a Node.
func hostUpdate(name, patch string) do {
	return func(ctx context.Context, c kubernetes.Interface) error {
		return c.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(hostUpdates, name).Param("dryRun", metav1.DryRunAll).
			SetHeader("Accept", "application/json").Body([]byte(patch)).Do(ctx).Error()
	}
}

const hostUpdates = "/apis/lockkeeper.dev/v1alpha1/hostupdates"

// applyHostUpdate has the host of a Node publish a HostUpdate.
func applyHostUpdate(ctx context.Context, c kubernetes.Interface, name, uid, status string, dry ...string) error {
	body := fmt.Sprintf(`{"apiVersion":"lockkeeper.dev/v1alpha1","kind":"HostUpdate","metadata":{"name":%q,"ownerReferences":[`+
		`{"apiVersion":"v1","kind":"Node","name":%q,"uid":%q}]},"status":%s}`, name, name, uid, status)
	r := c.CoreV1().RESTClient().Patch(types.ApplyPatchType).AbsPath(hostUpdates, name).Param("fieldManager", "lockkeeper-host").
		SetHeader("Accept", "application/json").Body([]byte(body))
	for _, d := range dry {
		r = r.Param("dryRun", d)
	}
	return r.Do(ctx).Error()
}

const (
	policyURL = "/apis/lockkeeper.dev/v1alpha1/disruptionpolicies"
	// teamsRules is the spec of a policy that a team may write.
	teamsRules = `{"rulesOnly":true,"priority":-10,"rules":[{"source":"File","path":"/etc/team","actions":[{"type":"None"}]}]}`
)

// createPolicyAs creates a DisruptionPolicy, patchPolicyAs patches one, and deletePolicyAs deletes one, or with "" all of them.
func createPolicyAs(name, spec string) do {
	return policyRequest("POST", "", `{"apiVersion":"lockkeeper.dev/v1alpha1","kind":"DisruptionPolicy","metadata":{"name":"`+name+`"},"spec":`+spec+`}`)
}

func patchPolicyAs(name, patch string) do { return policyRequest("PATCH", name, patch) }

func deletePolicyAs(name string) do { return policyRequest("DELETE", name, "") }

func policyRequest(verb, name, body string) do {
	return func(ctx context.Context, c kubernetes.Interface) error {
		r := c.CoreV1().RESTClient().Verb(verb).AbsPath(policyURL, name).Param("dryRun", metav1.DryRunAll).SetHeader("Accept", "application/json")
		switch verb {
		case "PATCH":
			r = r.SetHeader("Content-Type", string(types.MergePatchType)).Body([]byte(body))
		case "POST":
			r = r.SetHeader("Content-Type", "application/json").Body([]byte(body))
		}
		return r.Do(ctx).Error()
	}
}

// label and annotation are a Node's with a value, or null.
func label(key, value string) string {
	return `{"metadata":{"labels":{"` + key + `":` + value + `}}}`
}

func annotation(key, value string) string {
	return `{"metadata":{"annotations":{"` + key + `":` + value + `}}}`
}

func create(n *corev1.Node) do {
	return func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{DryRun: dryRun})
		return err
	}
}

func newNode(name string, labels, annotations map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: annotations}}
}

func getNode(name string) do {
	return func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		return err
	}
}

func deleteNode(name string) do {
	return func(ctx context.Context, c kubernetes.Interface) error {
		return c.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{DryRun: dryRun})
	}
}

func replaceNode(name string) do {
	return func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().Nodes().Update(ctx, newNode(name, nil, nil), metav1.UpdateOptions{DryRun: dryRun})
		return err
	}
}

func evict(pod string) do {
	return func(ctx context.Context, c kubernetes.Interface) error {
		return c.CoreV1().Pods("default").EvictV1(ctx, &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod}, DeleteOptions: &metav1.DeleteOptions{DryRun: dryRun},
		})
	}
}

func listPods(selector string) do {
	return func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: selector})
		return err
	}
}

func getLease(ctx context.Context, c kubernetes.Interface) error {
	_, err := leases(c).Get(ctx, controlplane.LockkeeperLease, metav1.GetOptions{})
	return err
}

func createLease(ctx context.Context, c kubernetes.Interface) error {
	_, err := leases(c).Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "another"}}, metav1.CreateOptions{DryRun: dryRun})
	return err
}

// updateLease renews the Lease, as far as admission is concerned.
var updateLease = changeLease(func(l *coordinationv1.Lease) { l.Spec.RenewTime = new(metav1.NowMicro()) })

// changeLease replaces the Lease by a changed one.
func changeLease(change func(*coordinationv1.Lease)) do {
	return func(ctx context.Context, c kubernetes.Interface) error {
		l, err := leases(cp.Client()).Get(ctx, controlplane.LockkeeperLease, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading what to update: %s", err) // not the act, so not to be taken for its answer
		}
		change(l)
		_, err = leases(c).Update(ctx, l, metav1.UpdateOptions{DryRun: dryRun})
		return err
	}
}

func patchLease(ctx context.Context, c kubernetes.Interface) error {
	_, err := leases(c).Patch(ctx, controlplane.LockkeeperLease, types.MergePatchType, []byte(annotation(v1alpha1.AnnotationStop, "null")), dryPatch)
	return err
}

func deleteLease(ctx context.Context, c kubernetes.Interface) error {
	return leases(c).Delete(ctx, controlplane.LockkeeperLease, metav1.DeleteOptions{DryRun: dryRun})
}

func leases(c kubernetes.Interface) interface {
	Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error)
	Create(context.Context, *coordinationv1.Lease, metav1.CreateOptions) (*coordinationv1.Lease, error)
	Update(context.Context, *coordinationv1.Lease, metav1.UpdateOptions) (*coordinationv1.Lease, error)
	Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*coordinationv1.Lease, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
} {
	return c.CoordinationV1().Leases(controlplane.LockkeeperNamespace)
}

func listSecrets(ctx context.Context, c kubernetes.Interface) error {
	_, err := c.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{})
	return err
}

func deleteBinding(ctx context.Context, c kubernetes.Interface) error {
	return c.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(ctx, "lockkeeper-keys", metav1.DeleteOptions{DryRun: dryRun})
}

func createPolicy(ctx context.Context, c kubernetes.Interface) error {
	_, err := c.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(ctx,
		&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"nodes"}},
			}}}},
			Validations: []admissionv1.Validation{{Expression: "false"}},
		}}, metav1.CreateOptions{DryRun: dryRun})
	return err
}

func widenRole(ctx context.Context, c kubernetes.Interface) error {
	_, err := c.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "mine"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, metav1.CreateOptions{DryRun: dryRun})
	return err
}

// mint asks for a token of a service account in lockkeeper's namespace.
func mint(account string, life time.Duration, audiences ...string) do {
	return func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().ServiceAccounts(controlplane.LockkeeperNamespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(life / time.Second)), Audiences: audiences},
		}, metav1.CreateOptions{DryRun: dryRun})
		return err
	}
}

func mintToken(namespace, account string) func(context.Context, kubernetes.Interface) error {
	return func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{DryRun: dryRun})
		return err
	}
}
