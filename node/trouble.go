package node

import (
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

// repeatTrouble is the interval at which the host logs a problem that lasts. The host itself
// tries again every few seconds.
const repeatTrouble = 10 * time.Minute

// loggedTrouble is the last problem that was logged.
type loggedTrouble struct {
	text string
	at   time.Time
}

// hostError is a failure on this host, not at the API server.
type hostError struct{ error }

func (e hostError) Unwrap() error { return e.error }

// explain returns an explanation of the error, or nil for a nil error.
func (h *Host) explain(err error) *kube.Trouble {
	if _, own := errors.AsType[hostError](err); own || h.client == nil {
		return kube.ExplainSetup(err)
	}
	return h.client.Explain(err)
}

// apiTrouble returns why the host cannot use the API server, now or soon. It returns nil if it
// can.
func (h *Host) apiTrouble() error {
	if err := h.view.Err(); err != nil {
		return err
	}
	return h.client.Check()
}

// logTrouble logs a problem when it begins, and again every repeatTrouble while it lasts.
func (h *Host) logTrouble(t *kube.Trouble, attrs ...any) {
	attrs = append([]any{"err", t.Text}, attrs...)
	if sameTrouble(t.Text, h.troubled.text) && time.Since(h.troubled.at) < repeatTrouble {
		h.log.Debug("still cannot continue", attrs...)
		return
	}
	h.troubled = loggedTrouble{t.Text, time.Now()}
	if t.Reason != "" {
		attrs = append(attrs, "reason", string(t.Reason))
	}
	if t.Usable {
		h.log.Warn("continues for now, with a problem", attrs...)
		return
	}
	systemd.LogEvent(h.log, slog.LevelWarn, v1alpha1.MessageTrouble, "cannot continue for now", attrs...)
}

// sameTrouble reports whether two texts differ only in numbers, such as the port of a
// connection or a count of attempts.
func sameTrouble(a, b string) bool {
	return numbers.ReplaceAllString(a, "#") == numbers.ReplaceAllString(b, "#")
}

var numbers = regexp.MustCompile("[0-9]+")

// logTroubleOver logs that the last logged problem is over.
func (h *Host) logTroubleOver() {
	if h.troubled.text != "" {
		h.log.Info("continues: the problem is over", "was", h.troubled.text)
		h.troubled = loggedTrouble{}
	}
}

// trouble reports a failure of the loop, together with the last observation if that is of the
// same Node.
func (h *Host) trouble(err error) {
	t := h.explain(err)
	n := h.facts()
	if n == nil {
		n = &turn.Node{}
	}
	s := h.observed
	if s.UID != n.UID {
		s = local.Host{Node: h.name, BootID: h.self.bootID, OS: h.self.os()}
	}
	s.Turn, s.TurnSince, s.StageSince, s.Course = "", time.Time{}, time.Time{}, nil
	if h.describe(&s, n); s.State != h.observed.State || s.Turn != h.observed.Turn {
		s.Blockers, s.Drain = nil, nil
	}
	s.Waits, s.Detail, s.Since, s.API = t.Reason, "", time.Now(), nil
	if _, own := errors.AsType[hostError](err); own {
		s.Detail = t.Text
	} else {
		s.API = failure(t)
	}
	if h.reported.Activity == local.ActivityFailing {
		s.Since = h.reported.Since
	}
	s.Activity = local.ActivityFailing
	s.Blockers = h.blockers.list(append(failing(&s), s.Blockers...), time.Now())
	h.report(s)
}

// failure returns the record of a problem with the API server. report sets its Since.
func failure(t *kube.Trouble) *local.Failure {
	return &local.Failure{Error: t.Text, Reason: t.Reason, RefusedBy: t.RefusedBy, Local: t.Local, Usable: t.Usable}
}
