package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/testbed/controlplane"
	"lockkeeper.dev/lockkeeper/testbed/hookauthor"
	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

const (
	manyHosts = 100  // real instances, including those of the small fleet
	manyNodes = 1000 // in addition, simulated by KWOK
	// wave is the number of hosts with a turn at the same time. It is less than the budget (see fleetPolicy), and
	// small enough that the boots of simulated hosts do not dominate the measurement.
	wave        = 3
	waves       = 10
	hookTurns   = 3 // turns with a hook in each of the three stages
	cleanStops  = 3
	manyWithin  = 2 * time.Minute // limits the start of the many hosts, and each wave of turns
	takenWithin = 90 * time.Second

	// These are the targets of the issue; docs/scale.md explains them.
	aimIdle     = 20.0 // requests of an idle host per hour
	aimNode     = 11.0 // writes to the Node in one turn without hooks, except conflicts
	aimUpdate   = 8.0  // to the HostUpdate
	aimEvents   = 2.0
	aimStatus   = 1.0 // to the policy's status
	aimHook     = 3.0 // to the Node, for each hook stage
	aimPromoted = 250 * time.Millisecond
	aimHandover = 2 * time.Second
	// aimRestarted is the aim for a leader that was killed, and whose host starts it again.
	aimRestarted = 3 * time.Second
)

// many measures a hundred real instances among a thousand Nodes of KWOK.
func (b *bench) many(ctx context.Context) error {
	began := time.Now()
	if err := b.createNodes(ctx, 0, manyNodes); err != nil {
		return err
	}
	more, err := simhost.StartFleet(ctx, b.cp, simhost.FleetOptions{
		Hosts: manyHosts - len(b.fleet.Hosts), Prefix: "host-",
		Host: simhost.Options{Binary: b.binary, Config: likeReal, Uptime: booted, Kubelet: slowKubelet},
	})
	if err != nil {
		return err
	}
	defer more.Close()
	wait, cancel := context.WithTimeout(ctx, manyWithin)
	defer cancel()
	if err := errors.Join(more.WaitIdle(wait), b.fleet.WaitIdle(wait)); err != nil {
		return err
	}
	section("a hundred hosts", fmt.Sprintf(`%d processes of the real binary on simulated hosts, 2 of them candidates, and %d Node objects of %d images each that KWOK plays.
		They were there after %v. What follows is by the API server's audit log; the bound stands beside each figure.`,
		manyHosts, manyNodes, images, time.Since(began).Round(time.Second)))
	if n := instances(); n < 3*manyHosts {
		fmt.Printf("  fs.inotify.max_user_instances is %d here: hosts that get none poll their sentinels, every 30 s. %d would do.\n", n, 3*manyHosts)
	}
	for _, f := range []func(context.Context, *simhost.Fleet) error{b.manyIdle, b.restarts, b.manyTurns, b.manyHooks, b.takeovers} {
		if err := f(ctx, more); err != nil {
			return err
		}
	}
	return nil
}

// instances returns the limit of inotify instances for this user. Each host needs two, and all hosts share this
// machine.
func instances() (n int) {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		return 0
	}
	n, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}

// slowKubelet renews its Lease as often as a real kubelet.
var slowKubelet = simhost.KubeletOptions{Heartbeat: 10 * time.Second}

func ofHosts(r *request) bool { return strings.HasPrefix(r.UserAgent, "lockkeeper-host/") }

