package local

import (
	"fmt"
	"strings"

	"lockkeeper.dev/lockkeeper/api/v1alpha1"
)

// Text returns the record as the line that `systemctl status` shows: the host's state, what it
// does or waits for and since when, any trouble with the API server or the kubeconfig, and what it
// wants. The most important part comes first, because systemd cuts long lines.
func (h Host) Text() string {
	var b strings.Builder
	s := &h
	aim := ""
	if s.State == v1alpha1.StateAbsent && s.Node == "" && s.API != nil {
		aim, s.Detail = s.Detail, "" // the API error is more important and comes first
		if s.Waits == v1alpha1.ReasonNotReady {
			s.Waits = ""
		}
	}
	switch {
	case s.State == v1alpha1.StateAbsent && s.Node == "":
		b.WriteString("starting")
	case s.State == v1alpha1.StateAbsent && (s.Waits == v1alpha1.ReasonUnmanaged || s.Waits == v1alpha1.ReasonDetached):
		b.WriteString("not managed") // an admin's choice, and no coordinator's absence
	case s.State == v1alpha1.StateAbsent:
		b.WriteString("no coordinator manages this node")
	case s.State.InTurn():
		fmt.Fprintf(&b, "%s (turn %s)", s.State, s.Turn)
	default:
		b.WriteString(s.State.String())
	}
	since := ""
	if !s.Since.IsZero() {
		since = " since " + s.Since.UTC().Format("2006-01-02 15:04:05 UTC")
	}
	switch what := s.activity(); {
	case what != "":
		b.WriteString("; " + what + since)
		since = ""
	case s.API == nil:
		b.WriteString(since)
	}
	if s.API != nil {
		with := "the API server"
		if s.API.Local {
			with = "this host's kubeconfig"
		}
		fmt.Fprintf(&b, "; trouble with %s%s: %s", with, since, s.API.Error)
	}
	if aim != "" {
		b.WriteString("; " + aim)
	}
	if s.Wants.Something() {
		names := make([]string, 0, len(s.Changes))
		for _, c := range s.Changes {
			names = append(names, c.String())
		}
		fmt.Fprintf(&b, "; wants %s for %s", s.Wants, strings.Join(names, ", "))
	}
	return b.String()
}

// activity returns what the host does or waits for.
func (h *Host) activity() string {
	switch {
	case h.Activity == ActivityQueued && h.Waits != "":
		return fmt.Sprintf("%s: %s", h.Detail, h.Waits)
	case h.Activity == ActivityQueued:
		return h.Detail
	case h.Waits != "" && h.Detail != "":
		return fmt.Sprintf("waits: %s (%s)", h.Waits, h.Detail)
	case h.Waits != "":
		return "waits: " + string(h.Waits)
	case h.Detail != "":
		return map[Activity]string{ActivityWorking: "at work on ", ActivityFailing: "cannot continue for now: ", "": "waits for "}[h.Activity] + h.Detail
	case h.API == nil && h.Wants == v1alpha1.WantsNothing && !h.State.InTurn():
		return "up to date"
	case h.State.InTurn() && h.API == nil:
		return "waits for the coordinator"
	}
	return ""
}
