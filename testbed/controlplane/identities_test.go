package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// act is something that an identity tries. The outcome is the answer of the API server, including NodeRestriction. It is written by hand
// from DESIGN.md section 8 and FACTS.md.
type act struct {
	name string
	do   func(context.Context, *kubernetes.Clientset) error
	want string // "yes" or "no" (403)
}

func TestIdentities(t *testing.T) {
	ctx := soon(t)
	if err := shared.ApplyLockkeeper(ctx); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"id-a", "id-b"} {
		readyHost(t, shared, name)
		must(shared.Client().CoreV1().Pods("default").Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "on-" + name, Labels: map[string]string{"test": "identities"}},
			Spec:       corev1.PodSpec{NodeName: name, Containers: []corev1.Container{{Name: "c", Image: "example.invalid/c"}}},
		}, metav1.CreateOptions{}))(t)
		t.Cleanup(func() {
			_ = shared.Client().CoreV1().Pods("default").Delete(context.Background(), "on-"+name, deleteNow)
		})
	}
	other := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "another"}}
	must(shared.Client().CoordinationV1().Leases(LockkeeperNamespace).Create(ctx, other, metav1.CreateOptions{}))(t)
	must(shared.WaitPods(ctx, "default", "test=identities", "to run", func(ps []*corev1.Pod) bool {
		return len(ps) == 2 && PodReady(ps[0]) && PodReady(ps[1])
	}))(t)

	// All manifests are in force when the last one of each kind is.
	lease := authorizationv1.ResourceAttributes{Namespace: LockkeeperNamespace, Group: "coordination.k8s.io", Resource: "leases", Name: LockkeeperLease, Verb: "get"}
	nodes := authorizationv1.ResourceAttributes{Resource: "nodes", Name: "id-a", Verb: "patch"}
	events := authorizationv1.ResourceAttributes{Namespace: "default", Group: "events.k8s.io", Resource: "events", Verb: "create"}
	for _, asked := range []authorizationv1.SubjectAccessReviewSpec{
		{User: nodeUser("id-a"), Groups: []string{NodesGroup}, ResourceAttributes: &lease},
		{User: CoordinatorUser, ResourceAttributes: &lease},
		{User: CoordinatorUser, ResourceAttributes: &nodes},
		{User: CoordinatorUser, ResourceAttributes: &events},
	} {
		if err := shared.WaitAllowed(ctx, asked, true); err != nil {
			t.Fatal(err)
		}
	}

	for _, who := range []struct {
		name   string
		config func() (*rest.Config, error)
		acts   []act
	}{
		{"host id-a", func() (*rest.Config, error) { return shared.NodeConfig("id-a") }, hostActs()},
		{"coordinator", shared.CoordinatorConfig, coordinatorActs()},
		{"a stranger", func() (*rest.Config, error) { return shared.ConfigFor("somebody") }, strangerActs()},
	} {
		config, err := who.config()
		client := clientFor(t, config, err)
		for _, a := range who.acts {
			t.Run(who.name+"/"+strings.ReplaceAll(a.name, " ", "_"), func(t *testing.T) {
				got := "yes"
				if err := a.do(soon(t), client); apierrors.IsForbidden(err) {
					got = "no"
				} else if err != nil {
					t.Fatalf("neither allowed nor forbidden: %v", err)
				}
				if got != a.want {
					t.Errorf("allowed: %s, want %s", got, a.want)
				}
			})
		}
	}
}

