package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	kubectldrain "k8s.io/kubectl/pkg/drain"

	"lockkeeper.dev/lockkeeper/drain"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
)

const (
	drainPods   = 110 // a kubelet's default limit
	drainRounds = 5
	drainNode   = "drained" // also the pods' namespace
	drainHeld   = "web-000" // the pod that a budget protects
	drainStops  = "2s"      // from a pod's deletion to its end
	drainBlock  = time.Minute
	drainWithin = 2*time.Minute + drainBlock // limits one drain
)

// drainer is a tool that drains the node, with the meter's user agent and through the meter.
type drainer struct {
	name string
	run  func(context.Context, *meter) error
}

// drain compares lockkeeper's drain with that of kubectl's package, which other operators use.
func (b *bench) drain(ctx context.Context) error {
	if _, err := b.cp.CreateNode(ctx, controlplane.NodeSpec{Name: drainNode, Ballast: true}); err != nil {
		return err
	}
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: drainNode}}
	if _, err := b.cp.Client().CoreV1().Namespaces().Create(ctx, space, metav1.CreateOptions{}); err != nil {
		return err
	}
	tools := []drainer{
		{"lockkeeper", b.ownDrain},
		{"kubectl's, as in kured", b.kubectlDrain(5, 10, 0)},
		{"kubectl's, unlimited client", b.kubectlDrain(-1, 0, 5*time.Second)},
	}
	free, held := make([][]drained, len(tools)), make([][]drained, len(tools))
	for round := range drainRounds + 1 {
		for i := range tools {
			t := (round + i) % len(tools) // each tool is the first in some round
			block, into := time.Duration(0), free
			if round == drainRounds {
				block, into = drainBlock, held
			}
			d, err := b.drainOnce(ctx, tools[t], fmt.Sprintf("drain-%d-%d", round, i), block)
			if err != nil {
				return fmt.Errorf("%s: %w", tools[t].name, err)
			}
			into[t] = append(into[t], d)
		}
	}
	section("drain", fmt.Sprintf(`One node of KWOK with %d pods that each end %s after their deletion; medians of %d rounds, in which the tools take turns.
		kubectl's: k8s.io/kubectl/pkg/drain with Force, IgnoreAllDaemonSets, DeleteEmptyDirData and GracePeriodSeconds -1.
		As in kured: client-go's limits of 5 requests a second and 10 at once, and EvictErrorRetryDelay is not set.
		Unlimited client: no such limits, like lockkeeper's client, and kubectl's own delay of 5s between two evictions of a pod.
		"gone" and "returns" are the times from the tool's start until the API server has none of the pods, and until the tool knows.
		Requests are by the audit log. Ratios are to the first kubectl row.`, drainPods, drainStops, drainRounds))
	drainTable(tools, free, []figure{
		{"gone, s", "%.1f", func(d drained) float64 { return d.gone.Seconds() }},
		{"returns, s", "%.1f", func(d drained) float64 { return d.took.Seconds() }},
		{"requests", "%.0f", func(d drained) float64 { return float64(sum(d.requests)) }},
		{"KiB received", "%.0f", func(d drained) float64 { return float64(d.received) / kib }},
	})
	section("drain with a blocked pod", fmt.Sprintf(`The same, once for each tool, while a PodDisruptionBudget protects one of the pods until %v after the start.
		"gone after" is from the change of the budget to the pod's end, which includes its %s.`, drainBlock, drainStops))
	drainTable(tools, held, []figure{
		{"its evictions meanwhile", "%.0f", func(d drained) float64 { return float64(d.refused) }},
		{"requests", "%.0f", func(d drained) float64 { return float64(sum(d.requests)) }},
		{"gone after, s", "%.1f", func(d drained) float64 { return (d.gone - d.released).Seconds() }},
	})
	return nil
}

// figure is a column of a table.
type figure struct {
	name, format string
	of           func(drained) float64
}

// drainTable prints a row for each tool: the median of each figure with its ratio to the second tool's, and the requests.
func drainTable(tools []drainer, all [][]drained, figures []figure) {
	middle := func(tool int, of func(drained) float64) float64 {
		d := slices.SortedFunc(slices.Values(all[tool]), func(x, y drained) int { return cmp.Compare(of(x), of(y)) })
		return of(d[len(d)/2])
	}
	rows := [][]string{{"tool"}}
	for i, t := range tools {
		row := []string{t.name}
		for _, f := range figures {
			if i == 0 {
				rows[0] = append(rows[0], f.name, "ratio")
			}
			row = append(row, fmt.Sprintf(f.format, middle(i, f.of)), times(middle(i, f.of), middle(1, f.of)))
		}
		rows = append(rows, append(row, list(all[i][len(all[i])-1].requests, 1)))
	}
	rows[0] = append(rows[0], "requests in the last round")
	table(rows)
}

// drained is what one drain cost. Times are since its start.
type drained struct {
	took, gone time.Duration
	requests   map[string]int
	received   int64
	released   time.Duration // when the blocked pod's budget was changed
	refused    int           // its evictions until then
}

