package agent

import (
	"fmt"
	"strings"
	"time"

	"lockkeeper.dev/lockkeeper/cli/agent/metrics"
	"lockkeeper.dev/lockkeeper/coordinator"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/systemd"
)

// look is what others see of this instance at /metrics and /healthz.
type look struct {
	book              *book
	metrics           *metrics.Metrics
	liveness          *systemd.Liveness
	host, coordinator *kube.Credential
}

func (l *look) sources() metrics.Sources {
	return metrics.Sources{
		Healthy:     func() bool { ok, _ := l.healthAt(time.Now()); return ok },
		Credentials: func() []kube.State { return []kube.State{l.host.State(), l.coordinator.State()} },
		Host: func() local.Host {
			l.book.mu.Lock()
			defer l.book.mu.Unlock()
			return l.book.self
		},
		Role: func() coordinator.Status {
			l.book.mu.Lock()
			defer l.book.mu.Unlock()
			return l.book.role
		},
	}
}

// health reports whether all is well that a person on this host could fix, and what
// else is known. An API server that does not answer, and a turn that waits, are fine.
func (l *look) health() (ok bool, text string) { return l.healthAt(time.Now()) }

func (l *look) healthAt(now time.Time) (ok bool, text string) {
	late := l.liveness.Late()
	host, own := l.host.State(), l.coordinator.State()
	b := l.book
	b.mu.Lock()
	defer b.mu.Unlock()
	var bad []string
	if !b.ready {
		bad = append(bad, "it is starting")
	}
	for _, loop := range late {
		bad = append(bad, "a loop is stuck: "+loop)
	}
	for _, s := range []*kube.State{&host, &own} {
		if text, fails := s.Problem(now); fails {
			bad = append(bad, text)
		}
	}
	var out strings.Builder
	if len(bad) == 0 {
		out.WriteString("ok\n")
	} else {
		out.WriteString("unhealthy: " + oneLine(strings.Join(bad, "; ")) + "\n")
	}
	fmt.Fprintf(&out, "status: %s\n", oneLine(b.line()))
	answered := "not yet"
	if !host.Answered.IsZero() {
		answered = "at " + clock(host.Answered)
	}
	fmt.Fprintf(&out, "API server answered last: %s\n", answered)
	if b.self.API != nil {
		fmt.Fprintf(&out, "API server: %s\n", oneLine(b.self.API.Error))
	}
	if !host.Expires.IsZero() {
		fmt.Fprintf(&out, "host's credential: valid until %s\n", clock(host.Expires))
	}
	if own.File != "" {
		fmt.Fprintf(&out, "coordinator's credential: %s\n", oneLine(own.Text(now)))
		for finding := range strings.Lines(own.Exposed) {
			fmt.Fprintf(&out, "coordinator's credential: %s\n", oneLine(finding))
		}
	}
	return len(bad) == 0, out.String()
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