// manyIdle counts the requests of an idle fleet.
func (b *bench) manyIdle(ctx context.Context, more *simhost.Fleet) error {
	if err := pause(ctx, settle); err != nil {
		return err
	}
	from := time.Now()
	if err := pause(ctx, b.window); err != nil {
		return err
	}
	to := time.Now()
	all, err := b.requests(from, to)
	if err != nil {
		return err
	}
	before, err := b.requests(b.began, from)
	if err != nil {
		return err
	}
	hours := to.Sub(from).Hours()
	hosts, leader := byWhat(all, ofHosts), byWhat(all, ofCoordinators)
	seen := float64(sum(hosts)-watches(hosts)) / manyHosts / hours
	renewed := watchesPerHour(before, ofHosts)
	idle := seen + renewed
	fleet := float64(sum(hosts)+sum(leader))/to.Sub(from).Seconds() + renewed*manyHosts/3600

	rss, leaderRSS, err := b.memory(ctx, more)
	if err != nil {
		return err
	}
	table([][]string{
		{"idle, in " + b.window.String(), "measured", "bound", "to bound"},
		{"requests of a host in an hour", fmt.Sprintf("%.1f", idle), fmt.Sprintf("%.0f", aimIdle), times(idle, aimIdle)},
		{"  of them seen: " + list(hosts, 1/manyHosts/hours), fmt.Sprintf("%.1f", seen), "", ""},
		{"  and watches renewed, by the timeouts that they asked for", fmt.Sprintf("%.1f", renewed), "", ""},
		{"requests a second of all of them", fmt.Sprintf("%.2f", fleet), fmt.Sprintf("%.2f", aimIdle*manyHosts/3600), times(fleet, aimIdle*manyHosts/3600)},
		{"  of them the candidates', an hour: " + list(leader, 1/hours), fmt.Sprintf("%.2f", float64(sum(leader))/to.Sub(from).Seconds()), "", ""},
		{"RSS of a host's process, median", mebibytes(rss), mebibytes(bound), times(float64(rss), bound)},
		{"RSS of the leader's", mebibytes(leaderRSS), mebibytes(bound), times(float64(leaderRSS), bound)},
	})
	return nil
}

// watchesPerHour returns how many watches one process renews in an hour, from the timeouts that the watches request,
// because no measurement here is long enough to count renewals. The result is the mean over the processes of the role.
func watchesPerHour(all []request, of func(*request) bool) float64 {
	rates, users := 0.0, map[string]bool{}
	latest := map[string]float64{} // by user, and by verb and resource
	for i := range all {
		r := &all[i]
		if !of(r) || r.Verb != "watch" {
			continue
		}
		u, err := url.Parse(r.RequestURI)
		if err != nil {
			continue
		}
		users[r.User.Username] = true
		if s, err := strconv.ParseFloat(u.Query().Get("timeoutSeconds"), 64); err == nil && s > 0 {
			latest[r.User.Username+" "+r.what()] = 3600 / s
		}
	}
	for _, rate := range latest {
		rates += rate
	}
	return rates / float64(max(len(users), 1))
}

func watches(by map[string]int) (n int) {
	for what, count := range by {
		if strings.HasPrefix(what, "watch ") {
			n += count
		}
	}
	return n
}

// memory returns the median RSS of the hosts, and the RSS of the leader.
func (b *bench) memory(ctx context.Context, more *simhost.Fleet) (host, leader int64, err error) {
	var all []int64
	for _, h := range more.Hosts {
		u, err := usageOf(h.PID())
		if err != nil {
			return 0, 0, fmt.Errorf("measuring %s: %w", h.Name(), err)
		}
		all = append(all, u.rss)
	}
	l, err := b.leader(ctx)
	if err != nil {
		return 0, 0, err
	}
	u, err := usageOf(l.PID())
	return slices.Sorted(slices.Values(all))[len(all)/2], u.rss, err
}

// manyTurns rolls some of the hosts, never more at once than the budget, so that each want gets its grant immediately.
func (b *bench) manyTurns(ctx context.Context, more *simhost.Fleet) error {
	from := time.Now()
	for w := range waves {
		if err := b.roll(ctx, more.Hosts[w*wave:(w+1)*wave], "4.2.0"); err != nil {
			return err
		}
	}
	to := time.Now()
	all, err := b.requests(from, to)
	if err != nil {
		return err
	}
	rows, err := writesRows("turns without hooks", all, waves*wave, aimNode)
	if err != nil {
		return err
	}
	table(rows)
	promotions, err := latencies(all)
	if err != nil {
		return err
	}
	rows = [][]string{{"from a host's write to the promotion that it allows", "of", "median", "p99", "bound", "p99 to bound"}}
	rows = append(rows, latencyRows(promotions)...)
	table(rows)
	return nil
}

