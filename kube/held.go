package kube

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// Listed reports whether the Watch has processed a list from the quorum.
func (w *Watch[O, T]) Listed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.listed
}

// Err returns why the objects cannot be read now, or nil.
func (w *Watch[O, T]) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Age returns the maximum age of the held objects. It is 0 while a watch is established.
// Otherwise it is the time since the watch ended or since the last list was requested,
// whichever is later. It has no meaning before [Watch.Listed]. A connection that is silent
// but has not ended counts as an established watch until the transport's pings fail. If a
// proxy answers the pings, it counts until three minutes have brought no bookmark, or for an
// hour if none of the API server's bookmarks had arrived before.
func (w *Watch[O, T]) Age() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.since.IsZero() && time.Since(w.since) >= CatchUp {
		return 0
	}
	return time.Since(w.current)
}

// Get returns the held value of the object with that key, or the zero T.
func (w *Watch[O, T]) Get(key string) T {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.held[key].value
}

// All returns the held values of all objects, in the order of their keys.
func (w *Watch[O, T]) All() []T {
	all, _, _ := w.Snapshot()
	return all
}

// Snapshot returns what All, Listed and Err return, of one moment. Between two of these calls
// a first list may arrive: then nothing would be held of what seems to be listed.
func (w *Watch[O, T]) Snapshot() (all []T, listed bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sorted == nil {
		w.sorted = make([]T, 0, len(w.held))
		for _, key := range slices.Sorted(maps.Keys(w.held)) {
			e := w.held[key]
			e.at, w.sorted = len(w.sorted), append(w.sorted, e.value)
			w.held[key] = e
		}
	}
	return slices.Clone(w.sorted), w.listed, w.err
}

// hold holds a value. The caller holds mu.
func (w *Watch[O, T]) hold(key string, e entry[T]) {
	old, known := w.held[key]
	if e.at = old.at; !known {
		w.sorted = nil
	} else if w.sorted != nil {
		w.sorted[e.at] = e.value
	}
	w.held[key] = e
}

// drop drops the value of that key. The caller holds mu.
func (w *Watch[O, T]) drop(key string) {
	delete(w.held, key)
	w.sorted = nil
}

// Overlay stores an object that a write or a read of this process returned, unless a newer
// version is held. It reports whether it stored the object. It does not call Changed.
func (w *Watch[O, T]) Overlay(obj O) bool {
	news, _ := w.put(obj, false)
	return news
}

// Forget drops an object that a read or a write of this process did not find. version is
// the version that was known before the request. If the held version is newer, it came from
// the watch, which will also report the deletion, so Forget keeps the object.
func (w *Watch[O, T]) Forget(key, version string) {
	w.mu.Lock()
	old, known := w.held[key]
	gone := known && !surelyNewer(old.version, version)
	if gone {
		w.drop(key)
	}
	w.mu.Unlock()
	if gone {
		w.opts.Changed()
	}
}

// put stores an object from the watch or from an answer to this process. news is whether the
// object was newer than the held one, and matters is whether the caller has to be notified.
func (w *Watch[O, T]) put(obj O, watched bool) (news, matters bool) {
	key, version := keyOf(obj), obj.GetResourceVersion()
	value, keep := w.opts.Keep(obj)
	w.mu.Lock()
	defer w.mu.Unlock()
	old, known := w.held[key]
	switch {
	case known:
		news = newer(version, old.version)
	default:
		// An answer to this process may be late. If a newer version of any object has been
		// seen, this one may have been deleted since, and would then stay forever. If it
		// was created instead, the watch will report it.
		news = watched || newer(version, w.newest)
	}
	if !news {
		return false, false
	}
	w.saw(version)
	if keep {
		w.hold(key, entry[T]{uid: obj.GetUID(), version: version, value: value})
	} else {
		w.drop(key)
	}
	return true, (known || keep) && !(known && keep && w.same(old.value, value))
}