// drainOnce creates the pods and has the tool drain them. A budget protects one pod for the time block.
func (b *bench) drainOnce(ctx context.Context, t drainer, agent string, block time.Duration) (d drained, err error) {
	ctx, cancel := context.WithTimeout(ctx, drainWithin)
	defer cancel()
	budgets := b.cp.Client().PolicyV1().PodDisruptionBudgets(drainNode)
	if block > 0 {
		least := intstr.FromInt32(1)
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: agent}, Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": drainHeld}}}}
		if _, err := budgets.Create(ctx, budget, metav1.CreateOptions{}); err != nil {
			return d, err
		}
		defer func() { _ = budgets.Delete(context.WithoutCancel(ctx), agent, metav1.DeleteOptions{}) }()
	}
	if err := b.fillNode(ctx); err != nil {
		return d, err
	}
	if err := pause(ctx, tail); err != nil { // the budget's controller counts the pod
		return d, err
	}
	m := &meter{agent: agent}
	from := time.Now()
	result := make(chan error, 1)
	go func() {
		err := t.run(ctx, m)
		d.took = time.Since(from)
		result <- err
	}()
	if block > 0 {
		if err := pause(ctx, block); err != nil {
			return d, err
		}
		d.released = time.Since(from)
		if _, err := budgets.Patch(ctx, agent, types.MergePatchType, []byte(`{"spec":{"minAvailable":0}}`), metav1.PatchOptions{}); err != nil {
			return d, err
		}
	}
	if _, err := b.cp.WaitPods(ctx, drainNode, "", "gone", func(pods []*corev1.Pod) bool { return len(pods) == 0 }); err != nil {
		return d, err
	}
	d.gone = time.Since(from)
	if err := <-result; err != nil {
		return d, err
	}
	d.received = m.received.Load()
	all, err := b.requests(from, time.Now())
	own := func(r *request) bool { return r.UserAgent == agent || r.UserAgent == "lockkeeper-host/"+agent }
	d.requests = byWhat(all, own)
	for i := range all {
		if r := &all[i]; own(r) && r.ObjectRef.Subresource == "eviction" && r.ObjectRef.Name == drainHeld && r.Received.Sub(from) < d.released {
			d.refused++
		}
	}
	return d, err
}

// fillNode creates the pods and waits until they run.
func (b *bench) fillNode(ctx context.Context) error {
	for i := range drainPods {
		name, grace := fmt.Sprintf("web-%03d", i), int64(2)
		_, err := b.cp.Client().CoreV1().Pods(drainNode).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name},
				Annotations: map[string]string{controlplane.StopsAfterAnnotation: drainStops}},
			Spec: corev1.PodSpec{NodeName: drainNode, TerminationGracePeriodSeconds: &grace,
				Containers: []corev1.Container{{Name: "app", Image: "example.invalid/app"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	_, err := b.cp.WaitPods(ctx, drainNode, "", "all running", func(pods []*corev1.Pod) bool {
		return len(pods) == drainPods && !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return !controlplane.PodReady(p) })
	})
	return err
}

// ownDrain drains as a host does, with the host's credential and client.
func (b *bench) ownDrain(ctx context.Context, m *meter) error {
	config, err := b.cp.NodeConfig(drainNode)
	if err != nil {
		return err
	}
	config.Wrap(m.wrap)
	client, err := kube.ConnectConfig(config, "host", m.agent, -1, 0)
	if err != nil {
		return err
	}
	return (&drain.Drainer{Client: client, Node: drainNode}).Run(ctx, func(drain.Progress) {})
}

// kubectlDrain returns a drain by kubectl's package. Its user may read everything: a host may not get a pod that is gone.
func (b *bench) kubectlDrain(qps float32, burst int, retry time.Duration) func(context.Context, *meter) error {
	return func(ctx context.Context, m *meter) error {
		config := b.cp.AdminConfig()
		config.QPS, config.Burst, config.UserAgent = qps, burst, m.agent
		config.Wrap(m.wrap)
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		return kubectldrain.RunNodeDrain(&kubectldrain.Helper{
			Ctx: ctx, Client: client, Out: io.Discard, ErrOut: io.Discard, EvictErrorRetryDelay: retry,
			Force: true, IgnoreAllDaemonSets: true, DeleteEmptyDirData: true, GracePeriodSeconds: -1,
		}, drainNode)
	}
}

// meter is between a client and the API server. It counts the bytes of the answers' bodies.
type meter struct {
	agent    string // the client's user agent
	next     http.RoundTripper
	received atomic.Int64
}

func (m *meter) wrap(next http.RoundTripper) http.RoundTripper {
	m.next = next
	return m
}

// RoundTrip sends the request.
func (m *meter) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := m.next.RoundTrip(r)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(resp.Body, m), resp.Body}
	}
	return resp, err
}

// Write counts the bytes.
func (m *meter) Write(p []byte) (int, error) {
	m.received.Add(int64(len(p)))
	return len(p), nil
}
