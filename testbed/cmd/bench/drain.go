package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	kubectldrain "k8s.io/kubectl/pkg/drain"

	"lockkeeper.dev/lockkeeper/drain"
	"lockkeeper.dev/lockkeeper/kube"
)

const (
	drainRounds = 3
	drainWithin = 10 * time.Minute // limits one drain
)

// drainer is a tool that drains a node, with the meter's user agent and through the meter.
type drainer struct {
	name  string
	ideal time.Duration // the least time in which the pods can be gone: the longest grace in each group, one after the other
	run   func(ctx context.Context, node string, m *meter) error
}

// drain compares lockkeeper's drain with that of kubectl's package, which other operators use.
func (b *bench) drain(ctx context.Context) error {
	tools := []drainer{
		{"lockkeeper", 2 * podStops, b.ownDrain},
		{"kubectl's, as in kured", podStops, b.kubectlDrain(5, 10, 0)},
		{"kubectl's, unlimited client", podStops, b.kubectlDrain(-1, 0, 5*time.Second)},
	}
	nodes := make([]string, len(tools)) // each tool has a node of its own
	for i := range tools {
		nodes[i] = fmt.Sprintf("drained-%d", i)
		if err := b.createDrained(ctx, nodes[i]); err != nil {
			return err
		}
	}
	free := make([][]drained, len(tools))
	for round := range drainRounds {
		for i := range tools {
			t := (round + i) % len(tools) // each tool is the first in some round
			d, err := b.drainOnce(ctx, tools[t], nodes[t], fmt.Sprintf("drain-%d-%d", t, round), held{})
			if err != nil {
				return fmt.Errorf("%s: %w", tools[t].name, err)
			}
			free[t] = append(free[t], d)
		}
	}
	section("drain", fmt.Sprintf(`A node of KWOK with %d pods that each end %v after their deletion: %d of them critical, %d of the others under %d budgets
		that allow their evictions, and %d pods of DaemonSets in addition. Medians of %d rounds, in which the tools take turns.
		kubectl's: k8s.io/kubectl/pkg/drain with Force, IgnoreAllDaemonSets, DeleteEmptyDirData and GracePeriodSeconds -1.
		As in kured: client-go's limits of 5 requests a second and 10 at once, and EvictErrorRetryDelay is not set.
		Unlimited client: no such limits, like lockkeeper's client, and kubectl's own delay of 5s between two evictions of a pod.
		"gone" and "returns" are the times from the tool's start until the API server has none of the pods, and until the tool knows.
		"ideal" is %v for kubectl's, and twice that for lockkeeper, which evicts critical pods when the others are gone.
		Requests are by the audit log.`,
		allPods, podStops, criticalPods, budgets*budgetPods, budgets, daemonSets, drainRounds, podStops))
	drainTable(tools, free, []figure{
		{"gone, s", "%.1f", func(_ drainer, d drained) float64 { return d.gone.Seconds() }},
		{"over the ideal, s", "%.1f", func(t drainer, d drained) float64 { return (d.gone - t.ideal).Seconds() }},
		{"returns, s", "%.1f", func(_ drainer, d drained) float64 { return d.took.Seconds() }},
		{"requests a pod", "%.2f", func(_ drainer, d drained) float64 { return float64(sum(d.requests)) / allPods }},
		{"POST a pod", "%.2f", func(_ drainer, d drained) float64 { return float64(d.requests["create pods/eviction"]) / allPods }},
		{"KiB received", "%.0f", func(_ drainer, d drained) float64 { return float64(d.received) / kib }},
	})

	one := held{names: []string{freePod}, budget: oneBudget, length: 5 * time.Minute}
	if err := b.drainsHeld(ctx, tools, nodes, one, "drain with a blocked pod", fmt.Sprintf(
		`The same, once for each tool, all at the same time, while another budget protects one of the pods until %v after the start.`, one.length)); err != nil {
		return err
	}
	many := held{names: budgetNames(), length: time.Minute}
	return b.drainsHeld(ctx, tools, nodes, many, "drain with three full budgets", fmt.Sprintf(
		`The same, while the %d budgets allow nothing until %v after the start.`, budgets, many.length))
}

