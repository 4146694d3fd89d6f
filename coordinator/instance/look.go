package instance

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/coordinator"
	"lockkeeper.dev/lockkeeper/coordinator/credential"
	"lockkeeper.dev/lockkeeper/coordinator/metrics"
	"lockkeeper.dev/lockkeeper/systemd"
)

// look is what others see of this instance at /metrics and /healthz.
type look struct {
	book     *book
	metrics  *metrics.Metrics
	liveness *systemd.Liveness
	host     hostPass
}

func (l *look) sources() metrics.Sources {
	return metrics.Sources{
		Healthy:     func() bool { ok, _ := l.health(); return ok },
		HostExpires: l.host.expires,
		Host: func() metrics.Host {
			l.book.mu.Lock()
			defer l.book.mu.Unlock()
			s := &l.book.node
			h := metrics.Host{State: s.State, Waits: s.Waits, Since: s.Since, Turn: s.TurnSince, Stage: s.StageSince}
			if s.Known {
				h.Wants = s.Wants
			}
			return h
		},
		Role: func() coordinator.Status {
			l.book.mu.Lock()
			defer l.book.mu.Unlock()
			return l.book.role
		},
		Credential: func() credential.Health {
			l.book.mu.Lock()
			defer l.book.mu.Unlock()
			return l.book.pass
		},
	}
}

// health says whether there is something on this host that a person has to
// mend, and tells what else is known. An API server that is away, and a turn
// that waits, are nothing of that kind.
func (l *look) health() (ok bool, text string) {
	now := time.Now()
	late := l.liveness.Late()
	hostRefused, hostExpires := l.metrics.HostContact.Refused(), l.host.expires()
	refused, last := l.metrics.CoordinatorContact.Refused(), l.metrics.HostContact.Last()

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
	if !hostRefused.IsZero() {
		bad = append(bad, "the API server has refused the host's credential since "+clock(hostRefused))
	}
	if !hostExpires.IsZero() && now.After(hostExpires) {
		bad = append(bad, "the host's credential expired at "+clock(hostExpires))
	}
	if left, known := b.pass.Left(now); b.pass.Present {
		switch {
		case b.pass.Problem != "":
			bad = append(bad, "the coordinator's credential: "+b.pass.Problem)
		case known && left <= 0:
			bad = append(bad, b.pass.Warning(now))
		case !refused.IsZero():
			bad = append(bad, fmt.Sprintf("the API server has refused the coordinator's credential in %s since %s", b.pass.File, clock(refused)))
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
	if !last.IsZero() {
		answered = "at " + clock(last)
	}
	fmt.Fprintf(&out, "API server answered last: %s\n", answered)
	if b.node.APIError != "" {
		fmt.Fprintf(&out, "API server: %s\n", oneLine(b.node.APIError))
	}
	if !hostExpires.IsZero() {
		fmt.Fprintf(&out, "host's credential: valid until %s\n", clock(hostExpires))
	}
	if b.pass.File != "" {
		fmt.Fprintf(&out, "coordinator's credential: %s\n", oneLine(b.pass.Text(now)))
	}
	return len(bad) == 0, out.String()
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// hostPassFor is how long what was read of the host's credential is good for.
const hostPassFor = time.Minute

// hostPass knows when the host's own credential ends. It reads the file only
// when somebody looks, and not at each look.
type hostPass struct {
	path func() (string, error)

	mu   sync.Mutex
	read time.Time
	ends time.Time
}

// expires is the zero time if nobody knows: there is none yet, or a plugin
// renews it.
func (p *hostPass) expires() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.read.IsZero() && time.Since(p.read) < hostPassFor {
		return p.ends
	}
	p.read, p.ends = time.Now(), time.Time{}
	path, err := p.path()
	if err != nil {
		return p.ends
	}
	if info, _, err := credential.ReadFile(path); err == nil {
		p.ends = info.Expires
	}
	return p.ends
}
