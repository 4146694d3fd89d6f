package identity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/packaging/manifests"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/hookauthor"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// A grant is one verb on one resource that one binding of the manifests grants, for one name if it names some.
type grant struct{ binding, verb, group, resource, name string }

func (g grant) String() string {
	text := g.verb + " " + g.resource
	if g.group != "" {
		text += "." + g.group
	}
	if g.name != "" {
		text += " " + g.name
	}
	return text + ", granted by " + g.binding
}

// granted takes the manifests' own objects apart: every verb × resource × name of every rule of every role that is bound.
func granted(t *testing.T, text []byte) []grant {
	t.Helper()
	rules := map[string][]rbacv1.PolicyRule{} // by "Role namespace/name"
	var bindings []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4<<10)
	for {
		obj := &unstructured.Unstructured{}
		err := decoder.Decode(obj)
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		switch obj.GetKind() {
		case "Role", "ClusterRole":
			var role rbacv1.ClusterRole // the fields of both are the same
			must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &role))
			rules[obj.GetKind()+" "+obj.GetNamespace()+"/"+obj.GetName()] = role.Rules
		case "RoleBinding", "ClusterRoleBinding":
			bindings = append(bindings, obj)
		}
	}
	var all []grant
	for _, b := range bindings {
		kind, _, _ := unstructured.NestedString(b.Object, "roleRef", "kind")
		name, _, _ := unstructured.NestedString(b.Object, "roleRef", "name")
		of := rules[kind+" "+b.GetNamespace()+"/"+name]
		if len(of) == 0 {
			t.Fatalf("%s %s binds %s %s, which has no rules", b.GetKind(), b.GetName(), kind, name)
		}
		// As the API server tells of it in its audit log.
		binding := fmt.Sprintf("%s %q of %s %q", b.GetKind(), strings.TrimSuffix(b.GetName()+"/"+b.GetNamespace(), "/"), kind, name)
		for _, r := range of {
			for _, verb := range r.Verbs {
				for _, group := range r.APIGroups {
					for _, resource := range r.Resources {
						names := r.ResourceNames
						if len(names) == 0 {
							names = []string{""} // any
						}
						for _, name := range names {
							all = append(all, grant{binding, verb, group, resource, name})
						}
					}
				}
			}
		}
	}
	return all
}

// unused are the grants that no request was allowed by.
func unused(grants []grant, all []request) []grant {
	left := map[grant]bool{}
	for _, g := range grants {
		left[g] = true
	}
	for i := range all {
		r := &all[i]
		if r.Annotations["authorization.k8s.io/decision"] != "allow" {
			continue
		}
		resource := r.ObjectRef.Resource
		if r.ObjectRef.Subresource != "" {
			resource += "/" + r.ObjectRef.Subresource
		}
		// An apply that creates the object needs the verb create as well, and is one patch in the log.
		created := r.Verb == "patch" && r.ResponseStatus != nil && r.ResponseStatus.Code == 201
		maps.DeleteFunc(left, func(g grant, _ bool) bool {
			return (g.verb == r.Verb || g.verb == "create" && created) && g.group == r.ObjectRef.APIGroup && g.resource == resource && (g.name == "" || g.name == r.ObjectRef.Name) &&
				strings.Contains(r.Annotations["authorization.k8s.io/reason"], "allowed by "+g.binding+" ")
		})
	}
	return slices.SortedFunc(maps.Keys(left), func(a, b grant) int { return strings.Compare(a.String(), b.String()) })
}

// rollout is some hosts with all that happens to hosts.
type rollout struct {
	t     *testing.T
	hosts map[string]*simhost.Host
}

// until waits for a host's Node.
func (r *rollout) until(name, what string, is func(*corev1.Node) bool) *corev1.Node {
	r.t.Helper()
	n, err := cp.WaitNode(within(r.t), name, what, func(n *corev1.Node) bool { return n != nil && is(n) })
	if err != nil {
		r.t.Fatalf("%v\n%s", err, r.hosts[name].LogTail(40))
	}
	return n
}