// writesRows returns the writes of one turn by hosts and coordinator together, except the Lease and evictions: first
// the number for each kind of object with its bound, and then each write.
func writesRows(what string, all []request, turns int, node float64) ([][]string, error) {
	by, kinds, conflicts := map[string]int{}, map[string]int{}, 0
	for i := range all {
		r := &all[i]
		write := r.Verb == "patch" || r.Verb == "update" || r.Verb == "create" || r.Verb == "delete"
		if !write || !ofHosts(r) && !ofCoordinators(r) || r.ObjectRef.Resource == "leases" || r.ObjectRef.Subresource == "eviction" ||
			r.ObjectRef.Resource == "selfsubjectreviews" { // a read that uses POST
			continue
		}
		if r.what() != "patch nodes" {
			by[r.what()]++
			kinds[r.ObjectRef.Resource]++
			continue
		}
		if r.ResponseStatus.Code == 409 {
			conflicts++
		} else {
			kinds["nodes"]++
		}
		name, err := nameOf(r)
		if err != nil {
			return nil, err
		}
		by[name]++
	}
	rows := [][]string{{fmt.Sprintf("%s: %d", what, turns), "measured", "bound", "to bound"}}
	for _, k := range []struct {
		resource, name string
		bound          float64
	}{
		{"nodes", "the Node, conflicts aside", node}, {"hostupdates", "the HostUpdate", aimUpdate},
		{"events", "Events", aimEvents}, {"disruptionpolicies", "the policy's status", aimStatus},
	} {
		n := float64(kinds[k.resource]) / float64(turns)
		rows = append(rows, []string{"writes of a turn to " + k.name, fmt.Sprintf("%.1f", n), fmt.Sprintf("%.0f", k.bound), times(n, k.bound)})
	}
	rows = append(rows, []string{"in conflict", fmt.Sprintf("%.1f", float64(conflicts)/float64(turns)), "", ""})
	for _, name := range slices.Sorted(maps.Keys(by)) {
		rows = append(rows, []string{"  " + name, fmt.Sprintf("%.1f", float64(by[name])/float64(turns)), "", ""})
	}
	return rows, nil
}

// nodePatch contains the relevant fields of a write to a Node.
type nodePatch struct {
	Metadata struct{ Labels, Annotations map[string]*string }
}

// nameOf names a write to a Node: by the report for a host's write, and by the state for a coordinator's write.
func nameOf(r *request) (string, error) {
	var body nodePatch
	if err := json.Unmarshal(r.RequestObject, &body); err != nil {
		return "", fmt.Errorf("reading a patch in the audit log: %w", err)
	}
	refused := ""
	if r.ResponseStatus.Code != 200 {
		refused = fmt.Sprintf(", answered %d", r.ResponseStatus.Code)
	}
	if ofCoordinators(r) {
		if to, ok := body.Metadata.Labels[v1alpha1.LabelState]; ok && to != nil {
			return "coordinator: to " + *to + refused, nil
		}
		if held, ok := body.Metadata.Labels[v1alpha1.LabelHeld]; ok && held != nil {
			return "coordinator: held=" + *held + refused, nil
		}
		return "coordinator: held no more" + refused, nil
	}
	var words []string
	if ack := body.Metadata.Annotations[v1alpha1.AnnotationAck]; ack != nil {
		if parts := strings.SplitN(*ack, "/", 3); len(parts) == 3 {
			words = append(words, "ack "+parts[2])
		}
	}
	if wants := body.Metadata.Labels[v1alpha1.LabelWants]; wants != nil {
		words = append(words, "wants="+*wants)
	} else if body.Metadata.Annotations[v1alpha1.AnnotationHost] != nil {
		words = append(words, "host")
	}
	return "host: " + strings.Join(words, ", ") + refused, nil
}