func hostActs() []act {
	return []act{
		{"get own Node", getNode("id-a"), "yes"},
		{"list own Node", listNodes("metadata.name=id-a"), "yes"},
		{"watch own Node", watchNodes("metadata.name=id-a"), "yes"},
		{"get another Node", getNode("id-b"), "no"},
		{"list all Nodes", listNodes(""), "no"},
		{"watch all Nodes", watchNodes(""), "no"},
		{"watch another Node", watchNodes("metadata.name=id-b"), "no"},
		{"label own Node", patchNode("id-a", `{"metadata":{"labels":{"lockkeeper.dev/wants":"nothing"}}}`), "yes"},
		{"annotate own Node", patchNode("id-a", `{"metadata":{"annotations":{"lockkeeper.dev/ack":"x"}}}`), "yes"},
		{"cordon and mark own Node", patchNode("id-a", `{"metadata":{"annotations":{"lockkeeper.dev/cordon":"x"}},"spec":{"unschedulable":true}}`), "yes"},
		{"uncordon own Node", patchNode("id-a", `{"metadata":{"annotations":{"lockkeeper.dev/cordon":null}},"spec":{"unschedulable":null}}`), "yes"},
		{"exclude own Node with its cordon", patchNode("id-a", `{"metadata":{"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":"","remediation.medik8s.io/exclude-from-remediation":"true"},`+
			`"annotations":{"lockkeeper.dev/cordon":"x","cluster-autoscaler.kubernetes.io/scale-down-disabled":"true"}},"spec":{"unschedulable":true}}`), "yes"},
		{"exclude own Node no more", patchNode("id-a", `{"metadata":{"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":null,"remediation.medik8s.io/exclude-from-remediation":null},`+
			`"annotations":{"lockkeeper.dev/cordon":null,"cluster-autoscaler.kubernetes.io/scale-down-disabled":null}},"spec":{"unschedulable":null}}`), "yes"},
		{"exclude another Node from load balancers", patchNode("id-b", `{"metadata":{"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":""}}}`), "no"},
		{"exclude another Node from scale-down", patchNode("id-b", `{"metadata":{"annotations":{"cluster-autoscaler.kubernetes.io/scale-down-disabled":"true"}}}`), "no"},
		{"exclude another Node from remediation", patchNode("id-b", `{"metadata":{"labels":{"remediation.medik8s.io/exclude-from-remediation":"true"}}}`), "no"},
		{"condition on own Node", patchNodeStatus("id-a", `{"status":{"conditions":[{"type":"Drained","status":"True"}]}}`), "yes"},
		{"label own Node by its status", patchNodeStatus("id-a", `{"metadata":{"labels":{"lockkeeper.dev/wants":"drain"}}}`), "yes"},
		{"taint own Node", patchNode("id-a", `{"spec":{"taints":[{"key":"x","effect":"NoSchedule"}]}}`), "no"},
		{"restricted label on own Node", patchNode("id-a", `{"metadata":{"labels":{"x.node-restriction.kubernetes.io/x":"x"}}}`), "no"},
		{"label another Node", patchNode("id-b", `{"metadata":{"labels":{"lockkeeper.dev/wants":"nothing"}}}`), "no"},
		{"cordon another Node", patchNode("id-b", `{"spec":{"unschedulable":true}}`), "no"},
		{"condition on another Node", patchNodeStatus("id-b", `{"status":{"conditions":[{"type":"Drained","status":"True"}]}}`), "no"},
		{"list own pods", listPods("spec.nodeName=id-a"), "yes"},
		{"watch own pods", watchPods("spec.nodeName=id-a"), "yes"},
		{"list another's pods", listPods("spec.nodeName=id-b"), "no"},
		{"list all pods", listPods(""), "no"},
		{"evict own pod", evictPod("on-id-a"), "yes"},
		{"evict another's pod", evictPod("on-id-b"), "no"},
		{"create core Event", createEvent, "yes"},
		{"create events.k8s.io Event", createNewEvent, "yes"},
		{"get the Lease", getLease("lockkeeper"), "yes"},
		{"list the Lease", listLeases("metadata.name=lockkeeper"), "no"},
		{"update the Lease", updateLease("lockkeeper"), "no"},
		{"patch the Lease", patchLease("lockkeeper"), "no"},
		{"delete the Lease", deleteLease("lockkeeper"), "no"},
		{"create a Lease beside it", createLease, "no"},
		{"get another Lease", getLease("another"), "no"},
		{"get a PodDisruptionBudget", getBudget, "no"},
		{"get a DaemonSet", getDaemonSet, "no"},
	}
}

func coordinatorActs() []act {
	return []act{
		{"get a Node", getNode("id-a"), "yes"},
		{"list all Nodes", listNodes(""), "yes"},
		{"watch all Nodes", watchNodes(""), "yes"},
		{"label a Node", patchNode("id-a", `{"metadata":{"labels":{"lockkeeper.dev/state":"idle"}}}`), "yes"},
		{"write a Node's status", patchNodeStatus("id-a", `{"status":{"conditions":[{"type":"Drained","status":"False"}]}}`), "no"},
		{"update a Node", updateNode("id-a"), "no"},
		{"create a Node", createNode, "no"},
		{"delete a Node", deleteNode("id-a"), "no"},
		{"list pods", listPods(""), "no"},
		{"evict a pod", evictPod("on-id-a"), "no"},
		{"create core Event", createEvent, "no"},
		{"create events.k8s.io Event", createNewEvent, "yes"},
		{"list Events", listEvents, "no"},
		{"get the Lease", getLease("lockkeeper"), "yes"},
		{"list the Lease", listLeases("metadata.name=lockkeeper"), "yes"},
		{"watch the Lease", watchLeases("metadata.name=lockkeeper"), "yes"},
		{"update the Lease", updateLease("lockkeeper"), "yes"},
		{"patch the Lease", patchLease("lockkeeper"), "no"},
		{"delete the Lease", deleteLease("lockkeeper"), "no"},
		{"create a Lease beside it", createLease, "no"},
		{"list all Leases", listLeases(""), "no"},
		{"get another Lease", getLease("another"), "no"},
		{"update another Lease", patchLease("another"), "no"},
		{"get a PodDisruptionBudget", getBudget, "no"},
		{"list Secrets", listSecrets, "no"},
	}
}

