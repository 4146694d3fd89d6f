package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/effect"
	"lockkeeper.dev/lockkeeper/node/source"
	"lockkeeper.dev/lockkeeper/node/step"
	"lockkeeper.dev/lockkeeper/policy"
	"lockkeeper.dev/lockkeeper/systemd"
)

// memoryAPI plays the API server for one host, in memory, so that a host runs in a synctest bubble. It serves the host's
// Node, the Lease, a policy, and pods that can be neither evicted nor watched. It orders and delays requests, and makes
// them fail.
type memoryAPI struct {
	t      *testing.T
	ahead  time.Duration // its clock
	delay  time.Duration // of each answer
	called func(request string)
	// fails are the requests that get a status code instead of their answer; 0 stands for no answer.
	fails map[string]int
	hangs string // a request that gets no answer before its context ends
	gone  bool   // the Node was deleted
	spec  v1alpha1.DisruptionPolicySpec

	mu       sync.Mutex
	node     *corev1.Node
	lease    coordinationv1.Lease
	pods     []corev1.Pod
	requests []string
}

// kind names a request.
func (*memoryAPI) kind(r *http.Request) string {
	query, verb := r.URL.Query(), map[string]string{http.MethodGet: "get", http.MethodPatch: "patch", http.MethodPost: "post"}[r.Method]
	what := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	switch {
	case query.Has("watch"):
		return "watch " + what
	case query.Get("resourceVersion") == "0":
		return "list cached " + what
	case query.Has("fieldSelector") || what == "disruptionpolicies":
		return "list " + what
	}
	return verb + " " + what
}

func (a *memoryAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	kind := a.kind(r)
	a.mu.Lock()
	a.requests = append(a.requests, kind)
	a.mu.Unlock()
	if a.called != nil {
		a.called(kind)
	}
	wait := time.After(a.delay)
	if strings.HasPrefix(kind, "watch") || strings.HasPrefix(kind, "post") || kind == a.hangs {
		wait = nil
	}
	select {
	case <-wait:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	code, fails := a.fails[kind]
	answer := any(nil)
	switch {
	case fails && code == 0:
		return nil, errors.New("no answer")
	case !fails:
		code, answer = a.answer(kind, r)
	}
	if answer == nil {
		answer = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Code: int32(code), Message: "no"}
	}
	body, err := json.Marshal(answer)
	return &http.Response{StatusCode: code, Body: io.NopCloser(bytes.NewReader(body)), Request: r, Header: http.Header{
		"Content-Type": {"application/json"}, "Date": {time.Now().Add(a.ahead).UTC().Format(http.TimeFormat)},
	}}, err
}

// answer answers a request; nil stands for the Status of the code. The caller holds mu.
func (a *memoryAPI) answer(kind string, r *http.Request) (code int, answer any) {
	list := metav1.ListMeta{ResourceVersion: a.node.ResourceVersion}
	status := func(s *apierrors.StatusError) (int, any) {
		s.ErrStatus.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		return int(s.ErrStatus.Code), s.ErrStatus
	}
	if a.gone && strings.HasSuffix(kind, " n1") {
		return status(apierrors.NewNotFound(corev1.Resource("nodes"), "n1"))
	}
	switch kind {
	case "get n1":
		return http.StatusOK, a.node
	case "patch n1":
		body, err := io.ReadAll(r.Body)
		was, marshalErr := json.Marshal(a.node)
		next, patchErr := strategicpatch.StrategicMergePatch(was, body, corev1.Node{})
		node := &corev1.Node{}
		if err := errors.Join(err, marshalErr, patchErr, json.Unmarshal(next, node)); err != nil {
			a.t.Error(err)
		}
		if node.ResourceVersion != a.node.ResourceVersion {
			return status(apierrors.NewConflict(corev1.Resource("nodes"), "n1", errors.New("another version")))
		}
		a.node = node
		a.change()
		return http.StatusOK, a.node
	case "list nodes":
		return http.StatusOK, corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: list, Items: slices.Repeat([]corev1.Node{*a.node}, map[bool]int{false: 1}[a.gone])}
	case "get lockkeeper":
		return http.StatusOK, a.lease
	case "list pods", "list cached pods":
		return http.StatusOK, corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: list, Items: a.pods}
	case "list disruptionpolicies":
		return http.StatusOK, v1alpha1.DisruptionPolicyList{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "DisruptionPolicyList"}, ListMeta: list,
			Items: []v1alpha1.DisruptionPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "all", UID: "p", ResourceVersion: "3"}, Spec: a.spec}}}
	}
	a.t.Errorf("an unexpected request: %s %s", r.Method, r.URL)
	return http.StatusNotFound, nil
}

// change gives the Node another version.
func (a *memoryAPI) change() {
	version, _ := strconv.Atoi(a.node.ResourceVersion)
	a.node.ResourceVersion = strconv.Itoa(version + 1)
}

// since returns the requests since the last call.
func (a *memoryAPI) since() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.requests
	a.requests = nil
	return all
}

