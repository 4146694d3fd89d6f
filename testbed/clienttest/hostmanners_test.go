package clienttest

import (
	"testing"
	"time"
)

// A sentinel that comes or goes is published at once, however seldom the host polls.
func TestSentinelIsPublishedBeforeThePoll(t *testing.T) {
	h := startHost(t, func(h *host) { h.opts.PollInterval = time.Hour })
	h.wants("nothing")
	began := time.Now()
	h.want()
	must(t, h.sim.RemoveFile(sentinel))
	h.wants("nothing")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v to publish that it came and went", took)
	}
}
