package systemd

import (
	"context"
	"log/slog"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

const (
	// journalMeans and journalDo are the keys of attributes that the journal's catalog shows: what a reason or a state means,
	// and what a person can do.
	journalMeans = "means"
	journalDo    = "do"
)

// journalOnly are the keys that do not appear in text.
var journalOnly = map[string]bool{MessageID: true, journalMeans: true, journalDo: true}

// LogEvent logs an event of a published kind, so that `journalctl -x` explains it. attrs must have the attributes that the
// kind's texts refer to; see messageDocs in packaging/render.
func LogEvent(log *slog.Logger, level slog.Level, id v1alpha1.MessageID, text string, attrs ...any) {
	log.Log(context.Background(), level, text, append([]any{MessageID, string(id)}, attrs...)...)
}

// ReasonAttr returns the attribute reason. In the journal it comes with what the reason means and what to do.
func ReasonAttr(reason v1alpha1.Reason) slog.Attr {
	d := reason.Doc()
	if d.Reason == "" {
		d.Means, d.Do = "a reason that this version of lockkeeper does not know", "read the documentation of the newer version"
	}
	return slog.Group("", "reason", string(reason), journalMeans, d.Means, journalDo, d.Do)
}

// StateAttr returns the attribute state. In the journal it comes with what the state means and what to do.
func StateAttr(state v1alpha1.State) slog.Attr {
	d := state.Doc()
	if d.Means == "" {
		d.Means, d.Do = "a state that this version of lockkeeper does not know", "upgrade lockkeeper on this host"
	}
	return slog.Group("", "state", state.String(), journalMeans, d.Means, journalDo, d.Do)
}

// HeldLevel returns the level at which to log that a node is held: a warning if a person has to do something. Every host is
// Unhealthy for a while after its boot; one that stays so fails its turn, and that is an error.
func HeldLevel(reason v1alpha1.Reason) slog.Level {
	switch reason {
	case v1alpha1.ReasonFailed, v1alpha1.ReasonOverdue, v1alpha1.ReasonHostSilent, v1alpha1.ReasonForbidden, v1alpha1.ReasonNoCoordinator,
		v1alpha1.ReasonHookFailed, v1alpha1.ReasonUnknownState, v1alpha1.ReasonVersionSkew, v1alpha1.ReasonInvalidPolicy:
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// LogTurnEnd logs how a turn ended. The text begins with whose, such as "the turn".
func LogTurnEnd(log *slog.Logger, whose string, l *v1alpha1.Last, attrs ...any) {
	attrs = append(attrs, "turn", l.Turn, "result", string(l.Result))
	text := whose + " ended: " + string(l.Result)
	if l.Reason != "" {
		text += " (" + string(l.Reason) + ")"
		attrs = append(attrs, ReasonAttr(l.Reason))
	}
	level, id := slog.LevelInfo, v1alpha1.MessageTurnEnded
	switch {
	case l.Result == v1alpha1.ResultFailed && l.Reason != "":
		level, id = slog.LevelError, v1alpha1.MessageTurnFailed
	case l.Result == v1alpha1.ResultBackedOut:
		level = slog.LevelWarn
	}
	LogEvent(log, level, id, text, attrs...)
}
