package object

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// A store that goes back before a watch has shown anything is noticed as well: only the first watch after a list needs no
// question. Otherwise a watch from the list's version would wait until the store has reached it again.
func TestRewindBeforeTheFirstEvent(t *testing.T) {
	at, away := "100", false
	l := &ListWatch{
		ListFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			return &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: at}}, nil
		},
		WatchFunc: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			if away {
				return nil, errors.New("away")
			}
			return watch.NewFake(), nil
		},
		Answered: func(error) {},
	}
	from := metav1.ListOptions{ResourceVersion: "100"}
	for _, fails := range []bool{false, true} {
		at = "100"
		if _, err := l.ListWithContext(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		away = fails
		if _, err := l.WatchWithContext(t.Context(), from); (err != nil) != fails {
			t.Fatal(err)
		}
		at, away = "50", false
		if _, err := l.WatchWithContext(t.Context(), from); !apierrors.IsResourceExpired(err) {
			t.Errorf("a watch from 100 of a store at 50: %v, want that the version is not there", err)
		}
	}
}
