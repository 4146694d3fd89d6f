package cluster

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/report"
	"lockkeeper.dev/lockkeeper/kube"
)

const (
	// maxUpdates bounds the HostUpdates that are read for one Report.
	maxUpdates = 20
	// updatesTimeout bounds the time to read them. While following, they are read at most once per
	// updatesEvery.
	updatesTimeout = 5 * time.Second
	updatesEvery   = 2 * time.Second
)

// updates are the HostUpdates that a Source has read.
type updates struct {
	at  time.Time
	all map[string]*v1alpha1.HostUpdateStatus // by node; nil: none, or it cannot be read
	// errors are those of HostUpdates that this version cannot decode.
	errors map[string]string
}

// addUpdates adds the HostUpdates of the nodes that are in a turn, of the coordinator's, and of Source.Node. It ignores
// errors: the caller may not read them, or the API server may not have the CRD; the Report then
// has fewer details.
func (s *Source) addUpdates(ctx context.Context, r *report.Report) {
	if s.ReadUpdate == nil {
		return
	}
	var names []string
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if n.Name == s.Node || n.State.InTurn() && len(names) < maxUpdates {
			names = append(names, n.Name)
		}
	}
	if r.Coordinator.Live {
		names = append(names, r.Coordinator.Node)
	}
	if time.Since(s.updates.at) >= updatesEvery {
		s.updates = updates{time.Now(), map[string]*v1alpha1.HostUpdateStatus{}, map[string]string{}}
	}
	ctx, cancel := context.WithTimeout(ctx, updatesTimeout)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(name string) bool {
		_, read := s.updates.all[name]
		return read
	})
	for _, name := range names {
		wg.Go(func() {
			u, err := s.ReadUpdate(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			s.updates.all[name] = nil
			if err == nil && u != nil {
				s.updates.all[name] = &u.Status
			}
			if e, ok := errors.AsType[*kube.UndecodableError](err); ok {
				s.updates.errors[name] = e.Error()
			}
		})
	}
	wg.Wait()
	for i := range r.Nodes {
		r.Nodes[i].AddUpdate(s.updates.all[r.Nodes[i].Name], s.updates.errors[r.Nodes[i].Name])
	}
	if r.Coordinator.Live {
		r.Coordinator.AddUpdate(s.updates.all[r.Coordinator.Node])
	}
}
