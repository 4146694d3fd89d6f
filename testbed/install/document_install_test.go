package install

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
	"lockkeeper.dev/lockkeeper/testbed/walkthrough"
)

const (
	old, staged = "4.1.0", "4.2.0"
	soon        = 90 * time.Second
	rolled      = 5 * time.Minute
)

// installation is a user who follows a page of docs.
type installation struct {
	t     *testing.T
	cp    *controlplane.ControlPlane
	dir   string // of the person who installs
	page  string
	shell *walkthrough.Shell
	steps []walkthrough.Step
	hosts []*host
}

// begin returns a user on a control plane of the pool, which may have lockkeeper's objects already.
func begin(t *testing.T, page string) *installation { return beginOn(t, pool.Take(t), page) }

func beginOn(t *testing.T, cp *controlplane.ControlPlane, page string) *installation {
	in := &installation{t: t, cp: cp}
	in.read(page)
	// In the directory of the person who installs lie the package and nothing else. Its path is short, a socket lies in it.
	dir, err := os.MkdirTemp("", "install-")
	must(t, err)
	in.dir = dir
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.WriteFile(filepath.Join(dir, "lockkeeper_1.0.0_amd64.deb"), []byte("a package"), 0o644))
	byName := map[string]walkthrough.Host{}
	for i := range 3 {
		h, err := simhost.Start(context.Background(), cp, simhost.Options{
			Name: fmt.Sprint("node-", i+1), Binary: binary, Version: old, WithoutLockkeeper: true,
			RestartDelay: 300 * time.Millisecond,
		})
		must(t, err)
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s:\n%s", h.Name(), h.LogTail(40))
			}
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		})
		in.hosts = append(in.hosts, &host{Host: h, binary: binary})
		byName[h.Name()] = in.hosts[i]
	}
	admin, err := cp.Kubeconfig("an-admin", "system:masters")
	must(t, err)
	in.shell, err = walkthrough.Start(dir, map[string]string{"lockkeeper": binary, "kubectl": cp.Binaries().Kubectl},
		[]string{"KUBECONFIG=" + admin}, byName)
	must(t, err)
	t.Cleanup(func() {
		if err := in.shell.Close(); err != nil {
			t.Error(err)
		}
	})
	return in
}

// read begins a page.
func (in *installation) read(page string) {
	in.t.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	must(in.t, err)
	in.page = page
	in.steps, err = walkthrough.Steps(string(text))
	must(in.t, err)
}

// next does the document's next step, which has to be under the title. Every command of it has to exit with 0.
func (in *installation) next(title string) string {
	in.t.Helper()
	if len(in.steps) == 0 || in.steps[0].Title != title {
		in.t.Fatalf("docs/%s has no further step below %q; what is left: %q", in.page, title, in.steps)
	}
	step := in.steps[0]
	in.steps = in.steps[1:]
	return in.do(step)
}

func (in *installation) do(step walkthrough.Step) string {
	in.t.Helper()
	result, err := in.shell.Run(in.t.Context(), step)
	must(in.t, err)
	in.t.Logf("## %s\n$ %s\n%s", step.Title, strings.TrimSpace(step.Text), result.Output)
	if len(result.Failures) > 0 {
		in.t.Fatalf("%q: these failed: %v", step.Title, result.Failures)
	}
	return result.Output
}

// says fails the test unless the output has every word, so often.
func (in *installation) says(output string, times int, words ...string) {
	in.t.Helper()
	for _, w := range words {
		if got := strings.Count(output, w); got != times {
			in.t.Errorf("%q is said %d times, expected %d, in:\n%s", w, got, times, output)
		}
	}
}

// hears waits until the host has told its service manager all the words.
func (in *installation) hears(h *host, words ...string) {
	in.t.Helper()
	ctx, cancel := context.WithTimeout(in.t.Context(), soon)
	defer cancel()
	must(in.t, h.WaitNotify(ctx, fmt.Sprintf("saying %q", words), func(n simhost.Notify) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(n.Status, w) })
	}))
}

// until waits until every host's Node is as cond wants it.
func (in *installation) until(what string, within time.Duration, cond func(*simhost.Host, *corev1.Node) bool) {
	in.t.Helper()
	ctx, cancel := context.WithTimeout(in.t.Context(), within)
	defer cancel()
	for _, h := range in.hosts {
		_, err := in.cp.WaitNode(ctx, h.Name(), what, func(n *corev1.Node) bool { return n != nil && cond(h.Host, n) })
		must(in.t, err)
	}
}

