package systemd

import (
	"context"
	"log/slog"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const (
	// journalMeans and journalDo are attribute keys that go to the journal alone, for its catalog to show: what a reason
	// or a state means, and what a person can do.
	journalMeans = "means"
	journalDo    = "do"
)

// journalOnly are the keys that do not appear in text.
var journalOnly = map[string]bool{MessageID: true, journalMeans: true, journalDo: true}

// Tell logs an event of a published kind, so that `journalctl -x` explains it. attrs have to hold what the kind's
// texts speak of; see v1alpha1.MessageDocs.
func Tell(log *slog.Logger, level slog.Level, id v1alpha1.MessageID, text string, attrs ...any) {
	log.Log(context.Background(), level, text, append([]any{MessageID, string(id)}, attrs...)...)
}

// Why is the attribute reason with, for the journal, what it means and what to do.
func Why(reason v1alpha1.Reason) slog.Attr {
	d := reason.Doc()
	if d.Reason == "" {
		d.Means, d.Do = "a reason that this version of lockkeeper does not know", "look at the documentation of the newer one"
	}
	return slog.Group("", "reason", string(reason), journalMeans, d.Means, journalDo, d.Do)
}

// In is the attribute state with, for the journal, what it means and what to do.
func In(state v1alpha1.State) slog.Attr {
	d := state.Doc()
	if d.Means == "" {
		d.Means, d.Do = "a state that this version of lockkeeper does not know", "upgrade lockkeeper on this host"
	}
	return slog.Group("", "state", state.String(), journalMeans, d.Means, journalDo, d.Do)
}

// Gravity is how grave it is that a node is held: a warning where a person has to do something.
func Gravity(reason v1alpha1.Reason) slog.Level {
	switch reason {
	case v1alpha1.ReasonFailed, v1alpha1.ReasonOverdue, v1alpha1.ReasonHostSilent, v1alpha1.ReasonForbidden, v1alpha1.ReasonNoCoordinator,
		v1alpha1.ReasonHookFailed, v1alpha1.ReasonUnhealthy, v1alpha1.ReasonUnknownState, v1alpha1.ReasonVersion, v1alpha1.ReasonInvalidPolicy:
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// TellEnd logs how a turn ended; whose is what the text begins with.
func TellEnd(log *slog.Logger, whose string, l *v1alpha1.Last, attrs ...any) {
	attrs = append(attrs, "turn", l.Turn, "result", string(l.Result))
	text := whose + " ended: " + string(l.Result)
	if l.Reason != "" {
		text += " (" + string(l.Reason) + ")"
		attrs = append(attrs, Why(l.Reason))
	}
	switch {
	case l.Result == v1alpha1.ResultFailed && l.Reason != "":
		Tell(log, slog.LevelError, v1alpha1.MessageTurnFailed, text, attrs...)
	case l.Result == v1alpha1.ResultTurnedBack:
		Tell(log, slog.LevelWarn, v1alpha1.MessageTurnEnded, text, attrs...)
	default:
		Tell(log, slog.LevelInfo, v1alpha1.MessageTurnEnded, text, attrs...)
	}
}
