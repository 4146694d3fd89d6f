package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// requestCertificate is how the kubelet of a node renews its own client certificate.
func requestCertificate(name string) do {
	return func(ctx context.Context, c kubernetes.Interface) error {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{controlplane.NodesGroup}}}, key)
		if err != nil {
			return err
		}
		_, err = c.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}),
				SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
				Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			},
		}, metav1.CreateOptions{DryRun: dryRun})
		return err
	}
}

// TestStolenWorker shows why deleting the Node of a stolen worker is not enough, and that the commands of docs/security.md are.
func TestStolenWorker(t *testing.T) {
	fixture(t)
	ctx, admin, thief := t.Context(), cp.Client(), asHost(t, "id-stolen")
	_, err := thief.CoreV1().Nodes().Create(ctx, newNode("id-stolen", nil, nil), metav1.CreateOptions{})
	must(t, err)
	pod, err := admin.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "on-id-stolen"},
		Spec: corev1.PodSpec{NodeName: "id-stolen", Containers: []corev1.Container{{Name: "c", Image: "example.invalid/c"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "id-stolen"}}}}},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = admin.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "id-stolen"}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, admin.CoreV1().Secrets("default").Delete(context.Background(), "id-stolen", metav1.DeleteOptions{}))
	})
	secret := func() error {
		_, err := thief.CoreV1().Secrets("default").Get(ctx, "id-stolen", metav1.GetOptions{})
		return err
	}
	until(t, "the Node authorizer to know of the pod", func() (bool, error) { err := secret(); return err == nil, err })
	// A token of a service account that is bound to the pod, as its agents have.
	agent, err := admin.CoreV1().ServiceAccounts("default").CreateToken(ctx, "default", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}, metav1.CreateOptions{})
	must(t, err)
	valid := func() bool {
		t.Helper()
		review, err := admin.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: agent.Status.Token}}, metav1.CreateOptions{})
		must(t, err)
		return review.Status.Authenticated
	}
	if !valid() {
		t.Fatal("the agent's token is not valid")
	}

	// Without the Node, the credential is as good as before.
	must(t, admin.CoreV1().Nodes().Delete(ctx, "id-stolen", metav1.DeleteOptions{}))
	for name, do := range map[string]do{
		"join again": create(newNode("id-stolen", nil, nil)), "ask for another certificate": requestCertificate("id-stolen"),
		"read the Lease": getLease, "list its pods": listPods("spec.nodeName=id-stolen"),
	} {
		if err := do(ctx, thief); err != nil {
			t.Errorf("after the Node was deleted, %s: %v", name, err)
		}
	}
	if !valid() {
		t.Error("the agent's token is not valid any more: deleting the Node is enough for it")
	}

	// So it does. And it keeps the Node and the pod from being deleted: NodeRestriction lets a kubelet write their finalizers.
	_, err = thief.CoreV1().Nodes().Create(ctx, newNode("id-stolen", nil, nil), metav1.CreateOptions{})
	must(t, err)
	const keep = `{"metadata":{"finalizers":["example.com/keep"]}}`
	_, err = thief.CoreV1().Nodes().Patch(ctx, "id-stolen", types.MergePatchType, []byte(keep), metav1.PatchOptions{})
	must(t, err)
	_, err = thief.CoreV1().Pods("default").Patch(ctx, pod.Name, types.MergePatchType, []byte(keep), metav1.PatchOptions{}, "status")
	must(t, err)
	env := []string{"STOLEN=id-stolen"}
	defer func() {
		client := admin.AdmissionregistrationV1()
		must(t, client.ValidatingAdmissionPolicyBindings().Delete(ctx, "stolen-workers", metav1.DeleteOptions{}))
		must(t, client.ValidatingAdmissionPolicies().Delete(ctx, "stolen-workers", metav1.DeleteOptions{}))
	}()
	if ran := runSection(t, "### After the theft of a worker", env); ran < 5 {
		t.Errorf("%d commands were run", ran)
	}
	for name, do := range map[string]do{"join again": create(newNode("id-stolen", nil, nil)), "ask for another certificate": requestCertificate("id-stolen")} {
		if err := do(ctx, thief); refusedBy(err) != policyLayer+"stolen-workers" {
			t.Errorf("after the commands of the document, %s: %v", name, err)
		}
	}
	if _, err := admin.CoreV1().Nodes().Get(ctx, "id-stolen", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the commands of the document, the Node is still there: %v", err)
	}
	// Admission judges writes alone.
	must(t, getLease(ctx, thief))
	until(t, "the pod's secret to be out of reach", func() (bool, error) { err := secret(); return refusedBy(err) == rbac, err })
	until(t, "the agent's token to be worthless", func() (bool, error) { return !valid(), nil })
	if err := requestCertificate("id-a")(ctx, asHost(t, "id-a")); err != nil {
		t.Errorf("another worker is kept from renewing its certificate: %v", err)
	}
}

