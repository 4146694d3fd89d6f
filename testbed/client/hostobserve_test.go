package client

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"lockkeeper.dev/lockkeeper/testbed/simhost"
)

// touches returns the requests that do more than publish or authenticate.
func (h *host) touches() []request {
	return slices.DeleteFunc(h.w.requests("POST", "PATCH", "PUT", "DELETE"), func(r request) bool {
		return strings.Contains(r.body, "SelfSubjectReview") || strings.HasPrefix(r.kind, "PATCH hostupdate") || strings.HasPrefix(r.kind, "PATCH node") && !strings.Contains(r.body, "unschedulable") && !strings.Contains(r.body, "/committed")
	})
}

// TestObserveTouchesNothing checks that a host in observe mode publishes and plans but touches nothing, whatever state
// a coordinator sets.
func TestObserveTouchesNothing(t *testing.T) {
	h := startHost(t, func(h *host) {
		h.opts.Settings.Observe = true
		h.opts.Settings.SessionDelay = time.Hour
	})
	anna := h.login("1", "anna")
	h.pod("observed")
	h.want()
	until(t, "its veto", func() bool {
		return strings.Contains(h.node().Annotations["lockkeeper.dev/host"], `"veto":"Observe"`)
	})
	for _, state := range []string{"idle", "paused", "before-drain", "draining", "before-reboot", "rebooting", "applying", "before-uncordon", "uncordoning"} {
		h.promote(state, nil)
		until(t, "the host to see "+state, func() bool { return string(h.status().State) == state })
		// In idle and paused the host has nothing to wait for. It has no hook units of its own to run in a before-
		// state.
		if state != "idle" && state != "paused" && !strings.HasPrefix(state, "before-") {
			h.says("Observe")
		}
		// The loop runs on each change of the Node.
		for range 3 {
			patchNode(t, h.name, `{"metadata":{"annotations":{"example.org/changed":"`+time.Now().String()+`"}}}`)
			seen := h.node().ResourceVersion
			until(t, "the host to see a change", func() bool { return h.node().ResourceVersion >= seen })
		}
		never(t, "a disruptive request in "+state, 500*time.Millisecond, func() bool { return len(h.touches()) > 0 })
	}
	// The host's own cordon and mark from before it observed, in the state that removes them. Only the host's
	// credential can write a mark.
	kubelet, err := cp(t).NodeConfig(h.name)
	must(t, err)
	itself, err := kubernetes.NewForConfig(kubelet)
	must(t, err)
	_, err = itself.CoreV1().Nodes().Patch(t.Context(), h.name, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"lockkeeper.dev/cordon":"t1"}},"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
	must(t, err)
	never(t, "an uncordon", time.Second, func() bool { return len(h.touches()) > 0 || !h.node().Spec.Unschedulable })
	if len(h.reboots(simhost.RebootCalled))+len(h.reboots(simhost.RebootRefused)) > 0 {
		t.Error("the host called for a reboot")
	}
	if !h.hasPod("observed") {
		t.Error("the pod of the host is gone")
	}
	if text := anna.Text(); text != "" {
		t.Errorf("the logged-in user got a message:\n%s", text)
	}
	if _, err := os.Stat(h.sim.Root() + coordinatorConf); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("coordinator.conf: %v", err)
	}
	// With another mode the same host does act.
	s := h.opts.Settings
	s.Observe = false
	h.host.Reload(s)
	h.waitForCoordinatorState("reboot-planned")
	until(t, "the uncordon", func() bool { return len(h.touches()) > 0 && !h.node().Spec.Unschedulable })
}
