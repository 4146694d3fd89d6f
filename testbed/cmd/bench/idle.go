package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

const (
	settle = 20 * time.Second // time from a start until a process counts as idle
	// bound is the target of the issue and the documentation for an idle host's memory.
	bound = 20 * mib
)

// role is a process with its role in the fleet.
type role struct {
	name string
	pid  int
	// of reports whether a request is from the process.
	of func(*request) bool
}

// roles returns the three hosts by their current roles.
func (b *bench) roles(ctx context.Context) ([]role, error) {
	leader, err := b.leader(ctx)
	if err != nil {
		return nil, err
	}
	var all []role
	for _, h := range b.fleet.Hosts {
		name := "host, no candidate"
		switch {
		case h == leader:
			name = "host, coordinates"
		case h != b.fleet.Hosts[2]:
			name = "host, stands by"
		}
		all = append(all, role{name, h.PID(), func(r *request) bool {
			return strings.HasPrefix(r.UserAgent, "lockkeeper-host/") && r.User.Username == "system:node:"+h.Name()
		}})
	}
	slices.SortStableFunc(all, func(a, b role) int { return strings.Compare(b.name, a.name) })
	return all, nil
}

// leader returns the host that holds the Lease.
func (b *bench) leader(ctx context.Context) (*simhost.Host, error) {
	epoch, err := b.epoch(ctx)
	if err != nil {
		return nil, err
	}
	name, _, _ := strings.Cut(epoch, "_")
	if h := b.fleet.Host(name); h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("no host coordinates")
}

// epoch returns the Lease's holder, or "".
func (b *bench) epoch(ctx context.Context) (string, error) {
	lease, err := b.cp.Client().CoordinationV1().Leases(controlplane.LockkeeperNamespace).
		Get(ctx, controlplane.LockkeeperLease, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("reading who coordinates: %w", err)
	}
	if lease.Spec.HolderIdentity == nil {
		return "", nil
	}
	return *lease.Spec.HolderIdentity, nil
}

func ofCoordinators(r *request) bool {
	return strings.HasPrefix(r.UserAgent, "lockkeeper-coordinator/")
}

// idle measures the processes while nothing happens.
func (b *bench) idle(ctx context.Context) error {
	peers, end, err := b.peers(ctx)
	defer end()
	if err != nil {
		return err
	}
	if err := b.fleet.WaitIdle(ctx); err != nil {
		return err
	}
	if err := pause(ctx, settle); err != nil {
		return err
	}
	roles, err := b.roles(ctx)
	if err != nil {
		return err
	}
	roles = append(roles, peers...)
	before, err := usages(roles)
	if err != nil {
		return err
	}
	from := time.Now()
	if err := pause(ctx, b.window); err != nil {
		return err
	}
	after, err := usages(roles)
	if err != nil {
		return err
	}
	to := time.Now()

	section("idle", fmt.Sprintf(`Processes with the product's own settings in which nothing happens for %v, %v after the last of them started.
		RSS, of it anonymous (no file's pages), and Pss (/proc/PID/smaps_rollup; three hosts on this machine share the file's pages,
		on a real host one process has them alone). Wake-ups are voluntary context switches, of which Go's runtime makes several for
		each timer; CPU is schedstat's; both over all threads. Each process is compared with the peer in the
		same part: one that follows its Node only, one that also holds a Lease, and one that stands by for it. The floor is the first of
		these with the other libraries of lockkeeper; it asks the update engine twice a minute, as every such program must. The bound for RSS is %s.`, b.window, settle, mebibytes(bound)))
	table(idleRows(roles, before, after))

	all, err := b.requests(from, to)
	if err != nil {
		return err
	}
	section("requests when idle", fmt.Sprintf(`Requests in those %v by the API server's audit log, times %.0f: an hour's. A watch is renewed every 30 to 60
		minutes, which so short a time misses.`, b.window, time.Hour.Minutes()/b.window.Minutes()))
	roles = append(roles, role{name: "coordinator's identity (leader and stand-by)", of: ofCoordinators})
	scale := float64(time.Hour) / float64(to.Sub(from))
	rows := [][]string{{"who", "requests an hour", "of them"}}
	for _, r := range roles {
		if r.of == nil {
			continue
		}
		by := byWhat(all, r.of)
		rows = append(rows, []string{r.name, fmt.Sprintf("%.0f", float64(sum(by))*scale), list(by, scale)})
	}
	table(rows)
	return nil
}

