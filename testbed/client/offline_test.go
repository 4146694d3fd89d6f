package client

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
)

// TestOfflineIsPublished stages an update while the API server has never been reachable, and then restarts lockkeeper.
// The host must publish the past events once, with their own times, when the API server answers.
func TestOfflineIsPublished(t *testing.T) {
	h := startHost(t, func(h *host) {
		h.w.on(func(context.Context, request, func() (*http.Response, error)) (*http.Response, error) {
			return nil, errCut
		})
	})
	until(t, "the host to notice that the API server is unreachable", func() bool { return h.status().API != nil })
	must(t, h.sim.StageUpdate("4.2.0"))
	staged := func() bool { e := h.status().Engine; return e != nil && e.Operation == "UPDATED_NEED_REBOOT" }
	until(t, "the host to see the update", staged)
	h.stop()
	h.run()
	until(t, "the next process to see it", staged)
	back := time.Now()
	h.w.on(nil)

	admin, err := kube.ConnectConfig(cp(t).AdminConfig(), "testbed", "", 20, 20)
	must(t, err)
	var u *v1alpha1.HostUpdate
	until(t, "the HostUpdate", func() bool {
		u, err = kube.ReadHostUpdate(t.Context(), admin, h.name)
		return err == nil && u != nil && len(u.Status.Offline) > 0
	})
	seen := 0
	for i, e := range u.Status.Offline {
		if strings.Contains(string(e.Message), "UPDATED_NEED_REBOOT") {
			seen++
		}
		if e.Time.After(back) || i > 0 && e.Time.Before(&u.Status.Offline[i-1].Time) {
			t.Errorf("event %d has the time %v, but the API server was back at %v", i, e.Time, back)
		}
	}
	if seen == 0 {
		t.Errorf("the update is missing in %+v", u.Status.Offline)
	}
	h.wants("reboot")
	published := h.w.count("PATCH hostupdate")
	h.stop()
	h.run()
	h.wants("reboot")
	if now := h.w.count("PATCH hostupdate"); now > published+1 {
		t.Errorf("%d HostUpdate writes after a restart, expected at most one", now-published)
	}
}
