package apiserver

import (
	"maps"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// Server is an API server. Its methods may be called from any goroutine, but not by the functions that it calls. It must be made in the bubble in
// which it is used.
type Server struct {
	mu       sync.Mutex
	revision int64
	advanced chan struct{} // closed at the next write
	tables   map[string]*table
	absent   map[string]bool // resources that are not served
	clock    time.Duration
	serial   int64 // the last number that was used in a UID or in a name; it never goes back
	changes  chan struct{}
	events   []expiry // of the Events, the oldest first
	maxSize  int      // see LimitSize
	page     int64    // the most objects in a page; 0 is no bound

	observers []func(Write)
	intercept func(Write) error
	authorize func(user, verb, resource, namespace, name string) bool
}

// Write is one write that the server has committed, or is about to commit.
type Write struct {
	Revision int64 // 0 before the commit
	// Resource is the plural, such as "nodes". Subresource is "status", "eviction" or "".
	Resource, Subresource string
	Namespace, Name       string
	// Object is the object after the write, nil if it was deleted. Old is the object before, nil if it was created. Objects of lockkeeper's
	// own kinds are *unstructured.Unstructured; Events are always core/v1 Events. They must not be modified.
	Object, Old runtime.Object
	// User sent the request.
	User string
}

// firstRevision is the revision of an empty store.
const firstRevision = 1000

// New returns a server with the namespaces of a new cluster, and no other objects.
func New() *Server {
	s := &Server{revision: firstRevision, maxSize: 3 << 19, advanced: make(chan struct{}), tables: map[string]*table{}, absent: map[string]bool{}, changes: make(chan struct{}, 1)}
	for _, k := range kinds {
		if !k.event {
			s.tables[k.stored()] = newTable(k)
		}
	}
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		u := object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": name}}
		q := &request{k: kindOf("namespaces"), verb: "create", name: name, user: "system:apiserver", manager: "kube-apiserver"}
		if _, err := s.insert(q, u); err != nil {
			panic(err)
		}
	}
	s.Compact()
	return s
}

// Client returns a transport whose requests come from this user, such as "system:node:n1".
func (s *Server) Client(user string) http.RoundTripper { return client{s, user} }

// Observe has f called for each write after it was committed, in order and under the server's lock.
func (s *Server) Observe(f func(Write)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observers = append(s.observers, f)
}

// Intercept has f called for each write before it is committed, also for dry runs, under the server's lock. An error refuses the write. It should be an
// API status, such as those of k8s.io/apimachinery/pkg/api/errors; any other error is an internal error. nil intercepts nothing.
func (s *Server) Intercept(f func(Write) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}

// Authorize has f decide for each request whether the user may send it. The resource has its subresource, as in "pods/eviction". f is called
// under the server's lock. nil allows everything.
func (s *Server) Authorize(f func(user, verb, resource, namespace, name string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.authorize = f
}

// LimitPages makes every page of a list that has a limit contain at most n objects. An API server may return fewer than the limit.
func (s *Server) LimitPages(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.page = n
}

// LimitSize refuses objects of Kubernetes' own kinds that take more than n bytes as protobuf. It is 1.5 MiB at first, as etcd's limit.
func (s *Server) LimitSize(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.maxSize = n
}

// Get returns an object, nil if there is none. The caller must not modify it.
func (s *Server) Get(resource, namespace, name string) runtime.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	if it := s.tables[resource].items[key(namespace, name)]; it != nil {
		return it.obj
	}
	return nil
}

// List returns all objects of a resource, ordered by namespace and name. The caller must not modify them.
func (s *Server) List(resource string) []runtime.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables[resource]
	all := make([]runtime.Object, 0, len(t.names))
	for _, name := range t.names {
		all = append(all, t.items[name].obj)
	}
	return all
}

// Revision returns the revision of the last write.
func (s *Server) Revision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision
}

// SetClockOffset sets by how much the server's clock is ahead. It affects the Date header and the times that the server sets.
func (s *Server) SetClockOffset(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock = d
}

// now returns the server's time.
func (s *Server) now() time.Time { return time.Now().Add(s.clock) }

// Serve sets whether the server knows a resource, such as "hostupdates", as if its CustomResourceDefinition were deleted or created. What is not served
// loses its objects and watches.
func (s *Server) Serve(resource string, served bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.absent[resource] = !served
	if !served {
		t := s.tables[resource]
		t.cut()
		*t = *newTable(t.k)
		t.oldest = s.revision
	}
}

// Snapshot is a copy of the store.
type Snapshot struct {
	revision int64
	items    map[string]map[string]*item
}

// Snapshot returns a copy of the store.
func (s *Server) Snapshot() *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &Snapshot{revision: s.revision, items: map[string]map[string]*item{}}
	for resource, t := range s.tables {
		c.items[resource] = maps.Clone(t.items)
	}
	return c
}

// Restore rewinds the store to the snapshot, as etcd that is restored from a backup: objects and the revision go back, and all watches end. UIDs are not
// used again. Observers are not called.
func (s *Server) Restore(c *Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision = c.revision
	for resource, t := range s.tables {
		t.cut()
		t.restore(maps.Clone(c.items[resource]), c.revision)
	}
	s.wake()
}

// CutWatches ends all watches of a resource, or of all resources if it is "". The server keeps its history: a watch can start where it ended.
func (s *Server) CutWatches(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, t := range s.tables {
		if resource == "" || resource == name {
			t.cut()
		}
	}
}

// Compact drops the history: a watch from an earlier revision, and the next page of a list, are answered with 410. Watches that are established
// continue.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tables {
		t.log, t.oldest = nil, s.revision
	}
}

// wake wakes up those that wait for a later revision, and the controller of budgets.
func (s *Server) wake() {
	close(s.advanced)
	s.advanced = make(chan struct{})
	select {
	case s.changes <- struct{}{}:
	default:
	}
}