func strangerActs() []act {
	return []act{
		{"get a Node", getNode("id-a"), "no"},
		{"get the Lease", getLease("lockkeeper"), "no"},
		{"evict a pod", evictPod("on-id-a"), "no"},
	}
}

// TestAnonymousIsRefused checks that a client without a certificate has no rights.
func TestAnonymousIsRefused(t *testing.T) {
	config := rest.AnonymousClientConfig(shared.AdminConfig())
	_, err := clientFor(t, config, nil).Discovery().ServerVersion()
	if !apierrors.IsUnauthorized(err) {
		t.Errorf("without a certificate: %v, want 401", err)
	}
}

// TestApplyLockkeeperTwice checks that a second ApplyLockkeeper keeps the holder of the Lease and restores changed RBAC rules.
func TestApplyLockkeeperTwice(t *testing.T) {
	ctx := soon(t)
	leases := shared.Client().CoordinationV1().Leases(LockkeeperNamespace)
	if err := shared.ApplyLockkeeper(ctx); err != nil {
		t.Fatal(err)
	}
	held := []byte(`{"spec":{"holderIdentity":"me"}}`)
	must(leases.Patch(ctx, LockkeeperLease, types.MergePatchType, held, metav1.PatchOptions{}))(t)
	roles := shared.Client().RbacV1().ClusterRoles()
	wider := []byte(`{"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`)
	must(roles.Patch(ctx, "lockkeeper-coordinator", types.MergePatchType, wider, metav1.PatchOptions{}))(t)
	if err := shared.ApplyLockkeeper(ctx); err != nil {
		t.Fatal(err)
	}
	lease := must(leases.Get(ctx, LockkeeperLease, metav1.GetOptions{}))(t)
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != "me" {
		t.Errorf("the Lease's holder is %v after a second apply, want it untouched", lease.Spec.HolderIdentity)
	}
	role := must(roles.Get(ctx, "lockkeeper-coordinator", metav1.GetOptions{}))(t)
	if got := fmt.Sprint(role.Rules[0].Verbs); got != "[get list watch patch]" || slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Verbs, "*") }) {
		t.Errorf("the coordinator's rules after a second apply: %v", role.Rules)
	}
}

// TestApplyLockkeeperWaits checks that the admission policies are in force when ApplyLockkeeper returns, even if they were out of force
// before.
func TestApplyLockkeeperWaits(t *testing.T) {
	ctx := soon(t)
	if err := shared.ApplyLockkeeper(ctx); err != nil {
		t.Fatal(err)
	}
	forged := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-", Labels: map[string]string{v1alpha1.LabelState: string(v1alpha1.StateIdle)}}}
	forge := func() error {
		_, err := shared.Client().CoreV1().Nodes().Create(ctx, forged, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	if err := shared.UnbindPolicies(ctx); err != nil {
		t.Fatal(err)
	}
	if err := forge(); err != nil {
		t.Errorf("without the policies, a person may not give a Node a state: %v", err)
	}
	if err := shared.ApplyLockkeeper(ctx); err != nil {
		t.Fatal(err)
	}
	if err := forge(); !apierrors.IsForbidden(err) {
		t.Errorf("with the policies, a person may give a Node a state: %v", err)
	}
}

// TestWaitRefused checks that WaitRefused accepts only the refusal for which it was asked to wait.
func TestWaitRefused(t *testing.T) {
	answers := []error{nil, errors.New("refused by another policy"), errors.New("refused by this policy")}
	calls := 0
	try := func(context.Context) error { calls++; return answers[min(calls, len(answers))-1] }
	if err := shared.WaitRefused(soon(t), "by this policy", try); err != nil || calls != 3 {
		t.Errorf("WaitRefused returned %v after %d answers, expected no error after 3", err, calls)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := shared.WaitRefused(ctx, "by a third policy", try); err == nil || !strings.Contains(err.Error(), "refused by this policy") {
		t.Errorf("at the end of the context WaitRefused returned %v, expected an error with the last answer", err)
	}
}

func getNode(name string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		return err
	}
}

func listNodes(selector string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: selector})
		return err
	}
}

