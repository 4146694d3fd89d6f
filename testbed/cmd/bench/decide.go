package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// measure is the result of one benchmark of `go test -bench`.
type measure struct {
	times  []time.Duration // for each run, sorted
	bytes  int64           // allocated in one operation
	allocs int64
}

// repeats is how often each benchmark runs. On a busy machine the best result is the most meaningful.
const repeats = 5

// decisions runs the benchmarks of the two pure cores.
func (b *bench) decisions(ctx context.Context) error {
	out, err := goOutput(ctx, b.root, "test", "-run", "^$", "-bench", ".", "-benchtime", "200ms", "-count", fmt.Sprint(repeats),
		"./coordinator/rollout", "./node/turn", "./node/step")
	if err != nil {
		return err
	}
	m, err := parseBench(string(out))
	if err != nil {
		return err
	}
	section("decisions", fmt.Sprintf(`Time and allocations of one call of the pure cores (go test -bench, %d runs of 200 ms; best and worst run).
		idle: no node wants anything. rolling: all wait for the one in a turn. granting: one is granted its turn, and all others
		wait; they are sorted, which costs n log n.`, repeats))
	rows := [][]string{{"call", "best", "worst", "allocated", "allocations", "to 1,000 nodes", "bound: linear"}}
	for _, name := range []string{
		"Decide/idle/nodes=1000", "Decide/idle/nodes=10000", "Decide/idle/nodes=50000",
		"Decide/rolling/nodes=1000", "Decide/rolling/nodes=10000", "Decide/rolling/nodes=50000",
		"Decide/granting/nodes=1000", "Decide/granting/nodes=10000", "Decide/granting/nodes=50000", "FromNode", "Step",
	} {
		r, ok := m[name]
		if !ok {
			return fmt.Errorf("no benchmark %s", name)
		}
		growth, bound := "", ""
		if kind, nodes, ok := strings.Cut(name, "="); ok && nodes != "1000" {
			n, _ := strconv.Atoi(nodes)
			growth = times(float64(r.times[0]), float64(m[kind+"=1000"].times[0]))
			bound = times(float64(n), 1000)
		}
		rows = append(rows, []string{name, micros(r.times[0]), micros(r.times[len(r.times)-1]),
			fmt.Sprintf("%.1f KiB", float64(r.bytes)/kib), fmt.Sprint(r.allocs), growth, bound})
	}
	table(rows)
	return nil
}

// benchLine matches a line such as
// "BenchmarkStep-2   15376   23208 ns/op   1824 B/op   11 allocs/op".
var benchLine = regexp.MustCompile(`(?m)^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+([\d.]+) ns/op\s+(\d+) B/op\s+(\d+) allocs/op$`)

func parseBench(out string) (map[string]measure, error) {
	all := map[string]measure{}
	for _, f := range benchLine.FindAllStringSubmatch(out, -1) {
		ns, err := strconv.ParseFloat(f[2], 64)
		if err != nil {
			return nil, fmt.Errorf("reading %q: %w", f[0], err)
		}
		m := all[f[1]]
		m.times = append(m.times, time.Duration(ns))
		m.bytes, _ = strconv.ParseInt(f[3], 10, 64)
		m.allocs, _ = strconv.ParseInt(f[4], 10, 64)
		slices.Sort(m.times)
		all[f[1]] = m
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no benchmark in\n%s", out)
	}
	return all, nil
}
