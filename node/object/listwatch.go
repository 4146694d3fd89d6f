package object

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// ListWatch lists and watches one resource for a reflector of client-go. Every
// list is from the quorum: the reflector would ask for resourceVersion 0, which
// an API server answers from a cache that may be minutes old.
//
// It also notices a store that went back in time, as etcd does when it is
// restored from a backup. If a watch starts from a version that the store has not
// reached yet, the API server sends nothing until the store reaches it, and the
// reflector would wait for hours. So before ListWatch resumes a watch, it asks for
// the store's current version. If the store is behind, the reflector lists again,
// and passes on a list that is older than what it has shown.
type ListWatch struct {
	// Name is that of the only object to list and watch; "" is all of them.
	Name string
	// ListFunc and WatchFunc ask the API server.
	ListFunc  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	WatchFunc func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// Answered receives the error, or nil, of each watch that begins, and the
	// error of each list that fails. A list that succeeds counts as an answer once
	// the reflector's store has it.
	Answered func(error)

	mu     sync.Mutex
	listed string // the version of the last list; "" once it was watched from
}

// IsWatchListSemanticsUnSupported keeps the reflector to LIST and WATCH: the
// list that it would stream is not a quorum read.
func (*ListWatch) IsWatchListSemanticsUnSupported() bool { return true }

func (l *ListWatch) selected(o metav1.ListOptions) metav1.ListOptions {
	if l.Name != "" {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, l.Name).String()
	}
	return o
}

// list lists from the quorum, and returns the version of the list as well.
func (l *ListWatch) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, string, error) {
	o.ResourceVersion, o.ResourceVersionMatch = "", ""
	list, err := l.ListFunc(ctx, l.selected(o))
	var m metav1.ListInterface
	if err == nil {
		m, err = meta.ListAccessor(list)
	}
	if err == nil {
		err = isList(m)
	}
	if err != nil {
		l.Answered(err)
		return nil, "", err
	}
	return list, m.GetResourceVersion(), nil
}

// ListWithContext lists from the quorum.
func (l *ListWatch) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list, version, err := l.list(ctx, o)
	if err != nil {
		return nil, err
	}
	if o.Continue == "" {
		l.mu.Lock()
		l.listed = version
		l.mu.Unlock()
	}
	return list, nil
}

// WatchWithContext makes sure that the store has reached o.ResourceVersion, and
// then watches from there.
func (l *ListWatch) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	l.mu.Lock()
	resumed := o.ResourceVersion != l.listed
	l.listed = ""
	l.mu.Unlock()
	if resumed {
		_, now, err := l.list(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return nil, err
		}
		if surelyNewer(o.ResourceVersion, now) {
			return nil, apierrors.NewResourceExpired(fmt.Sprintf(
				"the API server's store is at %s and was at %s before: it went back in time", now, o.ResourceVersion))
		}
	}
	w, err := l.WatchFunc(ctx, l.selected(o))
	l.Answered(err)
	return w, err
}

// List is ListWithContext without a context.
func (l *ListWatch) List(o metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), o)
}

// Watch is WatchWithContext without a context.
func (l *ListWatch) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), o)
}
