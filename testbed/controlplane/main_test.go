package controlplane

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// shared is the control plane of all tests that do not stop it.
var shared *ControlPlane

// ownerEnv makes this test binary a program that owns a control plane until it is told to exit. Tests kill that program.
const ownerEnv = "TESTBED_TEST_OWNER"

func TestMain(m *testing.M) {
	switch os.Getenv(ownerEnv) {
	case "":
	case "tests":
		os.Exit(RunTests(testsWithOneMore{}, Options{Without: bare}, func(*ControlPlane) {}))
	case "failing":
		os.Exit(RunTests(failingTests{}, Options{Without: bare, Log: os.Stdout}, func(*ControlPlane) {}))
	default:
		os.Exit(ownControlPlane())
	}
	os.Exit(RunTests(m, Options{NodeMonitorGrace: 10 * time.Second}, func(cp *ControlPlane) { shared = cp }))
}

// ownControlPlane starts a control plane, prints its directory and waits for Ctrl-C.
func ownControlPlane() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	cp, err := Start(ctx, Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(cp.Dir())
	<-ctx.Done()
	if err := cp.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// testsWithOneMore are tests that start a second control plane and then wait indefinitely.
type testsWithOneMore struct{}

func (testsWithOneMore) Run() int {
	cp, err := Start(context.Background(), Options{Without: bare})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(cp.Dir())
	select {}
}

// failingTests fail at once.
type failingTests struct{}

func (failingTests) Run() int { return 1 }

// soon returns a context for operations that take a moment.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func clientFor(t *testing.T, config *rest.Config, err error) *kubernetes.Clientset {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return must(kubernetes.NewForConfig(config))(t)
}

// readyHost creates a host's Node and keeps it Ready, as its kubelet would, until silence is called.
func readyHost(t *testing.T, cp *ControlPlane, name string) (silence func()) {
	t.Helper()
	must(cp.CreateNode(soon(t), NodeSpec{Name: name}))(t)
	beating, stop := context.WithCancel(t.Context())
	var beat sync.WaitGroup
	silence = func() { stop(); beat.Wait() }
	t.Cleanup(func() {
		silence()
		if err := cp.Client().CoreV1().Nodes().Delete(context.Background(), name, deleteNow); err != nil {
			t.Error(err)
		}
	})
	if err := cp.SetNodeReady(beating, name, "boot-1-of-"+name, true); err != nil {
		t.Fatal(err)
	}
	beat.Go(func() {
		tick := time.NewTicker(2 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-beating.Done():
				return
			case <-tick.C:
				if err := cp.SetNodeReady(beating, name, "", true); err != nil && beating.Err() == nil {
					t.Errorf("the heartbeat of %s: %v", name, err)
				}
			}
		}
	})
	return silence
}

// holdPods stops the simulation of a node's pods and does not change the Node's Ready condition.
func holdPods(t *testing.T, cp *ControlPlane, node string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, PodsLabel, PodsHeld)
	must(cp.Client().CoreV1().Nodes().Patch(soon(t), node, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
}
