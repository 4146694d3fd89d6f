package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/cli/agent/metrics"
	"lockkeeper.dev/lockkeeper/coordinator"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/systemd"
)

// record is what this instance reports about itself: one line for the service manager, a
// file for `lockkeeper status` on this host, /healthz, and the metrics of the present
// moment.
type record struct {
	notifier *systemd.Notifier
	liveness *systemd.Liveness
	dir      string
	version  string
	log      *slog.Logger

	hostCredential, coordinatorCredential *kube.Credential
	// republish has the host publish its part in the election again; set before the loops run.
	republish func()

	mu        sync.Mutex
	host      local.Host // what the host's loop knows
	role      coordinator.Status
	roleKnown bool // role was reported
	// Why metrics, and FleetLock, are not served; "" if they are, or if they are switched off.
	metricsErr, fleetLockErr string
	// configErr is why the last reload changed nothing; "" if it did not fail.
	configErr string

	ready   bool   // the service has started
	failing bool   // the file cannot be written, and that was logged
	written []byte // what the file says, without the time
}

func (r *record) setHost(h local.Host) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.host = h
	r.write()
}

func (r *record) setRole(s coordinator.Status) {
	r.mu.Lock()
	r.role, r.roleKnown = s, true
	r.write()
	r.mu.Unlock()
	r.republish() // which asks for the part
}

// credentialChanged takes in that the coordinator's credential has changed.
func (r *record) credentialChanged(kube.State) {
	r.mu.Lock()
	r.write()
	r.mu.Unlock()
	r.republish()
}

// set stores why something does not work in one of the record's fields; "" if it works.
func (r *record) set(field *string, problem string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if *field != problem {
		*field = problem
		r.write()
	}
}

// setMetricsErr takes in why metrics and health are not served.
func (r *record) setMetricsErr(problem string) { r.set(&r.metricsErr, problem) }

// setFleetLockErr takes in why FleetLock is not served.
func (r *record) setFleetLockErr(problem string) { r.set(&r.fleetLockErr, problem) }

// setConfigErr takes in why the last reload changed nothing, "" if it did not fail.
func (r *record) setConfigErr(problem string) { r.set(&r.configErr, problem) }

func (r *record) setReady() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready = true
}

// term returns the epoch of the term that this process leads, "" while it leads none.
func (r *record) term() string {
	if role := r.currentRole(); role.Leader {
		return role.Epoch
	}
	return ""
}

func (r *record) currentRole() coordinator.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.role
}

func (r *record) currentHost() local.Host {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.host
}

