package apiserver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/drain"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/testbed/apiserver"
)

// kubelet deletes the terminating pods of n1, as their kubelet does when their containers have stopped.
func kubelet(ctx context.Context, s *apiserver.Server, c *kube.Client, stops time.Duration) {
	for tick := time.NewTicker(stops); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, obj := range s.List("pods") {
			if p := obj.(*corev1.Pod); p.DeletionTimestamp != nil && p.Spec.NodeName == "n1" {
				_ = c.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
			}
		}
	}
}

// TestDrain checks that the product's drain empties a node, and never has more pods away than the budget allows: someone replaces each pod.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apiserver.New()
		ctx := stopped(t)
		admin := connect(t, s, "admin")
		go s.RunBudgets(ctx, time.Second)
		workload(t, admin, 5, 4)
		var deleting, most int
		var replacing sync.WaitGroup
		s.Observe(func(w apiserver.Write) {
			if w.Resource != "pods" {
				return
			}
			was, _ := w.Old.(*corev1.Pod)
			is, _ := w.Object.(*corev1.Pod)
			if is != nil && is.DeletionTimestamp != nil && was.DeletionTimestamp == nil {
				deleting++
			}
			if is == nil {
				deleting--
				replacing.Go(func() { replace(t, admin, "again-"+was.Name) })
			}
			most = max(most, deleting)
		})
		go kubelet(ctx, s, admin, 10*time.Second)
		d := &drain.Drainer{Client: connect(t, s, "system:node:n1"), Node: "n1"}
		start := time.Now()
		must(t, d.Run(ctx, nil))
		took := time.Since(start)
		replacing.Wait()
		for _, obj := range s.List("pods") {
			if p := obj.(*corev1.Pod); p.Spec.NodeName == "n1" {
				t.Errorf("pod %s is left", p.Name)
			}
		}
		if most != 1 || took < 50*time.Second || took > 5*time.Minute {
			t.Errorf("%d pods were away at once, expected 1; the drain took %v", most, took)
		}
	})
}

// replace runs a pod on another node.
func replace(t *testing.T, c *kube.Client, name string) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{NodeName: "n2", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	pod, err := c.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	_, err = c.CoreV1().Pods("default").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	must(t, err)
}

// TestOwnKinds checks that the product reads and writes its own kinds: a policy gets its defaults, and an applied HostUpdate loses what is not applied
// any more.
func TestOwnKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apiserver.New()
		c := connect(t, s, "system:node:n1")
		own, err := c.OwnKinds()
		must(t, err)
		policy := &v1alpha1.DisruptionPolicy{}
		must(t, own.Post().Resource("disruptionpolicies").Body([]byte(`{"metadata":{"name":"p"},"spec":{}}`)).Do(t.Context()).Into(policy))
		if policy.Generation != 1 || policy.Spec.Rollout.MaxTurnsPerDay == 0 {
			t.Errorf("the policy has no defaults: %+v", policy)
		}
		updates := kube.HostUpdates{Client: c, Node: "n1"}
		must(t, updates.Write(t.Context(), "u1", &v1alpha1.HostUpdateStatus{Wants: v1alpha1.WantsReboot, State: "x"}))
		before := s.Revision()
		must(t, updates.Write(t.Context(), "u1", &v1alpha1.HostUpdateStatus{Wants: v1alpha1.WantsReboot, State: "x"}))
		if s.Revision() != before {
			t.Error("an apply of the same was a write")
		}
		must(t, updates.Write(t.Context(), "u1", &v1alpha1.HostUpdateStatus{State: "y"}))
		u, err := updates.Read(t.Context())
		must(t, err)
		if u.Status.Wants != "" || u.Status.State != "y" {
			t.Errorf("the HostUpdate is %+v", u.Status)
		}
		s.Serve("hostupdates", false)
		if u, err := updates.Read(t.Context()); u != nil || err != nil {
			t.Errorf("a kind that is not served: %v, %v", u, err)
		}
	})
}

