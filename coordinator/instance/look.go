package instance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/coordinator"
	"lockkeeper.dev/lockkeeper/coordinator/metrics"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/local"
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
		HostExpires: func() time.Time { ends, _ := l.host.now(); return ends },
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
		Credential: func() kube.Health {
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
	hostRefused := l.metrics.HostContact.Refused()
	hostExpires, hostUnread := l.host.now()
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
	switch {
	case hostUnread != nil:
		bad = append(bad, "the host's credential cannot be read: "+hostUnread.Error())
	case b.self.API != nil && b.self.API.Own && now.Sub(b.self.API.Since) >= lasting:
		bad = append(bad, "the host's credential: "+b.self.API.Error)
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
	if b.self.API != nil {
		fmt.Fprintf(&out, "API server: %s\n", oneLine(b.self.API.Error))
	}
	if !hostExpires.IsZero() {
		fmt.Fprintf(&out, "host's credential: valid until %s\n", clock(hostExpires))
	}
	if b.pass.File != "" {
		fmt.Fprintf(&out, "coordinator's credential: %s\n", oneLine(b.pass.Text(now)))
		for finding := range strings.Lines(b.pass.Exposed) {
			fmt.Fprintf(&out, "coordinator's credential: %s\n", oneLine(finding))
		}
	}
	return len(bad) == 0, out.String()
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

const (
	// hostPassFor is how long what was read of the host's credential is good for,
	// hostPassAgain how long it is where it could not be read.
	hostPassFor   = time.Minute
	hostPassAgain = time.Second
	// lasting is how long the host's credential has to be in trouble before
	// somebody has to mend it: a file that is being written, or a plugin whose
	// service starts anew, is well again by itself.
	lasting = 30 * time.Second
)

// hostPass knows when the host's own credential ends. It reads the file only
// when somebody looks, and not at each look.
type hostPass struct {
	path func() (string, error)

	mu     sync.Mutex
	read   time.Time
	ends   time.Time
	unread error     // why it cannot be read
	since  time.Time // that it cannot, as far as somebody looked
}

// now is when the credential ends, the zero time if nobody knows: there is none
// yet, or a plugin renews it. The error is why it cannot be read, and has been
// so for a while.
func (p *hostPass) now() (ends time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	good := hostPassFor
	if p.unread != nil {
		good = hostPassAgain
	}
	if p.read.IsZero() || time.Since(p.read) >= good {
		was := p.unread
		p.read = time.Now()
		p.ends, p.unread = p.look()
		if was == nil {
			p.since = p.read
		}
	}
	if p.unread != nil && time.Since(p.since) >= lasting {
		err = p.unread
	}
	return p.ends, err
}

// look reads the file. That there is none is no error: the host has not joined.
func (p *hostPass) look() (time.Time, error) {
	path, err := p.path()
	if err != nil {
		return time.Time{}, nil
	}
	info, _, err := kube.ReadFile(path)
	if err != nil {
		if _, gone := os.Stat(path); errors.Is(gone, fs.ErrNotExist) {
			return time.Time{}, nil
		}
	}
	return info.Expires, err
}