// drainsHeld measures all tools at once while budgets block pods.
func (b *bench) drainsHeld(ctx context.Context, tools []drainer, nodes []string, h held, title, how string) error {
	all, errs := make([][]drained, len(tools)), make([]error, len(tools))
	var wg sync.WaitGroup
	for i, t := range tools {
		wg.Go(func() {
			d, err := b.drainOnce(ctx, t, nodes[i], fmt.Sprintf("held-%d-%d", i, len(h.names)), h)
			all[i], errs[i] = []drained{d}, err
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	section(title, how+fmt.Sprintf(`
		Blocked pods: %d. "gone after" is from the change of the budgets to the end of all pods, which includes %v for the pods that were blocked.`, h.pods(), podStops))
	rate := func(to time.Duration) func(drainer, drained) float64 { // a minute, from the start
		return func(_ drainer, d drained) float64 {
			late := slices.DeleteFunc(slices.Clone(d.refused), func(at time.Duration) bool { return at < to })
			return float64(len(d.refused)-len(late)) / to.Minutes()
		}
	}
	figures := []figure{
		{"evictions of blocked pods a minute", "%.1f", rate(h.length)},
		{"requests", "%.0f", func(_ drainer, d drained) float64 { return float64(sum(d.requests)) }},
		{"gone after, s", "%.1f", func(_ drainer, d drained) float64 { return (d.gone - d.released).Seconds() }},
	}
	if h.length > time.Minute {
		figures = slices.Insert(figures, 1, figure{"in the first minute", "%.0f", rate(time.Minute)})
	}
	drainTable(tools, all, figures)
	return nil
}

// figure is a column of a table.
type figure struct {
	name, format string
	of           func(drainer, drained) float64
}

// drainTable prints a row for each tool: the median of each figure with its ratio to the second tool's, and the requests.
func drainTable(tools []drainer, all [][]drained, figures []figure) {
	middle := func(tool int, of func(drainer, drained) float64) float64 {
		var values []float64
		for _, d := range all[tool] {
			values = append(values, of(tools[tool], d))
		}
		slices.Sort(values)
		return values[len(values)/2]
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
	released   time.Duration   // when the budgets that blocked pods were changed
	refused    []time.Duration // the evictions of these pods until then
}

// drainOnce creates the pods and has the tool drain them, while budgets block some of them.
func (b *bench) drainOnce(ctx context.Context, t drainer, node, agent string, h held) (d drained, err error) {
	ctx, cancel := context.WithTimeout(ctx, drainWithin)
	defer cancel()
	if err := b.setBudgets(ctx, node, h, true); err != nil {
		return d, err
	}
	if err := b.fillNode(ctx, node); err != nil {
		return d, err
	}
	if err := pause(ctx, tail); err != nil { // the budgets' controller counts the pods
		return d, err
	}
	m := &meter{agent: agent}
	from := time.Now()
	result := make(chan error, 1)
	go func() {
		err := t.run(ctx, node, m)
		d.took = time.Since(from)
		result <- err
	}()
	if h.length > 0 {
		if err := pause(ctx, h.length); err != nil {
			return d, err
		}
		d.released = time.Since(from)
		if err := b.setBudgets(ctx, node, h, false); err != nil {
			return d, err
		}
	}
	if _, err := b.cp.WaitPods(ctx, node, toDrain, "gone", func(pods []*corev1.Pod) bool { return len(pods) == 0 }); err != nil {
		return d, err
	}
	d.gone = time.Since(from)
	if err := <-result; err != nil {
		return d, fmt.Errorf("%s: %w", t.name, err)
	}
	d.received = m.received.Load()
	all, err := b.requests(from, time.Now())
	own := func(r *request) bool { return r.UserAgent == agent || r.UserAgent == "lockkeeper-host/"+agent }
	d.requests = byWhat(all, own)
	for i := range all {
		if r := &all[i]; own(r) && r.ObjectRef.Subresource == "eviction" && h.has(r.ObjectRef.Name) && r.Received.Sub(from) < d.released {
			d.refused = append(d.refused, r.Received.Sub(from))
		}
	}
	return d, err
}

// ownDrain drains as a host does, with the host's credential and client.
func (b *bench) ownDrain(ctx context.Context, node string, m *meter) error {
	config, err := b.cp.NodeConfig(node)
	if err != nil {
		return err
	}
	config.Wrap(m.wrap)
	client, err := kube.ConnectConfig(config, "host", m.agent, -1, 0)
	if err != nil {
		return err
	}
	return (&drain.Drainer{Client: client, Node: node}).Run(ctx, func(drain.Progress) {})
}

// kubectlDrain returns a drain by kubectl's package. Its user may read everything: a host may not get a pod that is gone.
func (b *bench) kubectlDrain(qps float32, burst int, retry time.Duration) func(context.Context, string, *meter) error {
	return func(ctx context.Context, node string, m *meter) error {
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
		}, node)
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
