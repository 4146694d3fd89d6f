package virtual

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"
)

// TestCountsWhatIsChecked checks that what a watch brings counts as known only once its process has checked the watch against the store: it drops a
// watch that it cannot check.
func TestCountsWhatIsChecked(t *testing.T) {
	c := told{next: answering(http.StatusOK)}
	begin := func() {
		if _, err := c.RoundTrip(newRequest(t.Context(), t, http.MethodGet, policiesPath+"?watch=true", "")); err != nil {
			t.Fatal(err)
		}
	}
	request := func(query, text string) {
		c.arrives(describe("n1", roleCoordinator, newRequest(t.Context(), t, http.MethodGet, policiesPath+query, ""), nil), []byte(text))
	}
	list := func(version int) { request("", fmt.Sprintf(`{"metadata":{"resourceVersion":"%d"}}`, version)) }
	check := func(text string) { request("?limit=1", text) }
	event := func(version int) {
		request("?watch=true", fmt.Sprintf(`{"type":"DELETED","object":{"metadata":{"resourceVersion":"%d"}}}`, version))
	}
	const answer = `{"metadata":{"resourceVersion":"50"}}`
	is := func(want ...int64) {
		t.Helper()
		var versions []int64
		for _, k := range c.knows {
			versions = append(versions, k.version)
		}
		if !slices.Equal(versions, want) {
			t.Errorf("it knows %v, expected %v", versions, want)
		}
	}
	list(1)
	begin()
	event(2)
	is(1)
	check(answer[:20]) // cut off
	is(1)
	begin()
	check(answer)
	is(1) // 2 was dropped with its watch
	event(3)
	is(1, 3)
	begin()
	event(4)
	is(1, 3)
	check(answer)
	is(1, 3, 4)
}

// TestBeginsByPolicies checks that a leader begins no turn by a policy that it has read to be paused, observing, closed or deleted.
func TestBeginsByPolicies(t *testing.T) {
	for _, mode := range []string{"paused", "observe", "window", "deleted"} {
		t.Run(mode, func(t *testing.T) {
			inBubble(t, Options{Hosts: 2, Plan: plan(t, "1m policy for=20m mode="+mode+"\n")}, func(t *testing.T, f *Fleet) {
				f.Start()
				_ = pause(f.ctx, 2*time.Minute)
				f.Stage("n2", "2.0.0")
				if why := f.Arrive(time.Hour); why != "" {
					t.Error(why)
				}
			})
		})
	}
}
