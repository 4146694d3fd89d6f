package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

const (
	backWithin = 4 * time.Minute // limits the time until all hosts watch again
	// quiet is longer than any client waits between two tries, which is up to twice 30 s. After that time without a
	// request, all have come back.
	quiet = 65 * time.Second
	// aimBack is for the reads with which a host comes back. For its Node, and for the policies, these are a watch from
	// where the last one ended, which a new API server refuses, a list, a watch, and after each watch one that shows that
	// the store did not go back.
	aimBack = 10.0
	// aimWrites is for the writes of all hosts, on which nothing happened.
	aimWrites = 2
	// aimHerd is for the share of the hosts' watches that begin in the busiest second.
	aimHerd = 0.5
)

// outages are for how long the API server is away: hardly longer than its restart takes, and long enough for all
// clients to wait as long between two tries as they ever do.
var outages = []time.Duration{time.Second, time.Minute}

// restarts counts what a hundred hosts send when the API server is back.
func (b *bench) restarts(ctx context.Context, _ *simhost.Fleet) error {
	rows := [][]string{{"a restarted API server", "measured", "bound", "to bound"}}
	for _, outage := range outages {
		back, err := b.restart(ctx, outage)
		if err != nil {
			return err
		}
		each, herd := float64(back.reads)/manyHosts, float64(back.busiest)/float64(back.watches)
		rows = append(rows,
			[]string{fmt.Sprintf("away for %v: reads of a host until all hosts watch again", outage), fmt.Sprintf("%.1f", each), fmt.Sprintf("%.0f", aimBack), times(each, aimBack)},
			[]string{fmt.Sprintf("  part of the %d watches that begin in the busiest second", back.watches), fmt.Sprintf("%.2f", herd), fmt.Sprintf("%.2f", aimHerd), times(herd, aimHerd)},
			[]string{"  writes of all hosts; a candidate writes that its role has changed", fmt.Sprint(back.writes), fmt.Sprint(aimWrites), times(float64(back.writes), aimWrites)},
			[]string{"  from the first watch to the last", back.took.Round(100 * time.Millisecond).String(), "", ""})
	}
	table(rows)
	return nil
}

// back is how the hosts came back.
type back struct {
	reads, writes    int
	watches, busiest int // busiest: watches in one second
	took             time.Duration
	last             time.Time // when the last request came
}

// restart stops the API server for the time of an outage, and waits until each host watches its Node and the policies.
func (b *bench) restart(ctx context.Context, outage time.Duration) (back, error) {
	if err := b.cp.StopAPIServer(); err != nil {
		return back{}, err
	}
	err := pause(ctx, outage)
	began := time.Now()
	if err := errors.Join(err, b.cp.StartAPIServer(ctx)); err != nil {
		return back{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, backWithin)
	defer cancel()
	for {
		all, err := b.requests(began, time.Now())
		if err != nil {
			return back{}, err
		}
		all = slices.DeleteFunc(all, func(r request) bool { return !ofHosts(&r) })
		found, watching := comeBack(all)
		switch {
		case watching < manyHosts:
			err = pause(ctx, time.Second)
		case time.Since(found.last) < quiet:
			err = pause(ctx, quiet-time.Since(found.last))
		default:
			return found, nil
		}
		if err != nil {
			return back{}, fmt.Errorf("waiting for %d hosts to watch again: %d do: %w", manyHosts, watching, err)
		}
	}
}

// comeBack counts the hosts' requests, and the hosts that watch both their Node and the policies.
func comeBack(all []request) (b back, watching int) {
	watches := map[string]map[string]bool{} // resources by user
	var begun []time.Time
	for i := range all {
		r := &all[i]
		if r.Received.After(b.last) {
			b.last = r.Received
		}
		switch r.Verb {
		case "get", "list", "watch":
			b.reads++
		default:
			b.writes++
		}
		if r.Verb != "watch" || r.ResponseStatus.Code != 200 {
			continue
		}
		if watches[r.User.Username] == nil {
			watches[r.User.Username] = map[string]bool{}
		}
		watches[r.User.Username][r.ObjectRef.Resource] = true
		begun = append(begun, r.Received)
	}
	for _, w := range watches {
		if w["nodes"] && w["disruptionpolicies"] {
			watching++
		}
	}
	slices.SortFunc(begun, time.Time.Compare)
	for i := range begun {
		within, _ := slices.BinarySearchFunc(begun, begun[i].Add(time.Second), time.Time.Compare)
		b.busiest = max(b.busiest, within-i)
	}
	if b.watches = len(begun); b.watches > 0 {
		b.took = begun[len(begun)-1].Sub(begun[0])
	}
	return b, watching
}