func watchNodes(selector string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		w, err := c.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: selector})
		if err == nil {
			w.Stop()
		}
		return err
	}
}

func patchNode(name, patch string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
}

func patchNodeStatus(name, patch string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		return err
	}
}

func updateNode(name string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		n, err := c.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading what to update: %s", err) // this error is not the answer to the act
		}
		_, err = c.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
		return err
	}
}

func createNode(ctx context.Context, c *kubernetes.Clientset) error {
	_, err := c.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "id-new"}}, metav1.CreateOptions{})
	return err
}

func deleteNode(name string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		return c.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
	}
}

func listPods(selector string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: selector})
		return err
	}
}

func watchPods(selector string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		w, err := c.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{FieldSelector: selector})
		if err == nil {
			w.Stop()
		}
		return err
	}
}

// evictPod makes a dry run: authorization and admission answer as for a real eviction. NodeRestriction may not know the pod for a moment.
func evictPod(name string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			err := c.CoreV1().Pods("default").EvictV1(ctx, &policyv1.Eviction{
				ObjectMeta:    metav1.ObjectMeta{Namespace: "default", Name: name},
				DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
			})
			if !apierrors.IsNotFound(err) {
				return err
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return err
			}
		}
	}
}

func newEvent() *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: "identities-", Namespace: "default"},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "id-a"},
		Reason:         "Test", Type: corev1.EventTypeNormal,
	}
}

func createEvent(ctx context.Context, c *kubernetes.Clientset) error {
	_, err := c.CoreV1().Events("default").Create(ctx, newEvent(), metav1.CreateOptions{})
	return err
}

func createNewEvent(ctx context.Context, c *kubernetes.Clientset) error {
	_, err := c.EventsV1().Events("default").Create(ctx, &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{GenerateName: "identities-", Namespace: "default"},
		EventTime:           metav1.NowMicro(),
		ReportingController: "lockkeeper.dev/test", ReportingInstance: "test",
		Action: "Test", Reason: "Test", Type: corev1.EventTypeNormal,
		Regarding: corev1.ObjectReference{Kind: "Node", Name: "id-a"},
	}, metav1.CreateOptions{})
	return err
}

func listEvents(ctx context.Context, c *kubernetes.Clientset) error {
	_, err := c.CoreV1().Events("default").List(ctx, metav1.ListOptions{})
	return err
}

func getLease(name string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.CoordinationV1().Leases(LockkeeperNamespace).Get(ctx, name, metav1.GetOptions{})
		return err
	}
}

func listLeases(selector string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.CoordinationV1().Leases(LockkeeperNamespace).List(ctx, metav1.ListOptions{FieldSelector: selector})
		return err
	}
}

func watchLeases(selector string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		w, err := c.CoordinationV1().Leases(LockkeeperNamespace).Watch(ctx, metav1.ListOptions{FieldSelector: selector})
		if err == nil {
			w.Stop()
		}
		return err
	}
}

func updateLease(name string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		l, err := c.CoordinationV1().Leases(LockkeeperNamespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading what to update: %s", err)
		}
		holder := "test"
		l.Spec.HolderIdentity = &holder
		_, err = c.CoordinationV1().Leases(LockkeeperNamespace).Update(ctx, l, metav1.UpdateOptions{})
		return err
	}
}

func patchLease(name string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		patch := []byte(`{"metadata":{"annotations":{"lockkeeper.dev/paused":null}}}`)
		_, err := c.CoordinationV1().Leases(LockkeeperNamespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
}

func deleteLease(name string) func(context.Context, *kubernetes.Clientset) error {
	return func(ctx context.Context, c *kubernetes.Clientset) error {
		return c.CoordinationV1().Leases(LockkeeperNamespace).Delete(ctx, name, metav1.DeleteOptions{})
	}
}

func createLease(ctx context.Context, c *kubernetes.Clientset) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "new"}}
	_, err := c.CoordinationV1().Leases(LockkeeperNamespace).Create(ctx, lease, metav1.CreateOptions{})
	return err
}

func getBudget(ctx context.Context, c *kubernetes.Clientset) error {
	_, err := c.PolicyV1().PodDisruptionBudgets("default").Get(ctx, "x", metav1.GetOptions{})
	return err
}

func getDaemonSet(ctx context.Context, c *kubernetes.Clientset) error {
	_, err := c.AppsV1().DaemonSets("default").Get(ctx, "x", metav1.GetOptions{})
	return err
}

func listSecrets(ctx context.Context, c *kubernetes.Clientset) error {
	_, err := c.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	return err
}