// TestStolenCoordinator runs the commands of docs/security.md for a stolen credential of the coordinator.
func TestStolenCoordinator(t *testing.T) {
	fixture(t)
	stolen := asCoordinator(t)
	must(t, getNode("id-a")(t.Context(), stolen))
	defer func() { must(t, cp.RenewCoordinator(t.Context())) }() // for the other tests
	if ran := runSection(t, "### After the theft of the coordinator's credential", []string{"COORDINATOR_KUBECONFIG=" + filepath.Join(t.TempDir(), "new")}); ran < 6 {
		t.Errorf("%d commands were run", ran)
	}
	until(t, "the stolen token to be worthless", func() (bool, error) {
		err := getNode("id-a")(t.Context(), stolen)
		return apierrors.IsUnauthorized(err), err
	})
}

// TestStopSurvivesApply has a thief of the coordinator's credential prepare the Lease so that the next server-side apply of the
// manifests lifts the emergency stop: without the policies it does, with them the preparation is refused.
func TestStopSurvivesApply(t *testing.T) {
	fixture(t)
	ctx := t.Context()
	stopped := func() bool {
		t.Helper()
		l, err := leases(cp.Client()).Get(ctx, controlplane.LockkeeperLease, metav1.GetOptions{})
		must(t, err)
		return l.Annotations[v1alpha1.AnnotationStop] != ""
	}
	prepare := func() error {
		l, err := leases(cp.Client()).Get(ctx, controlplane.LockkeeperLease, metav1.GetOptions{})
		must(t, err)
		l.ManagedFields = nil // who set the stop is not to be remembered
		trap(l)
		_, err = leases(asCoordinator(t)).Update(ctx, l, metav1.UpdateOptions{})
		return err
	}
	apply := func() {
		t.Helper()
		admin, err := cp.Kubeconfig("testbed:admin", "system:masters")
		must(t, err)
		cmd := exec.CommandContext(within(t), "sh", "-c", fmt.Sprintf("%s manifests | %s apply --server-side --force-conflicts -f -", binary, cp.Binaries().Kubectl))
		cmd.Env = append(cmd.Environ(), "KUBECONFIG="+admin, "HOME="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	apply()
	bound(t, true)
	if err := prepare(); refusedBy(err) != lease || !strings.Contains(err.Error(), "who manages the metadata") {
		t.Errorf("preparing the Lease: %v", err)
	}
	// The coordinator renews it as before, whoever has written it.
	must(t, updateLease(ctx, asCoordinator(t)))
	apply()
	if !stopped() {
		t.Fatal("an apply lifts the stop")
	}

	unbind(t)
	must(t, prepare())
	apply()
	if stopped() {
		t.Error("the stop is still set: the attack does not work, and the rule that refuses it is not needed")
	}
}

// TestNodesSurviveApply has a thief of the coordinator's credential prepare a Node so that the next server-side apply of a tool which
// applies a label of it ends its pause and uncordons it. The policies refuse that to the coordinator, and to no one else who may patch
// Nodes.
func TestNodesSurviveApply(t *testing.T) {
	fixture(t)
	person(t, "pat", "", "nodes", "patch")
	ctx, nodes := t.Context(), cp.Client().CoreV1().Nodes()
	must(t, really(cp.Client(), "id-c", `{"spec":{"unschedulable":true}}`))
	// stands applies the label, and reports whether the pause and the cordon are still there.
	stands := func() bool {
		t.Helper()
		n, err := nodes.Patch(ctx, "id-c", types.ApplyPatchType, []byte(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"id-c","labels":{"example.com/rack":"7"}}}`),
			metav1.PatchOptions{FieldManager: "gitops"})
		must(t, err)
		if n.Spec.Unschedulable != (n.Annotations[v1alpha1.AnnotationPaused] != "") {
			t.Errorf("unschedulable: %t, annotations: %v", n.Spec.Unschedulable, n.Annotations)
		}
		return n.Spec.Unschedulable
	}
	stands()
	leader := asCoordinator(t)
	if err := really(leader, "id-c", prepared); refusedBy(err) != coordinator || !strings.Contains(err.Error(), notTheirs) {
		t.Errorf("the coordinator prepares the Node: %v", err)
	}
	// The coordinator writes Nodes that tools apply as before, also where it removes what they apply.
	must(t, really(leader, "id-c", label(v1alpha1.LabelHeld, `"Budget"`)))
	for _, annotations := range []string{`{"lockkeeper.dev/request":"reboot"}`, `{"lockkeeper.dev/request":"reboot","hook.lockkeeper.dev/backup":"t1"}`} {
		_, err := nodes.Patch(ctx, "id-a", types.ApplyPatchType, []byte(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"id-a","annotations":`+annotations+`}}`),
			metav1.PatchOptions{FieldManager: "gitops", Force: new(true)})
		must(t, err)
		must(t, really(leader, "id-a", annotation(v1alpha1.AnnotationRequest, "null")))
	}
	must(t, really(leader, "id-a", annotation("hook.lockkeeper.dev/backup", "null")))
	if !stands() {
		t.Fatal("an apply ends the pause")
	}

	must(t, really(asUser(t, "pat"), "id-c", prepared))
	if stands() {
		t.Error("the apply does not end the pause: the rule for the coordinator is not needed")
	}
}