// credential returns the coordinator's credential for `lockkeeper status`, nil if there
// is none.
func credential(h *kube.State) *local.Credential {
	if !h.Present {
		return nil
	}
	c := &local.Credential{File: h.File, Why: h.Error}
	if h.Error == "" && h.RenewError != "" {
		c.Why = fmt.Sprintf("renewing it has failed since %s: %s", clock(h.RenewErrorSince), h.RenewError)
	}
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

// problem returns what an admin has to fix about this host as a coordinator, "" for
// nothing; urgent is whether it is the credential itself. The caller holds mu.
func (r *record) problem(credential *kube.State) (text string, urgent bool) {
	if text, _ := credential.Problem(time.Now()); text != "" {
		return text, true
	}
	switch {
	case r.role.Blocked && r.role.Leader:
		text = r.role.Why // it begins with "it leads"
	case r.role.Blocked:
		text = "does not coordinate: " + r.role.Why
	}
	if finding, _, _ := strings.Cut(credential.Exposed, "\n"); finding != "" {
		text = strings.TrimPrefix(text+"; the coordinator's credential: "+finding, "; ")
	}
	return text, false
}

// line returns what `systemctl status` shows; the caller holds mu. What a person has
// to do about the credential comes first: the end of a long line is cut.
func (r *record) line(problem string, urgent bool) string {
	line := r.host.Text()
	if r.role.Leader {
		line = "coordinates; " + line
	}
	switch {
	case urgent:
		return problem + "; " + line
	case problem != "":
		line += "; " + problem
	}
	if r.configErr != "" {
		line += "; " + r.configErr
	}
	if r.metricsErr != "" {
		line += "; metrics are not served: " + r.metricsErr
	}
	if r.fleetLockErr != "" {
		line += "; FleetLock is not served: " + r.fleetLockErr
	}
	return line
}

// summary returns the line, and this host's part in the election, with no Role before it
// was reported; the caller holds mu.
func (r *record) summary() (line string, c local.Coordinator) {
	own := r.coordinatorCredential.State()
	problem, urgent := r.problem(&own)
	c = local.Coordinator{Why: r.role.Why, Problem: problem, Credential: credential(&own)}
	switch {
	case r.role.Leader:
		c.Role = v1alpha1.RoleLeader
	case r.role.Candidate:
		c.Role = v1alpha1.RoleStandby
	case r.roleKnown:
		c.Role = v1alpha1.RoleHost
	}
	return r.line(problem, urgent), c
}

// election returns this host's part in the election.
func (r *record) election() local.Coordinator {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, c := r.summary()
	return c
}

// write writes what is known, if it has changed; the caller holds mu. An idle host reports the same
// twice a minute.
func (r *record) write() {
	line, c := r.summary()
	r.notifier.Status(line)
	s := local.Status{PID: os.Getpid(), Version: r.version, Line: line, Host: r.host, Coordinator: c, Metrics: r.metricsErr, FleetLock: r.fleetLockErr}
	is, err := json.Marshal(s)
	if err == nil && bytes.Equal(is, r.written) {
		return
	}
	if s.Time = time.Now().UTC(); err == nil {
		err = local.Write(r.dir, s)
	}
	if r.written = is; err != nil {
		r.written = nil // try again
		if !r.failing {
			r.log.Warn("cannot write the local status; lockkeeper status on this host will not show it", "err", err)
		}
	}
	r.failing = err != nil
}

// sources returns where the metrics of the present moment come from.
func (r *record) sources() metrics.Sources {
	return metrics.Sources{
		Healthy:     func() bool { ok, _ := r.health(); return ok },
		Credentials: func() []kube.State { return []kube.State{r.hostCredential.State(), r.coordinatorCredential.State()} },
		Host:        r.currentHost,
		Role:        r.currentRole,
	}
}

// health reports whether there is nothing that a person on this host has to fix, and what
// else is known. An API server that does not answer, and a turn that waits, are healthy.
func (r *record) health() (ok bool, text string) { return r.healthAt(time.Now()) }

func (r *record) healthAt(now time.Time) (ok bool, text string) {
	late := r.liveness.Late()
	host, own := r.hostCredential.State(), r.coordinatorCredential.State()
	r.mu.Lock()
	defer r.mu.Unlock()
	var bad []string
	if !r.ready {
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
	if r.configErr != "" {
		bad = append(bad, r.configErr)
	}
	var out strings.Builder
	add := func(format string, args ...any) {
		out.WriteString(strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ") + "\n")
	}
	if len(bad) == 0 {
		add("ok")
	} else {
		add("unhealthy: %s", strings.Join(bad, "; "))
	}
	line, _ := r.summary()
	add("status: %s", line)
	answered := "not yet"
	if !host.Answered.IsZero() {
		answered = "at " + clock(host.Answered)
	}
	add("API server answered last: %s", answered)
	if r.host.API != nil {
		add("API server: %s", r.host.API.Error)
	}
	if !host.Expires.IsZero() {
		valid := "valid until"
		if !host.Expires.After(now) {
			valid = "EXPIRED at"
		}
		add("host's credential: %s %s", valid, clock(host.Expires))
	}
	if own.File != "" {
		add("coordinator's credential: %s", cmp.Or(credential(&own).Text(now), own.Error, "none at "+own.File))
	}
	return len(bad) == 0, out.String()
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// warnings is a handler of warnings and errors only.
type warnings struct{ slog.Handler }

// Enabled reports whether the level is a warning or more severe, and enabled.
func (w warnings) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && w.Handler.Enabled(ctx, l)
}

// WithAttrs keeps the limit.
func (w warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warnings{w.Handler.WithAttrs(attrs)}
}

// WithGroup keeps the limit.
func (w warnings) WithGroup(name string) slog.Handler { return warnings{w.Handler.WithGroup(name)} }