// roll stages a version on the hosts and waits until they are back with the version.
func (b *bench) roll(ctx context.Context, hosts []*simhost.Host, version string) error {
	for _, h := range hosts {
		if err := h.StageUpdate(version); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, manyWithin)
	defer cancel()
	for _, h := range hosts {
		_, err := b.cp.WaitNode(ctx, h.Name(), "to have had its turn", func(n *corev1.Node) bool {
			return n != nil && h.Version() == version && n.Labels[v1alpha1.LabelState] == string(v1alpha1.StateIdle) &&
				n.Labels[v1alpha1.LabelWants] == string(v1alpha1.WantsNothing) && !n.Spec.Unschedulable
		})
		if err != nil {
			return fmt.Errorf("%w; the end of the host's log:\n%s", err, h.LogTail(20))
		}
	}
	return pause(ctx, tail)
}

// latencies returns, for each state to which the coordinator promoted a node, the times from the answer to the host's
// last write before the promotion to the answer to the promotion.
func latencies(all []request) (map[string][]time.Duration, error) {
	said := map[string]time.Time{}
	byState := map[string][]time.Duration{}
	for i := range all { // nearly in the order of arrival
		r := &all[i]
		if r.Verb != "patch" || r.ObjectRef.Resource != "nodes" || r.ObjectRef.Subresource != "" || r.ResponseStatus.Code != 200 {
			continue
		}
		if ofHosts(r) {
			said[r.ObjectRef.Name] = r.Done
			continue
		}
		if !ofCoordinators(r) {
			continue
		}
		var body nodePatch
		if err := json.Unmarshal(r.RequestObject, &body); err != nil {
			return nil, fmt.Errorf("reading a patch in the audit log: %w", err)
		}
		if to := body.Metadata.Labels[v1alpha1.LabelState]; to != nil && !said[r.ObjectRef.Name].IsZero() {
			byState[*to] = append(byState[*to], r.Done.Sub(said[r.ObjectRef.Name]))
		}
	}
	return byState, nil
}

func latencyRows(by map[string][]time.Duration) (rows [][]string) {
	var all []time.Duration
	row := func(name string, d []time.Duration) {
		slices.Sort(d)
		p99 := percentile99(d)
		rows = append(rows, []string{name, fmt.Sprint(len(d)), millis(median(d)), millis(p99), millis(aimPromoted), times(float64(p99), float64(aimPromoted))})
	}
	for _, state := range v1alpha1.States() {
		if d := by[string(state)]; len(d) > 0 {
			row("to "+string(state), slices.Clone(d))
			all = append(all, d...)
		}
	}
	if len(all) > 0 {
		row("all", all)
	}
	return rows
}

// manyHooks counts the writes of turns with a hook in each stage.
func (b *bench) manyHooks(ctx context.Context, more *simhost.Fleet) error {
	hooked := fleetPolicy + "hooks: {beforeDrain: [{name: hook-0}], beforeReboot: [{name: hook-1}], beforeUncordon: [{name: hook-2}]}"
	if _, err := b.cp.ApplyPolicy(ctx, controlplane.TestPolicy, hooked); err != nil {
		return err
	}
	authors, err := hookauthor.Start(b.cp.Client(), func(string) {})
	if err != nil {
		return err
	}
	defer authors.Close()
	from := time.Now()
	if err := b.roll(ctx, more.Hosts[waves*wave:waves*wave+hookTurns], "4.2.0"); err != nil {
		return err
	}
	all, err := b.requests(from, time.Now())
	if err != nil {
		return err
	}
	rows, err := writesRows("turns with a hook in each stage", all, hookTurns, aimNode+3*aimHook)
	if err != nil {
		return err
	}
	table(rows)
	return nil
}

