package client

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/policy"
	"lockkeeper.dev/lockkeeper/systemd"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
	"lockkeeper.dev/lockkeeper/updateengine"
)

// soon returns a context with a deadline for an expected condition.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

const sentinel = "/run/reboot-required"

// host is lockkeeper's loop of one host, which runs in the test with its own wire on a simulated host. The test plays
// the coordinator.
type host struct {
	t    *testing.T
	name string
	sim  *simhost.Host
	w    *wire
	opts node.Options
	host *node.Host // the running or last host

	mu       sync.Mutex
	statuses []local.Host
	events   []simhost.Event

	end  context.CancelFunc
	done chan struct{}
}

// startHost starts a host. edit may change its options.
func startHost(t *testing.T, edit func(*host)) *host {
	t.Helper()
	freshLease(t)
	serviceAccounts(t)
	patchLease(t, `{"spec":{"holderIdentity":"leader_1"}}`)
	h := &host{t: t, name: "host"}
	sim, err := simhost.Start(t.Context(), cp(t), simhost.Options{Name: h.name, WithoutLockkeeper: true, Events: h.happened})
	must(t, err)
	h.sim = sim
	t.Cleanup(func() {
		must(t, sim.Close())
		// There is no garbage collector here, and the next test's host has the same name.
		client, err := dynamic.NewForConfig(cp(t).AdminConfig())
		must(t, err)
		err = client.Resource(v1alpha1.HostUpdateResource).Delete(context.Background(), h.name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	_, err = sim.WaitNodeReady(soon(t))
	must(t, err)
	h.w = nodeWire(t, h.name)
	h.opts = node.Options{
		Version:        "test",
		Connect:        func() (*kube.Client, error) { return kube.ConnectConfig(h.w.config(), "host", "test", 100, 200) },
		LeaseNamespace: leaseSpace, LeaseName: leaseName, Root: sim.Root(), PollInterval: 200 * time.Millisecond,
		Settings: node.Settings{ManagedByDefault: true, Sentinels: []string{sentinel, "/run/reboot-needed"}, HealthTimeout: time.Minute},
		Log:      logger(t, "host"), Report: h.told, Term: func() string { return "leader_1" }, // as in a cluster with one node
	}
	if edit != nil {
		edit(h)
	}
	h.run()
	return h
}

// run starts lockkeeper on the host in its current boot.
func (h *host) run() {
	h.t.Helper()
	must(h.t, h.sim.WriteFile("/proc/uptime", "3600.00 7200.00\n"))
	address := "unix:path=" + h.sim.Dir() + "/bus"
	o := h.opts
	bus := &systemd.Bus{Address: address}
	if o.Engine == nil {
		o.Engine = updateengine.New(updateengine.Options{Object: bus.Object(updateengine.BusName, updateengine.ObjectPath), PollInterval: 500 * time.Millisecond})
	}
	o.Logind, o.Units = systemd.Logind{Bus: bus}, systemd.Units{Bus: bus}
	n, err := node.New(o)
	must(h.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	h.host = n
	h.end, h.done = cancel, make(chan struct{})
	go func() {
		defer close(h.done)
		defer bus.Close()
		n.Run(ctx)
	}()
	h.t.Cleanup(h.stop)
}

func (h *host) stop() {
	h.end()
	select {
	case <-h.done:
	case <-time.After(patience):
		h.t.Error("the host's loop does not stop")
	}
}

func (h *host) told(s local.Host) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.statuses = append(h.statuses, s)
}

func (h *host) status() local.Host {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.statuses) == 0 {
		return local.Host{}
	}
	return h.statuses[len(h.statuses)-1]
}

// says waits until the status line of the host contains the text.
func (h *host) says(text string) {
	h.t.Helper()
	until(h.t, fmt.Sprintf("%q (%s)", text, h.status().Text()), func() bool { return strings.Contains(h.status().Text(), text) })
}

func (h *host) happened(e simhost.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
}

// reboots returns the reboot calls that logind has accepted, or refused.
func (h *host) reboots(kind simhost.Kind) []simhost.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []simhost.Event
	for _, e := range h.events {
		if e.Kind == kind {
			found = append(found, e)
		}
	}
	return found
}

func (h *host) want() {
	h.t.Helper()
	must(h.t, h.sim.WriteFile(sentinel, ""))
	h.wants("reboot")
}

func (h *host) wants(word string) {
	h.t.Helper()
	until(h.t, "wants="+word, func() bool { return h.node().Labels["lockkeeper.dev/wants"] == word })
}

func (h *host) node() *corev1.Node { return getNode(h.t, h.name) }

// promote plays the coordinator: it sets the node to the given state of turn t1. edit may change the grant.
func (h *host) promote(state string, edit func(*v1alpha1.Grant)) {
	h.t.Helper()
	n := h.node()
	now := time.Now().UTC().Truncate(time.Second)
	g := &v1alpha1.Grant{
		Turn: "t1", Epoch: "leader_1", NodeUID: string(n.UID), BootID: n.Status.NodeInfo.BootID, Wants: v1alpha1.WantsReboot, Drains: true,
		Changes: []v1alpha1.Change{{Source: v1alpha1.SourceSentinel, Name: sentinel}},
		Policy:  "test", Terms: policy.Default().Terms, StartedAt: now, StageAt: now,
	}
	if edit != nil {
		edit(g)
	}
	patchNode(h.t, h.name, fmt.Sprintf(`{"metadata":{"labels":{"lockkeeper.dev/state":%q},"annotations":{"lockkeeper.dev/turn":%q,"lockkeeper.dev/grant":%q}}}`,
		state, g.Turn, v1alpha1.FormatRecord(g)), v1alpha1.LabelState, v1alpha1.AnnotationTurn, v1alpha1.AnnotationGrant)
}

// onlyNode makes the grant one for the only node, without a drain.
func onlyNode(g *v1alpha1.Grant) { g.Drains, g.OnlyNode = false, true }

// acks waits for a report about turn t1, for example "draining/committed", from the current boot.
func (h *host) acks(word string) {
	h.t.Helper()
	want := "t1/" + h.sim.BootID() + "/" + word
	until(h.t, fmt.Sprintf("ack %s (%s)", want, h.status().Text()), func() bool { return h.node().Annotations["lockkeeper.dev/ack"] == want })
}

// looksEvery bounds the time after which a host in a turn reads the Lease again: every 11 s with 5 % jitter on an idle
// machine. A host without a turn reads every 30 s.
const looksEvery = 25 * time.Second

// commits returns the writes that begin a disruption, in the order of sending.
func (h *host) commits() []request {
	return slices.DeleteFunc(h.w.requests("PATCH node"), func(r request) bool { return !strings.Contains(r.body, "/committed") })
}

// committed returns the commits that took effect. A test may see the effect of a commit before the answer is on the
// wire.
func (h *host) committed() (commits []request) {
	h.t.Helper()
	until(h.t, "the answer to a commit", func() bool {
		commits = carriedOut(h.commits())
		return len(commits) > 0
	})
	return commits
}

// before returns the n requests, except watches, that directly precede r.
func (h *host) before(r request, n int) []request {
	all := slices.DeleteFunc(h.w.requests(), func(r request) bool { return strings.HasPrefix(r.kind, "WATCH") })
	i := slices.IndexFunc(all, func(o request) bool { return o.at.Equal(r.at) && o.kind == r.kind })
	return all[max(0, i-n):max(0, i)]
}

// isCommit fails the test unless the write followed the reads of a commit, in their order, within 10 s of the first
// read.
func (h *host) isCommit(commit request) {
	h.t.Helper()
	reads := h.before(commit, 3)
	var kinds []string
	for i, r := range reads {
		kinds = append(kinds, r.kind)
		next := commit.at
		if i+1 < len(reads) {
			next = reads[i+1].at
		}
		if r.answered.IsZero() || r.answered.After(next) {
			h.t.Errorf("%s was answered after the next request was sent", r.kind)
		}
		if len(r.query["resourceVersion"]) > 0 {
			h.t.Errorf("%s?%s: not a quorum read", r.kind, r.query.Encode())
		}
	}
	if want := []string{"GET node " + h.name, "GET lease lockkeeper", "LIST pods"}; !slices.Equal(kinds, want) {
		h.t.Fatalf("reads before the commit: %q, expected %q", kinds, want)
	}
	if age := commit.at.Sub(reads[0].at); age >= 10*time.Second {
		h.t.Errorf("committed %v after the first read", age)
	}
}

// pod creates a pod on the host. Once it is evicted, it ends at once.
func (h *host) pod(name string) {
	h.t.Helper()
	pods := cp(h.t).Client().CoreV1().Pods("default")
	made, err := pods.Create(h.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: h.name, AutomountServiceAccountToken: new(false),
			Containers: []corev1.Container{{Name: "app", Image: "example.invalid/app"}},
		},
	}, metav1.CreateOptions{})
	must(h.t, err)
	w, err := pods.Watch(h.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: made.ResourceVersion})
	must(h.t, err)
	var kubelet sync.WaitGroup
	kubelet.Go(func() {
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok && p.DeletionTimestamp != nil {
				_ = pods.Delete(context.Background(), name, deleteNow)
			}
		}
	})
	h.t.Cleanup(func() {
		w.Stop()
		kubelet.Wait()
		_ = pods.Delete(context.Background(), name, deleteNow)
	})
}

func (h *host) hasPod(name string) bool {
	_, err := cp(h.t).Client().CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
	return err == nil
}

// serviceAccounts creates the service account that pods need, because no controller runs here that creates it.
func serviceAccounts(t *testing.T) {
	t.Helper()
	_, err := cp(t).Client().CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if err != nil && !strings.Contains(err.Error(), "already exists") {
		t.Fatal(err)
	}
}