// peers starts a peer for each part that a host has, with the same names. end stops those that were started.
func (b *bench) peers(ctx context.Context) (peers []role, end func(), err error) {
	var started []*child
	end = func() {
		for _, p := range started {
			p.end()
		}
	}
	kubeconfig, err := b.cp.Kubeconfig("bench-peer", "system:masters")
	if err != nil {
		return nil, end, err
	}
	for i, r := range []role{{name: "peer, no candidate"}, {name: "peer, coordinates"}, {name: "peer, stands by"}, {name: "floor, no candidate"}} {
		host := b.fleet.Hosts[min(i, 2)]
		args, env := []string{b.peer, kubeconfig, host.Name()}, []string(nil)
		switch r.name {
		case "peer, coordinates", "peer, stands by": // the first candidate gets the Lease
			args = slices.Insert(args, 1, "--lease", "bench-peer")
		case "floor, no candidate":
			args[0], env = b.floor, []string{"DBUS_SYSTEM_BUS_ADDRESS=" + host.BusAddress()}
		}
		p, err := b.launch(ctx, args, env)
		if err != nil {
			return nil, end, err
		}
		started = append(started, p)
		if _, err := p.hear("READY=1"); err != nil {
			return nil, end, fmt.Errorf("the peer: %w", err)
		}
		r.pid = p.cmd.Process.Pid
		peers = append(peers, r)
		if err := pause(ctx, tail); err != nil {
			return nil, end, err
		}
	}
	return peers, end, nil
}

// idleRows compares what each process used with what the peer in the same part did.
func idleRows(roles []role, before, after []usage) [][]string {
	rows := [][]string{{"process", "RSS", "to bound", "to peer", "anonymous", "Pss", "threads", "wake-ups/min", "wake-ups to peer", "CPU s/min", "CPU to peer"}}
	wakes := func(i int) float64 {
		return perMinute(float64(after[i].switches-before[i].switches), before[i], after[i])
	}
	cpu := func(i int) float64 { return perMinute((after[i].cpu - before[i].cpu).Seconds(), before[i], after[i]) }
	row := func(name string, i, peer int) {
		u := after[i]
		rows = append(rows, []string{name, mebibytes(u.rss), times(float64(u.rss), bound), times(float64(u.rss), float64(after[peer].rss)),
			mebibytes(u.anon), mebibytes(u.pss), fmt.Sprint(u.threads), fmt.Sprintf("%.0f", wakes(i)), times(wakes(i), wakes(peer)),
			fmt.Sprintf("%.3f", cpu(i)), times(cpu(i), cpu(peer))})
	}
	named := func(name string) int { return slices.IndexFunc(roles, func(r role) bool { return r.name == name }) }
	for i, r := range roles {
		_, part, _ := strings.Cut(r.name, ", ")
		row(r.name, i, named("peer, "+part))
	}
	row("host, no candidate (here, peer is the floor)", named("host, no candidate"), named("floor, no candidate"))
	return rows
}

func usages(roles []role) ([]usage, error) {
	all := make([]usage, len(roles))
	for i, r := range roles {
		var err error
		if all[i], err = usageOf(r.pid); err != nil {
			return nil, fmt.Errorf("measuring %s: %w", r.name, err)
		}
	}
	return all, nil
}

// byWhat counts requests by verb and resource.
func byWhat(all []request, of func(*request) bool) map[string]int {
	by := map[string]int{}
	for i := range all {
		if of(&all[i]) {
			by[all[i].what()]++
		}
	}
	return by
}

func sum(by map[string]int) (n int) {
	for _, v := range by {
		n += v
	}
	return n
}

// list formats counts in the order of their names, each multiplied by scale.
func list(by map[string]int, scale float64) string {
	if len(by) == 0 {
		return "none"
	}
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, fmt.Sprintf("%s %.0f", what, float64(by[what])*scale))
	}
	return strings.Join(parts, ", ")
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
