package apiserver

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// history is how long the server certainly remembers a change, as long as an API server's watch cache does.
	history = 75 * time.Second
	// eventLife is how long an Event exists.
	eventLife = time.Hour
	// minLog is the number of changes of one resource that are remembered even if they are older.
	minLog = 256
)

// table holds the objects of one resource, and its last changes.
type table struct {
	k       *kind
	items   map[string]*item
	names   []string // the keys of items, in order
	log     []*change
	limit   int   // the length of log at which old changes are dropped
	oldest  int64 // log has all changes after this revision
	streams map[*stream]struct{}
}

// change is one write of an object.
type change struct {
	rev      int64
	at       time.Time
	name     string
	old, new *item // old is nil if it was created, new if it was deleted
	last     *item // old, with the revision of the change
	frames   map[frameKey][]byte
}

func newTable(k *kind) *table {
	return &table{k: k, items: map[string]*item{}, limit: minLog, streams: map[*stream]struct{}{}}
}

func key(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// restore replaces the objects, and forgets the history.
func (t *table) restore(items map[string]*item, revision int64) {
	t.items, t.names = items, slices.Sorted(maps.Keys(items))
	t.log, t.oldest = nil, revision
}

// put stores the change.
func (t *table) put(c *change) {
	i, found := slices.BinarySearch(t.names, c.name)
	switch {
	case c.new == nil:
		delete(t.items, c.name)
		t.names = slices.Delete(t.names, i, i+1)
	case !found:
		t.names = slices.Insert(t.names, i, c.name)
		fallthrough
	default:
		t.items[c.name] = c.new
	}
	if len(t.log) >= t.limit {
		keep := slices.IndexFunc(t.log, func(o *change) bool { return c.at.Sub(o.at) < history })
		if keep < 0 {
			keep = len(t.log)
		}
		keep = min(keep, len(t.log)-minLog/2)
		if keep > 0 {
			t.oldest = t.log[keep-1].rev
			t.log = slices.Clone(t.log[keep:])
		}
		t.limit = max(minLog, 2*len(t.log))
	}
	t.log = append(t.log, c)
}

// after returns the changes after a revision. It returns false if they are forgotten.
func (t *table) after(rev int64) ([]*change, bool) {
	if rev < t.oldest {
		return nil, false
	}
	i, _ := slices.BinarySearchFunc(t.log, rev+1, func(c *change, rev int64) int { return cmp.Compare(c.rev, rev) })
	return t.log[i:], true
}

// atRevision returns the objects, in order of their names, as they were at a revision. It returns false if that is forgotten.
func (t *table) atRevision(rev int64) ([]*item, bool) {
	changes, ok := t.after(rev)
	if !ok {
		return nil, false
	}
	items, names := t.items, t.names
	if len(changes) > 0 {
		items = maps.Clone(items)
		for _, c := range slices.Backward(changes) {
			if items[c.name] = c.old; c.old == nil {
				delete(items, c.name)
			}
		}
		names = slices.Sorted(maps.Keys(items))
	}
	all := make([]*item, len(names))
	for i, name := range names {
		all[i] = items[name]
	}
	return all, true
}

// cut ends all watches.
func (t *table) cut() {
	for st := range t.streams {
		st.end()
	}
	clear(t.streams)
}

// writeOf describes a write of the request.
func (s *Server) writeOf(q *request, old, it *item) Write {
	w := Write{Resource: q.k.stored(), Subresource: q.sub, User: q.user}
	one := it
	if old != nil {
		w.Old, one = old.obj, cmp.Or(it, old)
	}
	if it != nil {
		w.Object = it.obj
	}
	w.Namespace, w.Name = text(one.u, "metadata", "namespace"), text(one.u, "metadata", "name")
	return w
}

// commit stores a write of the request; it is nil for a deletion. It delivers the change to the watches and the observers.
func (s *Server) commit(q *request, old, it *item) {
	t := s.tables[q.k.stored()]
	s.revision++
	c := &change{rev: s.revision, at: time.Now(), name: cmp.Or(it, old).name, old: old, new: it, frames: map[frameKey][]byte{}}
	if it != nil {
		it.setRevision(s.revision)
	}
	t.put(c)
	for st := range t.streams {
		st.offer(c)
	}
	w := s.writeOf(q, old, it)
	w.Revision = s.revision
	for _, f := range s.observers {
		f(w)
	}
	s.wake()
	if old == nil && q.k.stored() == "events" {
		s.expireEvents(it)
	}
}

// setRevision sets the version of an item that no one has seen yet.
func (it *item) setRevision(rev int64) {
	it.rev = rev
	it.obj.(metav1.Object).SetResourceVersion(strconv.FormatInt(rev, 10))
	child(it.u, "metadata")["resourceVersion"] = strconv.FormatInt(rev, 10)
}

// withRevision returns a copy of the item with another version.
func (it *item) withRevision(rev int64) *item {
	c := &item{obj: it.obj.DeepCopyObject(), enc: map[encoding][]byte{}, name: it.name, managed: it.managed}
	c.u = maps.Clone(it.u)
	c.u["metadata"] = maps.Clone(child(it.u, "metadata"))
	c.setRevision(rev)
	return c
}

// removed returns the object of an event that says that it is gone: its last state, with the version of the change.
func (c *change) removed() *item {
	if c.last == nil {
		c.last = c.old.withRevision(c.rev)
	}
	return c.last
}

// expiry is when an Event ends.
type expiry struct {
	at        time.Time
	name, uid string
}

// expireEvents deletes the Events whose time is over. An API server deletes each one on time; here a new one has to come.
func (s *Server) expireEvents(it *item) {
	now := time.Now()
	s.events = append(s.events, expiry{now.Add(eventLife), it.name, text(it.u, "metadata", "uid")})
	q := &request{k: kindOf("events"), user: "system:apiserver", verb: "delete"}
	for ; !now.Before(s.events[0].at); s.events = s.events[1:] {
		e := s.events[0]
		if old := s.tables["events"].items[e.name]; old != nil && text(old.u, "metadata", "uid") == e.uid {
			s.commit(q, old, nil)
		}
	}
}