// TestPages checks that the history behind a continue token is forgotten after a compaction, and that the token in that answer leads to the rest.
func TestPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apiserver.New()
		c := connect(t, s, "admin")
		for i := range 5 {
			_, err := c.CoreV1().Nodes().Create(t.Context(), node(fmt.Sprint("n", i)), metav1.CreateOptions{})
			must(t, err)
		}
		names := func(token string) (names []string, next string, err error) {
			list, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{Limit: 2, Continue: token})
			for _, n := range list.Items {
				names = append(names, n.Name)
			}
			return names, list.Continue, err
		}
		first, token, err := names("")
		must(t, err)
		must(t, c.CoreV1().Nodes().Delete(t.Context(), "n2", metav1.DeleteOptions{}))
		second, _, err := names(token)
		must(t, err)
		s.Compact()
		_, _, err = names(token)
		status, ok := errors.AsType[*apierrors.StatusError](err)
		if !ok || !apierrors.IsResourceExpired(err) {
			t.Fatalf("after the compaction: %v", err)
		}
		rest, _, err := names(status.ErrStatus.Continue)
		must(t, err)
		if got := fmt.Sprint(first, second, rest); got != "[n0 n1] [n2 n3] [n3 n4]" {
			t.Error(got)
		}
	})
}

// TestStreams checks what a raw watch gets in three hours: bookmarks each minute, and an end after the timeout; and that a canceled one ends at once.
func TestStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apiserver.New()
		get := func(ctx context.Context, query string) io.ReadCloser {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://x/api/v1/nodes?watch=true&"+query, nil)
			must(t, err)
			resp, err := s.Client("admin").RoundTrip(r)
			must(t, err)
			return resp.Body
		}
		start := time.Now()
		all, err := io.ReadAll(get(t.Context(), "timeoutSeconds=600&allowWatchBookmarks=true"))
		if n := strings.Count(string(all), `"BOOKMARK"`); err != nil || n != 10 || time.Since(start) != 10*time.Minute {
			t.Errorf("%d bookmarks in %v, %v", n, time.Since(start), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start = time.Now()
		if _, err := io.ReadAll(get(ctx, "timeoutSeconds=7200")); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Hour {
			t.Errorf("a canceled watch: %v after %v", err, time.Since(start))
		}
	})
}

// TestRefusals checks that the test's own authorizer and admission refuse, that nothing is stored then, and that the server's clock is its own.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apiserver.New()
		c := connect(t, s, "system:node:n1")
		var asked []string
		s.Authorize(func(user, verb, resource, namespace, name string) bool {
			asked = append(asked, strings.Join([]string{user, verb, resource, namespace, name}, " "))
			return verb != "delete"
		})
		s.Intercept(func(w apiserver.Write) error {
			if w.Object.(*corev1.Node).Labels["no"] != "" {
				return apierrors.NewForbidden(corev1.Resource("nodes"), w.Name, errors.New("no"))
			}
			return nil
		})
		s.SetClockOffset(5 * time.Hour)
		n, err := c.CoreV1().Nodes().Create(t.Context(), node("n1"), metav1.CreateOptions{})
		must(t, err)
		if ahead, ok := c.Skew(); !ok || ahead < 5*time.Hour-2*time.Second || time.Until(n.CreationTimestamp.Time) < 4*time.Hour {
			t.Errorf("the server's clock is %v ahead; the node was created at %v", ahead, n.CreationTimestamp)
		}
		n.Labels = map[string]string{"no": "1"}
		before := s.Revision()
		if _, err := c.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("the intercepted write: %v", err)
		}
		if err := c.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) || s.Revision() != before {
			t.Errorf("the forbidden write: %v", err)
		}
		if want := []string{"system:node:n1 create nodes  ", "system:node:n1 update nodes  n1", "system:node:n1 delete nodes  n1"}; !slices.Equal(asked, want) {
			t.Errorf("the authorizer was asked %q", asked)
		}
	})
}

// TestEventsExpire checks that the server forgets an Event after an hour.
func TestEventsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apiserver.New()
		c := connect(t, s, "admin")
		about := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "u"}
		for i := range 3 {
			must(t, kube.WriteHostEvent(t.Context(), c, "n1", about, fmt.Sprint(i), time.Now(), v1alpha1.EventDoc{Reason: "R"}, "note"))
			time.Sleep(40 * time.Minute)
		}
		list, err := c.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("involvedObject.name", "n1").String()})
		must(t, err)
		if len(list.Items) != 2 {
			t.Errorf("%d Events, expected 2", len(list.Items))
		}
	})
}
