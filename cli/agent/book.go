package agent

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/coordinator"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/systemd"
)

// book is what this instance says of itself: one line for the service manager
// and a file for `lockkeeper status` on this host.
type book struct {
	notifier *systemd.Notifier
	dir      string
	version  string
	log      *slog.Logger

	changed func() // has the host publish its part in the election again; set before the loops run

	mu      sync.Mutex
	self    local.Host // what the host's loop knows
	role    coordinator.Status
	stands  bool       // role was reported
	pass    kube.State // the coordinator's credential
	unseen  string     // why metrics are not served
	ready   bool       // the service has started
	failing bool       // the file cannot be written, and that was logged
}

func (b *book) host(s local.Host) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.self = s
	b.tell()
}

func (b *book) coordinator(s coordinator.Status) {
	b.mu.Lock()
	b.role, b.stands = s, true
	b.tell()
	b.mu.Unlock()
	b.changed() // which asks for the part
}

// term is the epoch of the term that this process leads, "" while it leads none.
func (b *book) term() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.role.Leader {
		return ""
	}
	return b.role.Epoch
}

func (b *book) credential(h kube.State) {
	b.mu.Lock()
	b.pass = h
	b.tell()
	b.mu.Unlock()
	b.changed()
}

// metrics takes in why metrics and health are not served.
func (b *book) metrics(problem string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unseen != problem {
		b.unseen = problem
		b.tell()
	}
}

func (b *book) started() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ready = true
}

// credentialStatus is how the coordinator's credential stands, nil where there
// is none; the caller holds mu.
func (b *book) credentialStatus() *local.Credential {
	h := &b.pass
	if !h.Present {
		return nil
	}
	c := &local.Credential{File: h.File, Why: cmp.Or(h.Error, h.RenewError)}
	if h.Exposed != "" {
		c.Exposed = strings.Split(h.Exposed, "\n")
	}
	if h.NotRenewed != "" {
		c.Why = "not renewed by lockkeeper: " + h.NotRenewed
	}
	for _, t := range []struct {
		from time.Time
		to   **time.Time
	}{{h.Expires, &c.Expires}, {h.Renews, &c.Renews}, {h.Refused, &c.Refused}} {
		if !t.from.IsZero() {
			*t.to = new(t.from.UTC())
		}
	}
	return c
}

// problem is what an admin has to fix about this host as a coordinator, "" for
// nothing; first is whether it is a credential that needs attention at once. The
// caller holds mu.
func (b *book) problem() (text string, first bool) {
	urgent, _ := b.pass.Problem(time.Now())
	finding, _, _ := strings.Cut(b.pass.Exposed, "\n")
	switch {
	case urgent != "":
		return urgent, true
	case b.role.Blocked && b.role.Leader:
		text = "cannot decide: " + b.role.Why
	case b.role.Blocked:
		text = "does not coordinate: " + b.role.Why
	}
	if finding != "" {
		text = strings.TrimPrefix(text+"; the coordinator's credential: "+finding, "; ")
	}
	return text, false
}

// line is what `systemctl status` shows; the caller holds mu. What a person has
// to do about the credential comes first: the end of a long line is cut.
func (b *book) line() string {
	line := b.self.Text()
	if b.role.Leader {
		line = "coordinates; " + line
	}
	switch problem, first := b.problem(); {
	case first:
		return problem + "; " + line
	case problem != "":
		line += "; " + problem
	}
	if b.unseen != "" {
		line += "; metrics are not served: " + b.unseen
	}
	return line
}

// standing is this host's part in the election, with no Role before it was reported;
// the caller holds mu.
func (b *book) standing() local.Coordinator {
	problem, _ := b.problem()
	c := local.Coordinator{Why: b.role.Why, Problem: problem, Credential: b.credentialStatus()}
	switch {
	case b.role.Leader:
		c.Role = v1alpha1.RoleLeader
	case b.role.Candidate:
		c.Role = v1alpha1.RoleStandby
	case b.stands:
		c.Role = v1alpha1.RoleHost
	}
	return c
}

// election is this host's part in the election.
func (b *book) election() local.Coordinator {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.standing()
}

// tell writes down what is known; the caller holds mu.
func (b *book) tell() {
	line := b.line()
	b.notifier.Status(line)
	s := local.Status{
		Time: time.Now().UTC(), PID: os.Getpid(), Version: b.version, Line: line, Host: b.self,
		Coordinator: b.standing(), Metrics: b.unseen,
	}
	err := local.Write(b.dir, s)
	if err != nil && !b.failing {
		b.log.Warn("cannot write the local view; lockkeeper status on this host will not show it", "err", err)
	}
	b.failing = err != nil
}

// warnings lets through what is a warning or worse.
type warnings struct{ slog.Handler }

// Enabled reports whether the level is a warning's and the handler wants it.
func (w warnings) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && w.Handler.Enabled(ctx, l)
}

// WithAttrs keeps the limit.
func (w warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warnings{w.Handler.WithAttrs(attrs)}
}

// WithGroup keeps the limit.
func (w warnings) WithGroup(name string) slog.Handler { return warnings{w.Handler.WithGroup(name)} }