// holder waits until the Lease's holder is as cond wants it, and returns it.
func (in *installation) holder(what string, cond func(string) bool) string {
	in.t.Helper()
	ctx, cancel := context.WithTimeout(in.t.Context(), soon)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		l, err := in.cp.Client().CoordinationV1().Leases(controlplane.LockkeeperNamespace).Get(ctx, controlplane.LockkeeperLease, metav1.GetOptions{})
		must(in.t, err)
		now := ""
		if h := l.Spec.HolderIdentity; h != nil {
			now = *h
		}
		if cond(now) {
			return now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			in.t.Fatalf("waiting for the Lease's holder %s: it is %q", what, now)
		}
	}
}

func somebody(holder string) bool { return holder != "" }
func nobody(holder string) bool   { return holder == "" }

// pids are the processes of lockkeeper, by host.
func (in *installation) pids() map[string]int {
	pids := map[string]int{}
	for _, h := range in.hosts {
		pids[h.Name()] = h.PID()
	}
	return pids
}

// inert fails the test if anything but a host's own words is on a Node, or anything was done.
func (in *installation) inert() {
	in.t.Helper()
	for _, h := range in.hosts {
		n, err := in.cp.Client().CoreV1().Nodes().Get(in.t.Context(), h.Name(), metav1.GetOptions{})
		must(in.t, err)
		labels, annotations := v1alpha1.CoordinatorKeys()
		for _, key := range slices.Concat(labels, annotations, []string{v1alpha1.AnnotationCordon, v1alpha1.AnnotationAck}) {
			if n.Labels[key] != "" || n.Annotations[key] != "" {
				in.t.Errorf("%s has %s", h.Name(), key)
			}
		}
		if n.Spec.Unschedulable || h.Reboots() != 0 || h.Boots() != 1 {
			in.t.Errorf("%s: unschedulable %t, %d reboots, %d boots", h.Name(), n.Spec.Unschedulable, h.Reboots(), h.Boots())
		}
	}
}

// accepted reports whether the API server takes a credential, and for whom.
func (in *installation) accepted(kubeconfig []byte) (string, error) {
	in.t.Helper()
	cfg, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	must(in.t, err)
	client, err := kubernetes.NewForConfig(cfg)
	must(in.t, err)
	r, err := client.AuthenticationV1().SelfSubjectReviews().Create(in.t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return r.Status.UserInfo.Username, nil
}

// refused waits until the API server takes a credential no more: what it took last it remembers for ten seconds.
func (in *installation) refused(kubeconfig []byte) {
	in.t.Helper()
	ctx, cancel := context.WithTimeout(in.t.Context(), soon)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		user, err := in.accepted(kubeconfig)
		if apierrors.IsUnauthorized(err) {
			return
		}
		must(in.t, err)
		select {
		case <-tick.C:
		case <-ctx.Done():
			in.t.Fatalf("the stolen credential is still %q's", user)
		}
	}
}