func (r *rollout) patch(name, patch string) {
	r.t.Helper()
	_, err := cp.Client().CoreV1().Nodes().Patch(r.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(r.t, err)
}

func (r *rollout) state(name string, s v1alpha1.State) *corev1.Node {
	r.t.Helper()
	return r.until(name, "to be "+string(s), func(n *corev1.Node) bool { return n.Labels[v1alpha1.LabelState] == string(s) })
}

// stop sets the emergency stop with words, or lifts it.
func (r *rollout) stop(words string) {
	r.t.Helper()
	_, err := cp.Client().CoordinationV1().Leases(controlplane.LockkeeperNamespace).Patch(r.t.Context(), controlplane.LockkeeperLease,
		types.MergePatchType, []byte(annotation(v1alpha1.AnnotationStop, words)), metav1.PatchOptions{})
	must(r.t, err)
}

// told waits for as many Events of a reason about an object as count.
func (r *rollout) told(namespace, kind, name, reason string, count int) eventsv1.Event {
	r.t.Helper()
	var found eventsv1.Event
	until(r.t, fmt.Sprintf("%d Events %s of %s %s", count, reason, kind, name), func() (bool, error) {
		list, err := cp.Client().EventsV1().Events(namespace).List(r.t.Context(), metav1.ListOptions{FieldSelector: "reportingController=lockkeeper.dev/coordinator"})
		if err != nil {
			return false, err
		}
		have := 0
		for _, e := range list.Items {
			if e.Regarding.Kind == kind && e.Regarding.Name == name && e.Reason == reason {
				found = e
				have++
			}
		}
		return have >= count, fmt.Errorf("there are %d", have)
	})
	return found
}

// TestLeastPrivilege rolls updates with all that can happen on the way, and reads the audit log: no request of lockkeeper's was
// refused, and no rule of the manifests was of no use. The Events of it are looked at as well.
func TestLeastPrivilege(t *testing.T) {
	must(t, cp.ApplyLockkeeper(t.Context()))
	since := time.Now()
	_, err := cp.ApplyPolicy(t.Context(), controlplane.TestPolicy, "{rollout: {settle: 200ms, backoff: 1h}, hooks: {beforeReboot: [{name: backup}]}}")
	must(t, err)
	// Not t.Context(), which ends before the hosts do.
	f, err := simhost.StartFleet(context.Background(), cp, simhost.FleetOptions{Hosts: 3, Coordinators: 2, Prefix: "lp-", Host: simhost.Options{Binary: binary}})
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	r := &rollout{t: t, hosts: map[string]*simhost.Host{}}
	for _, h := range f.Hosts {
		r.hosts[h.Name()] = h
	}
	hooks, err := hookauthor.Start(cp.Client(), func(line string) { t.Log(line) })
	must(t, err)
	t.Cleanup(hooks.Close)
	must(t, f.WaitIdle(within(t)))
	_, err = cp.Client().CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "on-lp-3"},
		Spec: corev1.PodSpec{NodeName: "lp-3", AutomountServiceAccountToken: new(false),
			Containers: []corev1.Container{{Name: "c", Image: "example.invalid/c"}}},
	}, metav1.CreateOptions{})
	must(t, err)

	// A turn that is cancelled before its reboot; the pod is evicted by then.
	hooks.Keep("backup")
	must(t, r.hosts["lp-3"].StageUpdate("4.2.0"))
	_, err = cp.WaitPods(within(t), "default", "", "to be evicted", func(pods []*corev1.Pod) bool {
		return slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Name == "on-lp-3" && p.DeletionTimestamp != nil })
	})
	must(t, err)
	// What a kubelet does when the containers have ended: none runs here.
	must(t, cp.Client().CoreV1().Pods("default").Delete(within(t), "on-lp-3", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	r.state("lp-3", v1alpha1.StateBeforeReboot)
	if _, err := cp.Client().CoreV1().Pods("default").Get(t.Context(), "on-lp-3", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod on lp-3: %v", err)
	}
	// The same nonsense twice, which makes two Events.
	for i := range 2 {
		r.patch("lp-3", annotation(v1alpha1.AnnotationPaused, `"{\"until\": \"tomorrow\"}"`))
		r.until("lp-3", "to be held", func(n *corev1.Node) bool { return n.Labels[v1alpha1.LabelHeld] == string(v1alpha1.ReasonPaused) })
		e := r.told("default", "Node", "lp-3", v1alpha1.EventInvalidIntent, i+1)
		if e.Type != "Warning" || !strings.Contains(e.Note, "annotation lockkeeper.dev/paused: expected text or JSON") {
			t.Errorf("%s Event %q", e.Type, e.Note)
		}
		r.patch("lp-3", annotation(v1alpha1.AnnotationPaused, "null"))
		r.until("lp-3", "to be paused no more", func(n *corev1.Node) bool { return n.Labels[v1alpha1.LabelHeld] != string(v1alpha1.ReasonPaused) })
	}
	must(t, r.hosts["lp-3"].ResetStatus())
	r.state("lp-3", v1alpha1.StateIdle)
	r.told("default", "Node", "lp-3", v1alpha1.EventBackingOut, 1)
	r.told("default", "Node", "lp-3", string(v1alpha1.ResultCancelled), 1)

	// The emergency stop, twice, which makes two Events.
	for i := range 2 {
		r.stop(`"drill"`)
		r.told(controlplane.LockkeeperNamespace, "Lease", controlplane.LockkeeperLease, string(v1alpha1.ReasonStopped), i+1)
		r.stop("null")
		until(t, "the end of the stop to be seen", func() (bool, error) {
			return strings.Count(r.hosts["lp-1"].Logs()+r.hosts["lp-2"].Logs(), "the emergency stop is over") >= i+1, nil
		})
		r.told(controlplane.LockkeeperNamespace, "Lease", controlplane.LockkeeperLease, v1alpha1.EventStopLifted, i+1)
	}

	// A turn that fails, and is cleared: the node is granted twice.
	hooks.Release("backup")
	r.hosts["lp-3"].SetNextBoot(simhost.NextBoot{Rollback: true})
	must(t, r.hosts["lp-3"].StageUpdate("4.2.0"))
	failed := r.until("lp-3", "to have failed", func(n *corev1.Node) bool {
		last, err := v1alpha1.ParseLast(n.Annotations[v1alpha1.AnnotationLast])
		return err == nil && last.Result == v1alpha1.ResultFailed && n.Labels[v1alpha1.LabelState] == string(v1alpha1.StateIdle)
	})
	if e := r.told("default", "Node", "lp-3", string(v1alpha1.ResultFailed), 1); e.Type != "Warning" || !strings.Contains(e.Note, "ended Failed (NotUpdated: ") {
		t.Errorf("%s Event %q", e.Type, e.Note)
	}
	r.told("default", "DisruptionPolicy", controlplane.TestPolicy, string(v1alpha1.ReasonHalted), 1)
	last, err := v1alpha1.ParseLast(failed.Annotations[v1alpha1.AnnotationLast])
	must(t, err)
	r.patch("lp-3", annotation(v1alpha1.AnnotationRetry, `"`+last.Turn+`"`))
	must(t, r.hosts["lp-3"].StageUpdate("4.2.0"))
	updated := func(names ...string) {
		t.Helper()
		for _, name := range names {
			r.until(name, "to be updated", func(n *corev1.Node) bool {
				return r.hosts[name].Version() == "4.2.0" && n.Labels[v1alpha1.LabelState] == string(v1alpha1.StateIdle) && n.Labels[v1alpha1.LabelWants] == string(v1alpha1.WantsNothing)
			})
		}
	}
	updated("lp-3")
	r.told("default", "DisruptionPolicy", controlplane.TestPolicy, v1alpha1.EventReleased, 1)
	r.told("default", "Node", "lp-3", v1alpha1.EventGranted, 3)
	r.told("default", "Node", "lp-3", string(v1alpha1.ResultDone), 1)

	// Intents and a request of a person's; what status reads is the person's own doing.
	r.patch("lp-3", annotation(v1alpha1.AnnotationPaused, `"disk"`))
	r.state("lp-3", v1alpha1.StatePaused)
	r.patch("lp-3", annotation(v1alpha1.AnnotationPaused, "null"))
	r.state("lp-3", v1alpha1.StateIdle)
	// A pause and a detach with an end: the coordinator removes both when their time has come, and not before.
	for _, key := range []string{v1alpha1.AnnotationPaused, v1alpha1.AnnotationDetached} {
		end := time.Now().Add(1500 * time.Millisecond)
		r.patch("lp-3", annotation(key, strconv.Quote(`{"reason":"disk","until":"`+end.Format(time.RFC3339Nano)+`"}`)))
		r.until("lp-3", "to be "+key+" no more", func(n *corev1.Node) bool { return n.Annotations[key] == "" })
		if time.Now().Before(end) {
			t.Errorf("%s ended %v before its until", key, time.Until(end))
		}
	}
	r.state("lp-3", v1alpha1.StateIdle)
	r.patch("lp-3", annotation(v1alpha1.AnnotationDetached, `"theirs"`))
	r.until("lp-3", "to be let go", func(n *corev1.Node) bool {
		return n.Labels[v1alpha1.LabelState] == "" && n.Labels[v1alpha1.LabelWants] == ""
	})
	r.patch("lp-3", annotation(v1alpha1.AnnotationDetached, "null"))
	r.state("lp-3", v1alpha1.StateIdle)
	for reason, count := range map[string]int{string(v1alpha1.ReasonPaused): 4, v1alpha1.EventResumed: 4, string(v1alpha1.ReasonDetached): 2, v1alpha1.EventAttached: 2} {
		r.told("default", "Node", "lp-3", reason, count)
		all := slices.DeleteFunc(r.events()["lp-3"], func(s string) bool { return s != reason })
		if len(all) != count {
			t.Errorf("%d Events %s, want %d", len(all), reason, count)
		}
	}
	boots := r.hosts["lp-3"].Reboots()
	r.patch("lp-3", annotation(v1alpha1.AnnotationRequest, `"reboot"`))
	r.until("lp-3", "to have rebooted", func(n *corev1.Node) bool {
		return r.hosts["lp-3"].Reboots() > boots && n.Labels[v1alpha1.LabelState] == string(v1alpha1.StateIdle) && n.Annotations[v1alpha1.AnnotationRequest] == ""
	})
	r.told("default", "Node", "lp-3", v1alpha1.EventGranted, 4)
	r.told("default", "Node", "lp-3", string(v1alpha1.ResultDone), 2)
	admin, err := cp.Kubeconfig("testbed:admin", "system:masters")
	must(t, err)
	until(t, "lockkeeper status to find nothing to do", func() (bool, error) {
		out, err := exec.CommandContext(within(t), binary, "status", "-A", "--exit-code", "--kubeconfig", admin).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "lp-3") {
			return false, fmt.Errorf("%w\n%s", err, out)
		}
		return true, nil
	})

	// The leader's own credential ends soon; then another leads, who repeats no Event.
	leader := r.leader()
	expires := time.Now().Add(10 * time.Minute)
	token, err := cp.AgedCoordinatorToken(t.Context(), expires.Add(-time.Hour), expires)
	must(t, err)
	minted, err := cp.CoordinatorKubeconfig()
	must(t, err)
	text, err := os.ReadFile(minted) // except for the token
	must(t, err)
	text, err = controlplane.WithToken(text, token)
	must(t, err)
	must(t, os.WriteFile(leader.CoordinatorKubeconfig()+".new", text, 0o600))
	must(t, os.Rename(leader.CoordinatorKubeconfig()+".new", leader.CoordinatorKubeconfig()))
	until(t, "the token's renewal", func() (bool, error) {
		_, err := os.Stat(leader.RenewedToken())
		return err == nil, err
	})
	before := r.events()
	leader.StopLockkeeper()
	until(t, "another leader", func() (bool, error) { now := r.leader(); return now != nil && now != leader, nil })
	must(t, leader.StartLockkeeper())
	must(t, r.hosts["lp-1"].StageUpdate("4.2.0"))
	must(t, r.hosts["lp-2"].StageUpdate("4.2.0"))
	updated("lp-1", "lp-2")
	for _, name := range []string{"lp-1", "lp-2"} {
		r.told("default", "Node", name, string(v1alpha1.ResultDone), 1)
	}
	after := r.events()
	if !slices.Equal(after["lp-3"], before["lp-3"]) {
		t.Errorf("Events of lp-3 after the handover: %v, before it: %v", after["lp-3"], before["lp-3"])
	}
	// Nothing disturbed these two turns: one Event when each began and one when it ended.
	for _, name := range []string{"lp-1", "lp-2"} {
		if want := []string{string(v1alpha1.ResultDone), v1alpha1.EventGranted}; !slices.Equal(after[name], want) {
			t.Errorf("Events of %s: %v, want %v", name, after[name], want)
		}
	}

	all := slices.DeleteFunc(requests(t, since), func(r request) bool {
		ours := r.User.Username == controlplane.CoordinatorUser || strings.HasPrefix(r.User.Username, "system:node:lp-")
		return !ours || !strings.HasPrefix(r.UserAgent, "lockkeeper-host/") && !strings.HasPrefix(r.UserAgent, "lockkeeper-coordinator/")
	})
	for i := range all {
		if all[i].Refused() {
			t.Errorf("refused: %s", all[i])
		}
	}
	manifest, err := manifests.Render(manifests.Options{})
	must(t, err)
	grants := granted(t, manifest)
	for _, g := range unused(grants, all) {
		t.Errorf("nobody used: %s", g)
	}
	// A rule more would be found.
	spare := grant{grants[0].binding, "delete", grants[0].group, grants[0].resource, ""}
	if found := unused(append(slices.Clone(grants), spare), all); len(found) == 0 || !slices.Contains(found, spare) {
		t.Errorf("a rule that nobody uses is not found among %v", found)
	}
	t.Logf("%d requests of lockkeeper's, %d grants", len(all), len(grants))
}

// leader is the host that holds the Lease, nil for none.
func (r *rollout) leader() *simhost.Host {
	r.t.Helper()
	l, err := leases(cp.Client()).Get(r.t.Context(), controlplane.LockkeeperLease, metav1.GetOptions{})
	must(r.t, err)
	if l.Spec.HolderIdentity == nil {
		return nil
	}
	name, _, _ := strings.Cut(*l.Spec.HolderIdentity, "_")
	return r.hosts[name]
}

// events returns the reasons of each Node's Events, sorted.
func (r *rollout) events() map[string][]string {
	r.t.Helper()
	list, err := cp.Client().EventsV1().Events("default").List(r.t.Context(), metav1.ListOptions{FieldSelector: "reportingController=lockkeeper.dev/coordinator"})
	must(r.t, err)
	all := map[string][]string{}
	for _, e := range list.Items {
		all[e.Regarding.Name] = append(all[e.Regarding.Name], e.Reason)
	}
	for name := range all {
		slices.Sort(all[name])
	}
	return all
}