func (w *Watch[O, T]) same(was, is T) bool { return w.opts.Same != nil && w.opts.Same(was, is) }

// saw records that a resourceVersion was seen. The caller holds mu.
func (w *Watch[O, T]) saw(version string) {
	if w.newest == "" || surelyNewer(version, w.newest) {
		w.newest = version
	}
}

// store is the interface through which the reflector fills the Watch.
type store[O Object, T any] struct{ w *Watch[O, T] }

// typed returns obj as an object of the watched type.
func (s store[O, T]) typed(obj any) (O, error) {
	o, ok := obj.(O)
	if !ok {
		return o, fmt.Errorf("the API server showed a %T among %s", obj, s.w.opts.Name)
	}
	return o, nil
}

// Bookmark takes a bookmark of the watch. The reflector keeps its version.
func (s store[O, T]) Bookmark(string) error {
	s.w.heard(true)
	return nil
}

func (s store[O, T]) Add(obj any) error {
	s.w.heard(false)
	o, err := s.typed(obj)
	if err != nil {
		return err
	}
	if _, matters := s.w.put(o, true); matters {
		s.w.opts.Changed()
	}
	return nil
}

func (s store[O, T]) Update(obj any) error { return s.Add(obj) }

func (s store[O, T]) Delete(obj any) error {
	s.w.heard(false)
	o, err := s.typed(obj)
	if err != nil {
		return err
	}
	w, key := s.w, keyOf(o)
	w.mu.Lock()
	old, known := w.held[key]
	gone := known && old.uid == o.GetUID() // another UID is a later object with the same key
	if gone {
		w.drop(key)
	}
	w.saw(o.GetResourceVersion())
	w.mu.Unlock()
	if gone {
		w.opts.Changed()
	}
	return nil
}

// Replace replaces the held objects with a list. It keeps an object whose held version is
// newer than the list, because the watch after the list will report its later changes. It
// drops every other object that is not in the list.
//
// The API server's store went back in time in two cases: a list from the quorum is older than
// the newest version that was known when it was requested, or it contains an older version of
// an object than was known at the list's version. In both cases Replace keeps nothing.
func (s store[O, T]) Replace(objs []any, at string) error {
	held := make(map[string]entry[T], len(objs))
	for _, obj := range objs {
		o, err := s.typed(obj)
		if err != nil {
			return err
		}
		if value, keep := s.w.opts.Keep(o); keep {
			held[keyOf(o)] = entry[T]{uid: o.GetUID(), version: o.GetResourceVersion(), value: value}
		}
	}
	w := s.w
	w.mu.Lock()
	rewound := surelyNewer(w.asked, at)
	kept := map[string]entry[T]{}
	for key, old := range w.held {
		if is, ok := held[key]; surelyNewer(old.version, at) {
			kept[key] = old
		} else if ok && surelyNewer(old.version, is.version) {
			rewound = true
		}
	}
	if !rewound {
		maps.Copy(held, kept)
	}
	if rewound || newer(at, w.newest) {
		w.newest = at
	}
	matters := !w.listed || w.err != nil || !maps.EqualFunc(held, w.held, func(is, was entry[T]) bool { return w.same(was.value, is.value) })
	w.held, w.listed, w.err, w.current = held, true, nil, w.askedAt
	w.sorted = nil
	w.mu.Unlock()
	if rewound {
		w.opts.Rewound()
	}
	if matters {
		w.opts.Changed()
	}
	return nil
}

func (store[O, T]) Resync() error { return nil }

func keyOf(obj Object) string { return cache.MetaObjectToName(obj).String() }

// newer reports whether resourceVersion a is newer than b, of the same resource (KEP-5504).
// If they cannot be compared, it returns true, because a arrived later.
func newer(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || c > 0
}

// surelyNewer is like newer, but returns false if the versions cannot be compared.
func surelyNewer(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && c > 0
}