// TestInstallAsWritten follows docs/install.md from its first command to its last.
func TestInstallAsWritten(t *testing.T) {
	in := begin(t, "install.md")
	in.next("Name your hosts")

	out := in.next("1. Prepare the cluster")
	in.says(out, 1, "namespace/lockkeeper created", "lease.coordination.k8s.io/lockkeeper created", "serviceaccount/lockkeeper-coordinator created",
		"customresourcedefinition.apiextensions.k8s.io/disruptionpolicies.lockkeeper.dev created", "disruptionpolicies.lockkeeper.dev condition met",
		"customresourcedefinition.apiextensions.k8s.io/hostupdates.lockkeeper.dev created",
		"disruptionpolicy.lockkeeper.dev/lockkeeper-default created")
	in.says(out, 0, "Warning", "unchanged")

	// The turns of three hosts are not to wait a minute for each other.
	_, err := in.cp.ApplyPolicy(t.Context(), controlplane.TestPolicy, "rollout: {settle: 1s}")
	must(t, err)
	in.next("2. Install the package on every host")
	in.until("to want nothing", soon, func(_ *simhost.Host, n *corev1.Node) bool { return n.Labels[v1alpha1.LabelWants] == "nothing" })
	for _, h := range in.hosts {
		must(t, h.StageUpdate(staged))
	}
	in.until("to want a reboot", soon, func(_ *simhost.Host, n *corev1.Node) bool { return n.Labels[v1alpha1.LabelWants] == "reboot" })

	for _, h := range in.hosts {
		in.hears(h, "no coordinator manages this node; waits: NoCoordinator", "wants reboot for OSUpdate@4.2.0")
	}
	out = in.next("3. Look")
	in.says(out, 1, "No coordinator.", "node-1  absent  reboot", "node-2  absent  reboot", "node-3  absent  reboot")
	in.says(out, 4, "NoCoordinator") // a line for each, and what it means
	out = in.next("3. Look")
	in.says(out, 6, "no coordinator manages this node; waits: NoCoordinator", "wants reboot for OSUpdate@4.2.0") // systemd's line and our own
	in.says(out, 3, "not a candidate: no coordinator's kubeconfig at ")
	in.inert()
	in.holder("to be nobody", nobody)

	before := in.pids()
	step4 := in.steps[0]
	out = in.next("4. Let it begin")
	in.says(out, 1, "lockkeeper: valid until ", ", for 90d; ")
	leader, _, _ := strings.Cut(in.holder("to be somebody", somebody), "_")
	if leader != "node-1" && leader != "node-2" {
		t.Errorf("%s coordinates, which has no credential", leader)
	}
	if now := in.pids(); now[leader] != before[leader] || before[leader] == 0 {
		t.Errorf("%s coordinates as process %d, and was %d: it needed a restart", leader, now[leader], before[leader])
	}
	in.until("to be taken in", soon, func(_ *simhost.Host, n *corev1.Node) bool { return n.Labels[v1alpha1.LabelState] != "" })
	out = in.next("4. Let it begin")
	in.says(out, 0, "No coordinator", "NoCoordinator")
	in.until("to be updated", rolled, func(h *simhost.Host, n *corev1.Node) bool {
		return h.Version() == staged && n.Labels[v1alpha1.LabelState] == "idle" && n.Labels[v1alpha1.LabelWants] == "nothing" && !n.Spec.Unschedulable
	})
	for i, h := range in.hosts {
		if h.Reboots() != 1 {
			t.Errorf("%s was rebooted %d times", h.Name(), h.Reboots())
		}
		if want := []int{1, 1, 0}[i]; h.secrets != want {
			t.Errorf("%s was given the credential %d times, want %d", h.Name(), h.secrets, want)
		}
	}

	out = in.next("In an emergency")
	for _, name := range []string{"keys", "prefixes", "owners", "coordinator", "coordinator-lease", "coordinator-token"} {
		in.says(out, 1, `"lockkeeper-`+name+`" deleted`, "validatingadmissionpolicybinding.admissionregistration.k8s.io/lockkeeper-"+name+" created")
	}

	out = in.next("Undo it")
	in.says(out, 1, `The emergency stop is set: "something is odd (by `, `The emergency stop is lifted. It was "something is odd (by `)

	stolen, err := os.ReadFile(in.hosts[0].credential())
	must(t, err)
	in.next("Undo it")
	in.holder("to be nobody after its credential has gone", nobody)
	user, err := in.accepted(stolen)
	if user != controlplane.CoordinatorUser || err != nil {
		t.Errorf("the credential that was taken away is %q's, %v", user, err)
	}
	out = in.next("Undo it")
	in.says(out, 1, `serviceaccount "lockkeeper-coordinator" deleted`, "serviceaccount/lockkeeper-coordinator created", "lease.coordination.k8s.io/lockkeeper unchanged")
	in.refused(stolen)
	in.do(step4)
	in.holder("to be somebody again", somebody)
	if len(in.steps) > 0 {
		t.Errorf("docs/install.md has steps that nobody expected: %q", in.steps)
	}
}

// TestReadmeAgrees compares the README's short form with the page: its commands are the page's.
func TestReadmeAgrees(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	must(t, err)
	page, err := os.ReadFile("../../docs/install.md")
	must(t, err)
	steps, err := walkthrough.Steps(string(page))
	must(t, err)
	var commands strings.Builder
	for _, s := range steps {
		commands.WriteString(s.Text)
	}
	_, section, _ := strings.Cut(string(readme), "\n## Install it\n")
	section, _, _ = strings.Cut(section, "\n## ")
	found := 0
	for line := range strings.Lines(section) {
		command, _, _ := strings.Cut(line, " #")
		if command = strings.TrimSpace(command); !strings.HasPrefix(line, "    ") || strings.HasPrefix(command, "apt-get") {
			continue
		}
		found++
		if !strings.Contains(commands.String(), command+"\n") {
			t.Errorf("the README says %q, which docs/install.md does not", command)
		}
	}
	if found < 3 {
		t.Errorf("%d commands found in the README, expected 3 or more", found)
	}
}
