package report

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
)

const (
	// maxUpdates bounds the HostUpdates that are read for one Report: those of the
	// nodes in a turn, and of the node that was asked for.
	maxUpdates = 20
	// updatesTimeout bounds reading them, and updatesEvery is how often they are read
	// at most while a Report is followed.
	updatesTimeout = 5 * time.Second
	updatesEvery   = 2 * time.Second
)

// updates are the HostUpdates that a Source has read.
type updates struct {
	at  time.Time
	all map[string]*v1alpha1.HostUpdateStatus // by node; nil: none, or it cannot be read
	// errors are why those cannot be shown that this version cannot decode.
	errors map[string]string
}

// addUpdates adds what the hosts say to the nodes of r that are in a turn, and to
// the node that was asked for. Without them a Report says less, and that is all: the
// caller may not read them, or the API server serves no such kind.
func (s *Source) addUpdates(ctx context.Context, r *Report) {
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
	if time.Since(s.updates.at) >= updatesEvery {
		s.updates = updates{time.Now(), map[string]*v1alpha1.HostUpdateStatus{}, map[string]string{}}
	}
	ctx, cancel := context.WithTimeout(ctx, updatesTimeout)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, name := range names {
		if _, read := s.updates.all[name]; read {
			continue
		}
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
		r.Nodes[i].add(s.updates.all[r.Nodes[i].Name])
		r.Nodes[i].UpdateError = s.updates.errors[r.Nodes[i].Name]
	}
}

// add takes in what the host says, unless it is about another turn or boot than the
// Node's.
func (n *Node) add(u *v1alpha1.HostUpdateStatus) {
	if u == nil || string(u.BootID) != n.BootID && n.BootID != "" {
		return
	}
	if n.State.InTurn() != (u.Turn != nil) || u.Turn != nil && string(u.Turn.ID) != n.Turn {
		u = u.DeepCopy()
		u.Turn, u.Blockers, u.Drain, u.Conditions = nil, nil, nil, nil // of another turn
	}
	n.Update = u
}

// blockedWords names what has blocked the node longest, and how many other things
// do; "" for none.
func (n *Node) blockedWords() string {
	if n.Update == nil || len(n.Update.Blockers) == 0 {
		return ""
	}
	text := "blocked by " + blockerName(&n.Update.Blockers[0])
	if more := len(n.Update.Blockers) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// blockerName is a blocker without its message.
func blockerName(b *v1alpha1.Blocker) string {
	text := string(b.Kind) + " " + string(b.Name)
	if b.Pod != "" && b.Pod != b.Name {
		text += " (pod " + string(b.Pod) + ")"
	}
	return text
}

// updateLines are the lines of what the host says.
func (r *Report) updateLines(n *Node, line lineFunc) {
	u := n.Update
	if n.UpdateError != "" {
		line("note", "%s", n.UpdateError)
	}
	if u == nil {
		return
	}
	for i := range u.Blockers {
		b := &u.Blockers[i]
		line("blocked by", "%s for %s: %s", blockerName(b), since(r.Time, &b.Since.Time), b.Message)
	}
	if d := u.Drain; d != nil {
		text := fmt.Sprintf("%d of %d pods are gone", d.Evicted, d.Total)
		if d.ExpectedEnd != nil {
			text += ", the last about " + ago(r.Time, d.ExpectedEnd.Time)
		}
		line("drain", "%s", text)
	}
	line("host at", "%s", u.Message)
	if e := u.Engine; e != nil {
		text := string(e.Operation)
		if e.Version != "" {
			text += " " + string(e.Version)
		}
		if e.Progress > 0 {
			text += fmt.Sprintf(" (%d %%)", e.Progress)
		}
		line("engine", "%s", text)
	}
	for _, c := range u.Conditions {
		switch c.Type {
		case v1alpha1.ConditionEngineReachable, v1alpha1.ConditionSourcesReadable, v1alpha1.ConditionCredentialValid, v1alpha1.ConditionCoordinatorHealthy:
			if c.Status != "True" {
				line("health", "%s is False for %s: %s", c.Type, since(r.Time, &c.LastTransitionTime.Time), c.Message)
			}
		}
	}
	for _, e := range u.Offline {
		line("offline", "%s: %s", clock(r.Time, e.Time.Time), e.Message)
	}
	if len(u.History) > 0 {
		t := &u.History[0]
		line("took", "%s: %s", span(t.Ended.Sub(t.Started.Time)), stagesText(t.Stages))
	}
}

// stagesText is how long a turn was in each state.
func stagesText(all []v1alpha1.StageTime) string {
	var parts []string
	for _, s := range all {
		parts = append(parts, string(s.State)+" "+span(time.Duration(s.Seconds)*time.Second))
	}
	return strings.Join(parts, ", ")
}
