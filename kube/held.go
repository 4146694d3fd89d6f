package kube

import (
	"fmt"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// Listed reports whether a list from the quorum has been taken in.
func (w *Watch[O, T]) Listed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.listed
}

// Err returns why the objects cannot be read at present, or nil.
func (w *Watch[O, T]) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Age returns how old what is held may be: 0 while a watch keeps it up, else the
// time since a watch last did or, if that is later, since the last list was asked
// for. It means nothing before [Watch.Listed]. A connection that has gone silent
// without ending counts as a watch until the transport's pings fail, or for an hour
// if a proxy answers those.
func (w *Watch[O, T]) Age() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.since.IsZero() && time.Since(w.since) >= CatchUp {
		return 0
	}
	return time.Since(w.current)
}

// Get returns what is held of the object with that key, or the zero T.
func (w *Watch[O, T]) Get(key string) T {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.held[key].value
}

// All returns what is held of every object, in no order.
func (w *Watch[O, T]) All() []T {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]T, 0, len(w.held))
	for _, e := range w.held {
		all = append(all, e.value)
	}
	return all
}

// Overlay takes in an object that a write or a read of this process returned. It
// reports whether the object was news. It does not call Changed.
func (w *Watch[O, T]) Overlay(obj O) bool {
	news, _ := w.put(obj, false)
	return news
}

// Forget drops an object that a read or a write of this process did not find.
// version is that of the object as it was known before: one that is newer by now
// came from the watch, which will show its end as well.
func (w *Watch[O, T]) Forget(key, version string) {
	w.mu.Lock()
	old, known := w.held[key]
	gone := known && !surelyNewer(old.version, version)
	if gone {
		delete(w.held, key)
	}
	w.mu.Unlock()
	if gone {
		w.opts.Changed()
	}
}

// put takes in an object, shown by the watch or by an answer to this process. It
// returns whether it was newer than what was held, and whether that matters.
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
		// An answer to this process may come late: something newer was shown, and no
		// such object, so it was deleted. Taken in, it would stay forever. If it was
		// created, the watch will show it.
		news = watched || newer(version, w.newest)
	}
	if !news {
		return false, false
	}
	w.saw(version)
	if keep {
		w.held[key] = entry[T]{obj.GetUID(), version, value}
	} else {
		delete(w.held, key)
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

// store is the Watch as the reflector fills it.
type store[O Object, T any] struct{ w *Watch[O, T] }

// typed returns obj as what is watched.
func (s store[O, T]) typed(obj any) (O, error) {
	o, ok := obj.(O)
	if !ok {
		return o, fmt.Errorf("the API server showed a %T among %s", obj, s.w.opts.Name)
	}
	return o, nil
}

func (s store[O, T]) Add(obj any) error {
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
	o, err := s.typed(obj)
	if err != nil {
		return err
	}
	w, key := s.w, keyOf(o)
	w.mu.Lock()
	old, known := w.held[key]
	gone := known && old.uid == o.GetUID() // another UID is a later object with the same key
	if gone {
		delete(w.held, key)
	}
	w.saw(o.GetResourceVersion())
	w.mu.Unlock()
	if gone {
		w.opts.Changed()
	}
	return nil
}

// Replace takes in a whole list. An object of which this process has a newer version
// than the list keeps it, whatever the list has: what is newer than the list will be
// in the watch after it. Every other object that is missing from the list is gone.
//
// The store went back in time if a list from the quorum is older than what was known
// when it was asked for, or has an older version of an object than was known when
// the list was made. Then nothing that was known counts.
func (s store[O, T]) Replace(objs []any, at string) error {
	held := make(map[string]entry[T], len(objs))
	for _, obj := range objs {
		o, err := s.typed(obj)
		if err != nil {
			return err
		}
		if value, keep := s.w.opts.Keep(o); keep {
			held[keyOf(o)] = entry[T]{o.GetUID(), o.GetResourceVersion(), value}
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
	w.held, w.listed, w.err, w.current, w.fresh = held, true, nil, w.askedAt, true
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

// newer compares two resourceVersions of one resource (KEP-5504). One that cannot
// be compared is taken as newer: it came later.
func newer(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || c > 0
}

// surelyNewer is newer for what must not be taken on doubt.
func surelyNewer(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && c > 0
}
