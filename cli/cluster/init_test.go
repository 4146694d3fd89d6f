package cluster

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// TestInit has what no real API server gives on demand: outcomes that are unknown, other users, pages of proxies. What it gives is tried in the
// test bed. Each answer is to one POST of the Lease; the ones after that succeed.
func TestInit(t *testing.T) {
	noNamespace := apierrors.NewNotFound(corev1.Resource("namespaces"), "lockkeeper")
	ending := apierrors.NewForbidden(coordinationv1.Resource("leases"), "lockkeeper", errors.New("being terminated"))
	ending.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	exists := apierrors.NewAlreadyExists(coordinationv1.Resource("leases"), "lockkeeper")
	forbidden := apierrors.NewForbidden(coordinationv1.Resource("leases"), "lockkeeper", errors.New("no"))
	page := apierrors.NewGenericServerResponse(404, "POST", coordinationv1.Resource("leases"), "lockkeeper", "a page", 0, true)
	broken := testLease()
	broken.DeletionTimestamp, broken.Finalizers = &metav1.Time{Time: time.Unix(1, 0)}, []string{"example.com/x"}
	reports := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{v1alpha1.AnnotationHost: "{}"}}}
	led := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2", Labels: map[string]string{v1alpha1.LabelHeld: "Stopped"}}}
	paused := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n3", Annotations: map[string]string{v1alpha1.AnnotationPaused: "x"}}}
	const needs = "; `lockkeeper init` requires permission to get and create Leases in namespace lockkeeper, and to list nodes and disruptionpolicies"
	for name, c := range map[string]struct {
		objects []runtime.Object
		answers []error
		posts   int
		asked   string // why
		fails   string // what the error contains
		told    int
	}{
		"a new cluster":            {[]runtime.Object{paused}, nil, 1, "", "", 0},
		"it exists":                {[]runtime.Object{testLease(), led}, nil, 0, "", "", 0},
		"it is being deleted":      {[]runtime.Object{broken}, nil, 0, "", "lease lockkeeper/lockkeeper is being deleted and waits for its finalizers (example.com/x)", 0},
		"hosts run":                {[]runtime.Object{reports}, nil, 1, "lockkeeper runs on 1 host", "", 0},
		"a coordinator has run":    {[]runtime.Object{reports, led}, nil, 1, "a coordinator has written to 1 node", "", 0},
		"without a namespace":      {nil, []error{noNamespace, ending, noNamespace}, 4, "", "", 1},
		"never a namespace":        {nil, slices.Repeat([]error{noNamespace}, 1000), 30, "", "timeout", 1},
		"another user was faster":  {nil, []error{exists}, 1, "", "was created and deleted by another user", 0},
		"the outcome is unknown":   {nil, []error{errors.New("connection reset")}, 1, "", "connection reset; it may have been created: run the command again to see", 0},
		"a proxy has no such page": {nil, []error{page}, 1, "", "it may have been created", 0},
		"not allowed":              {nil, []error{forbidden}, 1, "", needs, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, client, _ := faulty(t, nil, c.objects...)
				posts := 0
				client.PrependReactor("create", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
					if posts++; posts <= len(c.answers) {
						return true, nil, c.answers[posts-1]
					}
					return false, nil, nil
				})
				asked, told := "", 0
				_, created, err := s.Init(t.Context(), InitOptions{
					Lease:   &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "lockkeeper", Name: "lockkeeper"}},
					Confirm: func(why string) error { asked = why; return nil }, Tell: func(string) { told++ }, Within: time.Minute - time.Second,
				})
				if (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) && !(c.fails == "timeout" && errors.Is(err, ErrTimeout)) {
					t.Errorf("%v, want %q", err, c.fails)
				}
				if posts != c.posts || asked != c.asked || told != c.told || created != (err == nil && c.posts > 0) {
					t.Errorf("%d posts, asked %q, told %d times, created %t; want %d, %q, %d", posts, asked, told, created, c.posts, c.asked, c.told)
				}
				refused := errors.New("not confirmed")
				if asked == "" {
					return
				}
				s, client, _ = faulty(t, nil, c.objects...)
				if _, _, err := s.Init(t.Context(), InitOptions{Confirm: func(string) error { return refused }}); !errors.Is(err, refused) {
					t.Errorf("a user who says no: %v", err)
				}
				for _, a := range client.Actions() {
					if a.GetVerb() == "create" {
						t.Errorf("a user who says no: %v", a)
					}
				}
			})
		})
	}
}

// TestInitDryRun: a dry run does not end a stop.
func TestInitDryRun(t *testing.T) {
	s, client, _ := faulty(t, nil)
	client.PrependReactor("create", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if dry := a.(clienttesting.CreateActionImpl).CreateOptions.DryRun; !slices.Equal(dry, []string{metav1.DryRunAll}) {
			t.Errorf("dry run %q", dry)
		}
		return true, testLease(), nil // the fake would store it
	})
	if _, created, err := s.Init(t.Context(), InitOptions{Lease: testLease(), Within: time.Minute, DryRun: true}); err != nil || !created {
		t.Errorf("created %t, %v", created, err)
	}
}

// TestInitWaitsForTheAPIServer: in the first seconds of a new kind, the API server answers that it is busy.
func TestInitWaitsForTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, client, _ := faulty(t, nil)
		lists := 0
		client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			if lists++; lists <= 3 {
				return true, nil, apierrors.NewTooManyRequests("storage is (re)initializing", 1)
			}
			return false, nil, nil
		})
		var told []string
		begun := time.Now()
		_, created, err := s.Init(t.Context(), InitOptions{Lease: testLease(), Tell: func(text string) { told = append(told, text) }, Within: time.Minute})
		if err != nil || !created || time.Since(begun) != 3*initEvery {
			t.Errorf("after %v: created %t, %v", time.Since(begun), created, err)
		}
		if len(told) != 1 || !strings.Contains(told[0], "storage is (re)initializing") {
			t.Errorf("told %q", told)
		}
	})
}
