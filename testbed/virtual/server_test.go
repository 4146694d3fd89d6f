package virtual

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/testbed/apiserver"
)

// TestOnServer sends the product's own client through a Transport to the API server in memory, in its own encodings.
func TestOnServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, c := apiserver.New(), &script{lag: time.Millisecond}
		rt := newTransport("n1", roleHost, server.Client("admin"), c, newTrace())
		defer rt.Close()
		cfg := &rest.Config{Host: "https://api.invalid"}
		cfg.Wrap(func(http.RoundTripper) http.RoundTripper { return rt })
		client, err := kube.ConnectConfig(cfg, "host", "test", 1e6, 1e6)
		if err != nil {
			t.Fatal(err)
		}
		under := func(faults ...Fault) {
			c.mu.Lock()
			c.faults = faults
			c.mu.Unlock()
		}
		n, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{ResourceVersion: n.ResourceVersion})
		if err != nil {
			t.Fatal(err)
		}
		write := func(text string) kube.Outcome {
			p := kube.Patch{Node: "n1", ResourceVersion: n.ResourceVersion, Annotations: map[string]*string{v1alpha1.AnnotationTurn: &text}}
			written, outcome, _ := kube.Write(t.Context(), client, p)
			if written != nil {
				n = written
			}
			return outcome
		}
		seen := func() string {
			t.Helper()
			e := <-w.ResultChan()
			node, ok := e.Object.(*corev1.Node)
			if e.Type != kwatch.Modified || !ok {
				t.Fatalf("the watch shows %v %v", e.Type, e.Object)
			}
			return node.Annotations[v1alpha1.AnnotationTurn]
		}

		// A proxy that repeats a write turns the success into a conflict.
		under(Fault{Kind: kindRepeat, Mode: modeSecond})
		if o := write("one"); o != kube.Conflict || seen() != "one" {
			t.Errorf("a repeated write is %s, expected a conflict", o)
		}
		// A write lands after its sender has given up.
		under(Fault{Kind: kindLate, Mode: modeError, For: time.Minute})
		if o := write("two"); o != kube.Unknown {
			t.Errorf("a late write is %s, expected unknown", o)
		}
		start := time.Now()
		if got := seen(); got != "two" || time.Since(start) < 59*time.Second {
			t.Errorf("the watch shows %q after %v", got, time.Since(start))
		}
		// Half of a list is no list.
		for _, mode := range []string{modeError, modeClean} {
			under(Fault{Kind: kindTruncate, Mode: mode})
			if list, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err == nil {
				t.Errorf("half of a list (%s) is a list of %d", mode, len(list.Items))
			}
		}
		// A watch that is cut in the middle of an event delivers no part of it.
		under()
		rt.eachWatch("nodes", func(w *watch) { w.ending, w.half = errReset, true })
		if n, err = kube.Find(t.Context(), client, "n1"); err != nil {
			t.Fatal(err)
		}
		if o := write("three"); o != kube.Written {
			t.Errorf("the write is %s", o)
		}
		if e, ok := <-w.ResultChan(); ok && e.Type != kwatch.Error {
			t.Errorf("the watch that was cut shows %v", e)
		}
	})
}