// count returns how many requests of that kind there were since the last call of since.
func (a *memoryAPI) count(kind string) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.requests {
		if r == kind {
			n++
		}
	}
	return n
}

// hookUnits plays systemd for a host without reboot managers. Its hook units run until their context ends.
type hookUnits struct {
	fails   error
	hangs   bool      // Running does not answer
	by      time.Time // until when the last units were asked for
	stopped atomic.Bool
}

func (u *hookUnits) Running(ctx context.Context, _ []string) ([]string, error) {
	if u.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, u.fails
}
func (u *hookUnits) WatchJobs(context.Context, []string, func()) error { return nil }
func (u *hookUnits) Wanted(context.Context, string) ([]string, error)  { return nil, nil }
func (u *hookUnits) Begun(context.Context, []string) ([]string, error) { return nil, nil }
func (u *hookUnits) StopTarget(context.Context, string) error          { u.stopped.Store(true); return nil }
func (u *hookUnits) RunTarget(ctx context.Context, _ string, by time.Time, _ func([]systemd.UnitState)) ([]systemd.UnitState, error) {
	u.by = by
	<-ctx.Done()
	return nil, ctx.Err()
}

// newMemoryHost returns a host that wants a reboot, because of a sentinel. Its Node is in that state of turn t1, cordoned
// by it, and has one pod. All of its sources have been read. change changes its policy.
func newMemoryHost(t *testing.T, state v1alpha1.State, change ...func(*v1alpha1.DisruptionPolicySpec)) (*Host, *memoryAPI, *hookUnits) {
	t.Helper()
	h, _ := newTestHost(t, state)
	node := h.view.Get("n1").DeepCopy()
	node.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	node.Status.NodeInfo.BootID = bootID
	node.Spec.Unschedulable = true
	node.Annotations[v1alpha1.AnnotationCordon] = "t1"
	node.Annotations[v1alpha1.AnnotationGrant] = v1alpha1.FormatRecord(v1alpha1.Grant{
		Turn: "t1", Epoch: "e1", NodeUID: "uid", BootID: bootID, Wants: v1alpha1.WantsReboot, Drains: true, StartedAt: time.Now(), StageAt: time.Now(),
	})
	node.Annotations[v1alpha1.AnnotationAck] = fmt.Sprintf("t1/%s/%s/committed", bootID, state)
	now := metav1.NewMicroTime(time.Now())
	api := &memoryAPI{t: t, node: node, spec: v1alpha1.DefaultPolicySpec(), fails: map[string]int{}, lease: coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "lockkeeper", Name: "lockkeeper", UID: "l", ResourceVersion: "7"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("e1"), RenewTime: &now, LeaseDurationSeconds: new(int32(30))},
	}}
	for _, f := range change {
		f(&api.spec)
	}
	api.pods = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p", ResourceVersion: "3"}, Spec: corev1.PodSpec{NodeName: "n1"}}}
	client, err := kube.ConnectConfig(&rest.Config{Host: "http://api", Transport: api}, "host", "v1", 100, 100)
	must(t, err)
	units := &hookUnits{}
	h.LeaseNamespace, h.LeaseName = "lockkeeper", "lockkeeper"
	h.client, h.identity, h.view = client, client.Identity(), kube.WatchNode(client, "n1", h.wake)
	h.policies = kube.WatchPolicies(client, policy.Compile, h.wake)
	must(t, h.makeEffects())
	h.managers = source.NewManagers(source.Options{Root: h.Root, Log: h.log, Changed: h.wake}, units, func() (string, error) { return "", nil }, "")
	h.hookUnits, h.hooks = effect.NewHookStages(units, h.wake), effect.NewHooks(units, h.log, h.wake)
	h.Reload(Settings{Sentinels: []string{"/etc/os-release"}, ManagedByDefault: true})
	h.watched.Watch(nil, nil, nil)
	must(t, errors.Join(h.view.Load(t.Context()), h.policies.Load(t.Context()), h.sentinels.Read(), h.hookUnits.Read(t.Context()), h.watched.Refresh(t.Context())))
	api.since()
	return h, api, units
}

// evicts starts the drain of the host's stage, which cannot evict the host's pod.
func evicts(t *testing.T, h *Host) {
	t.Helper()
	h.drain.Start(t.Context(), effect.StageOf(h.facts()), step.Eviction{}, false)
	synctest.Wait() // its eviction is sent, and has no answer
	if t.Cleanup(h.drain.Stop); !evicting(h) {
		t.Fatal("the drain does not run")
	}
}

func evicting(h *Host) bool { return h.drain.Work(effect.StageOf(h.facts())).Running }

// silentLogind does not answer.
type silentLogind struct{}

func (silentLogind) Reboot(context.Context) error {
	return &systemd.CallError{Method: "Reboot", Err: errors.New("the connection was lost")}
}

func (silentLogind) RebootUnderway(context.Context) (bool, error) { return false, nil }
