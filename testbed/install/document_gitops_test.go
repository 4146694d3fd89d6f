package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

// The tools stand for Argo CD: kubectl applies under its name.
const (
	argo    = "argocd-controller"
	applied = "kubectl apply --server-side --force-conflicts --field-manager=" + argo + " -f lockkeeper/ && " +
		"kubectl wait --for condition=Established --timeout 60s crd/disruptionpolicies.lockkeeper.dev crd/hostupdates.lockkeeper.dev && " +
		"kubectl apply --server-side --force-conflicts --field-manager=" + argo + " -f policies/"
	allObjects = "kubectl get -o json --show-managed-fields -f lockkeeper/ -f policies/"
	// judged waits until the controller manager has written the status of the admission policies, which is an object's last change.
	judged = `for p in $(kubectl get validatingadmissionpolicies -o name); do kubectl wait --for=jsonpath={.status.observedGeneration}=1 --timeout 60s $p; done`
)

// TestGitOpsAsWritten runs each line of docs/gitops.md. kubectl stands for the tool.
func TestGitOpsAsWritten(t *testing.T) {
	t.Parallel()
	cp, err := controlplane.Start(context.WithoutCancel(t.Context()), controlplane.Options{}) // nothing of lockkeeper may be there
	must(t, err)
	t.Cleanup(func() { must(t, cp.Stop()) })
	in := beginOn(t, cp, "gitops.md")
	in.next("Write the manifests into the repository")
	in.typed(applied)
	if _, err := in.lease(); !apierrors.IsNotFound(err) {
		t.Errorf("the tool has created the Lease: %v", err)
	}
	in.typed(judged)
	before := in.versions()
	in.typed(applied)
	if after := in.versions(); after != before {
		t.Errorf("applied again, the objects are\n%s\nand were\n%s", after, before)
	}

	in.says(in.next("Create the Lease"), 1, "Lease lockkeeper/lockkeeper created. Next, ", "\n  lockkeeper kubeconfig --file coordinator.kubeconfig\n")
	l, err := in.lease()
	must(t, err)
	in.says(in.typed("lockkeeper init"), 1, "Lease lockkeeper/lockkeeper exists, nothing was changed. No instance holds it.\nTo see the fleet: lockkeeper status\n")
	if again, err := in.lease(); err != nil || again.ResourceVersion != l.ResourceVersion || again.Labels["app.kubernetes.io/name"] != "lockkeeper" {
		t.Errorf("the Lease is %+v, %v; it was %+v", again, err, l)
	}
	if out := in.next("Check that nothing drifts"); out != "" {
		t.Errorf("kubectl diff prints\n%s", out)
	}
	in.says(in.next("Stop and continue"), 1, "The emergency stop is set: ", "The emergency stop is lifted.")

	// A stop by deletion outlasts the tool, and ends only by a person's decision.
	must(t, in.hosts[0].StartLockkeeper())
	in.host(0, func(n *corev1.Node) bool { return n.Annotations["lockkeeper.dev/host"] != "" })
	stop, end, _ := strings.Cut(in.steps[0].Text, "\n")
	in.steps = in.steps[1:]
	in.typed(stop)
	in.typed(applied)
	const why = "Lease lockkeeper/lockkeeper does not exist, and lockkeeper runs on 1 host. If a user deleted the Lease to stop this cluster, creating it ends the stop."
	out := in.fails(64, "lockkeeper init </dev/null")
	in.says(out, 1, why, "init would create Lease lockkeeper/lockkeeper; add --yes, because there is no terminal to ask; nothing was changed")
	in.says(in.typed("lockkeeper init --dry-run"), 1, why, "Lease lockkeeper/lockkeeper would be created. Dry run, nothing is changed.")
	if _, err := in.lease(); !apierrors.IsNotFound(err) {
		t.Errorf("the Lease is there again: %v", err)
	}
	in.says(in.typed(strings.TrimSpace(end)), 1, why, "Lease lockkeeper/lockkeeper created. If turns were stopped because it was missing, they continue")

	in.next("Upgrade")
	in.typed(applied)
	if after := in.versions(); after != before {
		t.Errorf("after an upgrade to the same version, the objects are\n%s\nand were\n%s", after, before)
	}
	if len(in.steps) > 0 {
		t.Errorf("docs/gitops.md has steps that the test does not run: %q", in.steps)
	}
	in.initWaits()
	in.nothingDiffers()
}

// initWaits runs init before its namespace exists.
func (in *installation) initWaits() {
	in.t.Helper()
	in.says(in.fails(4, "lockkeeper init -n elsewhere --yes --timeout 1s"), 1, "namespace elsewhere does not exist yet, or is being deleted; waiting for it.",
		"lockkeeper: timed out after 1s; nothing was created")
	var waiting sync.WaitGroup
	out := ""
	waiting.Go(func() { out = in.typed("lockkeeper init -n elsewhere --yes -o name") })
	in.typed("sleep 1; kubectl create namespace elsewhere") // init may see it at once or after it has waited: both are right
	waiting.Wait()
	in.says(out, 1, "lease.coordination.k8s.io/lockkeeper\n")
}