// takeovers stops leaders gracefully, and one with SIGKILL.
func (b *bench) takeovers(ctx context.Context, _ *simhost.Fleet) error {
	if _, err := b.cp.ApplyPolicy(ctx, controlplane.TestPolicy, fleetPolicy); err != nil { // no more hooks
		return err
	}
	var clean, listed []time.Duration
	for range cleanStops {
		taken, read, err := b.takeover(ctx, (*simhost.Host).StopLockkeeper)
		if err != nil {
			return err
		}
		clean, listed = append(clean, taken), append(listed, read)
	}
	var rolled error
	rebooted, rebootedListed, err := b.takeover(ctx, func(h *simhost.Host) { rolled = b.roll(ctx, []*simhost.Host{h}, "4.5.0") })
	if err = errors.Join(err, rolled); err != nil {
		return err
	}
	var restarted error
	killed, killedListed, err := b.takeover(ctx, func(h *simhost.Host) {
		_ = h.Signal(syscall.SIGKILL)
		// As systemd does: RestartSec=1s.
		restarted = errors.Join(pause(ctx, time.Second), h.StartLockkeeper())
	})
	if err = errors.Join(err, restarted); err != nil {
		return err
	}
	row := func(what string, d, bound time.Duration) []string {
		return []string{what, d.Round(10 * time.Millisecond).String(), bound.String(), times(float64(d), float64(bound))}
	}
	table([][]string{
		{"takeover", "measured", "bound", "to bound"},
		row(fmt.Sprintf("SIGTERM, to the Lease's next holder, worst of %d", cleanStops), slices.Max(clean), aimHandover),
		row("  to its first list of Nodes", slices.Max(listed), aimHandover),
		row("reboot of its host, from its commit to the Lease's next holder", rebooted, aimHandover),
		row("  to its first list of Nodes", rebootedListed, aimHandover),
		row("SIGKILL, to the Lease's next holder; systemd starts it again after 1 s", killed, aimRestarted),
		row("  to its first list of Nodes", killedListed, aimRestarted),
	})
	return nil
}

// takeover ends the leader's process and starts it again after a successor has taken over. It returns the times from
// the signal (or from the host's commit to a reboot) to the Lease, and to the answer to the successor's first list.
func (b *bench) takeover(ctx context.Context, end func(*simhost.Host)) (taken, listed time.Duration, err error) {
	leader, err := b.leader(ctx)
	if err != nil {
		return 0, 0, err
	}
	// Both candidates must be running: the one that was stopped last may have just started.
	if err := pause(ctx, 5*time.Second); err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, takenWithin)
	defer cancel()
	epoch, err := b.epoch(ctx)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		end(leader)
	}()
	at, err := b.awaitTerm(ctx, epoch)
	<-done
	if err != nil {
		return 0, 0, err
	}
	if err := leader.StartLockkeeper(); err != nil {
		return 0, 0, err
	}
	if err := pause(ctx, tail); err != nil {
		return 0, 0, err
	}
	all, err := b.requests(began, time.Now())
	if err != nil {
		return 0, 0, err
	}
	for i := range all {
		if r := &all[i]; ofHosts(r) && r.what() == "patch nodes" && r.ObjectRef.Name == leader.Name() {
			if name, err := nameOf(r); err == nil && name == "host: ack rebooting/committed" {
				began = r.Done
			}
		}
	}
	for i := range all {
		if r := &all[i]; ofCoordinators(r) && r.what() == "list nodes" && r.Done.After(at.Add(-50*time.Millisecond)) {
			return at.Sub(began), r.Done.Sub(began), nil
		}
	}
	return 0, 0, fmt.Errorf("the successor of %s has not listed the Nodes within %v", leader.Name(), tail)
}

// awaitTerm waits until another term than this one holds the Lease.
func (b *bench) awaitTerm(ctx context.Context, other string) (time.Time, error) {
	for {
		if epoch, err := b.epoch(ctx); err == nil && epoch != "" && epoch != other {
			return time.Now(), nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return time.Time{}, fmt.Errorf("waiting for another term than %q: %w", other, err)
		}
	}
}
