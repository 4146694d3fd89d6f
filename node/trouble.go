package node

import (
	"cmp"
	"errors"
	"log/slog"
	"regexp"
	"time"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
	"lockkeeper.dev/lockkeeper/kube"
	"lockkeeper.dev/lockkeeper/node/local"
	"lockkeeper.dev/lockkeeper/node/turn"
	"lockkeeper.dev/lockkeeper/systemd"
)

// complainEvery is how often the journal has the same trouble again, as long
// as it lasts: it is tried every few seconds.
const complainEvery = 10 * time.Minute

// complaint is what the journal was last told of.
type complaint struct {
	text string
	at   time.Time
}

// hostError is a failure on this host, not at the API server.
type hostError struct{ error }

func (e hostError) Unwrap() error { return e.error }

// explain says what a failure means, nil if there is none.
func (h *Host) explain(err error) *kube.Trouble {
	if _, own := errors.AsType[hostError](err); own || h.client == nil {
		return kube.ExplainSetup(err)
	}
	return h.client.Explain(err)
}

// apiTrouble is why the API server cannot be used at present, or soon, or nil.
func (h *Host) apiTrouble() error {
	if err := h.view.Err(); err != nil {
		return err
	}
	return h.client.Check()
}

// complain has the journal tell of a trouble, when it begins and then from time
// to time. What client-go says of it is no more than an echo.
func (h *Host) complain(t *kube.Trouble, attrs ...any) {
	if alike(t.Text, h.complained.text) && time.Since(h.complained.at) < complainEvery {
		h.log.Debug("still cannot go on", append([]any{"err", t.Text}, attrs...)...)
		return
	}
	h.complained = complaint{t.Text, time.Now()}
	attrs = append([]any{"err", t.Text}, attrs...)
	if t.Reason != "" {
		attrs = append(attrs, "reason", string(t.Reason))
	}
	if t.GoesOn {
		h.log.Warn("goes on, but not for long perhaps", attrs...)
		return
	}
	systemd.LogEvent(h.log, slog.LevelWarn, v1alpha1.MessageTrouble, "cannot go on for now", attrs...)
}

// alike reports whether two texts differ in nothing but numbers: ports and
// counts are others with each try.
func alike(a, b string) bool {
	return figures.ReplaceAllString(a, "#") == figures.ReplaceAllString(b, "#")
}

var figures = regexp.MustCompile("[0-9]+")

// contented has the journal tell that a trouble is over.
func (h *Host) contented() {
	if h.complained.text != "" {
		h.log.Info("goes on: the trouble is over", "was", h.complained.text)
		h.complained = complaint{}
	}
}

// trouble reports a failure of the loop itself. What was last observed stands, as
// far as the Node is still the same. reason is for a failure that says none.
func (h *Host) trouble(reason v1alpha1.Reason, err error) {
	t := h.explain(err)
	n := h.facts()
	if n == nil {
		n = &turn.Node{}
	}
	s := h.told
	if s.UID != n.UID {
		s = local.Host{Node: h.name, BootID: h.self.bootID, OS: h.self.os()}
	}
	s.Turn, s.TurnSince, s.StageSince, s.Course = "", time.Time{}, time.Time{}, nil
	if h.describe(&s, n); s.State != h.told.State || s.Turn != h.told.Turn {
		s.Blockers, s.Drain = nil, nil
	}
	s.Waits, s.Detail, s.Since, s.API = cmp.Or(t.Reason, reason), "", time.Now(), nil
	if _, own := errors.AsType[hostError](err); own {
		s.Detail = t.Text
	} else {
		s.API = failure(t)
	}
	if h.failing.IsZero() {
		h.failing = s.Since
	}
	s.Since = h.failing
	s.Activity = local.ActivityFailing
	s.Blockers = h.blockers.list(append(failing(&s), s.Blockers...), time.Now())
	h.report(s)
}

// failure is a trouble with the API server; report says since when.
func failure(t *kube.Trouble) *local.Failure {
	return &local.Failure{Error: t.Text, Reason: t.Reason, RefusedBy: t.RefusedBy, Own: t.Own, GoesOn: t.GoesOn}
}