// nothingDiffers compares all objects by the code of Argo CD, first as server-side apply has left them, then as kubectl's own apply does. A
// difference made by hand shows that it can find one.
func (in *installation) nothingDiffers() {
	in.t.Helper()
	tool := gitopsDiff(in.t)
	kubeconfig, err := in.cp.Kubeconfig("an-admin", "system:masters")
	must(in.t, err)
	compare := func(mode string) (out string, differs bool) {
		in.t.Helper()
		cmd := exec.CommandContext(in.t.Context(), "sh", "-c", `{ cat lockkeeper/*.yaml; echo ---; cat policies/*.yaml; } | "$0" -kubeconfig "$1" -mode "$2"`, tool, kubeconfig, mode)
		cmd.Dir = in.dir
		text, err := cmd.CombinedOutput()
		exit, failed := errors.AsType[*exec.ExitError](err)
		if err != nil && (!failed || exit.ExitCode() != 1) {
			in.t.Fatalf("gitopsdiff -mode %s: %v\n%s", mode, err, text)
		}
		return string(text), failed
	}
	same := func(modes ...string) {
		in.t.Helper()
		for _, mode := range modes {
			if out, differs := compare(mode); differs || !strings.HasSuffix(out, " objects compared, 0 differ\n") {
				in.t.Errorf("%s:\n%s", mode, out)
			}
		}
	}
	same("server-side", "structured-merge", "three-way")
	in.typed("kubectl apply -f lockkeeper/ -f policies/")
	same("three-way", "server-side")
	in.typed(`kubectl patch validatingadmissionpolicy lockkeeper-owners --type json -p '[{"op":"replace","path":"/spec/matchConstraints/resourceRules/0/operations","value":["CREATE"]}]'`)
	for _, mode := range []string{"server-side", "structured-merge", "three-way"} {
		if out, differs := compare(mode); !differs || !strings.Contains(out, "ValidatingAdmissionPolicy lockkeeper-owners differs\n") {
			in.t.Errorf("%s does not find what was changed by hand:\n%s", mode, out)
		}
	}
}

// gitopsDiff builds the program with which Argo CD's code compares objects. Its module is a separate one, see there. The flags are those of the
// control plane, so that the packages of Kubernetes that both have are compiled once.
func gitopsDiff(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gitopsdiff")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false", "-ldflags", "-s -w", "-o", path, ".")
	cmd.Dir = "gitopsdiff"
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building gitopsdiff: %v\n%s", err, out)
	}
	return path
}

// typed runs commands that the page does not have, each of which has to succeed.
func (in *installation) typed(commands string) string {
	in.t.Helper()
	cmd := in.command(commands)
	out, err := cmd.CombinedOutput()
	if err != nil {
		in.t.Errorf("%s: %v\n%s", commands, err, out)
	}
	return string(out)
}

// fails runs commands that have to exit with this status.
func (in *installation) fails(exit int, commands string) string {
	in.t.Helper()
	cmd := in.command(commands)
	out, err := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != exit {
		in.t.Errorf("%s: exit status %d (%v), want %d\n%s", commands, got, err, exit, out)
	}
	return string(out)
}

func (in *installation) command(commands string) *exec.Cmd {
	in.t.Helper()
	kubeconfig, err := in.cp.Kubeconfig("an-admin", "system:masters")
	must(in.t, err)
	ctx, cancel := context.WithTimeout(in.t.Context(), 2*time.Minute)
	in.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir = in.dir
	cmd.Env = []string{"PATH=" + filepath.Join(in.dir, ".bin") + ":/usr/bin:/bin", "HOME=" + in.dir, "KUBECONFIG=" + kubeconfig}
	return cmd
}

// versions returns the version and the managed fields of each object in the repository, a line each.
func (in *installation) versions() string {
	in.t.Helper()
	var list struct {
		Items []metav1.PartialObjectMetadata
	}
	must(in.t, json.Unmarshal([]byte(in.typed(allObjects)), &list))
	var b bytes.Buffer
	for i := range list.Items {
		o := &list.Items[i]
		fields, err := json.Marshal(o.ManagedFields)
		must(in.t, err)
		fmt.Fprintln(&b, o.Kind, o.Namespace, o.Name, o.ResourceVersion, string(fields))
	}
	if len(list.Items) < 30 {
		in.t.Errorf("%d objects, expected 30 or more:\n%s", len(list.Items), &b)
	}
	return b.String()
}

func (in *installation) lease() (*metav1.ObjectMeta, error) {
	l, err := in.cp.Client().CoordinationV1().Leases(controlplane.LockkeeperNamespace).Get(in.t.Context(), controlplane.LockkeeperLease, metav1.GetOptions{})
	return &l.ObjectMeta, err
}

// host waits until the Node of a host is as cond wants it.
func (in *installation) host(i int, cond func(*corev1.Node) bool) {
	in.t.Helper()
	ctx, cancel := context.WithTimeout(in.t.Context(), soon)
	defer cancel()
	_, err := in.cp.WaitNode(ctx, in.hosts[i].Name(), "to report", func(n *corev1.Node) bool { return n != nil && cond(n) })
	must(in.t, err)
}
