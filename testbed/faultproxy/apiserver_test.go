package faultproxy

import (
	"context"
	"os"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// TestOnAPIServer sends the product's own client through the proxy to a real API server: protobuf, the host's identity, a watch, and a
// write that succeeds although its writer receives no answer.
func TestOnAPIServer(t *testing.T) {
	ctx := within(t)
	cp, err := controlplane.Start(context.WithoutCancel(ctx), controlplane.Options{
		Log:     os.Stderr,
		Without: []controlplane.Component{controlplane.ControllerManager, controlplane.Scheduler, controlplane.Ballast, controlplane.Pods},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := cp.ApplyLockkeeper(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := cp.CreateNode(ctx, controlplane.NodeSpec{Name: "n1"}); err != nil {
		t.Fatal(err)
	}
	identity, err := cp.NodeConfig("n1")
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(Options{Name: "host", Config: identity, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	client, err := kube.New(kube.Options{Identity: v1alpha1.IdentityHost, Paths: []string{p.Kubeconfig()}, Version: "test", QPS: 50, Burst: 100}).Client()
	if err != nil {
		t.Fatal(err)
	}
	if name, err := kube.NodeName(ctx, client); name != "n1" || err != nil {
		t.Fatalf("the credential is %q's (%v), expected n1's", name, err)
	}
	if _, ok := client.Skew(); !ok {
		t.Error("the API server's Date did not come through")
	}

	only := metav1.ListOptions{FieldSelector: "metadata.name=n1"}
	w, err := client.CoreV1().Nodes().Watch(ctx, only)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	n, err := kube.Find(ctx, client, "n1")
	if err != nil {
		t.Fatal(err)
	}
	remove := p.Add(func(r *Request) *Fault {
		if r.Is("patch", "nodes") {
			return &Fault{ResetAnswer: true}
		}
		return nil
	})
	value := "here"
	patch := kube.Patch{
		Node: "n1", ResourceVersion: n.ResourceVersion, Manager: kube.FieldManager("host"),
		Annotations: map[string]*string{"lockkeeper.dev/host": &value},
	}
	if _, outcome, err := kube.Write(ctx, client, patch); outcome != kube.Unknown {
		t.Errorf("a write without an answer is %s (%v), expected unknown", outcome, err)
	}
	remove()
	for ev := range w.ResultChan() {
		if node, ok := ev.Object.(*corev1.Node); ok && node.Annotations["lockkeeper.dev/host"] == value {
			break // the write succeeded, and the watch shows it
		}
	}
	if ctx.Err() != nil {
		t.Fatal("the watch did not show the write")
	}
	if _, outcome, err := kube.Write(ctx, client, patch); outcome != kube.Conflict {
		t.Errorf("the same write again is %s (%v), expected a conflict", outcome, err)
	}

	checkListAt(ctx, t, p, client, n, value)
	checkPage(ctx, t, cp)
	checkLease(ctx, t, cp)
}

// checkListAt lists Nodes as they were before the annotation was written.
func checkListAt(ctx context.Context, t *testing.T, p *Proxy, client kube.API, before *corev1.Node, value string) {
	t.Helper()
	list := func() string {
		t.Helper()
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=n1", ResourceVersion: "0"})
		if err != nil {
			t.Fatal(err)
		}
		if len(nodes.Items) != 1 {
			t.Fatalf("%d Nodes, expected one", len(nodes.Items))
		}
		return nodes.Items[0].Annotations["lockkeeper.dev/host"]
	}
	remove := p.Add(func(r *Request) *Fault {
		if r.Is("list", "nodes") {
			return &Fault{ListAt: before.ResourceVersion}
		}
		return nil
	})
	if got := list(); got != "" {
		t.Errorf("as of before it was written, the annotation is %q", got)
	}
	remove()
	if got := list(); got != value {
		t.Errorf("the annotation is %q, expected %q", got, value)
	}
}

// checkPage lists namespaces in pages that are smaller than what the list requests.
func checkPage(ctx context.Context, t *testing.T, cp *controlplane.ControlPlane) {
	t.Helper()
	p, err := Start(Options{Name: "admin", Config: cp.AdminConfig(), Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.Add(func(r *Request) *Fault {
		if r.Is("list", "namespaces") {
			return &Fault{Page: 2}
		}
		return nil
	})
	config, err := clientcmd.BuildConfigFromFlags("", p.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	first, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: 500})
	if err != nil || len(first.Items) != 2 || first.Continue == "" {
		t.Fatalf("%d namespaces, continue %q, %v; expected two and a token", len(first.Items), first.Continue, err)
	}
	next, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: 500, Continue: first.Continue})
	if err != nil || len(next.Items) == 0 || next.Items[0].Name == first.Items[0].Name {
		t.Errorf("the second page has %d namespaces, %v", len(next.Items), err)
	}
}

// checkLease decodes the protobuf body of an update.
func checkLease(ctx context.Context, t *testing.T, cp *controlplane.ControlPlane) {
	identity, err := cp.CoordinatorConfig()
	if err != nil {
		t.Fatal(err)
	}
	holders := make(chan string, 1)
	p, err := Start(Options{Name: "coordinator", Config: identity, Dir: t.TempDir(), Label: func(r *Request) string {
		obj, err := r.Object()
		if err != nil {
			t.Error(err)
			return ""
		}
		holders <- *obj.(*coordinationv1.Lease).Spec.HolderIdentity
		return ""
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	client, err := kube.New(kube.Options{Identity: v1alpha1.IdentityCoordinator, Paths: []string{p.Kubeconfig()}, Version: "test", QPS: 50, Burst: 100}).Client()
	if err != nil {
		t.Fatal(err)
	}
	holdLease(ctx, t, client, "me")
	if got := <-holders; got != "me" {
		t.Errorf("the Lease's holder is read as %q", got)
	}
}

func holdLease(ctx context.Context, t *testing.T, client kube.API, holder string) {
	t.Helper()
	leases := client.CoordinationV1().Leases(controlplane.LockkeeperNamespace)
	l, err := leases.Get(ctx, controlplane.LockkeeperLease, metav1.GetOptions{})
	if err == nil {
		l.Spec.HolderIdentity = &holder
		_, err = leases.Update(ctx, l, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}
